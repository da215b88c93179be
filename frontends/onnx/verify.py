"""`verify`: compares every intermediate tensor of a compiled model with an oracle.

The model is compiled twice: fused as usual, to compare its outputs, and with every intermediate tensor made an output;
these are compared in execution order, so that the first difference names the faulty node. When only the fused model is
wrong, models truncated after one of the tensors are compiled, by bisection, to find the first that fails.

Where a value lies between two quantised ones, rounding decides. So results of quantising nodes may differ by one step,
and layer by layer such differences become larger. What is computed from one is compared with what the oracle computes
from the same inputs of that node; outputs of the fused model may then differ by twice what they do unfused.

Oracles: "onnxruntime" (an optional dependency), without graph optimisations, which also checks the importer; and
"reference", the operators' numpy references applied to the imported graph, which checks all later stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper

from relayc import relay
from relayc.backend.runtime import graph_executor
from relayc.backend.runtime.strings import as_strings
from relayc.backend.target import Target
from relayc.frontends.onnx.graph import describe, names_read, nested_graphs
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.inputs import ShapeOverride, graph_inputs
from relayc.frontends.onnx.model import load
from relayc.te.errors import CompileError

__all__ = [
    "ORACLES", "Comparison", "VerifyReport", "departure", "onnxruntime_faults", "unoptimized_session", "verify",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Values = dict[str, Any]
"""Arrays, or lists of arrays for sequences, by name."""
OnnxModel = ModelProto | str | os.PathLike[str]

ORACLES = ("onnxruntime", "reference")

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference allowed by element type, as a share of the tensor's largest magnitude; other types: none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor: the node that computes it, its type, and its error.

    `error` is the largest difference relative to the oracle's largest magnitude; infinite if shape, type, or the
    positions of NaN and infinity differ. `steps` counts the elements of a quantised tensor that differ by one step.
    """

    tensor: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    steps: int = 0

    @property
    def agrees(self) -> bool:
        """Is it within its tolerance?"""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        steps = f", {self.steps} elements by one step" if self.steps else ""
        return f"{self.tensor} of {self.node}: {self.dtype}{list(self.shape)}, error {self.error:.2e}{steps}"


