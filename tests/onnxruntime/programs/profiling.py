"""A profile in Chrome's format."""

import json
import os

import numpy as np
import onnxruntime as ort
from onnx import helper

value = helper.make_tensor_value_info
graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "e", [value("x", 1, [4])], [value("y", 1, [4])])
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = "profile_of_exp"
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString(), options
)
for _ in range(3):
    session.run(None, {"x": np.zeros(4, np.float32)})
name = session.end_profiling()
with open(name) as f:
    trace = json.load(f)
print(name.startswith("profile_of_exp"), name.endswith(".json"), os.path.getsize(name) > 0)
print(sum(event["name"] == "model_run" for event in trace), "runs")
print(any(event["cat"] == "Node" for event in trace), session.get_profiling_start_time_ns() > 0)
