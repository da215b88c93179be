"""Faults that `tests.fuzz.isolated` found, each reduced to a small model; and some of its models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.interpreter import evaluate
from relayc.relay.op.nn.dense import BatchMatmulPacked
from relayc.te.tir import SizeVar
from tests.fuzz.extremes import extreme_model
from tests.fuzz.test_mutated_models import attempt


def one_node(op: str, shape: Any, opset: int = 18, **attributes: Any) -> ModelProto:
    node = helper.make_node(op, ["x"], ["y"], name="node")
    for name, value in attributes.items():
        kind = AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("seed", range(24))
def test_extreme_models_are_compiled_or_rejected(seed):
    assert attempt(*extreme_model(seed)) in ("runs", "rejected")


def test_norms_over_no_axes():
    """A norm over no axes was recognised, which no schedule computes. MeanVarianceNormalization names all by none."""
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    (y,) = RelayBackend.run_model(one_node("MeanVarianceNormalization", x.shape, 13, axes=[]), [x])
    np.testing.assert_allclose(y, (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)
    v = relay.var("v", shape=(2, 3))
    for norm in (
        (v - relay.op.mean(v, axis=())) / relay.op.sqrt(relay.op.mean(v * v, axis=()) + relay.const(1e-5)),
        v / relay.op.sqrt(relay.op.sum(v * v, axis=())),
    ):
        executor = GraphModule(relay.build(relay.Function((v,), norm))["default"](device("cpu")))
        assert np.isfinite(executor(np.ones((2, 3), np.float32))[0].numpy()).all()


def test_a_new_shape_of_too_many_dimensions_is_named_at_once():
    """Reshape went through the two thousand million dimensions that the declaration of its input announced."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="node")
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2**31 - 1])
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", [x, shape], [y])
    with pytest.raises(OnnxImportError, match=r"node 'node' .*: a new shape of 2147483647 dimensions"):
        from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


@pytest.mark.parametrize("operator", [relay.op.argmax, relay.op.argmin, relay.op.sum, relay.op.max])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_reductions_whose_results_are_empty_have_no_schedule_of_their_own(operator, dtype):
    """The schedule of ArgMax divided by the bytes of a line, none, where another size of the result was open."""
    x = relay.var("x", (4, 2, 0, SizeVar("n")), dtype)
    model = relay.build(relay.Function((x,), operator(x, axis=(0,), keepdims=True)))
    executor = GraphModule(model["default"](device("cpu")))
    assert executor(np.ones((4, 2, 0, 3), dtype))[0].shape == (1, 2, 0, 3)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 0, 5), (0, 4, 5), (3, 4, 0), (0, 0, 0)])
def test_the_reference_of_packed_products_takes_empty_operands(rows: int, depth: int, columns: int):
    """numpy does not tell the size of a dimension from those of an empty array."""
    a, b = np.ones((2, rows, depth), "float32"), np.ones((2, depth, columns), "float32")
    x, y = relay.var("x", a.shape), relay.var("y", b.shape)
    packed = relay.op.nn.pack_panels(y, 16, transpose=True)
    product = relay.Call(BatchMatmulPacked(columns=columns), (x, packed))
    np.testing.assert_array_equal(evaluate(relay.Function((x, y), product), [a, b]), a @ b)
