"""The commands `show`, `verify` and `doctor`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from relayc.cli.console import Steps, guarded, out
from relayc.cli.kernels import code_module, kernel_lines
from relayc.cli.models import open_model
from relayc.cli.options import Form, Precision, UsageError, parse_shapes
from relayc.cli.parameters import Fill, InPrecision, Input, Model, OptLevel, Seed, Shape, Target, build_options
from relayc.cli.plain import is_onnx

__all__ = ["doctor", "show", "verify"]


@guarded
def show(
    model: Model,
    form: Annotated[Form, typer.Argument(help="what to show")] = Form.GRAPH,
    kernel: Annotated[str | None, typer.Option("--kernel", "-k", help="only kernels whose name holds this")] = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
) -> None:
    """Print a stage of a model as text.

    graph: as imported · optimized: after the graph passes · kernels: what runs, for a GPU with registers, spills,
    shared memory and occupancy · loops: lowered loop IR · llvm: LLVM IR · asm: machine code · cuda, ptx, sass: a GPU's.
    An artifact shows its kernels and its CUDA code. Example: relayc show model.onnx asm --kernel conv2d
    """
    how = build_options(target, shape, opt_level, precision)
    if form is Form.KERNELS:
        compiled = open_model(model, how, Steps(quiet=True))
        out.print("\n".join(kernel_lines(compiled, kernel)), soft_wrap=True)
    elif is_onnx(model):
        import_module("relayc.cli.show").print_form(model, form, kernel, how)
    elif form in (Form.CUDA, Form.PTX, Form.SASS) and kernel is None:
        code = code_module(open_model(model, how, Steps(quiet=True)).module, "cuda")
        out.print(code.get_source(form.value), soft_wrap=True)
    else:
        raise UsageError(f"{form} of {model}: an artifact shows its kernels and its CUDA code; expected an .onnx file")


@guarded
def verify(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    against: Annotated[str, typer.Option("--against", help="onnxruntime, or reference: our numpy references")] = (
        "onnxruntime"
    ),
    inputs: Input = None,
    fill: Fill = "random",
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", min=0, help="largest error of floats, by the largest magnitude")
    ] = None,
    listed: Annotated[int, typer.Option("--list", min=0, help="print so many of the tensors furthest off")] = 10,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    seed: Seed = 0,
) -> None:
    """Compare every intermediate tensor with another implementation and name the first node that departs.

    Exit code 1 when one does. Example: relayc verify resnet50.onnx --shape x:1,3,224,224 --against onnxruntime
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    check = import_module("relayc.cli.verifying").verify_model
    shapes = parse_shapes(shape or [])
    if not check(model, inputs, fill, seed, shapes, against, target, opt_level, tolerance, listed):
        raise typer.Exit(1)


@guarded
def doctor() -> None:
    """Say what this machine can do, and what to install for the rest."""
    findings = import_module("relayc.cli.doctor").examine()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "yes" if finding.usable else "no "
        out.print(f"{mark}  {finding.subject:<{width}}  {finding.text}", soft_wrap=True)
