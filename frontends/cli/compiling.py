"""The commands' way through the compiler. Loaded only when there is something to compile."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import relay
from backend.runtime.artifact import CompiledModel
from frontends.cli.console import Steps
from frontends.cli.options import Shapes
from frontends.onnx import from_onnx
from te.ir import PassContext

__all__ = ["compile_onnx"]


def compile_onnx(path: Path, target: str, shapes: Shapes, opt_level: int, steps: Steps) -> CompiledModel:
    """Import and compile the model at `path`, reporting each step."""
    with steps.step("import"):
        module, params = from_onnx(path, shape=shapes)
    with steps.step("build") as step, PassContext(opt_level=opt_level):
        compiled = relay.build(module, target, params, mod_name=path.stem, progress=step.show)
    steps.report(indent(str(compiled.build_report), "  "))
    return compiled
