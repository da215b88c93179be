"""What `relayc inspect` says about a model: facts of its file and of its compiled form."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.layouts import bind_sizes
from relayc.backend.runtime.memory import memory_use
from relayc.backend.runtime.metadata import ModelMetadata
from relayc.backend.runtime.quantities import bytes_text, counted
from relayc.backend.runtime.sizes import evaluate, readable_shape, size_text, variables
from relayc.cli.options import Shapes

__all__ = ["artifact_facts", "compiled_facts", "fact_lines", "onnx_facts"]

_EMPTY_PROCESS = """
import resource, pathlib
from relayc.runtime import GraphModule
import relayc.backend.llvm.runtime
status = pathlib.Path("/proc/self/status")  # ru_maxrss begins with the memory of the process that started this one
lines = status.read_text().splitlines() if status.is_file() else []
most = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if most is None else most))
"""
"""A program that loads what running a model needs, and prints the most memory that it had."""


def onnx_facts(path: Path) -> dict[str, Any]:
    """The facts of an ONNX file. Raises OnnxImportError for anything else."""
    model = import_module("relayc.frontends.onnx.model").load(path)
    tensors = import_module("relayc.frontends.onnx.tensors")
    inputs = import_module("relayc.frontends.onnx.inputs")
    nodes = list(_nodes(model.graph))

    def value(info: Any) -> dict[str, Any]:
        kind = info.type.WhichOneof("value")
        element = info.type.tensor_type.elem_type if kind == "tensor_type" else 0
        dims = inputs.declared_shape(info)
        return {
            "name": info.name,
            "dtype": tensors.dtype_name(element, info.name) if element else kind,
            "shape": None if dims is None else list(dims),
        }

    return {
        "format": "onnx",
        "bytes": path.stat().st_size,
        **_metadata(model.metadata),
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "inputs": [value(info) for info in inputs.graph_inputs(model.graph)],
        "outputs": [value(info) for info in model.graph.output],
        "operators": _counts(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes),
        "parameters": sum(math.prod(tensor.dims) for tensor in model.graph.initializer),
    }


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of an ONNX graph and of the graphs in their attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def artifact_facts(path: Path, model: CompiledModel) -> dict[str, Any]:
    """The facts of an artifact's file."""
    graph, parts = model.graph, model.graph.parts()
    return {
        "format": "artifact",
        "bytes": path.stat().st_size,
        **_metadata(model.metadata),
        "opsets": None,
        "inputs": [_tensor(graph.tensors[index]) for index in graph.inputs],
        "outputs": [_tensor(graph.tensors[index]) for index in graph.outputs],
        "operators": _counts(op for part in parts for node in part.nodes for op in node.ops),
        "parameters": sum(values.size for values in model.params.values()),
    }


def _metadata(metadata: ModelMetadata) -> dict[str, Any]:
    fields = asdict(metadata)
    names = {"producer": "producer_name", "graph": "graph_name", "version": "version", "domain": "domain",
             "description": "description", "metadata": "custom_metadata_map"}  # fmt: skip
    return {name: fields[field] for name, field in names.items()}


