"""A quantised model: QuantizeLinear and DequantizeLinear around a product, and dynamic quantisation."""

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

rng = np.random.default_rng(5)
constants = {
    "w": rng.integers(-20, 20, (8, 4)).astype(np.int8), "ws": np.float32(0.05), "wz": np.int8(0),
    "xs": np.float32(0.1), "xz": np.uint8(128), "ys": np.float32(0.23), "yz": np.uint8(100),
}  # fmt: skip
make = helper.make_node
nodes = [
    make("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
    make("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
    make("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
    make("MatMul", ["xd", "wd"], ["m"]),
    make("QuantizeLinear", ["m", "ys", "yz"], ["y"]),
    make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
]
value = helper.make_tensor_value_info
outputs = [value("y", 2, ["n", 4]), value("q", 2, ["n", 8]), value("s", 1, []), value("z", 2, [])]
graph = helper.make_graph(nodes, "quantised", [value("x", 1, ["n", 8])], outputs,
                          [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])  # fmt: skip
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)
for rows in (1, 3):
    x = rng.integers(-40, 40, (rows, 8)).astype(np.float32) / 10
    y, q, s, z = session.run(None, {"x": x})
    print(y.dtype, y.tolist(), q.tolist(), f"{float(s):.5f}", int(z))
