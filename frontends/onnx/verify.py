"""Where does a compiled model depart from an oracle? `verify` compares every intermediate tensor.

The model is compiled twice. As users run it, fused as usual: its outputs are compared. And with every tensor that some
node reads made an output: those are compared one by one, in the order in which they are computed, so that the first
that departs names the node at fault. When only the fused model is wrong, models cut off after one of the tensors are
compiled to find the first for which that happens.

Oracles: "onnxruntime" (not installed with us), its graph optimisations turned off, which checks the importer too; and
"reference", our operators' numpy references applied to the imported graph, which checks all that comes after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto

import relay
from backend.runtime import device, graph_executor
from backend.target import Target
from frontends.onnx.graph import describe, nested_graphs
from frontends.onnx.importer import from_onnx
from frontends.onnx.inputs import ShapeOverride, graph_inputs
from frontends.onnx.model import load
from te.errors import CompileError

__all__ = ["ORACLES", "Comparison", "VerifyReport", "departure", "verify"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Tensors = dict[str, Array]
OnnxModel = ModelProto | str | os.PathLike[str]

ORACLES = ("onnxruntime", "reference")

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference allowed by element type, as a share of the tensor's largest magnitude; other types: none."""

_CONTAINER_OPERATORS = frozenset((
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap", "SplitToSequence",
    "Optional",
))  # fmt: skip
"""Operators that give no tensor."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor: the node that computes it, its type, and how far it is from the oracle's.

    `error` is the largest difference as a share of the oracle's largest magnitude; infinite where NaN or infinity do
    not stand at the same places, or shape or type differ.
    """

    tensor: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Is it within its tolerance?"""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{self.tensor} of {self.node}: {self.dtype}{list(self.shape)}, error {self.error:.2e}"


@dataclass(slots=True)
class VerifyReport:
    """What `verify` found: the `outputs` of the model as compiled, and all `tensors` in the order of computation.

    `departs` is the first tensor outside its tolerance; `fused_only` says that it is so only where its node is fused
    with others. `skipped` are tensors that are not compared, each with the reason.
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
    _check_inputs([value.name for value in graph_inputs(graph)], inputs)
    report = VerifyReport(against)
    outputs = [o.name for o in graph.output]
    producers = _exposed(graph, report)
    names = list(dict.fromkeys([*producers, *outputs]))
    oracle = _OnnxRuntime(model, inputs) if against == "onnxruntime" else _References(model, inputs, shape)
    compiled = _Compiled(model, inputs, shape, target, where)
    expected = oracle(names)

    def compare(name: str, value: Array) -> Comparison:
        return _compare(name, producers.get(name, "the model"), value, expected[name], tolerance)

    report.outputs = [compare(name, value) for name, value in compiled(outputs).items()]
    report.tensors = [compare(name, value) for name, value in compiled(names).items()]
    report.departs = next((c for c in report.tensors if not c.agrees), None)
    if report.departs is None and not all(c.agrees for c in report.outputs):
        report.fused_only = True
        report.departs = _first_cut(names, lambda name: compare(name, compiled([name])[name]), report.outputs)
    return report


def departure(value: Array, expected: Array) -> float:
    """The largest difference of two arrays, as a share of the largest finite magnitude expected; see `Comparison`."""
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


def _compare(
    name: str, node: str, value: Array, expected: Array, tolerance: float | None
) -> Comparison:
    own = TOLERANCES.get(expected.dtype.name)
    allowed = 0.0 if own is None else own if tolerance is None else tolerance
    return Comparison(name, node, value.dtype.name, value.shape, departure(value, expected), allowed)


def _first_cut(
    names: list[str], compare: Callable[[str], Comparison], outputs: Sequence[Comparison]
) -> Comparison:
    """By halving: the first tensor that is wrong when the model ends with it; else the output that is wrong."""
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


def _check_inputs(wanted: Sequence[str], given: Arrays) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise CompileError(f"verify needs a value for every input; missing: {', '.join(missing)}")


def _exposed(graph: GraphProto, report: VerifyReport) -> dict[str, str]:
    """Tensors to compare, in the order of the nodes: those that something reads, with the node that computes them."""
    read = {name for node in _all_nodes(graph.node) for name in node.input}
    read.update(o.name for o in graph.output)
    exposed: dict[str, str] = {}
    containers: set[str] = set()
    for node in graph.node:
        holds = node.op_type in _CONTAINER_OPERATORS or (
            node.op_type in ("Identity", "If", "Loop") and any(name in containers for name in node.input)
        )
        for name in node.output:
            if name and holds:
                containers.add(name)
                report.skipped[name] = f"{describe(node)} gives no tensor"
            elif name in read:
                exposed[name] = describe(node)
    return exposed


def _all_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """The nodes and those of their subgraphs, at any depth."""
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
    """The model compiled by us, to give the tensors asked for."""

    model: OnnxModel
    inputs: Arrays
    shape: ShapeOverride | None
    target: str | Target
    where: str

    def __call__(self, names: Sequence[str]) -> Tensors:
        module, params = from_onnx(self.model, shape=self.shape, outputs=names)
        built = relay.build(module, self.target, params)
        executor = graph_executor.GraphModule(built["default"](device(self.where)))
        for name in module.attrs["input_names"]:
            executor.set_input(name, self.inputs[name])
        executor.run()
        return {name: executor.get_output(i).numpy() for i, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class _References:
    """The imported graph evaluated by the operators' numpy references."""

    model: OnnxModel
    inputs: Arrays
    shape: ShapeOverride | None

    def __call__(self, names: Sequence[str]) -> Tensors:
        module, _ = from_onnx(self.model, shape=self.shape, outputs=names)
        result = relay.create_executor("debug", module).evaluate()(**self.inputs)
        return dict(zip(names, (result,) if len(names) == 1 else result, strict=True))


@dataclass(frozen=True, slots=True)
class _OnnxRuntime:
    """The model run by onnxruntime as it stands, node by node."""

    model: OnnxModel
    inputs: Arrays

    def __call__(self, names: Sequence[str]) -> Tensors:
        try:
            ort = import_module("onnxruntime")
        except ImportError as error:
            raise CompileError("onnxruntime is not installed: pip install onnxruntime, or compare with --against "
                               "reference") from error  # fmt: skip
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        proto = self.model if isinstance(self.model, ModelProto) else onnx.load(os.fspath(self.model))
        session = ort.InferenceSession(
            _with_outputs(proto, names).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = {value.name: self.inputs[value.name] for value in session.get_inputs()}
        return dict(zip(names, session.run(list(names), feeds), strict=True))


def _with_outputs(proto: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with these tensors as its outputs; a type that the model does not declare is left open."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    declared = {o.name for o in proto.graph.output}
    changed.graph.output.extend([onnx.ValueInfoProto(name=name) for name in names if name not in declared])
    return changed
