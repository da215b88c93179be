"""The kernels of a compiled model as text. Needs no compiler, and no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Any

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph import GraphNode
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.quantities import bytes_text, counted
from relayc.backend.runtime.sizes import readable_shape, readable_size

__all__ = ["code_module", "kernel_lines", "kernel_records"]

_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "threads": lambda r: str(r["threads"]),
    "registers": lambda r: str(r["registers"]),
    "spilled B": lambda r: str(r["spill_stores"] + r["spill_loads"]),
    "stack B": lambda r: str(r["stack"]),
    "shared B": lambda r: str(r["shared"]),
    "occupancy": lambda r: f"{100 * r['occupancy']:.0f} %",
}
"""Columns of ptxas' report of a kernel: registers, stack and spill bytes per thread, the others per block."""


def code_module(module: Module, kind: str) -> Module:
    """The module of type `kind` that a model's module is or imports; the module itself when there is none."""
    pending = [module]
    while pending:
        found = pending.pop(0)
        if found.type_key == kind:
            return found
        pending += found.imported_modules
    return module


def kernel_lines(compiled: CompiledModel, part: str | None) -> Iterator[str]:
    """A line per node of the model, for GPUs after a table of kernels. `part` filters by a substring of the name.

    Behind the first node of each kernel follow the decisions of its schedule, if they were recorded.
    """
    nodes = [node for node in compiled.graph.nodes if part is None or part in node.func]
    code = code_module(compiled.module, "cuda")
    if code.type_key == "cuda":
        yield from _report_lines(code, nodes)
        yield ""
    decisions = decisions_of(compiled)
    for node in nodes:
        tensors = [compiled.graph.tensors[t] for t in node.outputs]
        outputs = ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
        yield f"{node.func}  {outputs}  {' '.join(node.ops)}  <- {', '.join(node.sources)}"
        for decision in decisions.pop(node.func, ()):
            yield indent(str(decision), "    ")


def decisions_of(compiled: CompiledModel) -> dict[str, list[Any]]:
    """The recorded decisions of each kernel by name; empty for a model that was built without, or loaded."""
    report: Any = compiled.build_report
    return {} if report is None else dict(report.decisions)


def kernel_records(compiled: CompiledModel, part: str | None) -> list[dict[str, Any]]:
    """The nodes of `kernel_lines`, with their arithmetic, traffic and recorded decisions, as JSON values."""
    decisions = decisions_of(compiled)
    return [
        {
            "node": node.name,
            "kernel": node.func,
            "operators": list(node.ops),
            "sources": list(node.sources),
            "outputs": [
                {"dtype": t.dtype, "shape": readable_shape(t.shape)}
                for t in (compiled.graph.tensors[index] for index in node.outputs)
            ],
            "flops": readable_size(node.flops),
            "bytes": readable_size(node.bytes),
            **({"decisions": [d.to_json() for d in decisions[node.func]]} if node.func in decisions else {}),
        }
        for node in compiled.graph.nodes
        if part is None or part in node.func
    ]


def _report_lines(code: Any, nodes: list[GraphNode]) -> Iterator[str]:
    """The kernels of a CUDA module that the nodes launch, with the assembler's report."""
    calls: dict[str, int] = {}
    for node in nodes:
        calls[node.func] = calls.get(node.func, 0) + 1
    rows = [["calls", *_COLUMNS, "kernel"]]
    for name, count in calls.items():
        for kernel in code.functions[name]["kernels"]:
            report = code.report.get(kernel["name"])
            figures = [column(report) if report else "-" for column in _COLUMNS.values()]
            rows.append([str(count), *figures, kernel["name"]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield f"{counted(len(rows) - 1, 'kernel')} for {code.arch} ({code.format}, {bytes_text(len(code.image))}):"
    for row in rows:
        yield "  ".join([*(cell.rjust(w) for cell, w in zip(row[:-1], widths, strict=False)), row[-1]])
