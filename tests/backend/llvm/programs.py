"""Small functions of the loop IR, and sample data for them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from relayc.te.dtype import dtype as dtype_of
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    PrimFunc,
    Var,
    convert,
    decl_buffer,
    ramp,
)

rng = np.random.default_rng(7)


def make(body, *params, **attrs):
    """A function over buffers and scalar variables."""
    handles = [p.data if isinstance(p, Buffer) else p for p in params]
    buffers = {p.data: p for p in params if isinstance(p, Buffer)}
    return PrimFunc(tuple(handles), body, buffers, {"global_symbol": "f", **attrs})


def loop(extent, body, kind=ForKind.SERIAL, start=0, dtype="int32"):
    i = Var("i", dtype_of(dtype))
    return For(i, convert(start), convert(extent), kind, body(i))


def elementwise(compute, inputs, result, lanes, count):
    """result[...] = compute(loads of inputs...) in vectors of `lanes`."""
    buffers = [decl_buffer((count,), d, name=f"A{k}") for k, d in enumerate(inputs)]
    out = decl_buffer((count,), result, name="C")

    def body(i):
        at = (ramp(i * lanes, 1, lanes),)
        return BufferStore(out, compute(*[BufferLoad(b, at) for b in buffers]), at)

    return make(loop(count // lanes, body), *buffers, out)


def sample(dtype, count, low=-100, high=100):
    dtype = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind == "u":
        return rng.integers(0, high, count).astype(dtype)
    if dtype.kind == "i":
        return rng.integers(low, high, count).astype(dtype)
    return rng.uniform(low, high, count).astype(dtype)


def assert_same(pairs, rtol=0.0):
    for mine, expected in pairs:
        assert mine.dtype == expected.dtype
        if rtol and mine.dtype.kind not in "iub":
            np.testing.assert_allclose(mine.astype("f8"), expected.astype("f8"), rtol=rtol, atol=rtol)
        else:
            exact = mine.dtype.kind in "iub"
            np.testing.assert_array_equal(*(x if exact else x.astype("f8") for x in (mine, expected)))


LANES = [1, 3, 4, 5, 7, 8, 16]
