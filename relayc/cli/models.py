"""Models named on the command line: an artifact is loaded, an ONNX file compiled."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from textwrap import indent

from relayc.backend.runtime import load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.cli.console import Steps
from relayc.cli.options import Build
from relayc.cli.plain import is_onnx

__all__ = ["open_model"]


def open_model(path: Path, how: Build, steps: Steps) -> CompiledModel:
    """The compiled model: loaded from an artifact, or compiled from an ONNX file, which the cache may shorten."""
    if not is_onnx(path):
        with steps.step("load"):
            return load_model(path)
    compiler = import_module("relayc.frontends.compiling")  # an artifact runs without the compiler
    with steps.step("import, build") as step:
        compiled = compiler.compile_onnx(
            path, how.target, shape=how.shapes, opt_level=how.opt_level, config=how.config, mod_name=path.stem,
            progress=step.show, caches=how.caches, last_position=how.last_position,
        )  # fmt: skip
    report = compiled.build_report
    steps.report(indent("compiled before" if report is None else str(report), "  "))
    return compiled

