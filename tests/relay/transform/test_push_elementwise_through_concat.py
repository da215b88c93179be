"""Activations after concatenations: which move before them, into the kernels of the inputs."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform.push_elementwise_through_concat import PushElementwiseThroughConcat
from relayc.te.ir import IRModule

RANDOM = np.random.default_rng(9)


def numbers(*shape: int) -> Constant:
    return const(RANDOM.standard_normal(shape).astype(np.float32) / 5)


def image(channels: int = 16) -> Var:
    return var("x", (2, channels, 12, 12))


def branches(x: Expr) -> list[Expr]:
    """Two layers that read an image: a convolution with a bias, a pooling."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    convolved = nn.conv2d(x, numbers(32, channels, 3, 3), strides=(2, 2), padding=1)
    return [relay.add(convolved, numbers(32, 1, 1)), nn.max_pool2d(x, (2, 2), (2, 2))]


def mapped(body: Expr, *params: Var) -> list[str]:
    """The operators after the pass, producers first."""
    after = PushElementwiseThroughConcat()(IRModule({"main": Function(params, body)}))["main"]
    return [e.operator.name for e in evaluation_order(after.body) if isinstance(e, Call)]


def test_activations_move_to_the_producers_of_the_inputs():
    x = image()
    concatenated = relay.concatenate(branches(x), axis=1)
    names = mapped(relay.minimum(nn.relu(concatenated), const(np.float32(3))), x)
    assert names == ["nn.conv2d", "add", "nn.relu", "minimum", "nn.max_pool", "nn.relu", "minimum", "concatenate"]


def test_operators_with_wider_results_stay():
    """The next product sees that its data has 8 bits."""
    x = image()
    quantized = [relay.cast(relay.clip(part, 0.0, 255.0), "uint8") for part in branches(x)]
    names = mapped(relay.cast(relay.concatenate(quantized, axis=1), "int32"), x)
    assert names[-2:] == ["concatenate", "cast"]
    narrowed = relay.cast(relay.clip(relay.concatenate(branches(x), axis=1), 0.0, 255.0), "uint8")
    assert mapped(narrowed, x)[-2:] == ["cast", "concatenate"]


def test_shared_concatenations_stay():
    x = image()
    parts = branches(x)
    concatenated = relay.concatenate(parts, axis=1)
    assert mapped(Tuple((nn.relu(concatenated), concatenated)), x)[-2:] == ["concatenate", "nn.relu"]
    concatenated = relay.concatenate(parts, axis=1)
    assert mapped(Tuple((nn.relu(concatenated), parts[0])), x)[-2:] == ["concatenate", "nn.relu"]


@pytest.mark.parametrize("made", [lambda x: x, lambda x: relay.transpose(x, (0, 1, 3, 2)), nn.relu],
                         ids=["parameters", "transpositions", "activations"])  # fmt: skip
def test_inputs_without_a_heavy_operator_stay(made):
    x = image()
    concatenated = relay.concatenate([nn.max_pool2d(x, (1, 1)), made(x)], axis=1)
    assert mapped(nn.relu(concatenated), x)[-2:] == ["concatenate", "nn.relu"]


def test_operators_that_are_not_elementwise_stay():
    x = image()
    for behind in (nn.softmax, lambda y: relay.add(y, numbers(48, 1, 1)), lambda y: relay.add(const(np.float32(1)), y)):
        names = mapped(behind(relay.concatenate(branches(x), axis=1)), x)
        assert names[-2] == "concatenate"


def test_the_concatenation_is_written_in_place():
    x = image()
    first = nn.conv2d(x, numbers(16, 16, 1, 1))
    concatenated = nn.relu(relay.concatenate(branches(first), axis=1))
    module = IRModule({"main": Function((x,), nn.conv2d(concatenated, numbers(16, 48, 1, 1)))})
    compiled = relay.build(module, "llvm")
    assert not any("concatenate" in node.ops for node in compiled.graph.nodes)
    data = RANDOM.standard_normal((2, 16, 12, 12)).astype(np.float32)
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)))
    np.testing.assert_allclose(executor(data)[0].numpy(), evaluate(module, [data]), rtol=1e-4, atol=1e-4)
