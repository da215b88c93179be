"""What a model says about itself is kept through compilation and in the artifact."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import ArtifactError, CompiledModel, ModelMetadata, device, graph_executor
from relayc.backend.runtime.graph import Graph
from relayc.frontends.onnx import from_onnx


def described() -> ModelProto:
    """Rows of x with an odd position, and their number, which no input names."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None, 3])]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "columns", 3]),
        helper.make_tensor_value_info("places", TensorProto.INT64, [3, "found"]),
    ]
    graph = helper.make_graph(nodes, "places of rows", inputs, outputs, doc_string="finds places")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="trainer")
    model.domain, model.doc_string, model.model_version = "org.example", "a model", 7
    helper.set_model_props(model, {"author": "someone", "classes": '{"0": "cat ä"}'})
    return model


EXPECTED = ModelMetadata(
    producer_name="trainer",
    graph_name="places of rows",
    domain="org.example",
    description="a model",
    graph_description="finds places",
    version=7,
    custom_metadata_map={"author": "someone", "classes": '{"0": "cat ä"}'},
    input_shapes={"x": ("batch", None, 3)},
    output_shapes={"y": ("batch", "columns", 3), "places": (3, "found")},
)


@pytest.mark.parametrize("shape", [None, {"x": (2, 5, 3)}])
def test_metadata_and_declared_shapes_are_kept(shape: dict[str, tuple[int, ...]] | None) -> None:
    module, _ = from_onnx(described(), shape=shape)
    assert module.attrs["metadata"] == EXPECTED
    model = relay.build(module)
    loaded = CompiledModel.from_bytes(model.to_bytes())
    assert model.metadata == loaded.metadata == EXPECTED
    assert Graph.from_json(loaded.graph.to_json()).metadata == EXPECTED
    y, places = graph_executor.GraphModule(loaded["default"](device("cpu", 0)))(np.ones((2, 5, 3), np.float32))
    assert y.shape == (2, 5, 3) and places.shape == (3, 30)


@pytest.mark.parametrize("ir_version", [3, 4])
def test_overridable_initializers_are_kept(ir_version: int) -> None:
    """Before version 4 of the format, initializers of inputs are constants."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [dim]) for name, dim in (("x", "n"), ("w", 1))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "scaled", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 8)]
    module, _ = from_onnx(helper.make_model(graph, opset_imports=opset, ir_version=ir_version))
    loaded = CompiledModel.from_bytes(relay.build(module).to_bytes())
    assert loaded.metadata.overridable_initializers == ({} if ir_version == 3 else {"w": "float32"})
    assert loaded.metadata.input_shapes == ({"x": ("n",)} if ir_version == 3 else {"x": ("n",), "w": (1,)})


def test_a_model_without_metadata_has_empty_ones() -> None:
    x = relay.var("x", (2, 3))
    model = relay.build(relay.Function((x,), relay.op.exp(x)))
    assert model.metadata == ModelMetadata() and "metadata" not in model.graph.to_json()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "7"), ("version", 1 << 63), ("domain", None), ("custom_metadata_map", {"a": 1}), ("owner", "x"),
        ("input_shapes", {"x": [-1]}), ("input_shapes", {"x": [1.5]}), ("output_shapes", {"y": "batch"}),
        ("output_shapes", [1]),
    ],
)  # fmt: skip
def test_invalid_metadata_are_refused(field: str, value: object) -> None:
    x = relay.var("x", (2, 3))
    record = relay.build(relay.Function((x,), relay.op.exp(x))).graph.to_json()
    record["metadata"] = {**EXPECTED.to_json(), field: value}
    with pytest.raises(ArtifactError, match=rf"graph.metadata\.{field}"):
        Graph.from_json(record)
