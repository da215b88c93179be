"""NonMaxSuppression of a dynamic number of boxes against the static one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

RNG = np.random.default_rng(11)


def suppression(center: int) -> ModelProto:
    """At most seven boxes of each of three classes in two images."""
    inputs = [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [2, "n", 4]),
              helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 3, "n"])]  # fmt: skip
    settings = [helper.make_tensor("most", TensorProto.INT64, [1], [7]),
                helper.make_tensor("iou", TensorProto.FLOAT, [1], [0.3]),
                helper.make_tensor("least", TensorProto.FLOAT, [1], [0.1])]  # fmt: skip
    names = ["boxes", "scores", "most", "iou", "least"]
    node = helper.make_node("NonMaxSuppression", names, ["kept"], name="keep", center_point_box=center)
    outputs = [helper.make_tensor_value_info("kept", TensorProto.INT64, None)]
    graph = helper.make_graph([node], "suppression", inputs, outputs, settings)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def kept(model: ModelProto, feeds: dict[str, np.ndarray], known: bool) -> np.ndarray:
    mod, params = from_onnx(model, shape={name: x.shape for name, x in feeds.items()} if known else None)
    executor = graph_executor.GraphModule(relay.build(mod, "llvm", params)["default"](device("cpu", 0)))
    for name, x in feeds.items():
        executor.set_input(name, x)
    executor.run()
    return executor.get_output(0).numpy()


@pytest.mark.parametrize("center", [0, 1])
def test_dynamic_number_of_boxes(center: int) -> None:
    model = suppression(center)
    feeds = {"boxes": 9 * RNG.random((2, 40, 4), dtype=np.float32), "scores": RNG.random((2, 3, 40), dtype=np.float32)}
    result = kept(model, feeds, known=False)
    np.testing.assert_array_equal(result, kept(model, feeds, known=True))
    assert 6 <= len(result) < 2 * 3 * 40
    for image, row in [(0, 0), (1, 2)]:
        of_class = result[(result[:, 0] == image) & (result[:, 1] == row)]
        scores = feeds["scores"][image, row][of_class[:, 2]]
        assert 0 < len(of_class) <= 7 and (np.diff(scores) <= 0).all()
        assert scores[0] == feeds["scores"][image, row].max()


def test_no_boxes_at_all() -> None:
    feeds = {"boxes": np.zeros((2, 0, 4), np.float32), "scores": np.zeros((2, 3, 0), np.float32)}
    assert kept(suppression(0), feeds, known=False).shape == (0, 3)
