"""Sequences of tensors as inputs and outputs."""

import numpy as np
import onnxruntime as ort
from onnx import helper

value = helper.make_tensor_value_info
sequence = helper.make_tensor_sequence_value_info


def session(nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return ort.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    )


split = session([helper.make_node("SplitToSequence", ["x", "parts"], ["s"], axis=0)],
                [value("x", 1, ["n", 2]), value("parts", 7, ["k"])], [sequence("s", 1, ["k", 2])])  # fmt: skip
x = np.arange(12, dtype=np.float32).reshape(6, 2)
parts = split.run(None, {"x": x, "parts": np.array([1, 3, 2])})[0]
print(type(parts).__name__, [part.shape for part in parts], parts[2].tolist())
print(split.get_outputs()[0].type)

join = session(
    [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], [sequence("s", 1, ["k", 2])], [value("y", 1, None)]
)
print(join.get_inputs()[0].type, np.array_equal(join.run(None, {"s": parts})[0], x))

nodes = [helper.make_node("SequenceAt", ["s", "i"], ["y"]), helper.make_node("SequenceLength", ["s"], ["n"])]
at = session(nodes, [sequence("s", 1, ["k", 2]), value("i", 7, [])], [value("y", 1, None), value("n", 7, [])])
for index in (0, 1, -1):
    y, n = at.run(None, {"s": parts, "i": np.array(index)})
    print(index, y.shape, int(n))
