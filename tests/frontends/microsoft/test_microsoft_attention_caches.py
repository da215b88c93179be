"""Past and present of Attention and MultiHeadAttention, of com.microsoft: kept in place by the executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import relayc
from relayc.runtime import GraphModule, device

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE
rng = np.random.default_rng(0)


def packed() -> ModelProto:
    """Attention: keys and values of the past in one tensor [2, batch, heads, past, size]."""
    weight = rng.standard_normal((WIDTH, 3 * WIDTH)).astype(np.float32)
    shape = [2, "batch", HEADS, "past", SIZE]
    return _model("Attention", ["x", "w", "", "", "past"], {"past": shape}, {"present": shape}, {"w": weight})


def separate() -> ModelProto:
    """MultiHeadAttention: keys and values of the past [batch, heads, past, size]."""
    shape = ["batch", HEADS, "past", SIZE]
    names = ["x", "x", "x", "", "", "", "past_key", "past_value"]
    past, present = ({f"{when}_{kind}": shape for kind in ("key", "value")} for when in ("past", "present"))
    return _model("MultiHeadAttention", names, past, present, {})


def _model(
    kind: str, names: list[str], past: dict[str, Any], present: dict[str, Any], weights: dict[str, Any]
) -> ModelProto:
    node = helper.make_node(
        kind, names, ["y", *present], domain="com.microsoft", num_heads=HEADS, unidirectional=1
    )  # fmt: skip
    shapes = [{"x": ["batch", "new", WIDTH], **past}, {"y": ["batch", "new", WIDTH], **present}]
    ports = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()] for each in shapes]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "attention", *ports, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def executor(model: ModelProto, caches: Any) -> GraphModule:
    return GraphModule(relayc.compile_onnx(model, "llvm -num-cores=1", caches=caches)["default"](device("cpu", 0)))


@pytest.mark.parametrize("model", [packed(), separate()], ids=["Attention", "MultiHeadAttention"])
def test_the_executor_keeps_past_and_present(model):
    """Steps with caches in place give what one run on all positions does; beams reorder the batch."""
    kept, whole = executor(model, "auto"), executor(model, None)
    assert kept.has_caches and list(kept.get_input_info()[0]) == ["x"] and list(kept.get_output_info()[0]) == ["y"]
    empty = [np.zeros([2 if d == "batch" else 0 if d == "past" else d for d in shape], np.float32)
             for name, shape in whole.get_input_info()[0].items() if name != "x"]  # fmt: skip
    seen = np.zeros((2, 0, WIDTH), np.float32)
    for new in (3, 1, 2):
        seen = np.concatenate([seen, rng.standard_normal((2, new, WIDTH)).astype(np.float32)], axis=1)
        expected = whole(seen, *empty)[0].numpy()[:, -new:]
        np.testing.assert_allclose(kept(seen[:, -new:])[0].numpy(), expected, rtol=1e-4, atol=1e-5)
        seen = seen[::-1]
        kept.reorder_caches([1, 0])
