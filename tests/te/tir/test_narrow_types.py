"""float8, float4, int4 and int2 as bytes: the pass against the interpreter, which knows the types from `ml_dtypes`."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.runtime import nd
from relayc.te.dtype import dtype
from relayc.te.tir import ops
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.passes.narrow_types import is_narrow, lower_narrow_types
from relayc.te.tir.values import numpy_dtype

FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn")
INTEGERS = ("int4", "uint4", "int2", "uint2")


def elementwise(source: str, target: str, n: int, body, lanes: int = 16) -> te.Schedule:
    x = te.placeholder((n,), dtype=source, name="X")
    y = te.compute((n,), lambda i: body(x[i]).astype(target), name="Y")
    schedule = te.create_schedule(y.op)
    _, inner = schedule[y].split(y.op.axis[0], factor=lanes)
    schedule[y].vectorize(inner)
    return schedule, [x, y]


def compiled(values: np.ndarray, source: str, target: str, body=lambda v: v) -> np.ndarray:
    """The results of a function of `values`, compiled for the CPU."""
    function = backend.build(*elementwise(source, target, len(values), body), "llvm")
    result = nd.array(np.zeros(len(values), numpy_dtype(dtype(target))))
    function(nd.array(values), result)
    return result.numpy()


def same(have: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, or NaN both."""
    wide_have, wide_want = have.astype(np.float32), want.astype(np.float32)
    differ = (have.view(np.uint8) != want.view(np.uint8)) & ~(np.isnan(wide_have) & np.isnan(wide_want))
    assert not differ.any(), (have[differ][:5], want[differ][:5])


def codes(of: str) -> np.ndarray:
    """Every value of a narrow type."""
    return np.arange(1 << dtype(of).bits, dtype=np.uint8).view(numpy_dtype(dtype(of)))


def samples() -> np.ndarray:
    """float32 of all exponents and signs, denormals, infinities and NaN."""
    spread = (np.arange(1 << 14, dtype=np.uint64) << 18).astype(np.uint32).view(np.float32)
    rng = np.random.default_rng(0)
    near = (rng.normal(size=1 << 14) * np.exp2(rng.integers(-20, 20, 1 << 14))).astype(np.float32)
    return np.concatenate([spread, near])


@pytest.mark.parametrize("kind", FLOATS + INTEGERS)
def test_every_narrow_value_converts_exactly(kind):
    values = np.resize(codes(kind), 256)
    np.testing.assert_array_equal(compiled(values, kind, "float32"), values.astype(np.float32))


@pytest.mark.parametrize("kind", FLOATS)
def test_rounding_is_that_of_ml_dtypes(kind):
    values = samples()
    with np.errstate(all="ignore"):
        same(compiled(values, "float32", kind), values.astype(numpy_dtype(dtype(kind))))
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        same(compiled(halves, "float16", kind), halves.astype(numpy_dtype(dtype(kind))))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn", "bfloat16", "float16"])
def test_float64_is_rounded_once(kind):
    """Just above the midpoint of two values: in float32 it equals the midpoint."""
    step = 2.0 ** -{"float8_e4m3fn": 3, "float8_e5m2fnuz": 2, "float4_e2m1fn": 1, "bfloat16": 7, "float16": 10}[kind]
    above, below = 1 + step / 2 * (1 + 1e-12), 1 + step + step / 2 * (1 - 1e-12)
    values = np.array([above, -above, below, -below] * 4)
    want = np.array([1 + step, -1 - step, 1 + step, -1 - step] * 4)
    np.testing.assert_array_equal(compiled(values, "float64", kind).astype(np.float64), want)
    result = np.zeros(16, numpy_dtype(dtype(kind)))
    schedule, tensors = elementwise("float64", kind, 16, lambda v: v)
    interpret(te.lower(schedule, tensors)["main"], values, result)
    np.testing.assert_array_equal(result.astype(np.float64), want)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_wrap(kind):
    values = np.arange(-128, 128).astype(np.int32)
    same(compiled(values, "int32", kind), values.astype(numpy_dtype(dtype(kind))))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint2"])
def test_arithmetic_rounds_after_each_step(kind):
    def body(v):
        doubled = v + v
        return ops.maximum(ops.select(doubled > v, doubled * v, v), ops.make_const(dtype(kind), 1))

    values = np.resize(codes(kind), 256)
    schedule, tensors = elementwise(kind, kind, 256, body)
    func = te.lower(schedule, tensors)["main"]
    want, have = np.zeros(256, values.dtype), np.zeros(256, np.uint8)
    interpret(func, values, want)
    lowered = lower_narrow_types(func)
    interpret(lowered, values.view(np.uint8), have)
    same(have.view(values.dtype), want)
    same(compiled(values, kind, kind, body), want)


def test_no_narrow_types_remain_and_other_functions_are_unchanged():
    schedule, tensors = elementwise("float8_e5m2", "int4", 32, lambda v: v.astype("float32") * 2.0)
    lowered = lower_narrow_types(te.lower(schedule, tensors)["main"])
    assert not any(is_narrow(b.dtype) for b in lowered.buffer_map.values())
    assert "float8" not in str(lowered) and "int4" not in str(lowered).replace("uint4", "int4")
    plain = te.lower(*elementwise("float32", "int8", 32, lambda v: v))["main"]
    assert lower_narrow_types(plain) is plain
