"""Strings in and out: normalisation, and labels of classes."""

import numpy as np
import onnxruntime as ort
from onnx import helper

value = helper.make_tensor_value_info
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]


def session(node, inputs, outputs):
    graph = helper.make_graph([node], "g", inputs, outputs)
    return ort.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


clean = session(
    helper.make_node(
        "StringNormalizer",
        ["x"],
        ["y"],
        case_change_action="LOWER",
        is_case_sensitive=1,
        locale="C",
        stopwords=["the", "a"],
    ),
    [value("x", 8, ["n"])],
    [value("y", 8, ["m"])],
)
y = clean.run(None, {"x": np.array(["The", "Quick", "a", "FOX"])})[0]
print(y.dtype, y.tolist(), clean.get_inputs()[0].type)

encode = session(
    helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_strings=["cat", "dog"],
        values_int64s=[1, 2],
        default_int64=-1,
    ),
    [value("x", 8, ["n", "m"])],
    [value("y", 7, ["n", "m"])],
)
print(encode.run(None, {"x": np.array([["dog", "cat"], ["eel", "dog"]], dtype=object)})[0].tolist())

decode = session(
    helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_int64s=[0, 1],
        values_strings=["no", "yes"],
        default_string="?",
    ),
    [value("x", 7, [None])],
    [value("y", 8, [None])],
)
print(decode.run(None, {"x": np.array([1, 0, 7])})[0].tolist())
