"""Models named on the command line: an artifact is loaded, an ONNX file compiled."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from relayc.backend.runtime import load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.cli.console import Steps
from relayc.frontends.cli.options import Build
from relayc.frontends.cli.plain import is_onnx

__all__ = ["open_model"]


def open_model(path: Path, how: Build, steps: Steps) -> CompiledModel:
    """The compiled model: loaded from an artifact, or compiled from an ONNX file with each step reported."""
    if is_onnx(path):
        compiler = import_module("relayc.frontends.cli.compiling")  # an artifact runs without the compiler
        return compiler.compile_onnx(path, how, steps)
    with steps.step("load"):
        return load_model(path)
