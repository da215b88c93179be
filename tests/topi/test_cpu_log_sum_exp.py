"""Log-sum-exp, in one part and in several, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.ir import collect
from relayc.te.tir import Allocate, BufferLoad, BufferStore, IfThenElse, Select
from relayc.topi.registry import schedule_for
from tests.topi.small_caches import PROCESSORS, lowered

RNG = np.random.default_rng(22)
TINY = "-num-cores=2 -l1-bytes=6144 -l2-bytes=8192"
"""Caches that hold 512 floats of a row."""
TARGETS = [Target("llvm"), Target(f"llvm {TINY}"), Target(f"llvm -mattr=-avx512f {TINY}")]
CASES = [  # shape, axes
    ((37, 77), 1), ((301, 10), 1), ((37, 77), 0), ((37, 77), None), ((3, 5003), 1), ((4001, 9), 0), ((131, 777), 0),
    ((2, 21, 31, 37), 1), ((2, 6, 31, 37), (0, 2, 3)), ((70, 3, 100), (0, 2)), ((7001,), 0), ((2, 5, 31, 37), (0, 1)),
]  # fmt: skip


def expected(a: np.ndarray, axes: int | tuple[int, ...] | None, keepdims: bool = False) -> np.ndarray:
    wide = a.astype("float64")
    top = np.clip(wide.max(axes, keepdims=True), -1e300, 1e300)
    total = np.exp(wide - top).sum(axes, keepdims=keepdims)
    with np.errstate(divide="ignore"):
        return np.log(total) + top.reshape(total.shape)


def run(out: te.Tensor, x: te.Tensor, a: np.ndarray, target: Target) -> np.ndarray:
    function = backend.build(te.lower(schedule_for([out], target), [x, out]), target=target)
    result = backend.nd.empty([int(d) for d in out.shape], out.dtype)
    function(backend.nd.array(a), result)
    return result.numpy()


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_log_sum_exp(shape, axes, keepdims, target):
    a = (3 * RNG.standard_normal(shape)).astype("float32")
    a[..., 0] += 90  # its exponential overflows
    x = te.placeholder(shape, "float32", "x")
    result = run(topi.log_sum_exp(x, axes, keepdims), x, a, target)
    np.testing.assert_allclose(result, expected(a, axes, keepdims), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("axis", [0, 1])
def test_other_floats(dtype, tolerance, axis):
    a = RNG.standard_normal((601, 603)).astype(dtype)
    x = te.placeholder(a.shape, dtype, "x")
    np.testing.assert_allclose(run(topi.log_sum_exp(x, axis), x, a, TARGETS[1]), expected(a, axis), rtol=tolerance)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("length", [10, 100, 5003])
@pytest.mark.parametrize("axis", [0, 1])
def test_infinities_and_nan(length, axis, target):
    a = RNG.standard_normal((40, length)).astype("float32")
    a[0], a[1, 3], a[2, 4], a[3, :], a[3, 5] = -np.inf, np.inf, -np.inf, -np.inf, 2.0
    a[4, 1], a[5, 2], a[5, 7] = np.nan, np.inf, np.nan
    a[6, [0, length - 1]] = np.inf
    a[7], a[8] = np.finfo("float32").min, np.finfo("float32").max
    wanted = expected(a, 1)
    source = a if axis == 1 else np.ascontiguousarray(a.T)
    x = te.placeholder(source.shape, "float32", "x")
    np.testing.assert_allclose(run(topi.log_sum_exp(x, axis), x, source, target), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(("shape", "axis"), [((64, 5000), 1), ((5000, 64), 0)])
def test_rows_that_no_cache_holds_are_reduced_by_parts(shape, axis, processor):
    """Buffers hold parts of a few kilobytes, and their maxima and sums: a 16th of the elements."""
    x = te.placeholder(shape, "float32", "x")
    (function,) = lowered(topi.log_sum_exp(x, axis), [x], PROCESSORS[processor], caches=TINY).functions.values()
    kept = {node.buffer.name: node.buffer.shape for node in collect(function.body, Allocate)}
    assert {"log_sum_exp_parts.v0", "log_sum_exp_parts.v1"} <= set(kept)
    assert all(int(np.prod(shape)) <= 64 * 5000 // 16 for shape in kept.values())


def test_rows_are_read_once_from_memory():
    """Two passes go over a row of up to a quarter of L2; the next row is prefetched."""
    x = te.placeholder((640, 5000), "float32", "x")
    caches = "-mtune=znver4 -num-cores=2 -l1-bytes=32768 -l2-bytes=262144"
    (function,) = lowered(topi.log_sum_exp(x, 1), [x], caches=caches).functions.values()
    assert "prefetch" in str(function)
    assert "log_sum_exp_parts" not in str(function)


def test_fused_operators_in_front_and_behind():
    a = RNG.standard_normal((41, 530)).astype("float32")
    x = te.placeholder(a.shape, "float32", "x")
    out = topi.negative(topi.log_sum_exp(topi.tanh(x), 1, True))
    np.testing.assert_allclose(run(out, x, a, TARGETS[1]), -expected(np.tanh(a), 1, True), rtol=2e-6)


@pytest.mark.parametrize("axes", [(1,), (0, 2)], ids=str)
def test_dynamic_shapes(axes):
    n, m = te.size_var("n"), te.size_var("m")
    x = te.placeholder((n, m, 24), "float32", "x")
    out = topi.log_sum_exp(x, axes)
    function = backend.build(te.lower(schedule_for([out], TARGETS[1]), [x, out]), target=TARGETS[1])
    for shape in ((1, 1, 24), (3, 40, 24), (5, 333, 24)):
        a = RNG.standard_normal(shape).astype("float32")
        wanted = expected(a, axes)
        result = backend.nd.empty(wanted.shape, "float32")
        function(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(53, 12), (64, 49), (3, 21, 77), (37, 300), (601, 400), (3, 5003)], ids=str)
def test_rows_with_and_without_failed_speculation(shape, keepdims, target):
    """Row maxima are computed only in groups with very low, high, infinite or NaN elements."""
    a = (2 * RNG.standard_normal(shape)).astype("float32")
    x = te.placeholder(shape, "float32", "x")
    total = topi.log_sum_exp(x, -1, keepdims)
    np.testing.assert_allclose(run(total, x, a, target), expected(a, -1, keepdims), rtol=2e-6, atol=1e-6)
    rows = a.reshape(-1, shape[-1])
    rows[0] += 300
    rows[1], rows[2, 3] = -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(run(total, x, a, target), expected(a, -1, keepdims), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["llvm -mcpu=x86-64-v4", "llvm -mcpu=x86-64-v3"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((160, 24), 1), ((160, 49), 1), ((160, 300), 1), ((21, 512), 0), ((256, 4096), 0)], ids=str
)
def test_row_maxima_are_computed_only_in_the_fallback(shape, axis, target):
    x = te.placeholder(shape, "float32", "x")
    out = topi.log_sum_exp(x, axis)
    body = te.lower(schedule_for([out], Target(target)), [x, out])["main"].body
    again = collect(body, IfThenElse)
    compared = [{n for b in branches for n in collect(b, BufferStore) if _compares(n)} for branches in ([body], again)]
    assert compared[0] and compared[0] == compared[1]


def _compares(store: BufferStore) -> bool:
    of_input = any(load.buffer.name == "x" for load in collect(store, BufferLoad))
    return of_input and "_max" in store.buffer.name and isinstance(store.value, Select)
