"""CanonicalizeOps: other spellings, same meaning."""

from __future__ import annotations

import numpy as np

from relay import Function, const, op, var
from relay.op import nn
from relay.transform import CanonicalizeOps, EliminateCommonSubexpr, SimplifyExpr


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
