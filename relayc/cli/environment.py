"""The machine that a measurement was made on, and whether other work disturbed it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.threads import num_threads
from relayc.cli.plain import Latency

__all__ = ["Load", "bench_record", "environment", "noise_of", "system_name", "version_of"]

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_TICKS_PER_SECOND = 100
"""Unit of /proc/stat; USER_HZ is 100 on Linux for all processors that relayc compiles for."""
_SHORTEST = 0.2
"""Seconds below which ticks are too coarse to tell what other processes took."""
_MOST_SPREAD = 0.2
"""Largest distance of the 10th and 90th percentile, as a share of the median, on a quiet machine."""
_MOST_OTHERS = 0.1
"""Largest number of CPUs that other processes take on a quiet machine."""


def environment() -> dict[str, Any]:
    """Processor, operating system, versions, threads and frequency governor; null for what is not known."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "usable_threads": num_threads(),
        "governor": _GOVERNOR.read_text().strip() if _GOVERNOR.is_file() else None,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": system_name(),
        "python": platform.python_version(),
        "relayc": version_of("relayc"),
        "numpy": np.__version__,
    }


def system_name() -> str:
    """The operating system, its release and the machine."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def version_of(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    """The processor by the name that its maker gave it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return named or platform.processor() or None


@dataclass(frozen=True)
class Load:
    """CPU seconds of all processes and of this one, and the time, at one moment."""

    time: float
    busy: float | None
    own: float

    @staticmethod
    def now() -> Load:
        """The load counters of this moment; `busy` is None where the system has none."""
        spent = os.times()
        return Load(perf_counter(), _busy_seconds(), spent.user + spent.system)

    def others_since(self, before: Load) -> float | None:
        """The number of CPUs that other processes took on average; None if too little time went by to tell."""
        seconds = self.time - before.time
        if self.busy is None or before.busy is None or seconds < _SHORTEST:
            return None
        return max(0.0, (self.busy - before.busy - (self.own - before.own)) / seconds)


def _busy_seconds() -> float | None:
    """CPU seconds that the machine has spent on processes and interrupts, and that its host took from it."""
    if not sys.platform.startswith("linux"):
        return None
    user, nice, system, _, _, irq, soft_irq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + soft_irq + steal) / _TICKS_PER_SECOND


def noise_of(spread: float, others: float | None) -> str | None:
    """Why a measurement may be wrong, as a sentence for users; None if nothing says so.

    `spread` is that of the latencies (see `Latency`), `others` the CPUs that other processes took meanwhile.
    """
    reasons: list[str] = []
    if others is not None and others > _MOST_OTHERS:
        reasons.append(f"other processes took {others:.1f} CPUs meanwhile")
    if spread > _MOST_SPREAD:
        reasons.append(f"the middle 80 % of the figures are {100 * spread:.0f} % of the median apart")
    if not reasons:
        return None
    return f"the machine is noisy: {', and '.join(reasons)}; measure again when it is idle, or with more --repeat"


def bench_record(
    path: Path,
    compiled: CompiledModel,
    executor: GraphModule,
    rows: Sequence[tuple[int, Latency]],
    how: tuple[int, int],
    warning: str | None,
) -> dict[str, Any]:
    """What `bench --json` prints; `rows` are threads and latency, `how` the numbers of figures and of runs in each."""
    return {
        "model": str(path),
        "target": compiled.graph.target,
        "device": str(executor.device),
        "figures": how[0],
        "runs_per_figure": how[1],
        "results": [
            {"threads": threads, "latency_ms": latency._asdict(), "runs_per_second": latency.runs_per_second}
            for threads, latency in rows
        ],
        "environment": environment(),
        "warning": warning,
    }
