"""CanonicalizeOps: other spellings, same meaning."""

from __future__ import annotations

import numpy as np

from relay import Function, const, op, var
from relay.op import nn
from relay.transform import CanonicalizeOps


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
