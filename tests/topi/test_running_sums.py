"""Running sums and products along lines and across them, of any number of lines."""

from __future__ import annotations

import numpy as np
import pytest

import backend
import te
import topi
from backend.target import Target
from topi.registry import schedule_for

TARGET = Target("llvm")


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7, 33), 1), ((8, 5), 1), ((3, 11, 20), 2), ((19,), 0), ((300, 300), 1), ((9, 4, 3), 1), ((2, 0), 1)], ids=str
)  # fmt: skip
def test_running_sums(shape, axis, exclusive) -> None:
    a = np.random.default_rng(0).integers(-9, 9, shape).astype("int32")
    x = te.placeholder(shape, "int32", "x")
    out = topi.cumsum(x, axis, "int64", exclusive)
    result = backend.nd.empty(shape, "int64")
    backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)(backend.nd.array(a), result)
    total = a.cumsum(axis, dtype="int64")
    assert np.array_equal(result.numpy(), total - a if exclusive else total)


def test_running_sums_of_lines_whose_number_is_known_at_run_time() -> None:
    rows = te.size_var("rows")
    x = te.placeholder((rows, 12), "float32", "x")
    out = topi.cumprod(x, 1)
    function = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for count in (1, 8, 21):
        a = np.random.default_rng(1).uniform(0.5, 1.5, (count, 12)).astype("float32")
        result = backend.nd.empty(a.shape, "float32")
        function(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), a.cumprod(1), rtol=1e-6)
