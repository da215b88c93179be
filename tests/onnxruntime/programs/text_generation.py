"""Greedy generation with keys and values of earlier tokens passed from run to run, empty at first."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

WORDS, SIZE = 50, 8
rng = np.random.default_rng(10)
weights = {n: rng.normal(size=(SIZE, SIZE)) / 2 for n in ("wq", "wk", "wv")}
weights |= {"table": rng.normal(size=(WORDS, SIZE)), "head": rng.normal(size=(SIZE, WORDS))}
make = helper.make_node
nodes = [
    make("Gather", ["table", "input_ids"], ["x"]),
    make("MatMul", ["x", "wq"], ["q"]),
    make("MatMul", ["x", "wk"], ["k"]),
    make("MatMul", ["x", "wv"], ["v"]),
    make("Concat", ["past_key", "k"], ["present_key"], axis=1),
    make("Concat", ["past_value", "v"], ["present_value"], axis=1),
    make("Transpose", ["present_key"], ["kt"], perm=[0, 2, 1]),
    make("MatMul", ["q", "kt"], ["s"]),
    make("Softmax", ["s"], ["p"], axis=-1),
    make("MatMul", ["p", "present_value"], ["c"]),
    make("Add", ["c", "x"], ["r"]),
    make("MatMul", ["r", "head"], ["logits"]),
]
value = helper.make_tensor_value_info
past = [value(f"past_{n}", 1, ["batch", "past", SIZE]) for n in ("key", "value")]
present = [value(f"present_{n}", 1, ["batch", "total", SIZE]) for n in ("key", "value")]
graph = helper.make_graph(
    nodes,
    "decoder",
    [value("input_ids", 7, ["batch", "new"]), *past],
    [value("logits", 1, ["batch", "new", WORDS]), *present],
    [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
)
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)
tokens = [3, 14, 15]
cache = {"past_key": np.zeros((1, 0, SIZE), np.float32), "past_value": np.zeros((1, 0, SIZE), np.float32)}
ids = np.array([tokens])
for _ in range(12):
    logits, key, values = session.run(None, {"input_ids": ids, **cache})
    cache = {"past_key": key, "past_value": values}
    tokens.append(int(logits[0, -1].argmax()))
    ids = np.array([[tokens[-1]]])
print(tokens, key.shape)
