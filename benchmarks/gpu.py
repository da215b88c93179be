"""Models and matrix products on an NVIDIA GPU: checked, timed by CUDA events, against measured ceilings.

    python -m benchmarks.gpu [--zoo FOLDER] [--models light_resnet50,bert_base] [--batches 1,8]
                             [--precisions float32,float16] [--engines relayc,torch.compile] [--no-products]
                             [--seconds 1] [--kernels 5]

Light models come from the onnx package (random weights); the zoo is exported by ``python -m benchmarks.zoo FOLDER``,
batches above 1 with ``--batch N``. Every model's result is compared with that of the same model compiled for the CPU.
What could not be run is listed with the reason. Without a GPU the program prints the reason and exits with status 2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.gpu_engines import ENGINES, Job
from benchmarks.gpu_jobs import TOLERANCE, Outcome, run_jobs
from benchmarks.gpu_peak import Ceilings, measure_ceilings
from benchmarks.gpu_products import SHAPES, products
from benchmarks.light import LIGHT_MODELS, write_light
from benchmarks.models import ZOO_MODELS
from relayc.backend.cuda.driver import probe
from relayc.backend.runtime import device


@dataclass
class Sheet:
    """Prints tables in Markdown row by row, and collects what did not run."""

    absent: dict[str, list[str]] = field(default_factory=dict)

    def head(self, title: str, *columns: str) -> None:
        print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    def row(self, *cells: str) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)

    def not_run(self, what: str, reason: str) -> str:
        self.absent.setdefault(reason, []).append(what)
        return "-"

    def print_absent(self) -> None:
        if self.absent:
            print("\nNot run:\n")
        for reason, whats in self.absent.items():
            print(f"* {', '.join(dict.fromkeys(whats))}: {reason}")


def jobs(options: argparse.Namespace, scratch: Path, sheet: Sheet) -> Iterator[Job]:
    """Every model at every batch size and in every precision; those that are missing are noted."""
    names = options.models.split(",") if options.models else [*(f"light_{m}" for m in LIGHT_MODELS), *ZOO_MODELS]
    for name in names:
        for batch in [int(b) for b in options.batches.split(",")]:
            found = _locate(name, batch, options.zoo, scratch)
            if isinstance(found, str):
                sheet.not_run(f"{name}, batch {batch}", found)
                continue
            path, inputs = found
            for precision in options.precisions.split(","):
                yield Job(name, path, inputs, batch, precision)


def _locate(name: str, batch: int, zoo: Path | None, scratch: Path) -> tuple[Path, dict[str, np.ndarray]] | str:
    """The files of a model at a batch size; or the reason why there are none."""
    if name.startswith("light_"):
        path, values = write_light(name.removeprefix("light_"), scratch, batch)
        return path, dict(np.load(values))
    if zoo is None:
        return "--zoo names no folder"
    path = zoo / (f"{name}.onnx" if batch == 1 else f"{name}_b{batch}.onnx")
    if not path.exists():
        return f"there is no {path.name} in {zoo}; python -m benchmarks.zoo {zoo} --batch {batch} exports it"
    return path, dict(np.load(path.with_suffix(".npz")))


def time_models(jobs: Sequence[Job], options: argparse.Namespace, sheet: Sheet) -> list[tuple[Job, Outcome]]:
    """Print the table of models; returns the outcomes."""
    engines = options.engines.split(",")
    sheet.head("Whole models, milliseconds per run:", "model", "batch", "precision", *engines, "difference", "check")
    outcomes: list[tuple[Job, Outcome]] = []
    for job, outcome in run_jobs(jobs, engines, options.seconds, options.kernels):
        cells = [f"{outcome.seconds[name] * 1e3:.3f}" if name in outcome.seconds else
                 sheet.not_run(*outcome.absent[name]) for name in engines]  # fmt: skip
        error = outcome.difference
        checked = ["-", "not run"]
        if error is not None:
            wrong = "overflows float16" if outcome.same_on_cpu else "WRONG"
            checked = [f"{error:.1e}", "right" if error <= TOLERANCE[job.precision] else wrong]
        sheet.row(job.name, str(job.batch), job.precision, *cells, *checked)
        outcomes.append((job, outcome))
    return outcomes


def list_kernels(job: Job, outcome: Outcome, ceilings: Ceilings, sheet: Sheet) -> None:
    """Print the slowest kernels of a job, as shares of the ceilings."""
    sheet.head(f"{job.title}: slowest kernels, of {outcome.total_us:.0f} us in all, and shares of peaks:", "operators",
               "output", "calls", "us", "% of time", "GB/s", "% of copy", "GFLOP/s", "% of peak")  # fmt: skip
    for call in outcome.kernels:
        sheet.row(call.ops, call.shapes, str(call.count), f"{call.us:.1f}", f"{100 * call.us / outcome.total_us:.1f}",
                  f"{call.gbs:.0f}", f"{100 * call.gbs / ceilings.copy_gbs:.0f}", f"{call.gflops:.0f}",
                  f"{100 * call.gflops / ceilings.gflops(job.precision):.0f}")  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", help="comma-separated names; default: all")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--precisions", default="float32,float16")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--products", default=True, action=argparse.BooleanOptionalAction, help="measure products too")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--kernels", type=int, default=5, help="kernels to list for each model; 0: none")
    options = parser.parse_args()
    count, reason = probe()
    if count == 0:
        print(f"nothing measured: there is no CUDA device: {reason}", file=sys.stderr)
        raise SystemExit(2)
    sheet, gpu = Sheet(), device("cuda", 0)
    print(f"{gpu.device_name}, compute capability {gpu.compute_version}, {gpu.multi_processor_count} multiprocessors, "
          f"driver {gpu.driver_version}")  # fmt: skip
    ceilings = measure_ceilings(gpu)
    sheet.head("Ceilings, measured:", "copy GB/s", "float32 TFLOP/s", "float16 tensor cores TFLOP/s")
    sheet.row(f"{ceilings.copy_gbs:.0f}", f"{ceilings.float32 / 1e3:.1f}", f"{ceilings.float16 / 1e3:.1f}")
    if options.products:
        products(SHAPES, options.precisions.split(","), ceilings, options.seconds, sheet)
    with tempfile.TemporaryDirectory() as scratch:
        every = list(jobs(options, Path(scratch), sheet))
        outcomes = time_models(every, options, sheet)
    for job, outcome in outcomes:
        if outcome.kernels:
            list_kernels(job, outcome, ceilings, sheet)
    sheet.print_absent()


if __name__ == "__main__":
    main()
