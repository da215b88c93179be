"""KeepLastPosition: the last position by the pass compared with the last position of the whole result."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay import Function, IRModule, op, var
from relayc.relay.expr import Call, Constant, Expr, Tuple, const
from relayc.relay.op import nn
from relayc.relay.transform import KeepLastPosition, find_logits
from relayc.te.errors import CompileError
from relayc.te.ir import post_order
from relayc.te.tir import SizeVar

rng = np.random.default_rng(0)


def weight(*shape: int) -> Constant:
    return const(rng.standard_normal(shape).astype("float32"))


def model(length: SizeVar | int | None = None, also: bool = False) -> IRModule:
    """Logits (batch, length, 9) of x (batch, length, 8): a block, a norm and a head; `also` returns the block."""
    x = var("x", (SizeVar("batch"), SizeVar("length") if length is None else length, 8))
    mixed = op.add(x, op.cumsum(x, axis=1))
    block = op.add(mixed, nn.dense(nn.relu(nn.dense(mixed, weight(16, 8))), weight(8, 16)))
    scale = op.sqrt(op.mean(op.multiply(block, block), axis=(-1,), keepdims=True))
    logits = op.tanh(nn.dense(op.multiply(op.divide(block, scale), weight(8)), weight(9, 8)))
    logits = op.add(nn.matmul(logits, weight(9, 9)), weight(9))
    body: Expr = Tuple((logits, block)) if also else logits
    return IRModule({"main": Function((x,), body)}, {"output_names": ["logits", "block"] if also else ["y"]})


def run(module: IRModule, x: np.ndarray) -> list[np.ndarray]:
    executor = graph_executor.GraphModule(relay.build(module, "llvm -num-cores=1")["default"](device("cpu", 0)))
    return [y.numpy() for y in executor(x)]


def calls(module: IRModule) -> list[Call]:
    return [e for e in post_order(module["main"]) if isinstance(e, Call)]


@pytest.mark.parametrize("length", [1, 5])
def test_the_last_position_is_that_of_the_whole(length):
    whole = model()
    x = rng.standard_normal((2, length, 8)).astype("float32")
    (expected,), (found,) = run(whole, x), run(KeepLastPosition(("y",))(whole), x)
    np.testing.assert_allclose(found, expected[:, -1:], rtol=1e-5, atol=1e-6)


def test_only_one_position_is_computed_of_what_nothing_else_needs():
    last = KeepLastPosition(("y",))(model())
    assert {call.op.name: call.shape[1] for call in calls(last)}["nn.dense"] == 1
    sliced = [str(call.args[0].shape[1]) for call in calls(last) if call.op.name == "take"]
    assert sliced == ["length"] * 2, "x and its sums; they are added for one position"
    shared = KeepLastPosition(("logits",))(model(also=True))
    wide = [call.op.name for call in calls(shared) if len(call.shape) == 3 and call.shape[1] != 1]
    assert wide == ["cumsum", "add", "nn.dense", "nn.relu", "nn.dense", "add"]
    x = rng.standard_normal((1, 4, 8)).astype("float32")
    for found, expected in zip(run(shared, x), run(model(also=True), x), strict=True):
        assert found.shape[1] in (1, 4) and expected.shape[1] == 4


def test_logits_are_found():
    assert find_logits(model()) == "y"
    assert find_logits(model(also=True)) == "logits"
    assert find_logits(model(length=4)) is None
    untouched = model()
    assert KeepLastPosition()(untouched) is untouched


def test_other_outputs_are_rejected():
    with pytest.raises(CompileError, match="the outputs are: y"):
        KeepLastPosition(("z",))(model())
    x = var("x", (2, 3))
    with pytest.raises(CompileError, match=r"expected \(batch, positions, n\)"):
        KeepLastPosition(("y",))(IRModule({"main": Function((x,), op.tanh(x))}, {"output_names": ["y"]}))


LENGTH = SizeVar("length")
HEADS = var("heads", (SizeVar("batch"), LENGTH, 8, 3))
PLACES = var("places", (LENGTH, 8))


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize(
    "body",
    [
        nn.dense(op.add(op.sum(HEADS, axis=(-1,)), PLACES), weight(9, 8)),
        op.where(op.greater(PLACES, op.multiply(PLACES, PLACES)), op.sum(HEADS, axis=(-1,)), const(np.float32(1))),
        nn.relu(op.max(HEADS, axis=(2,))),
    ],
    ids=["positions without a batch", "a condition without a batch", "a reduction of four dimensions"],
)
def test_operands_of_two_and_four_dimensions(body, length):
    """Their positions are not along the axis of the result's."""
    params = tuple(e for e in post_order(body) if e is HEADS or e is PLACES)
    data = {p.name: rng.standard_normal({HEADS: (2, length, 8, 3), PLACES: (length, 8)}[p]).astype("float32")
            for p in params}  # fmt: skip
    whole = IRModule({"main": Function(params, body)}, {"output_names": ["y"]})
    expected, found = [
        graph_executor.GraphModule(relay.build(module, "llvm -num-cores=1")["default"](device("cpu", 0))).infer(data)[0]
        for module in (whole, KeepLastPosition(("y",))(whole))
    ]
    np.testing.assert_allclose(found, expected[:, -1:], rtol=1e-5, atol=1e-5)


def test_other_functions_stay():
    whole = model().with_function("other", Function((), const(1.0)))
    assert list(KeepLastPosition(("y",))(whole)) == ["main", "other"]
