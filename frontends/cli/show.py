"""The stages of a model as text: graph, optimized graph, kernels, loops, LLVM IR, machine code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import relay
from backend import build as build_module
from backend.runtime import load_model
from backend.runtime.artifact import CompiledModel
from backend.target import Target
from frontends.cli.console import Steps, out
from frontends.cli.models import is_onnx, open_model
from frontends.cli.options import Build, Form, UsageError
from frontends.onnx import from_onnx
from relay.build.graph import make_graph
from relay.build.lower import Kernel, lower
from te.ir import IRModule, PassContext

__all__ = ["print_form"]

_SOURCES = {Form.LLVM: "ll", Form.ASM: "asm"}


def print_form(path: Path, form: Form, kernel: str | None, how: Build) -> None:
    """Print `form` of the model at `path`; `kernel` limits it to kernels whose name holds that text."""
    if form is Form.KERNELS:
        compiled = open_model(path, how, Steps(quiet=True)) if is_onnx(path) else load_model(path)
        _print_kernels(compiled, kernel)
        return
    if not is_onnx(path):
        raise UsageError(f"{form} of {path}: an artifact shows its kernels only; expected an .onnx file")
    target = Target(how.target)
    with PassContext(opt_level=how.opt_level, config=how.config):
        module, params = from_onnx(path, shape=how.shapes)
        if form is Form.GRAPH:
            _write(str(module))
            return
        optimized: IRModule = relay.optimize(module, target, params)
        if form is Form.OPTIMIZED:
            _write(str(optimized))
            return
        for lowered in _lowered(optimized, target, kernel):
            if form is Form.LOOPS:
                _write(f"{lowered.function}\n")
            else:
                code = build_module(IRModule({lowered.name: lowered.function}), target=target)
                _write(code.get_source(_SOURCES[form]))


def _lowered(module: IRModule, target: Target, kernel: str | None) -> Iterator[Kernel]:
    """Each different kernel of the module once, lowered to loops."""
    workloads = {node.workload.key: node.workload for node in make_graph(module["main"]).nodes}
    for workload in workloads.values():
        if kernel is None or kernel in workload.name:
            yield lower(workload, target)


def _print_kernels(compiled: CompiledModel, kernel: str | None) -> None:
    graph = compiled.graph
    for node in graph.nodes:
        if kernel is not None and kernel not in node.func:
            continue
        outputs = ", ".join(f"{graph.tensors[t].dtype}{list(graph.tensors[t].shape)}" for t in node.outputs)
        _write(f"{node.func}  {outputs}  {' '.join(node.ops)}  <- {', '.join(node.sources)}")


def _write(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
