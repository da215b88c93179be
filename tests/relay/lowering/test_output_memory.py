"""Intermediate tensors use the buffer of an output that is written later."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.relay.expr import Expr

SHAPE = (1, 8, 12, 12)
ROWS = (16, 32)
GENERATOR = np.random.default_rng(0)
KERNELS = GENERATOR.standard_normal((7, 8, 8, 3, 3), dtype=np.float32) / 8
SQUARES = GENERATOR.standard_normal((7, 32, 32), dtype=np.float32) / 6


def convolutions(x: Expr, length: int) -> Expr:
    for weight in KERNELS[:length]:
        x = relay.op.nn.relu(relay.op.nn.conv2d(x, relay.const(weight), padding=(1, 1)))
    return x


def products(x: Expr, length: int) -> Expr:
    for weight in SQUARES[:length]:
        x = relay.op.tanh(relay.op.nn.dense(x, relay.const(weight)))
    return x


def executor(model: CompiledModel, kind: str = "cpu") -> graph_executor.GraphModule:
    return graph_executor.GraphModule(model["default"](device(kind, 0)))


@pytest.mark.parametrize("length", [2, 3, 6, 7])
@pytest.mark.parametrize("chain", [convolutions, products])
def test_a_chain_needs_two_activations(chain, length: int) -> None:
    x = relay.var("x", SHAPE if chain is convolutions else ROWS)
    model = relay.build(relay.Function((x,), chain(x, length)))
    (output,) = [model.graph.tensors[index] for index in model.graph.outputs]
    activations = [t for t in model.graph.tensors if t.storage == "arena" and t.nbytes == output.nbytes]
    assert len({t.place for t in activations}) == 1


@pytest.mark.parametrize(("target", "kind"), [("llvm", "cpu"), ("interp", "interp")])
def test_held_outputs_keep_their_values_while_later_runs_use_other_buffers(target: str, kind: str) -> None:
    x = relay.var("x", ROWS)
    model = relay.build(relay.Function((x,), products(x, 3)), target)
    values = [GENERATOR.standard_normal(ROWS, dtype=np.float32) for _ in range(4)]
    expected = []
    for y in values:
        for weight in SQUARES[:3]:
            y = np.tanh(y @ weight.T)
        expected.append(y)
    run = executor(model, kind)
    assert sum(t.storage == "output" for t in run._graph.tensors) > 1
    held = [run(value)[0] for value in values]
    for found, wanted in zip(held, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_each_output_lends_its_buffer_until_it_is_written() -> None:
    """Two chains; the first output is written early, and must stay as it is while the second chain runs."""
    x = relay.var("x", ROWS)
    first = products(x, 2)
    second = products(relay.op.multiply(first, relay.op.sigmoid(x)), 4)
    flat = relay.op.reshape(products(relay.op.exp(second), 3), (ROWS[0] * ROWS[1],))
    function = relay.Function((x,), relay.Tuple((first, flat, second)))
    value = GENERATOR.standard_normal(ROWS, dtype=np.float32)
    found = executor(relay.build(function))(value)
    by_reference = executor(relay.build(function, "interp"), "interp")(value)
    for y, wanted in zip(found, by_reference, strict=True):
        np.testing.assert_allclose(y.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_the_arena_is_used_where_outputs_save_nothing() -> None:
    x = relay.var("x", ROWS)
    model = relay.build(relay.Function((x,), products(x, 2)))
    assert [t.storage for t in model.graph.tensors if t.storage in ("arena", "output")] == ["arena", "output"]
