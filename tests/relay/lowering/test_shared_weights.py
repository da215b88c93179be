"""Weights that several layers use, and weights of equal values, are packed and stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.relay.equal_constants import EqualConstants
from relayc.relay.expr import Constant, Expr
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar

WIDTH = 64
LAYERS = 3
X = np.random.default_rng(0).standard_normal((6, WIDTH), dtype=np.float32)
W, V = np.random.default_rng(1).standard_normal((2, WIDTH, WIDTH), dtype=np.float32) / np.float32(8)


def same_object(array: np.ndarray) -> Callable[[], Expr]:
    constant = relay.const(array)
    return lambda: constant


def views(array: np.ndarray) -> Callable[[], Expr]:
    """A constant of its own on the same memory, as the importer makes for each product."""
    return lambda: Constant(array.T.T)


def copies(array: np.ndarray) -> Callable[[], Expr]:
    return lambda: Constant(array.copy())


def transposed(array: np.ndarray) -> Callable[[], Expr]:
    return lambda: relay.op.transpose(Constant(array.T.copy()), (1, 0))


def layers(weight: Callable[[], Expr], other: Callable[[], Expr]) -> relay.Function:
    """Pairs of parallel products, which become one product with concatenated weights, one after another."""
    x = y = relay.var("x", X.shape)
    for _ in range(LAYERS):
        y = relay.op.tanh(relay.op.multiply(relay.op.nn.dense(y, weight()), relay.op.nn.dense(y, other())))
    return relay.Function((x,), y)


def expected() -> np.ndarray:
    y = X
    for _ in range(LAYERS):
        y = np.tanh((y @ W.T) * (y @ V.T))
    return y


def run(model: CompiledModel) -> np.ndarray:
    (y,) = graph_executor.GraphModule(model["default"](device("cpu", 0)))(X)
    return y.numpy()


@pytest.mark.parametrize("form", [same_object, views, copies, transposed])
@pytest.mark.parametrize("opt_level", [1, 3])
def test_layers_that_share_weights_store_them_once(form: Callable[..., Callable[[], Expr]], opt_level: int) -> None:
    with PassContext(opt_level=opt_level):
        model = relay.build(layers(form(W), form(V)))
    assert sum(values.nbytes for values in model.params.values()) == W.nbytes + V.nbytes
    np.testing.assert_allclose(run(model), expected(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(run(CompiledModel.from_bytes(model.to_bytes())), run(model))


def test_variants_for_certain_sizes_share_weights() -> None:
    rows = relay.var("x", (SizeVar("n"), WIDTH))
    model = relay.build(relay.Function((rows,), relay.op.nn.dense(rows, Constant(W))), specialize={"n": [6, 7]})
    assert len(model.graph.variants) == 2
    assert sum(values.nbytes for values in model.params.values()) == W.nbytes


def equal_to_first(arrays: Sequence[np.ndarray]) -> list[bool]:
    table = EqualConstants()
    first, *others = [table.first(Constant(array)) for array in arrays]
    return [other is first for other in others]


def test_constants_are_equal_if_all_their_bits_and_types_are() -> None:
    zeros = np.zeros((40, 50), np.float32)
    one_differs = zeros.copy()
    one_differs[17, 23] = 1
    assert equal_to_first([zeros, zeros.copy(), np.zeros((50, 40), np.float32).T]) == [True, True]
    assert equal_to_first([zeros, one_differs, -zeros, zeros.view(np.int32), zeros.reshape(50, 40)]) == [False] * 4
    not_a_number = np.full(5, np.nan, np.float32)
    assert equal_to_first([not_a_number, not_a_number.copy(), np.zeros(5, np.float32)]) == [True, False]
