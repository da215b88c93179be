"""Answer a question: a small encoder with attention and a mask; the span with the best start and end."""

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

HIDDEN, WORDS = 16, 100
rng = np.random.default_rng(2)
weights = {name: rng.normal(size=(HIDDEN, HIDDEN)) / 4 for name in ("wq", "wk", "wv", "wo")}
weights |= {"embedding": rng.normal(size=(WORDS, HIDDEN)), "types": rng.normal(size=(2, HIDDEN)),
            "span": rng.normal(size=(HIDDEN, 2)), "scale": np.ones(HIDDEN), "bias": np.zeros(HIDDEN)}  # fmt: skip
make = helper.make_node
nodes = [
    make("Gather", ["embedding", "input_ids"], ["e0"]),
    make("Gather", ["types", "token_type_ids"], ["e1"]),
    make("Add", ["e0", "e1"], ["x"]),
    make("MatMul", ["x", "wq"], ["q"]),
    make("MatMul", ["x", "wk"], ["k"]),
    make("MatMul", ["x", "wv"], ["v"]),
    make("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
    make("MatMul", ["q", "kt"], ["qk"]),
    make("Mul", ["qk", "quarter"], ["scaled"]),
    make("Unsqueeze", ["attention_mask", "one"], ["mask3"]),
    make("Cast", ["mask3"], ["maskf"], to=1),
    make("Sub", ["unit", "maskf"], ["off"]),
    make("Mul", ["off", "low"], ["penalty"]),
    make("Add", ["scaled", "penalty"], ["masked"]),
    make("Softmax", ["masked"], ["p"], axis=-1),
    make("MatMul", ["p", "v"], ["context"]),
    make("MatMul", ["context", "wo"], ["projected"]),
    make("Add", ["projected", "x"], ["sum"]),
    make("LayerNormalization", ["sum", "scale", "bias"], ["normed"], axis=-1),
    make("MatMul", ["normed", "span"], ["both"]),
    make("Split", ["both"], ["start", "end"], axis=2, num_outputs=2),
    make("Squeeze", ["start", "two"], ["start_logits"]),
    make("Squeeze", ["end", "two"], ["end_logits"]),
]
constants = {
    "quarter": np.float32(0.25),
    "unit": np.float32(1),
    "low": np.float32(-1e4),
    "one": np.array([1]),
    "two": np.array([2]),
}
initializers = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in weights.items()]
initializers += [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
names = ("input_ids", "attention_mask", "token_type_ids")
graph = helper.make_graph(
    nodes, "qa", [helper.make_tensor_value_info(n, 7, ["batch", "sequence"]) for n in names],
    [helper.make_tensor_value_info(n, 1, ["batch", "sequence"]) for n in ("start_logits", "end_logits")], initializers,
)  # fmt: skip
onnx_bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()

options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
session = onnxruntime.InferenceSession(onnx_bytes, options)
for question, text, padding in ((5, 9, 2), (3, 12, 0), (4, 4, 8)):
    length = question + text + padding
    ids = rng.integers(1, WORDS, (1, length))
    mask = np.array([[1] * (question + text) + [0] * padding], dtype=np.int64)
    kinds = np.array([[0] * question + [1] * (text + padding)], dtype=np.int64)
    start, end = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds})
    first = question + int(start[0, question : question + text].argmax())
    last = first + int(end[0, first : question + text].argmax())
    print(f"{length} tokens, answer {first} to {last}, score {start[0, first] + end[0, last]:.3f}")
