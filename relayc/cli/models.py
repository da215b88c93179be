"""Models named on the command line: an artifact is loaded, an ONNX file compiled, and an executor made."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from textwrap import indent

from relayc.backend.runtime import DeviceError, device, load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.cli.console import Steps
from relayc.cli.inputs import Inputs
from relayc.cli.options import Build, Shapes, UsageError, resolved
from relayc.cli.plain import is_onnx

__all__ = ["open_model", "ready_executor"]


def open_model(
    path: Path, how: Build, steps: Steps, before: Callable[[], object] | None = None
) -> CompiledModel:
    """The compiled model: loaded from an artifact, or compiled from an ONNX file, which the cache may shorten.

    `before` is called when a model is about to be compiled. Raises UsageError for an artifact with options of the
    compilation.
    """
    if not is_onnx(path):
        _check_no_build(path, how)
        with steps.step("load"):
            return load_model(path)
    compiler = import_module("relayc.frontends.compiling")  # an artifact runs without the compiler
    with steps.step("import, build") as step:
        compiled = compiler.compile_onnx(
            path, how.target, shape=how.shapes, opt_level=how.opt_level, config=how.config, mod_name=_name_of(path),
            progress=step.show, caches=how.caches, last_position=how.last_position, before=before,
        )  # fmt: skip
    report = compiled.build_report
    steps.report(indent("compiled before" if report is None else str(report), "  "))
    return compiled


def _check_no_build(artifact: Path, how: Build) -> None:
    """Raise UsageError for options that say how to compile: an artifact is compiled already."""
    passed = [name for name in how.passed if name != "shape"]  # shapes of filled inputs are of a run, too
    of_command = {"records": how.records, "check_indices": how.check_indices, "caches": how.caches,
                  "last_position": how.last_position}  # fmt: skip
    passed += [name for name, value in of_command.items() if value]
    if passed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in passed)
        raise UsageError(
            f"{options}: {artifact} is an artifact, compiled already; expected an .onnx file with such options "
            f"(relayc inspect {artifact} says what it was compiled for)"
        )


def _name_of(path: Path) -> str:
    """The name of the model in a file, by the file's name, whose bytes need not be UTF-8."""
    return os.fsencode(path.stem).decode("utf-8", "replace")


def ready_executor(
    path: Path, how: Build, steps: Steps, where: str | None, threads: int | None, inputs: Inputs
) -> tuple[CompiledModel, GraphModule]:
    """The compiled model and an executor whose inputs are set.

    What the command line says wrong about devices and inputs is found before an ONNX file is compiled.
    """
    if is_onnx(path):
        _check_device(where, how.target)
    compiled = open_model(path, how, steps, lambda: _check_inputs(path, how.shapes, inputs))
    executor = GraphModule.of(compiled, where, threads)
    inputs.set(executor, None if is_onnx(path) else compiled)
    return compiled, executor


def _check_device(where: str | None, target: str) -> None:
    """Raise DeviceError or UsageError unless what is compiled for `target` can run on the device `where`."""
    kind = target.split()[0] if target.split() else ""
    try:
        compiled_for = device(kind)
    except DeviceError:  # a target of another kind than its device: the compiler knows it, or says that it doesn't
        return
    chosen = compiled_for if where is None else device(where)
    if chosen.kind != compiled_for.kind:
        raise UsageError(
            f"--device {where}: a model compiled for the target {kind!r} runs on {compiled_for.kind!r}; "
            f"choose another target for it (--target), or --device {compiled_for.kind}"
        )
    chosen.api.set_device(chosen)  # says why, where there is none


def _check_inputs(path: Path, shapes: Shapes, inputs: Inputs) -> None:
    """Raise UsageError for inputs without a value, and for filled ones whose sizes are not known."""
    declared = import_module("relayc.frontends.onnx.model").declared_inputs(path)
    unknown = [name for name in inputs.passed if name not in declared]
    open_inputs = [name for name in declared if name not in inputs.passed]
    if unknown:
        raise UsageError(f"the model has no input {unknown[0]!r}; its inputs are: {', '.join(declared)}")
    if open_inputs and inputs.fill is None:
        raise UsageError(
            f"no value for {', '.join(open_inputs)}; give --input or --fill random. Inputs are: "
            + ", ".join(f"{name}{'' if dims is None else list(dims)}" for name, dims in declared.items())
        )
    wanted: dict[str, list[int | str | None]] = {}
    for name in open_inputs:
        passed = shapes.get(name)
        dims = passed if isinstance(passed, tuple) else declared[name]
        if dims is not None and None not in dims:  # the importer names the others
            wanted[name] = list(dims)
    resolved(wanted, shapes)
