"""What goes wrong, and how a program sees it."""

import numpy as np
import onnxruntime as ort
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile

value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("Add", ["a", "b"], ["y"])],
    "g",
    [value("a", 1, [2, "n"]), value("b", 1, ["m"])],
    [value("y", 1, None)],
)
session = ort.InferenceSession(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
)
a, b = np.ones((2, 3), np.float32), np.ones(3, np.float32)
attempts = {
    "type": (None, {"a": a.astype(int), "b": b}),
    "rank": (None, {"a": a, "b": a}),
    "size": (None, {"a": a[:1], "b": b}),
    "name": (None, {"a": a, "b": b, "c": b}),
    "output": (["z"], {"a": a, "b": b}),
}
for what, (names, feed) in attempts.items():
    try:
        session.run(names, feed)
        print(what, "passed")
    except InvalidArgument as error:
        print(what, type(error).__name__, str(error).split(":")[1].strip())
try:
    session.run(None, {"a": a})
except ValueError as error:
    print(error)
for make, kind in (
    (lambda: ort.InferenceSession("no such file.onnx"), NoSuchFile),
    (lambda: ort.InferenceSession(b"no model"), InvalidProtobuf),
):
    try:
        make()
    except kind:
        print(kind.__name__)
try:
    ort.InferenceSession(
        helper.make_model(
            helper.make_graph([helper.make_node("Nope", ["a"], ["y"])], "g", [value("a", 1, [1])], [value("y", 1, [1])])
        ).SerializeToString()
    )
except Exception as error:
    print("unknown operator", "Nope" in str(error))
options = ort.RunOptions()
options.terminate = True
try:
    session.run(None, {"a": a, "b": b}, options)
except Fail as error:
    print("terminate" in str(error))
print(session.run(None, {"a": a, "b": b})[0].tolist())
