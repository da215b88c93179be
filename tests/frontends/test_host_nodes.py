"""Nodes evaluated on the host are in the build report, and are strings, containers and control flow only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from relayc import relay
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.operators_page import operators
from relayc.relay.op.host import ActionOperator
from relayc.relay.op.strings import Index
from relayc.te.ir import IRModule, post_order
from tests.conformance.suite import Suite
from tests.reference_backend import ReferenceBackend

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL


def made(graph: GraphProto) -> ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def value(name: str, element: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def report_of(model: ModelProto, **options: Any) -> list[str]:
    module, _ = from_onnx(model, **options)
    return relay.build(module, "llvm").build_report.on_host


def test_a_numeric_model_has_nothing_on_the_host() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["r"]),
             helper.make_node("Softmax", ["r"], ["y"])]  # fmt: skip
    assert not report_of(made(helper.make_graph(nodes, "g", [value("x", FLOAT, ["n", 3])], [value("y", FLOAT, None)])))


def test_strings_and_sequences_are_named() -> None:
    nodes = [
        helper.make_node("StringConcat", ["a", "a"], ["b"], name="twice"),
        helper.make_node("Equal", ["b", "a"], ["same"], name="same"),
        helper.make_node("Cast", ["same"], ["z"], to=FLOAT),
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, name="cut"),
        helper.make_node("ConcatFromSequence", ["parts"], ["joined"], axis=0, name="join"),
        helper.make_node("Add", ["joined", "z"], ["y"], name="sum"),
    ]
    inputs = [value("a", STRING, [2]), value("x", FLOAT, [2, 2])]
    model = made(helper.make_graph(nodes, "g", inputs, [value("y", FLOAT, None)]))
    known = [
        "SplitToSequence 'cut' (sequences and optional values)",
        "ConcatFromSequence 'join' (sequences and optional values)",
    ]
    assert report_of(model) == [*known, "input 'a' (strings, as numbers)", "StringConcat 'twice' (strings)"]
    assert report_of(model, constants={"a": np.array(["u", ""], object)}) == known


def test_control_flow_and_sizes_are_named() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name, FLOAT, None)])
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [helper.make_node("If", ["c"], ["t"], name="choice", **branches),
             helper.make_node("NonZero", ["t"], ["y"], name="found")]  # fmt: skip
    inputs = [value("c", BOOL, []), value("x", FLOAT, [4])]
    report = report_of(made(helper.make_graph(nodes, "g", inputs, [value("y", INT64, None)])))
    assert len(report) == 2 and report[0] == "control.if 'choice' (control flow)"
    assert "NonZero" in report[1] and report[1].endswith("(sizes)")


class Recorder(ReferenceBackend):
    """Keeps which operators were computed while importing, and why."""

    found: ClassVar[set[tuple[str, str]]] = set()

    @classmethod
    def compile_module(cls, mod: IRModule, device: str) -> Callable[[Mapping[str, Any]], list[Any]]:
        cls.found |= {(op, why) for op, _, why in mod.attrs.get("host_nodes", ())}
        calls = [e for e in post_order(mod["main"]) if isinstance(e, relay.Call) and e.span is not None]
        readers = [e for e in calls if isinstance(e.op, ActionOperator) and not isinstance(e.op, Index)]
        cls.found |= {(e.span.op, "strings") for e in readers}
        return super().compile_module(mod, device)


@pytest.mark.slow
def test_no_numeric_operator_of_the_suite_is_on_the_host() -> None:
    suite = Suite(Recorder)
    for name in suite.selected("str|seq|opt|cast|label|tfidf|ml|loop|if|identity|equal"):
        suite.run(name)
    places = {each.name: each.runs for each in operators()}
    movers = {"Identity", "Cast", "CastLike", "If", "Loop", "Reshape", "Expand"}
    wrong = [(op, why) for op, why in Recorder.found if places[op] == "compiled" and op not in movers]
    assert ("StringSplit", "strings") in Recorder.found and not wrong, wrong
