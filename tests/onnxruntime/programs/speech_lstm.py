"""A recurrent model over windows of a signal, its state kept by the program; an overridden initializer."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

UNITS, WINDOW = 4, 16
rng = np.random.default_rng(12)
weights = {"w": rng.normal(size=(1, 4 * UNITS, WINDOW)) / 4, "r": rng.normal(size=(1, 4 * UNITS, UNITS)) / 2,
           "b": rng.normal(size=(1, 8 * UNITS)) / 4, "gain": np.ones(1)}  # fmt: skip
make = helper.make_node
nodes = [
    make("Mul", ["frame", "gain"], ["x"]),
    make("Unsqueeze", ["x", "first"], ["sequence"]),
    make("LSTM", ["sequence", "w", "r", "b", "", "h", "c"], ["", "hn", "cn"], hidden_size=UNITS),
    make("ReduceMean", ["hn"], ["m"], axes=[0, 2], keepdims=0),
    make("Sigmoid", ["m"], ["speech"]),
]
value = helper.make_tensor_value_info
inputs = [
    value("frame", 1, ["batch", WINDOW]),
    value("h", 1, [1, "batch", UNITS]),
    value("c", 1, [1, "batch", UNITS]),
    value("gain", 1, [1]),
]
outputs = [value("speech", 1, ["batch"]), value("hn", 1, [1, "batch", UNITS]), value("cn", 1, [1, "batch", UNITS])]
initializers = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()] + [
    numpy_helper.from_array(np.array([0]), "first")
]
graph = helper.make_graph(nodes, "vad", inputs, outputs, initializers)
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8).SerializeToString()
)
print([i.name for i in session.get_inputs()], [i.name for i in session.get_overridable_initializers()])
signal = np.sin(np.arange(5 * WINDOW, dtype=np.float32) / 3)
for gain in (None, 2.0):
    h = c = np.zeros((1, 1, UNITS), np.float32)
    extra = {} if gain is None else {"gain": np.array([gain], np.float32)}
    for start in range(0, len(signal), WINDOW):
        speech, h, c = session.run(None, {"frame": signal[None, start : start + WINDOW], "h": h, "c": c, **extra})
        print(start, f"{speech[0]:.3f}")
