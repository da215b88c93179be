"""A tree ensemble as converters of scikit-learn models write it: labels, and a dictionary of probabilities."""

import numpy as np
import onnxruntime as rt
from onnx import helper

tree = {
    "nodes_treeids": [0, 0, 0, 0, 0], "nodes_nodeids": [0, 1, 2, 3, 4], "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_values": [0.5, 1.5, 0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0], "nodes_hitrates": [1.0] * 5,
    "nodes_missing_value_tracks_true": [0] * 5,
    "class_treeids": [0] * 9, "class_nodeids": [2, 2, 2, 3, 3, 3, 4, 4, 4], "class_ids": [0, 1, 2] * 3,
    "class_weights": [0.25, 0.5, 0.25, 0.875, 0.0, 0.125, 0.125, 0.25, 0.625], "classlabels_int64s": [0, 1, 2],
    "post_transform": "NONE",
}  # fmt: skip
nodes = [
    helper.make_node(
        "TreeEnsembleClassifier", ["float_input"], ["label", "probabilities"], domain="ai.onnx.ml", **tree
    ),
    helper.make_node("Cast", ["label"], ["output_label"], to=7),
    helper.make_node(
        "ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    ),
]
value = helper.make_tensor_value_info
kind = helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))
maps = helper.make_value_info("output_probability", helper.make_sequence_type_proto(kind))
graph = helper.make_graph(
    nodes, "trees", [value("float_input", 1, [None, 2])], [value("output_label", 7, [None]), maps]
)
opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
session = rt.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
x = np.array([[0.2, 1.0], [0.2, 2.0], [0.9, 0.0]], np.float32)
label, probability = session.run(None, {session.get_inputs()[0].name: x})
print(label.tolist(), probability)
print(session.run([session.get_outputs()[0].name], {"float_input": x[:1]})[0])
