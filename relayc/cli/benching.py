"""The command `bench`: latency and throughput of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from relayc.cli.console import Steps, err, guarded, out, print_result, print_table
from relayc.cli.environment import Load, bench_record, noise_of
from relayc.cli.inputs import Inputs
from relayc.cli.models import ready_executor
from relayc.cli.options import Build
from relayc.cli.parameters import Device, Fill, Input, Json, Model, Seed, Threads, with_build
from relayc.cli.plain import Latency, is_onnx

__all__ = ["bench"]


@guarded
@with_build
def bench(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="figures to take")] = 50,
    number: Annotated[int, typer.Option("--number", min=1, help="runs per figure")] = 1,
    profile: Annotated[int, typer.Option("--profile", min=0, help="also list so many of the slowest kernels")] = 0,
    sweep: Annotated[bool, typer.Option("--sweep-threads", help="measure with 1, 2, 4, ... threads")] = False,
    device: Device = None,
    *,
    how: Build,
    threads: Threads = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure the latency of a model, its percentiles, and the throughput of runs one after another.

    Warns when other work on the machine disturbs the figures. Example: relayc bench resnet50.relayc --sweep-threads
    """
    steps = Steps(quiet=not is_onnx(model))
    given = Inputs.read(inputs or [], fill, seed, how.shapes)
    compiled, executor = ready_executor(model, how, steps, device, threads, given)
    before = Load.now()
    rows: list[tuple[int, Latency]] = []
    with steps.step("measure"):
        for count in _thread_counts(executor.num_threads) if sweep else [executor.num_threads]:
            executor.set_num_threads(count)
            rows.append((count, Latency.of(executor.benchmark(repeat=repeat, number=number).results)))
    others = Load.now().others_since(before)
    warning = noise_of(max(latency.spread for _, latency in rows), others)
    report = executor.profile() if profile else None
    record = bench_record(model, compiled, executor, rows, (repeat, number), warning)
    if report is not None:
        record["profile"] = report.record()

    def text() -> None:
        _print(rows, repeat)
        if report is not None:
            out.print(report.table(top=profile), soft_wrap=True)

    print_result(json, "bench", record, text)
    if warning is not None:
        err.print(f"warning: {warning}", soft_wrap=True)


def _thread_counts(most: int) -> list[int]:
    """Powers of two below the largest number of threads, and that."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def _print(rows: Sequence[tuple[int, Latency]], repeat: int) -> None:
    table = Table("threads", "p50 (ms)", "p90 (ms)", "p99 (ms)", "mean (ms)", "min (ms)", "runs/s", "figures")
    for threads, found in rows:
        figures = [f"{value:.3f}" for value in (found.p50, found.p90, found.p99, found.mean, found.min)]
        table.add_row(str(threads), *figures, f"{found.runs_per_second:.1f}", str(repeat))
    print_table(table)