@dataclass(slots=True)
class VerifyReport:
    """The result of `verify`: the `outputs` of the fused model, and all `tensors` in execution order.

    `departs` is the first tensor outside its tolerance; `fused_only` says that this happens only when its node is
    fused. `skipped` are tensors that are not compared, each with the reason.
    """

    oracle: str
    outputs: list[Comparison] = field(default_factory=list)
    tensors: list[Comparison] = field(default_factory=list)
    departs: Comparison | None = None
    fused_only: bool = False
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Is every output and every intermediate tensor within its tolerance?"""
        return self.departs is None


def verify(
    model: OnnxModel,
    inputs: Arrays,
    *,
    against: str = "onnxruntime",
    target: str | Target = "llvm",
    where: str = "cpu",
    shape: ShapeOverride | None = None,
    tolerance: float | None = None,
) -> VerifyReport:
    """Compare the compiled model with an oracle on `inputs`, tensor by tensor.

    `tolerance` overrides `TOLERANCES` for floating-point tensors. Raises CompileError for an unknown oracle, one that
    is not installed, or a model that can't be compiled.
    """
    if against not in ORACLES:
        raise CompileError(f"can't compare with {against!r}; expected one of {', '.join(ORACLES)}")
    graph = load(model).graph
    inputs = {name: as_strings(x) if np.asarray(x).dtype.kind in "SUT" else x for name, x in inputs.items()}
    _check_inputs([value.name for value in graph_inputs(graph)], inputs)
    report = VerifyReport(against)
    outputs = [o.name for o in graph.output]
    producers = _exposed(graph)
    names = list(dict.fromkeys([*producers, *outputs]))
    for name in _optional(model, shape, names):
        report.skipped[name] = f"{producers.get(name, 'the model')} gives an optional value"
    names, outputs = ([name for name in some if name not in report.skipped] for some in (names, outputs))
    oracle = _OnnxRuntime(model, inputs) if against == "onnxruntime" else _References(model, inputs, shape)
    compiled = _Compiled(model, inputs, shape, target, where)
    expected, steps = oracle(names), _Steps.of(graph)

    def compared(wanted: Sequence[str], found: Values) -> list[Comparison]:
        return [steps.compare(name, part, producers.get(name, "the model"), value, right, tolerance)
                for name in wanted for part, value, right in _pairs(name, found[name], expected[name])]  # fmt: skip

    def compare(wanted: Sequence[str]) -> list[Comparison]:
        return [steps.widened(c) for c in compared(wanted, compiled(wanted))]

    unfused = compiled(names)
    report.tensors = compared(names, unfused)
    suspects = [i for i, c in enumerate(report.tensors) if not c.agrees and c.tensor in steps.errors]
    proto = _message(model) if suspects else ModelProto()
    for position in suspects:
        name, node = report.tensors[position].tensor, report.tensors[position].node
        alone = _alone(proto, name, {**inputs, **unfused}, type(oracle))
        if alone is not None:
            report.tensors[position] = steps.compare(name, name, node, unfused[name], alone[name], tolerance)
    report.outputs = compare(outputs)
    report.departs = next((c for c in report.tensors if not c.agrees), None)
    if report.departs is None and not all(c.agrees for c in report.outputs):
        report.fused_only = True
        report.departs = _first_cut(names, lambda name: _worst(compare([name])), report.outputs)
    return report


def _pairs(name: str, value: Any, expected: Any) -> list[tuple[str, Array, Array]]:
    """The pairs to compare: a tensor, or the length and the elements of a sequence."""
    if not isinstance(value, list) and not isinstance(expected, list):
        return [(name, value, expected)]
    counts = [np.array(len(v) if isinstance(v, list) else -1) for v in (value, expected)]
    elements = [(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(value, expected, strict=False))]
    return [(f"length of {name}", counts[0], counts[1]), *elements]


def _worst(found: Sequence[Comparison]) -> Comparison:
    return next((c for c in found if not c.agrees), found[0])


def departure(value: Array, expected: Array) -> float:
    """The largest difference of two arrays relative to the largest finite expected magnitude; see `Comparison`."""
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return float("inf")
    if value.size == 0 or value.dtype.kind in "OSU":
        return 0.0 if np.array_equal(value, expected) else float("inf")
    a, b = value.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.where(finite, 0.0, a), np.where(finite, 0.0, b), equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    difference = np.abs(a[finite] - b[finite]).max()
    scale = np.abs(b[finite]).max()
    if not np.isfinite(difference):
        return float("inf")
    return float(difference / scale) if scale > 0 else (0.0 if difference == 0 else float("inf"))


_QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm")
"""Beginnings of the names of operators whose results are quantised."""


@dataclass(slots=True)
class _Steps:
    """Comparison of tensors in execution order, which notes those that quantisation steps make differ.

    `reads` has the names that a tensor is computed from, `quantised` the results of quantising nodes. `errors` are
    those of tensors that differ by steps, and of what is computed from them.
    """

    reads: Mapping[str, Sequence[str]]
    quantised: set[str]
    errors: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(graph: GraphProto) -> _Steps:
        """For the nodes of a graph."""
        reads = {name: [*names_read(node)] for node in graph.node for name in node.output}
        quantising = [node for node in graph.node if node.op_type.startswith(_QUANTISING)]  # to integers or float8
        return _Steps(reads, {name for node in quantising for name in node.output})

    def compare(
        self, name: str, part: str, node: str, value: Array, expected: Array, tolerance: float | None
    ) -> Comparison:
        """Compare the tensor `name`, or `part` of it, made by `node`."""
        own = TOLERANCES.get(expected.dtype.name)
        error, allowed, steps = departure(value, expected), 0.0, 0
        differs = any(read in self.errors for read in self.reads.get(name, ()))
        if own is not None:
            allowed = own if tolerance is None else tolerance
        elif error and name in self.quantised and value.shape == expected.shape and value.dtype == expected.dtype:
            whole = expected.astype(np.int64)
            difference = np.abs(value.astype(np.int64) - whole)
            allowed = 1.0 / max(int(np.abs(whole).max()), 1)
            if difference.max() <= 1 and expected.dtype.name.startswith(("int", "uint")):
                error, steps = allowed, int(difference.sum())
        if differs or steps:
            self.errors.setdefault(name, error)
        return Comparison(part, node, value.dtype.name, value.shape, error, allowed, steps)

    def widened(self, found: Comparison) -> Comparison:
        """The comparison of a fused result, with the tolerance that its error in the unfused model allows."""
        error = self.errors.get(found.tensor, 0.0)
        return replace(found, tolerance=max(found.tolerance, 2 * error)) if np.isfinite(error) else found


def _message(model: OnnxModel) -> ModelProto:
    return model if isinstance(model, ModelProto) else onnx.load(os.fspath(model))


def _alone(proto: ModelProto, name: str, values: Values, oracle: type[_OnnxRuntime | _References]) -> Values | None:
    """What the oracle's node that computes `name` makes of `values`; None if it reads others than tensors."""
    node = next(node for node in proto.graph.node if name in node.output)
    read = set(names_read(node)) - {""}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in read and tensor.name not in values]
    passed = {name: values[name] for name in read if name in values}
    missing = read - set(passed) - {tensor.name for tensor in constants}
    if missing or not all(isinstance(x, np.ndarray) and x.dtype.kind in "fiub" for x in passed.values()):
        return None
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                for name, x in passed.items()]  # fmt: skip
    graph = helper.make_graph([node], "alone", declared, [onnx.ValueInfoProto(name=name)], constants)
    single = helper.make_model(
        graph, ir_version=proto.ir_version, opset_imports=proto.opset_import, functions=proto.functions
    )
    return oracle(single, passed)([name])


