"""A model that was never a file; outputs by name, some of them."""

import io

import numpy as np
import onnxruntime as ort
from onnx import helper, save

value = helper.make_tensor_value_info
nodes = [
    helper.make_node("TopK", ["x", "k"], ["values", "indices"], axis=1),
    helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
]
graph = helper.make_graph(nodes, "g", [value("x", 1, [None, None]), value("k", 7, [1])],
                          [value("values", 1, None), value("indices", 7, None), value("most", 1, [])])  # fmt: skip
stream = io.BytesIO()
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), stream)
session = ort.InferenceSession(stream.getvalue())
print({o.name: o.type for o in session.get_outputs()})
x = np.random.default_rng(7).permutation(20).reshape(4, 5).astype(np.float32)
print(session.run(["most", "indices"], {"x": x, "k": np.array([2])})[1].tolist())
named = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x, "k": np.array([3])})))
print(named["values"].tolist(), named["most"])
print(session.run(["values"], {"x": x.T, "k": [1]})[0].ravel().tolist())
