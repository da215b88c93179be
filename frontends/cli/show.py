"""The stages of a model as text: graph, optimized graph, kernels, loops, LLVM IR, machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import relay
from backend.runtime import load_model
from backend.runtime.artifact import CompiledModel
from backend.target import Target
from frontends.cli.console import Steps, out
from frontends.cli.models import is_onnx, open_model
from frontends.cli.options import Form, Shapes, UsageError
from frontends.onnx import from_onnx
from relay.build.graph import make_graph
from relay.build.lower import lower
from te.ir import IRModule, PassContext

__all__ = ["print_form"]


_SOURCES = {Form.LLVM: "ll", Form.ASM: "asm"}
_STARTS = {Form.LLVM: re.compile(r"^define .*@\"?([\w.$]+)\"?\("), Form.ASM: re.compile(r"^([A-Za-z_][\w.$]*):")}


def print_form(path: Path, form: Form, kernel: str | None, target: str, shapes: Shapes, opt_level: int) -> None:
    """Print `form` of the model at `path`; `kernel` limits it to kernels whose name holds that text."""
    if form in (Form.GRAPH, Form.OPTIMIZED, Form.LOOPS):
        if not is_onnx(path):
            raise UsageError(
                f"{form} of {path}: an artifact holds only kernels and machine code; expected an .onnx file"
            )
        with PassContext(opt_level=opt_level):
            _print_stage(path, form, kernel, target, shapes)
        return
    compiled = open_model(path, target, shapes, opt_level, Steps(quiet=True)) if is_onnx(path) else load_model(path)
    if form is Form.KERNELS:
        _print_kernels(compiled, kernel)
        return
    source = compiled.get_lib().get_source(_SOURCES[form])
    _write(source if kernel is None else "".join(_sections(source, form, kernel)))


def _print_stage(path: Path, form: Form, kernel: str | None, target: str, shapes: Shapes) -> None:
    module, params = from_onnx(path, shape=shapes)
    if form is Form.GRAPH:
        _write(str(module))
        return
    optimized: IRModule = relay.optimize(module, target, params)
    if form is Form.OPTIMIZED:
        _write(str(optimized))
        return
    workloads = {node.workload.key: node.workload for node in make_graph(optimized["main"]).nodes}
    for workload in workloads.values():
        if kernel is None or kernel in workload.name:
            _write(f"{lower(workload, Target(target)).function}\n")


def _print_kernels(compiled: CompiledModel, kernel: str | None) -> None:
    graph = compiled.graph
    for node in graph.nodes:
        if kernel is not None and kernel not in node.func:
            continue
        outputs = ", ".join(f"{graph.tensors[t].dtype}{list(graph.tensors[t].shape)}" for t in node.outputs)
        _write(f"{node.func}  {outputs}  {' '.join(node.ops)}  <- {', '.join(node.sources)}")


def _sections(source: str, form: Form, kernel: str) -> Iterator[str]:
    """The functions of `source` whose name holds `kernel`."""
    wanted = False
    for line in source.splitlines(keepends=True):
        start = _STARTS[form].match(line)
        if start is not None and not start[1].startswith(".L"):
            wanted = kernel in start[1]
        if wanted:
            yield line


def _write(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
