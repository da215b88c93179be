"""One session serves a pool of threads, with batches of many sizes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(6)
w = numpy_helper.from_array(rng.integers(-2, 3, (16, 8)).astype(np.float32), "w")
value = helper.make_tensor_value_info
nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
graph = helper.make_graph(nodes, "g", [value("x", 1, ["batch", 16])], [value("y", 1, ["batch", 8])], [w])
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString(), options
)
batches = [rng.integers(-3, 4, (1 + k % 5, 16)).astype(np.float32) for k in range(24)]
with ThreadPoolExecutor(6) as pool:
    sums = list(pool.map(lambda x: int(session.run(None, {"x": x})[0].sum()), batches))
print(sums == [int(session.run(None, {"x": x})[0].sum()) for x in batches])
print(sums)