def _first_cut(
    names: list[str], compare: Callable[[str], Comparison], outputs: Sequence[Comparison]
) -> Comparison:
    """Bisect: the first tensor that is wrong when the model is truncated after it; else the wrong output."""
    found = next(c for c in outputs if not c.agrees)
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        cut = compare(names[middle])
        if cut.agrees:
            low = middle + 1
        else:
            found, high = cut, middle
    return found


def _check_inputs(wanted: Sequence[str], passed: Arrays) -> None:
    missing = [name for name in wanted if name not in passed]
    if missing:
        raise CompileError(f"verify needs a value for every input; missing: {', '.join(missing)}")


def _optional(model: OnnxModel, shape: ShapeOverride | None, names: Sequence[str]) -> list[str]:
    """The names of optional values among `names`."""
    module, _ = from_onnx(model, shape=shape, outputs=names)
    return [name for i, name in enumerate(names) if i in module.attrs["optional_outputs"]]


def _exposed(graph: GraphProto) -> dict[str, str]:
    """Intermediate tensors and sequences to compare, in node order, with the nodes that compute them."""
    read = {name for node in _all_nodes(graph.node) for name in node.input}
    read.update(o.name for o in graph.output)
    return {name: describe(node) for node in graph.node for name in node.output if name in read and name}


def _all_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """All nodes, including those of nested subgraphs."""
    found: list[NodeProto] = []
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        found.append(node)
        for nested in nested_graphs(node):
            waiting.extend(nested.node)
    return found


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The compiled model with the requested tensors as outputs."""

    model: OnnxModel
    inputs: Arrays
    shape: ShapeOverride | None
    target: str | Target
    where: str

    def __call__(self, names: Sequence[str]) -> Values:
        module, params = from_onnx(self.model, shape=self.shape, outputs=names)
        built = relay.build(module, self.target, params)
        executor = graph_executor.GraphModule.of(built, self.where)
        results = executor.infer({name: self.inputs[name] for name in module.attrs["input_names"]})
        return dict(zip(names, [_as_numpy(result) for result in results], strict=True))


def _as_numpy(value: Any) -> Any:
    """Convert results to arrays and lists of arrays; a map to its values."""
    if isinstance(value, list):
        return [_as_numpy(item) for item in value]
    if isinstance(value, dict):
        return np.array([*value.values()], np.float32)
    return value if isinstance(value, np.ndarray) else value.numpy()


@dataclass(frozen=True, slots=True)
class _References:
    """The imported graph evaluated by the operators' numpy references."""

    model: OnnxModel
    inputs: Arrays
    shape: ShapeOverride | None = None

    def __call__(self, names: Sequence[str]) -> Values:
        module, _ = from_onnx(self.model, shape=self.shape, outputs=names)
        result = relay.create_executor("debug", module).evaluate()(**self.inputs)
        results = [*result] if isinstance(result, tuple) else [result]
        for position in module.attrs.get("output_maps", {}):
            results[position] = [*results[position]]
        return dict(zip(names, results, strict=True))


def onnxruntime_faults() -> tuple[type[Exception], ...]:
    """What onnxruntime raises for models and inputs that it does not run. Raises ImportError where it is missing."""
    module = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    names = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
    return (*[getattr(module, name) for name in names], RuntimeError)


def unoptimized_session(model: bytes | os.PathLike[str]) -> Any:
    """A session of onnxruntime, on the CPU and without graph optimisations."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, slots=True)
class _OnnxRuntime:
    """The model run by onnxruntime without graph optimisations."""

    model: OnnxModel
    inputs: Arrays

    def __call__(self, names: Sequence[str]) -> Values:
        try:
            faults = onnxruntime_faults()
        except ImportError as error:
            raise CompileError("onnxruntime is not installed: pip install onnxruntime, or compare with --against "
                               "reference") from error  # fmt: skip
        proto = _message(self.model)
        try:
            session = unoptimized_session(_with_outputs(proto, names).SerializeToString())
            feeds = {value.name: self.inputs[value.name] for value in session.get_inputs()}
            results = session.run(list(names), feeds)
        except faults as error:
            raise CompileError(
                f"onnxruntime can't run the model: {error}; compare with --against reference"
            ) from error
        return dict(zip(names, map(_as_numpy, results), strict=True))


def _with_outputs(proto: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with these tensors as outputs; undeclared types are omitted."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    declared = {o.name for o in proto.graph.output}
    changed.graph.output.extend([onnx.ValueInfoProto(name=name) for name in names if name not in declared])
    return changed
