"""Several runs at once, by callbacks."""

import threading

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(4)
w = numpy_helper.from_array(rng.integers(-3, 4, (5, 5)).astype(np.float32), "w")
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])],
    "product",
    [value("x", 1, ["n", 5])],
    [value("y", 1, ["n", 5])],
    [w],
)
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)

results, errors, waiting = {}, [], threading.Semaphore(0)


def done(outputs, number, error):
    if error:
        errors.append(number)
    else:
        results[number] = float(outputs[0].sum())
    waiting.release()


for number in range(8):
    session.run_async(["y"], {"x": np.full((number + 1, 5), number, np.float32)}, done, number)
for _ in range(8):
    assert waiting.acquire(timeout=60)
print(dict(sorted(results.items())), errors)
