"""The commands `run`, `bench` and `profile`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from relayc.backend.runtime.files import replacing
from relayc.backend.runtime.roofline import roofline_svg
from relayc.cli.console import Steps, err, guarded, out, print_latency, print_top
from relayc.cli.inputs import results_of, set_inputs
from relayc.cli.models import open_model
from relayc.cli.options import Precision, UsageError, check_writable, parse_shapes, write_archive
from relayc.cli.parameters import (
    CheckIndices,
    Device,
    Fill,
    InPrecision,
    Input,
    Model,
    OptLevel,
    Seed,
    Shape,
    Target,
    Threads,
    build_options,
)
from relayc.cli.plain import executor_for, is_onnx, output_line

__all__ = ["bench", "profile", "run"]


@guarded
def run(
    model: Model,
    inputs: Input = None,
    fill: Fill = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the outputs to this .npz")] = None,
    print_count: Annotated[int, typer.Option("--print-top", min=0, help="print so many of the largest values")] = 0,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
    check_indices: CheckIndices = False,
) -> None:
    """Run a model once: an artifact, or an .onnx file, which is compiled first.

    Example: relayc run resnet50.relayc --input image.npz --print-top 5
    """
    check_writable(output)
    if not inputs and fill is None and is_onnx(model):
        check = import_module("relayc.cli.verifying").check_needs_no_input
        check(model, parse_shapes(shape or []))  # before compiling, which takes seconds
    steps = Steps(quiet=not is_onnx(model))
    compiled = open_model(model, build_options(target, shape, opt_level, precision, None, check_indices), steps)
    executor = executor_for(compiled, device, threads)
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    executor.run()
    results = results_of(executor, compiled)
    for name, value in results.items():
        out.print(output_line(name, value))
        if print_count:
            print_top(name, value, print_count)
    if output is not None:
        write_archive(output, results)
        err.print(f"wrote {output}", soft_wrap=True)


@guarded
def bench(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="figures to take")] = 50,
    number: Annotated[int, typer.Option("--number", min=1, help="runs per figure")] = 1,
    profile: Annotated[int, typer.Option("--profile", min=0, help="also list so many of the slowest kernels")] = 0,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Measure the latency of a model: median, 10th and 90th percentile.

    Example: relayc bench resnet50.relayc --threads 1 --profile 10
    """
    steps = Steps(quiet=not is_onnx(model))
    compiled = open_model(model, build_options(target, shape, opt_level, precision), steps)
    executor = executor_for(compiled, device, threads)
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    with steps.step("measure"):
        result = executor.benchmark(repeat=repeat, number=number)
    print_latency(result.results, executor.num_threads)
    if profile:
        out.print(executor.profile().table(top=profile), soft_wrap=True)


@guarded
def profile(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    top: Annotated[int, typer.Option("--top", min=1, help="list so many of the slowest kernels")] = 25,
    by_operators: Annotated[bool, typer.Option("--by-operators", help="sum up kernels of the same operators")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="runs in each round")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds; ceilings are measured between them")] = 5,
    svg: Annotated[Path | None, typer.Option("--svg", help="write a picture of the roofline")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="write all figures as JSON")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="write all figures as comma-separated values")] = None,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Measure every kernel: time, share, GFLOP/s, GB/s and, on a CPU, how near it is to the machine's ceilings.

    The ceilings, multiply-adds from registers and copies from memory, are measured in between. Work whose data is in a
    cache can be above the second. Example: relayc profile resnet50.relayc --threads 1 --svg resnet50.svg
    """
    check_writable(svg, json, csv)
    steps = Steps(quiet=not is_onnx(model))
    compiled = open_model(model, build_options(target, shape, opt_level, precision), steps)
    executor = executor_for(compiled, device, threads)
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    report = import_module("relayc.cli.profiling").profile_executor(executor, rounds, repeat)
    if svg is not None and report.ceilings is None:
        raise UsageError(f"--svg: the ceilings of {executor.device} are not known; expected a model on a CPU")
    facts = [f"{name} {value}" for name, value in report.configuration.items() if name != "target"]
    facts += [] if report.ceilings is None else [str(report.ceilings)]
    out.print(", ".join(facts), soft_wrap=True)
    shown = report.by(lambda call: call.ops) if by_operators else report
    out.print(shown.table(top=top), soft_wrap=True)
    for path, text in ((json, report.json), (csv, report.csv), (svg, lambda: roofline_svg(report))):
        if path is not None:
            with replacing(path) as file:
                file.write(text().encode())
            err.print(f"wrote {path}", soft_wrap=True)
