"""Random graphs compiled and compared with an oracle; what fails, made as small as it will go."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper
from onnx.printer import to_text

import tests.fuzz.arithmetic
import tests.fuzz.products
import tests.fuzz.structure  # noqa: F401 (the generators register themselves)
from frontends.onnx.backend import RelayBackend
from frontends.onnx.verify import departure
from te.errors import CompileError
from tests.fuzz.builder import Sample, Value, random_graph
from tests.reference_backend import ReferenceBackend

__all__ = ["Finding", "check", "check_seed", "onnxruntime_outputs", "shrink"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Oracle = Callable[[ModelProto, Arrays], "list[Array] | None"]

TOLERANCES = {"float64": 1e-8, "float32": 2e-3, "float16": 0.1}
"""A chain of a dozen operators may widen rounding errors; wrong answers are larger."""


class Finding(Exception):
    """A graph whose result is wrong: the first tensor that is, and by how much."""


def onnxruntime_outputs(model: ModelProto, inputs: Arrays) -> list[Array] | None:
    """Outputs by onnxruntime; None where it is not installed or has no kernel for a type."""
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, dict(inputs))
    except Exception:  # noqa: BLE001 - its errors have no common class; another oracle is asked then
        return None


def reference_outputs(model: ModelProto, inputs: Arrays) -> list[Array]:
    """Outputs by the operators' numpy references."""
    return list(ReferenceBackend.prepare(model).run(dict(inputs)))


def check(sample: Sample) -> None:
    """Compile and run the graph of a sample. Raises `Finding` when an output is wrong or compiling fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = onnxruntime_outputs(sample.model, sample.inputs)
        if expected is None:
            expected = reference_outputs(sample.model, sample.inputs)
    try:
        results = RelayBackend.prepare(sample.model).run(dict(sample.inputs))
    except CompileError as error:
        raise Finding(f"seed {sample.seed}: it does not compile: {error}") from error
    for value, result, want in zip(sample.outputs, results, expected, strict=True):
        error = departure(np.asarray(result), np.asarray(want))
        if error > _allowed(value):
            raise Finding(f"seed {sample.seed}: output {value.name} ({value.dtype}{list(value.shape)}) is off by "
                          f"{error:.2e} of its largest magnitude")  # fmt: skip


def _allowed(value: Value) -> float:
    return 0.0 if value.exact else TOLERANCES.get(value.dtype, 0.0)


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
    values = _values_of(sample, [name for node in nodes for name in node.output if name])
    known = {v.name: v for v in sample.outputs}
    found: list[Sample] = []
    for i, node in enumerate(nodes):
        ends = [known.get(n) or Value(n, values[n].dtype.name, values[n].shape, False, 0.0, 0.0) for n in node.output]
        found.extend(_cut(sample, set(range(i + 1)), [end], {}) for end in ends)
    for i, node in enumerate(nodes):
        if all(name not in known for name in node.output):
            others = set(range(len(nodes))) - {i}
            found.append(_cut(sample, others, sample.outputs, {n: values[n] for n in node.output}))
    return found


def _values_of(sample: Sample, names: list[str]) -> dict[str, Array]:
    """Values of inner tensors by the oracle."""
    model = ModelProto()
    model.CopyFrom(sample.model)
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(ValueInfoProto(name=name))
    values = onnxruntime_outputs(model, sample.inputs)
    if values is None:
        values = reference_outputs(model, sample.inputs)
    return dict(zip(names, values, strict=True))


def _cut(sample: Sample, nodes: set[int], outputs: list[Value], given: Arrays) -> Sample:
    """The nodes that the outputs still need among `nodes`, with values given for tensors that nothing makes."""
    graph = sample.model.graph
    needed = {v.name for v in outputs}
    kept: list[int] = []
    for i in sorted(nodes, reverse=True):
        if not needed.isdisjoint(graph.node[i].output):
            kept.append(i)
            needed.update(graph.node[i].input)
    model = ModelProto()
    model.CopyFrom(sample.model)
    for part in (model.graph.node, model.graph.output, model.graph.input, model.graph.initializer):
        del part[:]  # type: ignore[attr-defined]
    model.graph.node.extend([graph.node[i] for i in sorted(kept)])
    model.graph.output.extend([ValueInfoProto(name=v.name) for v in outputs])
    model.graph.input.extend([i for i in graph.input if i.name in needed])
    model.graph.initializer.extend([t for t in graph.initializer if t.name in needed])
    extra = {name: value for name, value in given.items() if name in needed}
    for name, value in extra.items():
        kind = numpy_helper.from_array(value).data_type
        model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    inputs = {name: a for name, a in sample.inputs.items() if name in needed}
    return Sample(sample.seed, model, {**inputs, **extra}, outputs)


def check_seed(seed: int, **options: Any) -> None:
    """`check` of the graph of a seed; a failure is shrunk and told with its smallest model."""
    sample = random_graph(seed, **options)
    try:
        check(sample)
    except Finding as finding:
        small = shrink(sample, _fails)
        text = to_text(small.model.graph)
        raise Finding(f"{finding}\nsmallest graph that fails:\n{text}") from finding


def _fails(sample: Sample) -> bool:
    try:
        check(sample)
    except Finding:
        return True
    return False
