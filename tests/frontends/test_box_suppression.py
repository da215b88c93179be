"""NonMaxSuppression: a dynamic number of boxes against the static one, and many boxes against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import collect

RNG = np.random.default_rng(11)


def suppression(center: int, most: int | None = 7, least: float = 0.1, iou: float = 0.3) -> ModelProto:
    """At most seven boxes of each of three classes in two images; without `most` an input says how many."""
    inputs = [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [2, "n", 4]),
              helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 3, "n"])]  # fmt: skip
    settings = [helper.make_tensor("iou", TensorProto.FLOAT, [1], [iou]),
                helper.make_tensor("least", TensorProto.FLOAT, [1], [least])]  # fmt: skip
    if most is None:
        inputs.append(helper.make_tensor_value_info("most", TensorProto.INT64, [1]))
    else:
        settings.append(helper.make_tensor("most", TensorProto.INT64, [1], [most]))
    names = ["boxes", "scores", "most", "iou", "least"]
    node = helper.make_node("NonMaxSuppression", names, ["kept"], name="keep", center_point_box=center)
    outputs = [helper.make_tensor_value_info("kept", TensorProto.INT64, None)]
    graph = helper.make_graph([node], "suppression", inputs, outputs, settings)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


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


def test_all_boxes_of_a_dynamic_number_are_kept_by_the_largest_limit() -> None:
    feeds = {"boxes": 9 * RNG.random((2, 40, 4), dtype=np.float32), "scores": RNG.random((2, 3, 40), dtype=np.float32)}
    model = suppression(0, most=2**63 - 1, iou=1.0, least=-1.0)  # torchvision's operator has no limit
    assert len(kept(model, feeds, known=False)) == 2 * 3 * 40


def detections(boxes: int, center: int) -> dict[str, np.ndarray]:
    """Many boxes that overlap, and scores with ties, few of them high."""
    corner, size = RNG.uniform(0, 30, (2, boxes, 2)), RNG.uniform(1, 9, (2, boxes, 2))
    second = size if center else corner + size
    scores = np.round(RNG.beta(0.3, 3, (2, 3, boxes)), 2)
    return {"boxes": np.concatenate([corner, second], 2).astype(np.float32), "scores": scores.astype(np.float32)}


@pytest.mark.parametrize(("most", "given"), [(40, None), (None, 25), (None, 0), (0, None), (5000, None)])
@pytest.mark.parametrize("least", [0.001, 0.6])
@pytest.mark.parametrize("center", [0, 1])
def test_many_boxes_as_onnxruntime_keeps_them(most: int | None, given: int | None, least: float, center: int) -> None:
    model = suppression(center, most, least, iou=0.5)
    feeds = detections(1003, center)
    if given is not None:
        feeds["most"] = np.array([given], np.int64)
    onnxruntime = pytest.importorskip("onnxruntime")
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = peer.run(None, feeds)
    np.testing.assert_array_equal(kept(model, feeds, known=True), expected)
    assert (len(expected) > 0) == (most != 0 and given != 0)


def test_scores_are_filtered_not_sorted_and_results_bounded_by_the_limit() -> None:
    mod, _ = from_onnx(suppression(0), shape={"boxes": (2, 1003, 4), "scores": (2, 3, 1003)})
    calls = [call for call in collect(mod["main"], relay.Call) if "argsort" in str(call.op)]
    assert not calls
    (found,) = [call for call in collect(mod["main"], relay.Call) if "non_max_suppression" in str(call.op)]
    assert [tuple(field.shape) for field in found.ty.fields] == [(2 * 3 * 7, 3), (1,)]
