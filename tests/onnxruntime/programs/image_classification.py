"""Classify an image: resize, normalise, run, softmax, top 5."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(0)
weights = {
    "w0": rng.normal(size=(8, 3, 3, 3)) / 5, "b0": rng.normal(size=8) / 5, "w1": rng.normal(size=(16, 8, 3, 3)) / 8,
    "b1": rng.normal(size=16) / 5, "w2": rng.normal(size=(16, 10)) / 4, "b2": rng.normal(size=10) / 4,
}  # fmt: skip
nodes = [
    helper.make_node("Conv", ["image", "w0", "b0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c0"], ["r0"]),
    helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Conv", ["p0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c1"], ["r1"]),
    helper.make_node("GlobalAveragePool", ["r1"], ["g"]),
    helper.make_node("Flatten", ["g"], ["f"]),
    helper.make_node("Gemm", ["f", "w2", "b2"], ["logits"]),
]
graph = helper.make_graph(
    nodes, "net", [helper.make_tensor_value_info("image", 1, ["N", 3, 32, 32])],
    [helper.make_tensor_value_info("logits", 1, ["N", 10])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)  # fmt: skip
with open("classifier.onnx", "wb") as f:
    f.write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString())


def preprocess(pixels):
    rows = np.arange(32) * pixels.shape[0] // 32
    columns = np.arange(32) * pixels.shape[1] // 32
    x = pixels[rows][:, columns].astype(np.float32) / 255
    x = (x - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
    return np.expand_dims(x.transpose(2, 0, 1), 0)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


session = ort.InferenceSession("classifier.onnx", providers=["CPUExecutionProvider"])
input_name = session.get_inputs()[0].name
print(input_name, session.get_inputs()[0].shape, [o.name for o in session.get_outputs()])
picture = rng.integers(0, 256, (120, 90, 3), dtype=np.uint8)
scores = softmax(session.run(None, {input_name: preprocess(picture)})[0][0])
for rank, index in enumerate(np.argsort(scores)[::-1][:5], 1):
    print(f"{rank}. class {index}: {100 * scores[index]:.2f} %")