def _tensor(tensor: GraphTensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": readable_shape(tensor.shape)}


def _counts(names: Iterator[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def compiled_facts(model: CompiledModel, shapes: Shapes) -> dict[str, Any]:
    """The facts of a compiled model: kernels, operations and memory of a run with inputs of these sizes.

    `flops` and `memory` are null if sizes of inputs are missing, which `missing` names, `flops` also if they depend on
    sizes that only a run gives; those of control flow are not counted. `process_bytes` is the most memory that a
    process that runs the model takes, the interpreter included.
    """
    graph, parts = model.graph, model.graph.parts()
    facts: dict[str, Any] = {
        "target": graph.target,
        "nodes": sum(len(part.nodes) for part in parts),
        "kernels": len({node.func for part in parts for node in part.nodes}),
        "parameter_bytes": sum(values.nbytes for values in model.params.values()),
        "flops": None,
        "memory": None,
        "process_bytes": None,
        "missing": _missing(graph, shapes),
    }
    if not facts["missing"]:
        passed = _passed_shapes(graph, shapes)
        facts["flops"] = _flops(graph, bind_sizes(graph, [tuple(shape) for shape in passed.values()]))
        use = memory_use(model, passed)
        facts["memory"] = {**asdict(use), "total": use.total}
        facts["process_bytes"] = use.total + _empty_process_bytes() if graph.device == "cpu" else None
    return facts


def _flops(graph: Graph, sizes: Mapping[str, int]) -> int | None:
    if any(name not in sizes for node in graph.nodes for name in variables(node.flops)):
        return None
    return sum(evaluate(node.flops, sizes) for node in graph.nodes)


def _missing(graph: Graph, shapes: Shapes) -> list[str]:
    """The names of the input dimensions that have no size."""
    inputs = [graph.tensors[index] for index in graph.inputs]
    names = [d for t in inputs if not isinstance(shapes.get(t.name), tuple) for d in t.shape if not isinstance(d, int)]
    return list(dict.fromkeys(size_text(d) for d in names if not isinstance(shapes.get(size_text(d)), int)))


def _passed_shapes(graph: Graph, shapes: Shapes) -> dict[str, Sequence[int]]:
    found: dict[str, Sequence[int]] = {}
    for index in graph.inputs:
        tensor = graph.tensors[index]
        passed = shapes.get(tensor.name)
        dims = passed if isinstance(passed, tuple) else tensor.shape
        sizes = [d if isinstance(d, int) else shapes[size_text(d)] for d in dims]
        found[tensor.name] = [d for d in sizes if isinstance(d, int)]
    return found


def _empty_process_bytes() -> int:
    """The most memory that a process takes that loads the runtime and no model, measured now."""
    done = subprocess.run([sys.executable, "-c", _EMPTY_PROCESS], capture_output=True, text=True, check=True)
    return int(done.stdout)


def fact_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts as lines for people."""
    yield f"{facts['model']}: {facts['format']}, {bytes_text(facts['bytes'])}"
    for name in ("producer", "graph", "domain", "description"):
        if facts[name]:
            yield f"{name:<11} {facts[name]}"
    for key, value in facts["metadata"].items():
        yield f"{'metadata':<11} {key}: {value}"
    if facts["opsets"]:
        yield f"{'opsets':<11} {', '.join(f'{domain} {version}' for domain, version in facts['opsets'].items())}"
    for kind in ("inputs", "outputs"):
        for value in facts[kind]:
            dims = ["?" if d is None else str(d) for d in value["shape"] or ()]
            shape = "" if value["shape"] is None else f"[{', '.join(dims)}]"
            yield f"{kind[:-1]:<11} {value['name']}: {value['dtype']}{shape}"
    total = sum(facts["operators"].values())
    yield f"{'operators':<11} {total}: " + ", ".join(f"{count} {name}" for name, count in facts["operators"].items())
    yield f"{'parameters':<11} {facts['parameters']:,}"
    if facts["problem"] is not None:
        yield f"does not compile: {facts['problem']}"
        return
    yield f"{'target':<11} {facts['target']}"
    yield f"{'kernels':<11} {counted(facts['kernels'], 'kernel')} for {counted(facts['nodes'], 'node')}"
    if facts["flops"] is not None:
        yield f"{'operations':<11} {facts['flops'] / 1e9:.3g} GFLOP a run"
    if facts["missing"]:
        sizes = " ".join(f"--shape {name}=8" for name in facts["missing"])
        yield f"{'memory':<11} depends on {', '.join(facts['missing'])}: {sizes}"
        return
    use = facts["memory"]
    parts = [f"{name} {bytes_text(use[name])}" for name in ("weights", "activations", "inputs", "outputs", "code")]
    yield f"{'memory':<11} {bytes_text(use['total'])}: {', '.join(parts)}"
    if use["unknown"]:
        yield f"{'':<11} and tensors whose sizes only a run knows: {', '.join(use['unknown'])}"
    if facts["process_bytes"] is not None:
        yield f"{'process':<11} about {bytes_text(facts['process_bytes'])} at most, with the interpreter"
