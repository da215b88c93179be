"""Random graphs compiled and compared with an oracle; failures are minimised."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper
from onnx.printer import to_text

import tests.fuzz.generators  # noqa: F401 (the generators register themselves)
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import RelaycError
from relayc.frontends.onnx.backend import RelayBackend
from relayc.frontends.onnx.verify import departure
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from tests.fuzz.builder import Sample, Value, random_graph
from tests.fuzz.names import needed, reads
from tests.fuzz.oracle import InvalidModel, evaluate, expected_outputs, unit_noise
from tests.fuzz.schemas import kind_of

__all__ = ["Finding", "check", "check_seed", "compare_outputs", "shrink"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

TOLERANCES = {"float64": 1e-8, "float32": 2e-3, "float16": 0.1, "bfloat16": 0.2, "uint8": 0.02, "int8": 0.1}
"""A chain of a dozen operators may widen rounding errors; wrong answers are larger. Quantised values that are not
exact may be a step apart."""


class LoadedBackend(RelayBackend):
    """Runs models as they are loaded from artifacts."""

    @classmethod
    def build(cls, mod: IRModule, target: str) -> CompiledModel:
        return CompiledModel.from_bytes(super().build(mod, target).to_bytes())


class Finding(Exception):
    """A graph whose result is wrong, or that is not compiled or run: at which inputs, the first tensor, how far off."""

    def __init__(self, message: str, run: int) -> None:
        super().__init__(message)
        self.run = run


def check(sample: Sample, device: str = "CPU") -> None:
    """Compile a sample's graph for a device (by ONNX's name) and run it on each of its inputs.

    Raises `Finding` when an output is wrong or it fails, `InvalidModel` when it is not a valid graph.
    """
    model = None
    for i, inputs in enumerate(sample.runs):
        try:
            expected = expected_outputs(sample, inputs)
        except InvalidModel:
            if i == 0:
                raise
            continue  # dimensions that are too small for an operator of the graph
        try:
            model = LoadedBackend.prepare(sample.model, device) if model is None else model
            results = model.run(dict(inputs))
        except (CompileError, RelaycError) as error:
            if i > 0 and _is_degenerate(sample, i):
                continue
            raise Finding(f"{_name(sample, i)}: {type(error).__name__}: {error}", i) from error
        except Exception as error:
            raise Finding(f"{_name(sample, i)} crashed: {type(error).__name__}: {error}", i) from error
        compare_outputs(sample, i, results, expected)


def _is_degenerate(sample: Sample, run: int) -> bool:
    """Does a node have an empty output for these inputs, unlike for the first ones? Oracles accept windows that do not
    fit, which the compiler rejects."""
    here, first = (evaluate(sample, sample.runs[i]) for i in (run, 0))
    return any(np.size(here[n]) == 0 < np.size(first[n]) for n in here if isinstance(here[n], np.ndarray))


def _name(sample: Sample, run: int) -> str:
    return f"seed {sample.seed}, inputs {run}, opset {sample.model.opset_import[0].version}"


def compare_outputs(sample: Sample, run: int, results: Any, expected: list[Array]) -> None:
    """Raise `Finding` for the first output whose error exceeds possible rounding errors."""
    for value, result, want in zip(sample.outputs, results, expected, strict=True):
        result, want = np.asarray(result), np.asarray(want)
        error = departure(result, want)
        allowed = _allowed(value)
        if error <= allowed:
            continue
        if allowed == 0.0 or _difference(result, want) > 8.0 * _conditioning(sample, run, value.name, want):
            raise Finding(f"{_name(sample, run)}: output {value.name} ({value.dtype}{list(value.shape)}) is off by "
                          f"{error:.2e} of its largest magnitude; allowed: {allowed:.0e}", run)  # fmt: skip


def _allowed(value: Value) -> float:
    return 0.0 if value.exact else TOLERANCES.get(value.dtype, 0.0)


def _conditioning(sample: Sample, run: int, name: str, want: Array) -> float:
    """The largest change of an element by rounding errors alone, which dominate in sums that cancel."""
    moved = [evaluate(sample, sample.runs[run], unit_noise(seed))[name] for seed in range(3)]
    finite = [d for value in moved if np.isfinite(d := _difference(np.asarray(value), want))]
    return max(*finite, _rounding_of_operands(sample, run, name, want), 0.0)


def _rounding_of_operands(sample: Sample, run: int, name: str, want: Array) -> float:
    """A unit in the last place of the largest operand of the node that gives a tensor: operands that are computed
    again where they are read may come with other rounding, and cancel no longer."""
    node = next((n for n in sample.model.graph.node if name in n.output), None)
    steps = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    step = steps.get(want.dtype.name, 0.0)
    if node is None or step == 0.0:
        return 0.0
    values = evaluate(sample, sample.runs[run])
    operands = [np.asarray(values[n]) for n in reads(node) if isinstance(values[n], np.ndarray)]
    floats = [x.astype(np.float64) for x in operands if x.dtype == want.dtype]
    return step * max([np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in floats], default=0.0)


def _difference(value: Array, want: Array) -> float:
    """The largest difference of two elements; infinite where shapes, types, or the places of what is not finite do."""
    if value.shape != want.shape or value.dtype != want.dtype or value.dtype.kind in "OSU":
        return np.inf
    a, b = value.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.where(finite, 0.0, a), np.where(finite, 0.0, b), equal_nan=True):
        return np.inf
    largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return largest if np.isfinite(largest) else np.inf


def shrink(sample: Sample, fails: Callable[[Sample], bool]) -> Sample:
    """A smaller sample that fails too: cut to the ancestors of one output, its inputs made graph inputs."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(sample):
            if len(candidate.model.graph.node) < len(sample.model.graph.node) and fails(candidate):
                sample, changed = candidate, True
                break
    return sample


