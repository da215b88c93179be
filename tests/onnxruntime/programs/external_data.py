"""Weights in a file beside the model."""

import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(8)
w = numpy_helper.from_array(rng.integers(-2, 3, (64, 32)).astype(np.float32), "w")
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x", 1, ["n", 64])], [value("y", 1, ["n", 32])], [w]
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
os.makedirs("models", exist_ok=True)
onnx.save_model(model, "models/big.onnx", save_as_external_data=True, location="big.onnx.data", size_threshold=100)
print(sorted(os.listdir("models")), os.path.getsize("models/big.onnx") < 1000)
session = ort.InferenceSession(os.path.join("models", "big.onnx"), providers=["CPUExecutionProvider"])
print(session.run(None, {"x": np.ones((1, 64), np.float32)})[0][0, :8].tolist())
os.rename("models/big.onnx.data", "models/moved.data")
try:
    ort.InferenceSession("models/big.onnx")
except Exception as error:
    print("big.onnx.data" in str(error))
