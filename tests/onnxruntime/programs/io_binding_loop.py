"""A recurrent model in a loop: the state that a run returns is bound as the input of the next."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(3)
w = (rng.normal(size=(6, 6)) / 3).astype(np.float32)
nodes = [
    helper.make_node("MatMul", ["state", "w"], ["h"]),
    helper.make_node("Add", ["h", "x"], ["s"]),
    helper.make_node("Tanh", ["s"], ["next"]),
    helper.make_node("ReduceMean", ["next"], ["y"], axes=[1], keepdims=0),
]
value = helper.make_tensor_value_info
graph = helper.make_graph(
    nodes,
    "cell",
    [value("x", 1, ["n", 6]), value("state", 1, ["n", 6])],
    [value("y", 1, ["n"]), value("next", 1, ["n", 6])],
    [numpy_helper.from_array(w, "w")],
)
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)

binding = session.io_binding()
state = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 6), np.float32))
y = ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cpu", 0)
for step in range(5):
    x = np.full((2, 6), step / 5, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("state", state)
    binding.bind_ortvalue_output("y", y)
    binding.bind_output("next", "cpu")
    session.run_with_iobinding(binding)
    state = binding.get_outputs()[1]
    print(step, y.numpy().round(4), state.shape(), state.data_type())
binding.clear_binding_inputs()
binding.clear_binding_outputs()
(last,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(x), "state": state})
print(last.numpy().round(4), last.is_tensor(), last.device_name())
