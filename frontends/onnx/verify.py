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

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.strings import as_strings
from relayc.backend.target import Target
from relayc.frontends.onnx.containers import Maybe, assembled
from relayc.frontends.onnx.graph import describe, nested_graphs
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.inputs import ShapeOverride, graph_inputs
from relayc.frontends.onnx.model import load
from relayc.te.errors import CompileError

__all__ = ["ORACLES", "Comparison", "VerifyReport", "departure", "verify"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Values = dict[str, Any]
"""Arrays, and lists of them for sequences, by name."""
OnnxModel = ModelProto | str | os.PathLike[str]

ORACLES = ("onnxruntime", "reference")

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference allowed by element type, as a share of the tensor's largest magnitude; other types: none."""



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
    expected = oracle(names)

    def compare(wanted: Sequence[str]) -> list[Comparison]:
        found = compiled(wanted)
        return [_compare(part, producers.get(name, "the model"), value, right, tolerance)
                for name in wanted for part, value, right in _pairs(name, found[name], expected[name])]  # fmt: skip

    report.outputs, report.tensors = compare(outputs), compare(names)
    report.departs = next((c for c in report.tensors if not c.agrees), None)
    if report.departs is None and not all(c.agrees for c in report.outputs):
        report.fused_only = True
        report.departs = _first_cut(names, lambda name: _worst(compare([name])), report.outputs)
    return report


def _pairs(name: str, value: Any, expected: Any) -> list[tuple[str, Array, Array]]:
    """What is to be compared: a tensor, or the elements of a sequence and first their number."""
    if not isinstance(value, list) and not isinstance(expected, list):
        return [(name, value, expected)]
    counts = [np.array(len(v) if isinstance(v, list) else -1) for v in (value, expected)]
    elements = [(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(value, expected, strict=False))]
    return [(f"length of {name}", counts[0], counts[1]), *elements]


def _worst(found: Sequence[Comparison]) -> Comparison:
    return next((c for c in found if not c.agrees), found[0])


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


def _check_inputs(wanted: Sequence[str], passed: Arrays) -> None:
    missing = [name for name in wanted if name not in passed]
    if missing:
        raise CompileError(f"verify needs a value for every input; missing: {', '.join(missing)}")


def _optional(model: OnnxModel, shape: ShapeOverride | None, names: Sequence[str]) -> list[str]:
    """Those of `names` that may turn out to be nothing."""
    module, _ = from_onnx(model, shape=shape, outputs=names)
    forms = module.attrs.get("output_forms", ())
    return [name for name, form in zip(names, forms, strict=False) if form is None or isinstance(form, Maybe)]


def _exposed(graph: GraphProto) -> dict[str, str]:
    """Tensors and sequences to compare, in the order of the nodes: what something reads, and who computes it."""
    read = {name for node in _all_nodes(graph.node) for name in node.input}
    read.update(o.name for o in graph.output)
    return {name: describe(node) for node in graph.node for name in node.output if name in read and name}


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

    def __call__(self, names: Sequence[str]) -> Values:
        module, params = from_onnx(self.model, shape=self.shape, outputs=names)
        built = relay.build(module, self.target, params)
        executor = graph_executor.GraphModule(built["default"](device(self.where)))
        for name in module.attrs["input_names"]:
            executor.set_input(name, self.inputs[name])
        executor.run()
        results = [_as_numpy(executor.get_output(i)) for i in range(executor.get_num_outputs())]
        return _by_name(names, results, module.attrs)


def _as_numpy(value: Any) -> Any:
    """Results as arrays and lists of them; a map as its elements."""
    if isinstance(value, list):
        return [_as_numpy(item) for item in value]
    if isinstance(value, dict):
        return np.array([*value.values()], np.float32)
    return value if isinstance(value, np.ndarray) else value.numpy()


def _by_name(names: Sequence[str], results: Sequence[Any], attrs: Mapping[str, Any]) -> Values:
    """The results of a compiled model put together as the ONNX model's."""
    forms = attrs.get("output_forms")
    whole = results if forms is None else [assembled(form, results) for form in forms]
    return dict(zip(names, whole, strict=True))


@dataclass(frozen=True, slots=True)
class _References:
    """The imported graph evaluated by the operators' numpy references."""

    model: OnnxModel
    inputs: Arrays
    shape: ShapeOverride | None

    def __call__(self, names: Sequence[str]) -> Values:
        module, _ = from_onnx(self.model, shape=self.shape, outputs=names)
        result = relay.create_executor("debug", module).evaluate()(**self.inputs)
        results = [*result] if isinstance(result, tuple) else [result]
        for position in module.attrs.get("output_maps", {}):
            results[position] = [*results[position]]
        return _by_name(names, results, module.attrs)


@dataclass(frozen=True, slots=True)
class _OnnxRuntime:
    """The model run by onnxruntime as it stands, node by node."""

    model: OnnxModel
    inputs: Arrays

    def __call__(self, names: Sequence[str]) -> Values:
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
        return dict(zip(names, map(_as_numpy, session.run(list(names), feeds)), strict=True))


def _with_outputs(proto: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with these tensors as its outputs; a type that the model does not declare is left open."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    declared = {o.name for o in proto.graph.output}
    changed.graph.output.extend([onnx.ValueInfoProto(name=name) for name in names if name not in declared])
    return changed
