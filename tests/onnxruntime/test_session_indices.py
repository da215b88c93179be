"""Sessions refuse indices that are out of range, as onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import relayc.onnxruntime as onnxruntime


def model(op: str, rows: int | str, columns: int = 3) -> bytes:
    shapes = {"x": [rows, columns], "i": ["k", "m"], "u": ["k", "m"]}
    types = {"x": TensorProto.FLOAT, "i": TensorProto.INT64, "u": TensorProto.FLOAT}
    inputs = list(shapes)[: 3 if op == "ScatterElements" else 2]
    node = helper.make_node(op, inputs, ["y"], name="pick", axis=0)
    values = [helper.make_tensor_value_info(name, types[name], shapes[name]) for name in inputs]
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "ScatterElements"])
@pytest.mark.parametrize("rows", [6, "n"])
def test_indices_out_of_range_name_node_value_and_range(op: str, rows: int | str) -> None:
    session = onnxruntime.InferenceSession(model(op, rows))
    feed = {"x": np.arange(18, dtype=np.float32).reshape(6, 3), "u": np.ones((2, 3), np.float32)}
    feed = {value.name: feed[value.name] for value in session.get_inputs() if value.name != "i"}
    inside = np.array([[5, -6, 0], [1, 2, 3]])
    (before,) = session.run(None, {**feed, "i": inside})
    for wrong in (6, -7):
        outside = inside.copy()
        outside[1, 0] = wrong
        with pytest.raises(onnxruntime.InvalidArgument) as raised:
            session.run(None, {**feed, "i": outside})
        text = str(raised.value)
        assert f"{op} 'pick': index {wrong}, at position (1, 0)" in text and "expected -6 to 5" in text, text
    np.testing.assert_array_equal(session.run(None, {**feed, "i": inside})[0], before)


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "ScatterElements"])
@pytest.mark.parametrize("rows", [0, "n"])
def test_tensors_without_elements_have_no_indices(op: str, rows: int | str) -> None:
    session = onnxruntime.InferenceSession(model(op, rows))
    for count in (0, 1):
        feed = {"x": np.zeros((0, 3), np.float32), "i": np.zeros((count, 3), np.int64)}
        feed |= {"u": np.zeros((count, 3), np.float32)} if op == "ScatterElements" else {}
        if count:
            with pytest.raises(onnxruntime.InvalidArgument, match=f"{op} 'pick': index 0, at .*, of size 0"):
                session.run(None, feed)
        else:
            assert session.run(None, feed)[0].size == 0


def test_indices_into_rows_without_elements_are_checked() -> None:
    session = onnxruntime.InferenceSession(model("Gather", 6, 0))
    feed = {"x": np.zeros((6, 0), np.float32)}
    assert session.run(None, {**feed, "i": np.full((1, 2), 5)})[0].shape == (1, 2, 0)
    with pytest.raises(onnxruntime.InvalidArgument, match="index 6"):
        session.run(None, {**feed, "i": np.full((1, 2), 6)})
