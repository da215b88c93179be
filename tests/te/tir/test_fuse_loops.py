"""Fusion of loops over the same parts of memory."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.ir import collect
from relayc.te.tir import For, PrimFunc, as_int
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.fuse_loops import FUSE

PARTS, SIZE = 5, 4


def _scaled(*, marked: bool = True, shifted: int = 0) -> PrimFunc:
    """x divided by the maximum of its block, times a common factor; `shifted`: by the maximum of a later block."""
    x = te.placeholder((PARTS, SIZE), name="x")
    k, p = te.reduce_axis((0, SIZE), name="k"), te.reduce_axis((0, PARTS), name="p")
    largest = te.compute((PARTS,), lambda i: te.max(x(i, k), axis=k), name="largest")
    y = te.compute((PARTS, SIZE), lambda i, j: x(i, j) / largest((i + shifted) % PARTS), name="y")
    total = te.compute((1,), lambda i: te.sum(largest(p), axis=p), name="total")
    z = te.compute((PARTS, SIZE), lambda i, j: y(i, j) * total(0), name="z")
    s = te.create_schedule(z.op)
    outer, _ = s[z].split(z.op.axis[0], nparts=1)
    for stage in (largest, y, total):
        s[stage].compute_at(s[z], outer)
    if marked:
        for stage in (largest, y):
            s[stage].pragma(stage.op.axis[0], "fuse_with_next")
    return te.lower(s, [x, z])["main"]


def _check(func: PrimFunc, shifted: int = 0) -> None:
    x = np.random.default_rng(0).random((PARTS, SIZE), dtype=np.float32) + 1
    z = np.full_like(x, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (x, z))
    largest = x.max(1)
    np.testing.assert_allclose(z, x / np.roll(largest, -shifted)[:, None] * largest.sum(), rtol=1e-5)


def _over_parts(func: PrimFunc) -> int:
    return sum(as_int(loop.extent) == PARTS for loop in collect(func.body, For))


def test_marked_loops_are_fused() -> None:
    func, apart = _scaled(), _scaled(marked=False)
    _check(func)
    _check(apart)
    assert _over_parts(func) == _over_parts(apart) - 1
    assert all(FUSE not in loop.annotations for loop in collect(func.body, For))


@pytest.mark.parametrize("shifted", [1, PARTS - 1])
def test_loops_with_dependences_across_iterations_are_not_fused(shifted: int) -> None:
    func = _scaled(shifted=shifted)
    _check(func, shifted)
    assert _over_parts(func) == _over_parts(_scaled(marked=False))
    assert all(FUSE not in loop.annotations for loop in collect(func.body, For))


def test_initialisation_precedes_the_fused_loop() -> None:
    """Sums of columns, computed while rows are copied, after their initialisation."""
    x, k = te.placeholder((PARTS, SIZE), name="x"), te.reduce_axis((0, PARTS), name="k")
    y = te.compute((PARTS, SIZE), lambda i, j: x(i, j) + 1, name="y")
    total = te.compute((SIZE,), lambda j: te.sum(y(k, j), axis=k), name="total")
    z = te.compute((PARTS, SIZE), lambda i, j: y(i, j) * total(j), name="z")
    s = te.create_schedule(z.op)
    outer, _ = s[z].split(z.op.axis[0], nparts=1)
    for stage in (y, total):
        s[stage].compute_at(s[z], outer)
    s[total].reorder(k, total.op.axis[0])
    for stage, loop in ((y, y.op.axis[0]), (total, k)):
        s[stage].pragma(loop, "fuse_with_next")
    func = te.lower(s, [x, z])["main"]
    assert _over_parts(func) == 2
    data = np.random.default_rng(0).random((PARTS, SIZE), dtype=np.float32)
    result = np.full_like(data, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (data, result))
    np.testing.assert_allclose(result, (data + 1) * (data + 1).sum(0), rtol=1e-5)
