"""Batches of any size, padded sequences, and an empty batch."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(9)
make = helper.make_node
nodes = [
    make("Gather", ["table", "ids"], ["e"]),
    make("Cast", ["ids"], ["present"], to=9),
    make("Cast", ["present"], ["mask"], to=1),
    make("Unsqueeze", ["mask", "last"], ["mask3"]),
    make("Mul", ["e", "mask3"], ["kept"]),
    make("ReduceSum", ["kept", "second"], ["sum"], keepdims=0),
    make("ReduceSum", ["mask", "second"], ["count"], keepdims=1),
    make("Max", ["count", "unit"], ["safe"]),
    make("Div", ["sum", "safe"], ["mean"]),
]
table = rng.integers(-8, 8, (20, 4)).astype(np.float32)
constants = {"table": table, "last": np.array([-1]), "second": np.array([1]), "unit": np.ones(1, np.float32)}
value = helper.make_tensor_value_info
graph = helper.make_graph(nodes, "g", [value("ids", 7, ["batch", "length"])], [value("mean", 1, ["batch", 4])],
                          [numpy_helper.from_array(v, n) for n, v in constants.items()])  # fmt: skip
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)
sentences = [rng.integers(1, 20, n) for n in (3, 7, 1, 5, 2)]
for size in (1, 2, 5):
    for start in range(0, len(sentences), size):
        batch = sentences[start : start + size]
        ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
        for row, words in zip(ids, batch):
            row[: len(words)] = words
        print(ids.shape, session.run(None, {"ids": ids})[0].round(3).tolist())
print(session.run(None, {"ids": np.zeros((0, 3), np.int64)})[0].shape)
