"""The stages of a model as text: graph, optimized graph, loops, generated code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from relayc import relay
from relayc.backend import build as build_module
from relayc.backend.target import Target
from relayc.cli.kernels import code_module
from relayc.cli.options import Build, Form
from relayc.frontends.onnx import from_onnx
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.lower import Kernel, lower
from relayc.te.ir import IRModule, PassContext

__all__ = ["form_text"]

_SOURCES = {Form.LLVM: "ll"}
"""Source formats of modules whose names differ from the form's."""


def form_text(path: Path, form: Form, kernel: str | None, how: Build) -> Iterator[str]:
    """`form` of the ONNX model at `path`, in pieces; `kernel` filters kernels by a substring of the name."""
    target = Target(how.target)
    with PassContext(opt_level=how.opt_level, config=how.config):
        module, params = from_onnx(path, shape=how.shapes)
        if form is Form.GRAPH:
            yield str(module)
            for op, name, why in module.attrs.get("host_nodes", ()):
                yield f"// on the host: {op} {name!r} ({why})"
            return
        optimized: IRModule = relay.optimize(module, target, params)
        if form is Form.OPTIMIZED:
            yield str(optimized)
            return
        lowered = _lowered(optimized, target, kernel)
        if form is Form.LOOPS:
            for each in lowered:
                yield f"{each.function}\n"
        else:
            code = build_module(IRModule({each.name: each.function for each in lowered}), target=target)
            yield code_module(code, target.kind.name).get_source(_SOURCES.get(form, form.value))


def _lowered(module: IRModule, target: Target, kernel: str | None) -> Iterator[Kernel]:
    """The distinct kernels of the module and of what control flow in it runs, lowered to loops."""
    graph = make_graph(module["main"], lambda body: relay.optimize(body, target)["main"])
    arrange(graph, target)
    workloads = {node.workload.key: node.workload for part in graph.all_graphs() for node in part.nodes}
    for workload in workloads.values():
        if kernel is None or kernel in workload.name:
            yield lower(workload, target)
