"""Sizes that are computed of each other, as by strided slices of strided slices: import and build stay linear in the
model, and runs are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.sizes import MOST_ROUNDINGS
from relayc.relay.sizes import count_roundings, floor_divide, larger
from relayc.te.tir import SizeVar
from tests.effort import growth

CONSTANTS = {"0": [0], "1": [1], "2": [2], "3": [3], "end": [1 << 40]}


def node(op: str, inputs: str, output: str, **attrs: int) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def every_second(x: str, y: str) -> list[NodeProto]:
    return [node("Slice", f"{x} 1 end 0 2", y)]


def half_and_third(x: str, y: str) -> list[NodeProto]:
    return [
        node("Shape", x, f"{y}.s"), node("Div", f"{y}.s 2", f"{y}.half"), node("Div", f"{y}.s 3", f"{y}.third"),
        node("Slice", f"{x} 0 {y}.half 0", f"{y}.a"), node("Slice", f"{x} 0 {y}.third 0", f"{y}.b"),
        node("Concat", f"{y}.a {y}.b", y, axis=0),
    ]  # fmt: skip


def with_its_half(x: str, y: str) -> list[NodeProto]:
    return [
        node("Shape", x, f"{y}.s"), node("Div", f"{y}.s 2", f"{y}.half"), node("Slice", f"{x} 0 {y}.half 0", f"{y}.a"),
        node("Concat", f"{x} {y}.a", y, axis=0),
    ]  # fmt: skip


LINKS: dict[str, tuple[Callable[[str, str], list[NodeProto]], Callable[[np.ndarray], np.ndarray]]] = {
    "every second": (every_second, lambda x: x[1::2]),
    "half and third": (half_and_third, lambda x: np.concatenate([x[: len(x) // 2], x[: len(x) // 3]])),
    "with its half": (with_its_half, lambda x: np.concatenate([x, x[: len(x) // 2]])),
}


def chain(link: str, count: int) -> onnx.ModelProto:
    nodes = [n for i in range(count) for n in LINKS[link][0](f"y{i}" if i else "x", f"y{i + 1}")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    weights = [numpy_helper.from_array(np.array(v), k) for k, v in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "sizes", [x], [helper.make_empty_tensor_value_info(f"y{count}")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_chain_is_right(link: str, size: int) -> None:
    mod, params = from_onnx(chain(link, 8))
    module = graph_executor.GraphModule(relay.build(mod, params=params)["default"](device("cpu", 0)))
    x = np.arange(size, dtype=np.float32)
    (found,) = module.infer({"x": x})
    for _ in range(8):
        x = LINKS[link][1](x)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("link", LINKS)
def test_the_work_is_linear(link: str) -> None:
    def compile_model(count: int) -> None:
        mod, params = from_onnx(chain(link, count))
        relay.build(mod, params=params)

    assert growth(compile_model, 4, 8, 16) < 4


def test_sizes_are_bounded() -> None:
    """A node's result has at most so many roundings; what it is computed of before has a few times as many."""
    mod, _ = from_onnx(chain("half and third", 9))
    for e in relay.analysis.evaluation_order(mod["main"]):
        if isinstance(e, relay.Call) and hasattr(e.ty, "shape"):
            assert all(count_roundings(d) <= 5 * MOST_ROUNDINGS for d in e.shape)


def test_roundings_are_counted_at_each_use() -> None:
    n = SizeVar("n")
    half = floor_divide(n, 2)
    assert [count_roundings(d) for d in (5, n, n * 3 + 1, half)] == [0, 0, 0, 1]
    assert count_roundings(larger(half * half, floor_divide(half + n, 3))) == 5
