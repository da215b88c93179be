"""Models on a GPU, each in a process of its own: prepared in parallel, timed one after the other.

Compiling takes most of the time, torch's in particular, and needs CPU cores; a measurement needs the GPU for itself. So
all processes prepare their engines in parallel, and when the last one is ready they measure one after the other.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.gpu_engines import ENGINES, Job, NotInstalled, NotRun, compiled
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.profiler import NodeTiming

__all__ = ["TOLERANCE", "Outcome", "run_jobs"]

TOLERANCE = {"float32": 2e-3, "float16": 5e-2}
"""Largest difference from the CPU's result, relative to its largest value."""
_PROFILED = 20


@dataclass
class Outcome:
    """The outcome of a job: seconds of each engine that ran, (what, reason) of each that did not."""

    seconds: dict[str, float] = field(default_factory=dict)
    absent: dict[str, tuple[str, str]] = field(default_factory=dict)
    difference: float | None = None
    """Difference of relayc's result from the CPU's in float32, relative to the largest value."""
    same_on_cpu: bool = False
    """Whether the CPU's float16 result differs as much from float32: then the model exceeds the range of float16."""
    kernels: Sequence[NodeTiming] = ()
    """The kernels of relayc, the slowest first."""
    total_us: float = 0.0
    """Microseconds of all kernels of relayc."""


def run_jobs(
    jobs: Sequence[Job], engines: Sequence[str], seconds: float, kernels: int
) -> Iterator[tuple[Job, Outcome]]:
    """Every job and its outcome by `engines`: `seconds` for each measurement, with the `kernels` slowest kernels."""
    context = multiprocessing.get_context("spawn")
    workers: list[Connection] = []
    for job in jobs:
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(job, engines, seconds, kernels, theirs), daemon=True).start()
        theirs.close()
        workers.append(ours)
    ready = [_received(worker) for worker in workers]
    for job, worker, state in zip(jobs, workers, ready, strict=True):
        if not isinstance(state, str):
            worker.send(None)
            state = _received(worker)
        if not isinstance(state, Outcome):
            state = Outcome(absent={name: (f"{name} on {job.title}", str(state)) for name in engines})
        yield job, state


def _received(worker: Connection) -> Outcome | str | None:
    """The message of a process, or the reason why there is none."""
    try:
        return worker.recv()
    except EOFError:
        return "its process ended"


def _work(job: Job, engines: Sequence[str], seconds: float, kernels: int, requests: Connection) -> None:
    """The main function of a process: prepares, reports that it is ready, waits for the request, measures."""
    outcome, timers = Outcome(), {}
    for name in engines:
        try:
            timers[name] = ENGINES[name](job)
        except NotRun as reason:
            what = name if isinstance(reason, NotInstalled) else f"{name} on {job.title}"
            outcome.absent[name] = (what, str(reason))
    executor = compiled(job) if "relayc" in timers else None
    if executor is not None:
        outcome.difference, tolerance = difference(executor, job, "float32"), TOLERANCE[job.precision]
        too_far = outcome.difference > tolerance and job.precision != "float32"
        outcome.same_on_cpu = too_far and difference(executor, job, job.precision) <= tolerance
    requests.send(None)
    requests.recv()
    for name, timer in timers.items():
        outcome.seconds[name] = timer(seconds)
    if kernels and executor is not None:
        report = executor.profile(repeat=_PROFILED)
        grouped = report.by(lambda call: call.func).calls
        outcome.kernels = sorted(grouped, key=lambda call: -call.seconds)[:kernels]
        outcome.total_us = report.total_us
    requests.send(outcome)


def difference(executor: GraphModule, job: Job, precision: str) -> float:
    """The largest difference of the GPU's first output from the CPU's in `precision`, as a share of the largest value.

    Infinite where only one of them is not finite.
    """
    found = executor.get_output(0).numpy().astype(np.float64)
    same = Job(job.name, job.path, job.inputs, job.batch, precision)
    exact = compiled(same, "llvm").get_output(0).numpy().astype(np.float64)
    finite = np.isfinite(exact)
    if not np.array_equal(finite, np.isfinite(found)):
        return np.inf
    largest = np.abs(exact[finite]).max(initial=1e-30)
    return float(np.abs(found[finite] - exact[finite]).max(initial=0.0) / largest)
