"""Horizontal sums of as many rows as a vector has lanes."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te
from relayc.topi.cpu.lane_sums import sum_rows


@pytest.mark.parametrize(
    ("lanes", "length"),
    [(2, 2), (4, 4), (8, 8), (16, 16), (2, 3), (4, 1), (8, 5), (8, 49), (16, 1), (16, 10), (16, 17), (16, 49)],
)
def test_lane_sums_match_numpy(lanes: int, length: int):
    rows = 3
    x = te.placeholder((rows, lanes, length), "float32", name="x")
    k = te.reduce_axis((0, length), name="k")
    y = te.compute((rows, lanes), lambda i, t: te.sum(x(i, t, k), axis=k), name="y")
    s = te.create_schedule([y.op])
    s[y].tensorize(s[y].op.axis[-1], sum_rows(lanes, length, 2, "float32"))
    text = str(te.lower(s, [x, y]))
    assert text.count(" = shuffle(") == 2 * (lanes - 1)
    function = backend.build(s, [x, y], "llvm")
    values = np.random.default_rng(0).integers(-9, 9, (rows, lanes, length)).astype("float32")
    result = backend.nd.array(np.zeros((rows, lanes), "float32"), backend.device("cpu", 0))
    function(backend.nd.array(values, backend.device("cpu", 0)), result)
    np.testing.assert_array_equal(result.numpy(), values.sum(-1))
