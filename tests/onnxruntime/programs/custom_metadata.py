"""The labels of a classifier are in the model's metadata."""

import json

import numpy as np
import onnxruntime as rt
from onnx import helper

value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)],
    "labeler",
    [value("x", 1, ["n", 3])],
    [value("y", 7, ["n"])],
    doc_string="labels rows",
)
model = helper.make_model(
    graph,
    opset_imports=[helper.make_opsetid("", 13)],
    ir_version=8,
    producer_name="trainer",
    producer_version="1.2",
    domain="org.example",
    model_version=3,
    doc_string="a model",
)
helper.set_model_props(model, {"names": json.dumps({"0": "cat", "1": "dog", "2": "bird"}), "stride": "32"})
session = rt.InferenceSession(model.SerializeToString())
meta = session.get_modelmeta()
names = json.loads(meta.custom_metadata_map["names"])
print(meta.producer_name, meta.graph_name, meta.domain, meta.version, meta.description, meta.graph_description)
print(sorted(meta.custom_metadata_map), int(meta.custom_metadata_map["stride"]))
for index in session.run(None, {"x": np.eye(3, dtype=np.float32)[[2, 0, 1]]})[0]:
    print(names[str(index)])
