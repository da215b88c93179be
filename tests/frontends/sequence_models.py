"""ONNX models with dynamic sequences and optional values, and their oracles.

The graphs are what torch's TorchScript exporter writes for Python lists. Oracles: onnx's reference implementation, and
onnxruntime if it is installed.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx import from_onnx

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
GOES_ON = helper.make_node("Identity", ["goes_on"], ["goes_on_next"])


def info(name, shape=None, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name, shape=None, kind=FLOAT):
    return helper.make_tensor_sequence_value_info(name, kind, shape)


def optional(name, of_sequence=False):
    tensor = helper.make_tensor_type_proto(FLOAT, None)
    held = helper.make_sequence_type_proto(tensor) if of_sequence else tensor
    return helper.make_value_info(name, helper.make_optional_type_proto(held))


def constant(name, value):
    value = np.asarray(value)
    kind = {"f": FLOAT, "i": INT64, "b": BOOL}[value.dtype.kind]
    return helper.make_tensor(name, kind, value.shape, value.reshape(-1))


def body(nodes, carried, results, initializers=()) -> GraphProto:
    """A loop body whose condition is always true."""
    return helper.make_graph(
        [GOES_ON, *nodes], "body", [info("i", [], INT64), info("goes_on", [], BOOL), *carried],
        [info("goes_on_next", [], BOOL), *results], list(initializers),
    )  # fmt: skip


def model_of(nodes, inputs, outputs, initializers=()) -> ModelProto:
    graph = helper.make_graph(nodes, "lists", inputs, outputs, [*initializers, constant("always", True)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class Compiled:
    """A model compiled, saved and loaded again; called with arrays it gives arrays, lists of them and None."""

    def __init__(self, model: ModelProto, target: str = "llvm") -> None:
        mod, _ = from_onnx(model)
        self.optional = mod.attrs["optional_outputs"]
        self.library = CompiledModel.from_bytes(relay.build(mod, target=target).to_bytes())
        self.executor = graph_executor.GraphModule(self.library["default"](device("cpu", 0)))

    def __call__(self, *inputs):
        results = [_plain(x) for x in self.executor(*inputs)]
        return [next(iter(x), None) if i in self.optional else x for i, x in enumerate(results)]


def _plain(value):
    return [_plain(item) for item in value] if isinstance(value, list) else value.numpy()


def assert_same(passed, expected):
    if isinstance(expected, list):
        assert isinstance(passed, list) and len(passed) == len(expected)
        for a, b in zip(passed, expected, strict=True):
            assert_same(a, b)
    elif expected is None:
        assert passed is None
    else:
        assert passed.dtype == expected.dtype and passed.shape == expected.shape
        np.testing.assert_allclose(passed, expected, rtol=1e-5, atol=1e-6)


def onnxruntime():
    """The module, where it is installed."""
    try:
        return import_module("onnxruntime")
    except ImportError:
        return None


def check(model: ModelProto, *runs, expected=None):
    """The compiled model agrees with the oracles on each of `runs`, tuples of inputs; gives the compiled model.

    `expected` computes the outputs where onnx's reference can't.
    """
    compiled = Compiled(model)
    names = [value.name for value in model.graph.input]
    oracles = [ReferenceEvaluator(model).run] if expected is None else [lambda _, passed: expected(**passed)]
    ort = onnxruntime()
    if ort is not None:
        oracles.append(ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run)
    for inputs in runs:
        results = compiled(*inputs)
        for oracle in oracles:
            assert_same(results, list(oracle(None, dict(zip(names, inputs, strict=True)))))
    return compiled


def appending(nodes, row="row", initializers=()) -> GraphProto:
    """list.append(row) in each iteration, `row` computed by `nodes`."""
    append = helper.make_node("SequenceInsert", ["list", row], ["longer"], name="append")
    return body([*nodes, append], [sequence("list")], [sequence("longer")], initializers)


EMPTY = helper.make_node("SequenceEmpty", [], ["empty"], dtype=FLOAT)
TRIPS = info("trips", [], INT64)


def n(value):
    return np.array(value, np.int64)


def f(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
