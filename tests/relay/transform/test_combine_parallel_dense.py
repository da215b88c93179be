"""CombineParallelDense: which layers are merged, and that slices of their result are read in place."""

from __future__ import annotations

import numpy as np

from relayc.relay import Call, Expr, Function, Tuple, TupleGetItem, const, op, var
from relayc.relay.op import nn
from relayc.relay.op.nn.recurrent import RNN
from relayc.relay.transform import CombineParallelDense


def weights(seed: int, *shape: int) -> Expr:
    return const(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def test_three_projections_are_one_layer(transformed, operators):
    x = var("x", (1, 5, 8))
    q = op.transpose(op.reshape(op.add(nn.dense(x, weights(1, 8, 8)), weights(2, 8)), (1, 5, 2, 4)), (0, 2, 1, 3))
    k = op.transpose(op.reshape(nn.dense(x, weights(3, 8, 8)), (1, 5, 2, 4)), (0, 2, 3, 1))
    v = op.reshape(op.add(weights(4, 4), nn.dense(x, weights(5, 4, 8))), (1, 5, 1, 4))
    after = transformed(Function((x,), Tuple((q, k, v))), CombineParallelDense())
    assert operators(after)["nn.dense"] == 1 and operators(after)["add"] == 1


def test_layers_of_combined_layers(transformed, operators):
    x = var("x", (5, 8))

    def pair(y: Expr, seed: int) -> Expr:
        parts = [op.reshape(nn.dense(y, weights(seed + i, 8, 8)), (8, 5)) for i in range(2)]
        return op.transpose(op.add(*parts), (1, 0))

    after = transformed(Function((x,), pair(pair(x, 1), 3)), CombineParallelDense())
    assert operators(after)["nn.dense"] == 2


def test_layers_with_elementwise_epilogues_stay(transformed):
    x = var("x", (5, 8))
    before = Function((x,), op.multiply(nn.silu(nn.dense(x, weights(1, 8, 8))), nn.dense(x, weights(2, 8, 8))))
    assert transformed(before, CombineParallelDense()) is before


def test_layers_of_recurrences_stay_separate(transformed, operators):
    """A recurrence would copy its slice."""
    x = var("x", (12, 8))
    recurrence, state = weights(1, 1, 1, 1, 16, 16), weights(2, 1, 2, 16)
    results: list[Expr] = []
    for reverse in (False, True):
        products = op.reshape(nn.dense(x, weights(3 + reverse, 16, 8)), (6, 2, 16))
        call = Call(RNN(activations=("tanh",), reverse=(reverse,)), (products, recurrence, state))
        results.append(TupleGetItem(call, 0))
    after = transformed(Function((x,), Tuple(tuple(results))), CombineParallelDense())
    assert operators(after)["nn.dense"] == 2
