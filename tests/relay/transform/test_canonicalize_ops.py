"""CanonicalizeOps: canonical forms with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Function, Tuple, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform import CanonicalizeOps, EliminateCommonSubexpr, SimplifyExpr


def test_views_biases_and_global_pools(transformed, operators):
    x = var("x", (1, 4, 5, 5))
    y = nn.bias_add(x, const(np.arange(4, dtype="float32")))
    y = op.expand_dims(op.squeeze(nn.global_avg_pool2d(y), (2, 3)), 0)
    found = operators(transformed(Function((x,), y), CanonicalizeOps()))
    assert found == {"add": 1, "mean": 1, "reshape": 1}


def test_a_product_with_a_constant_matrix_is_a_dense_layer(transformed, operators):
    x = var("x", (2, 3, 4))
    w = const(np.random.default_rng(0).standard_normal((4, 5)).astype("float32"))
    assert operators(transformed(Function((x,), op.nn.matmul(x, w)), CanonicalizeOps())) == {"nn.dense": 1}


def test_a_product_of_two_inputs_stays(transformed):
    x, y = var("x", (2, 3, 4)), var("y", (4, 5))
    before = Function((x, y), op.nn.matmul(x, y))
    assert transformed(before, CanonicalizeOps()) is before


def test_fields_of_a_split_are_slices_that_views_pass(transformed, operators):
    x = var("x", (1, 5, 24))
    q, k, v = op.split(x, 3, axis=-1)
    y = op.add(op.reshape(q, (1, 5, 2, 4)), op.multiply(op.reshape(k, (1, 5, 2, 4)), op.reshape(v, (1, 5, 2, 4))))
    after = transformed(Function((x,), y), CanonicalizeOps(), SimplifyExpr(), EliminateCommonSubexpr())
    assert operators(after) == {"reshape": 1, "strided_slice": 3, "add": 1, "multiply": 1}


@pytest.mark.parametrize(("dtype", "is_ascend", "found"), [
    ("float32", False, {"argmax": 1, "gather": 1}),
    ("int32", True, {"argmin": 1, "gather": 1}),
    ("float32", True, {"topk": 1}),  # NaN is the greatest value, which argmin does not express
])  # fmt: skip
def test_the_first_of_a_row_is_an_extremum(dtype, is_ascend, found, transformed, operators):
    x = var("x", (2, 30, 5), dtype)
    y = Tuple(tuple(op.topk(x, 1, axis=1, is_ascend=is_ascend)))
    after = transformed(Function((x,), y), CanonicalizeOps(), EliminateCommonSubexpr())
    assert operators(after) == found
    data = np.random.default_rng(0).integers(0, 5, (2, 30, 5)).astype(dtype)
    if dtype == "float32":
        data[0, 3:9, 1], data[1, :, 2] = np.nan, -np.inf
    expected = op.indexing.TopK(k=1, axis=1, is_ascend=is_ascend).reference(data)
    for got, want in zip(evaluate(after, [data]), expected, strict=True):
        np.testing.assert_array_equal(got, want)
