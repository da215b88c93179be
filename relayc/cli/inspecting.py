"""The commands `inspect`, `show`, `verify` and `doctor`."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from relayc.backend.runtime.files import replacing
from relayc.cli.console import Steps, err, guarded, out, print_result
from relayc.cli.kernels import code_module, kernel_lines, kernel_records
from relayc.cli.model_facts import artifact_facts, compiled_facts, fact_lines, onnx_facts
from relayc.cli.models import open_model
from relayc.cli.options import Build, Form, UsageError, check_writable, parse_shapes
from relayc.cli.parameters import Fill, Input, Json, Model, OptLevel, Seed, Shape, Target, with_build
from relayc.cli.plain import failure, is_onnx

__all__ = ["doctor", "inspect", "show", "verify"]

_CODE_OF = {Form.LLVM: "llvm", Form.ASM: "llvm", Form.CUDA: "cuda", Form.PTX: "cuda", Form.SASS: "cuda"}
"""The kind of target that generates a form of code."""


@guarded
@with_build
def inspect(
    model: Model,
    *,
    how: Build,
    json: Json = False,
) -> None:
    """Say what a model is and what it takes to run: inputs, operators, parameters, operations, memory.

    An .onnx file is compiled for that, or found in the cache. Example: relayc inspect bert.onnx --shape batch=1
    """
    steps = Steps(quiet=True)
    if is_onnx(model):
        with steps.step("read"):
            facts = {"model": str(model), "problem": None, **onnx_facts(model)}
        facts |= _compiled_or_problem(model, how, steps)
    else:
        compiled = open_model(model, how, steps)
        facts = {"model": str(model), "problem": None, **artifact_facts(model, compiled)}
        facts |= compiled_facts(compiled, how.shapes)
    print_result(json, "inspect", facts, lambda: out.print("\n".join(fact_lines(facts)), soft_wrap=True))


def _compiled_or_problem(model: Path, how: Build, steps: Steps) -> dict[str, Any]:
    """The facts of the compiled model; why there is none, for a model that can't be compiled."""
    errors = import_module("relayc.te.errors")
    try:
        compiled = open_model(model, how, steps)
    except errors.CompileError as error:
        return {"problem": failure(error)[1]}
    return compiled_facts(compiled, how.shapes)


@guarded
@with_build
def show(
    model: Model,
    form: Annotated[Form, typer.Argument(help="what to show")] = Form.GRAPH,
    kernel: Annotated[str | None, typer.Option("--kernel", "-k", help="only kernels whose name holds this")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write it to this file")] = None,
    why: Annotated[bool, typer.Option("--why", help="of kernels: why they have their schedules")] = False,
    *,
    how: Build,
    json: Json = False,
) -> None:
    """Print a stage of a model as text.

    graph: as imported · optimized: after the graph passes · passes: which passes and rules changed it, and which
    nearly did · kernels: what runs, for a GPU with registers, spills, shared memory and occupancy; why, with --why ·
    loops: lowered loop IR · llvm: LLVM IR · asm: machine code · cuda, ptx, sass: a GPU's · onnx: the compiled graph
    as a file that Netron draws. An artifact shows its kernels, its CUDA code and onnx.
    Example: relayc show model.onnx asm --kernel conv2d
    """
    check_writable(output, read=[model])
    if why and form is not Form.KERNELS:
        raise UsageError(f"--why says why kernels are as they are: relayc show {model} kernels --why; not {form}")
    if (why or form is Form.PASSES) and not is_onnx(model):
        raise UsageError(f"{model}: an artifact doesn't say how it was compiled; expected an .onnx file")
    needed, found = _CODE_OF.get(form), "".join(how.target.split()[:1])
    if is_onnx(model) and needed is not None and needed != found:
        raise UsageError(f"{form} of {model}: the target {found!r} has no such code; expected --target {needed}")
    how = replace(how, explain=why or form is Form.PASSES)
    record: dict[str, Any] = {"model": str(model), "form": form.value, "written": output}
    if form is Form.ONNX:
        if output is None:
            raise UsageError("show onnx writes a file, for Netron; say which: --output model_compiled.onnx")
        compiled = open_model(model, how, Steps(quiet=True))
        content = import_module("relayc.cli.netron").graph_as_onnx(compiled).SerializeToString()
    else:
        text, facts = _shown(model, form, kernel, how)
        record |= facts
        content = text.encode()
        if output is None:
            print_result(json, "show", record, lambda: out.print(text, soft_wrap=True))
            return
    with replacing(output) as file:
        file.write(content)
    print_result(json, "show", record, lambda: err.print(f"wrote {output}", soft_wrap=True))


def _shown(model: Path, form: Form, kernel: str | None, how: Build) -> tuple[str, dict[str, Any]]:
    """A form of the model as text, and what of it is in the JSON object."""
    if form is Form.PASSES:
        passes = open_model(model, how, Steps(quiet=True)).build_report.passes
        text = "\n".join([line for record in passes for line in record.lines()])
        return text, {"passes": [record.to_json() for record in passes]}
    if form is Form.KERNELS:
        compiled = open_model(model, how, Steps(quiet=True))
        return "\n".join(kernel_lines(compiled, kernel)), {"kernels": kernel_records(compiled, kernel)}
    if is_onnx(model):
        text = "\n".join(import_module("relayc.cli.show").form_text(model, form, kernel, how))
    elif form in (Form.CUDA, Form.PTX, Form.SASS) and kernel is None:
        text = code_module(open_model(model, how, Steps(quiet=True)).module, "cuda").get_source(form.value)
    else:
        raise UsageError(f"{form} of {model}: an artifact shows its kernels and its CUDA code; expected an .onnx file")
    return text, {"text": text}


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
    json: Json = False,
) -> None:
    """Compare every intermediate tensor with another implementation and name the first node that departs.

    Exit code 1 when one does. Example: relayc verify resnet50.onnx --shape x:1,3,224,224 --against onnxruntime
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    if against not in ("onnxruntime", "reference"):
        raise UsageError(f"--against {against!r}: expected onnxruntime or reference")
    verifying = import_module("relayc.cli.verifying")
    shapes = parse_shapes(shape or [])
    report = verifying.verify_model(model, inputs, fill, seed, shapes, against, target, opt_level, tolerance)
    record = {"model": str(model), **verifying.report_record(report, listed)}
    print_result(json, "verify", record, lambda: verifying.print_report(report, listed))
    if not report.agrees:
        raise typer.Exit(1)


@guarded
def doctor(json: Json = False) -> None:
    """Say what this machine can do, and what to install for the rest."""
    module = import_module("relayc.cli.doctor")
    findings = module.examine()
    width = max(len(finding.subject) for finding in findings)

    def text() -> None:
        for finding in findings:
            mark = "yes" if finding.usable else "no "
            out.print(f"{mark}  {finding.subject:<{width}}  {finding.text}", soft_wrap=True)

    record = {"versions": module.versions(), "findings": [asdict(finding) for finding in findings]}
    print_result(json, "doctor", record, text)