def _smaller(sample: Sample) -> list[Sample]:
    """The sample ending at each of its tensors, and beginning behind each of its nodes."""
    nodes = sample.model.graph.node
    values = evaluate(sample, sample.runs[0])
    known = {v.name: v for v in sample.outputs}
    found: list[Sample] = []
    for i, node in enumerate(nodes):
        names = [n for n in node.output if isinstance(values.get(n), np.ndarray)]
        ends = [known.get(n) or Value(n, values[n].dtype.name, values[n].shape, False, 0.0, 0.0) for n in names]
        found.extend(_cut(sample, set(range(i + 1)), [end], {}) for end in ends)
    for i, node in enumerate(nodes):
        passed = {n: values[n] for n in node.output if n}
        if known.keys().isdisjoint(passed) and all(isinstance(value, np.ndarray) for value in passed.values()):
            found.append(_cut(sample, set(range(len(nodes))) - {i}, sample.outputs, passed))
    return found


def _cut(sample: Sample, nodes: set[int], outputs: list[Value], passed: Arrays) -> Sample:
    """The nodes that the outputs still need among `nodes`, with values given for tensors that nothing makes."""
    graph = sample.model.graph
    kept, names = needed([graph.node[i] for i in sorted(nodes)], {v.name for v in outputs})
    model = ModelProto()
    model.CopyFrom(sample.model)
    for part in (model.graph.node, model.graph.output, model.graph.input, model.graph.initializer):
        del part[:]  # type: ignore[attr-defined]
    model.graph.node.extend(kept)
    model.graph.output.extend([ValueInfoProto(name=v.name) for v in outputs])
    model.graph.input.extend([i for i in graph.input if i.name in names])
    model.graph.initializer.extend([t for t in graph.initializer if t.name in names])
    extra = {name: value for name, value in passed.items() if name in names}
    for name, value in extra.items():
        model.graph.input.append(helper.make_tensor_value_info(name, kind_of(value.dtype.name), value.shape))
    runs = [{**{name: a for name, a in run.items() if name in names}, **extra} for run in sample.runs]
    return replace(sample, model=model, outputs=outputs, runs=runs)


def check_seed(seed: int, device: str = "CPU", **options: Any) -> None:
    """`check` of the graph of a seed; a failure is shrunk and told with its smallest model."""
    sample = random_graph(seed, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check(sample, device)
        except Finding as finding:
            small = shrink(replace(sample, runs=[sample.runs[finding.run]]), lambda smaller: _fails(smaller, device))
            text = to_text(small.model.graph)
            raise Finding(f"{finding}\nsmallest graph that fails:\n{text}", finding.run) from finding


def _fails(sample: Sample, device: str) -> bool:
    try:
        check(sample, device)
    except Finding:
        return True
    except InvalidModel:
        return False
    return False
