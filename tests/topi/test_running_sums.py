"""Running sums and products along contiguous and strided axes."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.dtype import dtype as dtype_of
from relayc.te.tir.values import numpy_dtype
from relayc.topi.registry import schedule_for

TARGET = Target("llvm")


def running_sums(a, axis, exclusive, reverse, dtype):
    a = np.flip(a, axis) if reverse else a
    total = a.cumsum(axis, dtype=dtype) - (a if exclusive else 0)
    return np.flip(total, axis) if reverse else total


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7, 33), 1), ((8, 5), 1), ((3, 11, 20), 2), ((19,), 0), ((300, 300), 1), ((9, 4, 3), 1), ((2, 0), 1)], ids=str
)  # fmt: skip
def test_running_sums(shape, axis, exclusive, reverse) -> None:
    a = np.random.default_rng(0).integers(-9, 9, shape).astype("int32")
    x = te.placeholder(shape, "int32", "x")
    out = topi.cumsum(x, axis, "int64", exclusive, reverse)
    result = backend.nd.empty(shape, "int64")
    backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), running_sums(a, axis, exclusive, reverse, "int64"))


def test_running_sums_of_a_dynamic_number_of_rows() -> None:
    rows = te.size_var("rows")
    x = te.placeholder((rows, 12), "float32", "x")
    out = topi.cumprod(x, 1)
    function = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for count in (1, 8, 21):
        a = np.random.default_rng(1).uniform(0.5, 1.5, (count, 12)).astype("float32")
        result = backend.nd.empty(a.shape, "float32")
        function(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), a.cumprod(1), rtol=1e-6)


VECTORS = [((5, 32), 1), ((3, 100), 1), ((2, 3, 4001), 2), ((257,), 0)]  # whole vectors, and remaining elements


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-avx"])
@pytest.mark.parametrize(("shape", "axis"), VECTORS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_running_sums_of_long_rows_are_vectorized(dtype, shape, axis, target, exclusive, reverse) -> None:
    whole = np.random.default_rng(2).integers(-9, 9, shape)
    a = whole.astype(numpy_dtype(dtype_of(dtype)))
    x = te.placeholder(shape, dtype, "x")
    out = topi.cumsum(x, axis, dtype, exclusive, reverse)
    module = te.lower(schedule_for([out], Target(target)), [x, out])
    assert "shuffle(" in str(module)
    result = backend.nd.empty(shape, dtype)
    backend.build(module, target=Target(target))(backend.nd.array(a), result)
    total = running_sums(whole, axis, exclusive, reverse, "int64").astype(a.dtype)  # rounded only when stored
    assert np.array_equal(result.numpy(), total)  # integers: any order is exact


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_of_rows_of_dynamic_length(exclusive, reverse) -> None:
    length = te.size_var("length")
    x = te.placeholder((3, length), "float32", "x")
    out = topi.cumsum(x, 1, exclusive=exclusive, reverse=reverse)
    function = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for count in (1, 16, 77):
        a = np.random.default_rng(3).integers(-9, 9, (3, count)).astype("float32")
        result = backend.nd.empty(a.shape, "float32")
        function(backend.nd.array(a), result)
        assert np.array_equal(result.numpy(), running_sums(a, 1, exclusive, reverse, "float32"))


def test_elements_before_an_infinity_are_not_affected() -> None:
    a = np.ones((1, 64), "float32")
    a[0, 21], a[0, 40] = np.inf, np.nan
    x = te.placeholder(a.shape, "float32", "x")
    out = topi.cumsum(x, 1)
    result = backend.nd.empty(a.shape, "float32")
    backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.cumsum(1), equal_nan=True)
