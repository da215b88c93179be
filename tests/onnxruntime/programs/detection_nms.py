"""Detect objects: boxes and scores of anchors, non-maximum suppression in the model, classes above a threshold."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

nodes = [
    helper.make_node("Sigmoid", ["logits"], ["scores"]),
    helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["selected"]),
]
constants = {"most": np.array(3, np.int64), "overlap": np.array(0.5, np.float32), "least": np.array(0.4, np.float32)}
graph = helper.make_graph(
    nodes, "detector",
    [helper.make_tensor_value_info("boxes", 1, ["batch", "anchors", 4]),
     helper.make_tensor_value_info("logits", 1, ["batch", "classes", "anchors"])],
    [helper.make_tensor_value_info("selected", 7, ["found", 3]),
     helper.make_tensor_value_info("scores", 1, ["batch", "classes", "anchors"])],
    [numpy_helper.from_array(value, name) for name, value in constants.items()],
)  # fmt: skip
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

rng = np.random.default_rng(1)
for batch, anchors in ((1, 20), (2, 50), (1, 0)):
    corner = rng.uniform(0, 80, (batch, anchors, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.uniform(10, 40, (batch, anchors, 2)).astype(np.float32)], axis=2)
    logits = rng.normal(size=(batch, 4, anchors)).astype(np.float32)
    selected, scores = session.run(["selected", "scores"], {"boxes": boxes, "logits": logits})
    print(selected.shape, selected.dtype)
    for image, label, anchor in selected:
        print(f"image {image}, class {label}: {scores[image, label, anchor]:.3f} at {boxes[image, anchor].round(1)}")
