"""The options that programs set."""

import numpy as np
import onnxruntime as ort
from onnx import helper

value = helper.make_tensor_value_info
nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0)]
graph = helper.make_graph(nodes, "g", [value("x", 1, ["batch", "width"])], [value("y", 1, [])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.inter_op_num_threads = 1
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.enable_mem_pattern = False
options.enable_cpu_mem_arena = False
options.log_severity_level = 3
options.logid = "program"
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
options.add_free_dimension_override_by_name("batch", 2)
session = ort.InferenceSession(model, sess_options=options, providers=[("CPUExecutionProvider", {})])
print(session.get_inputs()[0].shape, session.run(None, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})[0])
print(options.get_session_config_entry("session.intra_op.allow_spinning"), session.get_providers())
print(session.get_session_options().intra_op_num_threads, session.get_provider_options())
run_options = ort.RunOptions()
run_options.log_severity_level = 4
run_options.logid = "a run"
print(session.run(["y"], {"x": np.ones((2, 5), np.float32)}, run_options)[0].shape)
