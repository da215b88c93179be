"""The commands `run` and `profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from relayc.backend.runtime.files import replacing
from relayc.backend.runtime.profile_page import profile_page
from relayc.backend.runtime.roofline import roofline_svg
from relayc.backend.runtime.trace import Trace
from relayc.cli.console import Steps, err, guarded, out, print_result, print_top, top_values
from relayc.cli.inputs import Inputs, results_of
from relayc.cli.models import ready_executor
from relayc.cli.options import Build, UsageError, check_writable, input_files, write_archive
from relayc.cli.parameters import CheckIndices, Device, Fill, Input, Json, Model, Seed, Threads, with_build
from relayc.cli.plain import is_onnx, output_line, output_record

__all__ = ["profile", "run"]


@guarded
@with_build
def run(
    model: Model,
    inputs: Input = None,
    fill: Fill = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the outputs to this .npz")] = None,
    print_count: Annotated[int, typer.Option("--print-top", min=0, help="print so many of the largest values")] = 0,
    device: Device = None,
    *,
    how: Build,
    threads: Threads = None,
    seed: Seed = 0,
    check_indices: CheckIndices = False,
    json: Json = False,
) -> None:
    """Run a model once: an artifact, or an .onnx file, which is compiled first.

    Example: relayc run resnet50.relayc --input image.npz --print-top 5
    """
    check_writable(output, read=[model, *input_files(inputs or [])])
    steps = Steps(quiet=not is_onnx(model))
    how = replace(how, check_indices=check_indices)
    given = Inputs.read(inputs or [], fill, seed, how.shapes)
    compiled, executor = ready_executor(model, how, steps, device, threads, given)
    with steps.step("run"):
        executor.run()
        results = results_of(executor, compiled)

    def text() -> None:
        for name, value in results.items():
            out.print(output_line(name, value))
            if print_count:
                print_top(name, value, print_count)

    outputs = [{**output_record(name, value), **_top(value, print_count)} for name, value in results.items()]
    record = {"model": str(model), "device": str(executor.device), "outputs": outputs, "written": output}
    if output is not None:
        write_archive(output, results)
    print_result(json, "run", record, text)
    if output is not None:
        err.print(f"wrote {output}", soft_wrap=True)


def _top(values: np.ndarray[Any, Any], count: int) -> dict[str, Any]:
    if not count:
        return {}
    return {"top": [{"index": index, "value": value} for index, value in top_values(values, count)]}


@guarded
@with_build
def profile(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    top: Annotated[int, typer.Option("--top", min=1, help="list so many of the slowest kernels")] = 25,
    by_operators: Annotated[bool, typer.Option("--by-operators", help="sum up kernels of the same operators")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="runs in each round")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds; ceilings are measured between them")] = 5,
    svg: Annotated[Path | None, typer.Option("--svg", help="write a picture of the roofline")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="write one page: kernels, roofline, graph and remarks")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="write a trace for Perfetto (ui.perfetto.dev) and Chrome")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="write all figures as comma-separated values")] = None,
    device: Device = None,
    *,
    how: Build,
    threads: Threads = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure every kernel: time, share, GFLOP/s, GB/s and, on a CPU, how near it is to the machine's ceilings.

    The ceilings, multiply-adds from registers and copies from memory, are measured in between. Work whose data is in a
    cache can be above the second. Example: relayc profile resnet50.relayc --threads 1 --html resnet50.html
    """
    check_writable(svg, html, trace, csv, read=[model, *input_files(inputs or [])])
    steps = Steps(quiet=not is_onnx(model))
    given = Inputs.read(inputs or [], fill, seed, how.shapes)
    compiled, executor = ready_executor(model, how, steps, device, threads, given)
    if svg is not None and executor.device.kind != "cpu":
        raise UsageError(f"--svg: the ceilings of {executor.device} are not known; expected a model on a CPU")
    with steps.step("measure"):
        report = import_module("relayc.cli.profiling").profile_executor(executor, rounds, repeat)

    def text() -> None:
        facts = [f"{name} {value}" for name, value in report.configuration.items() if name != "target"]
        facts += [] if report.ceilings is None else [str(report.ceilings)]
        out.print(", ".join(facts), soft_wrap=True)
        shown = report.by(lambda call: call.ops) if by_operators else report
        out.print(shown.table(top=top), soft_wrap=True)

    files: list[tuple[Path | None, Callable[[], str]]] = [
        (csv, report.csv),
        (svg, lambda: roofline_svg(report)),
        (html, lambda: profile_page(report, compiled.graph)),
        (trace, lambda: Trace.of_report(report).json()),
    ]
    for path, content in files:
        if path is not None:
            with replacing(path) as file:
                file.write(content().encode())
            err.print(f"wrote {path}", soft_wrap=True)
    print_result(json, "profile", report.record(), text)
