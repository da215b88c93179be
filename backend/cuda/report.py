"""The assembler's figures for each kernel, and the resulting occupancy on a target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from relayc.backend.cuda.target import CudaLimits

__all__ = ["Launch", "kernel_reports", "parse_log"]

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_FIGURES = {
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "registers": re.compile(r"Used (\d+) registers"),
    "shared": re.compile(r"(\d+) bytes smem"),
}


def parse_log(log: str) -> dict[str, dict[str, int]]:
    """Parse the log of ptxas (-v): kernel -> registers per thread, and memory figures in bytes.

    Empty for PTX, which has not been assembled, and for a log without figures.
    """
    found: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        kernel = _KERNEL.search(line)
        if kernel is not None:
            current = found[kernel[1]] = dict.fromkeys(_FIGURES, 0)
        for name, pattern in _FIGURES.items():
            figure = pattern.search(line)
            if figure is not None:
                current[name] = int(figure[1])
    return found


class Launch(NamedTuple):
    """Launch parameters of a kernel: threads per block, bytes of dynamic shared memory."""

    kernel: str
    threads: int
    dynamic_shared: int


def kernel_reports(log: str, launches: Iterable[Launch], limits: CudaLimits) -> dict[str, dict[str, Any]]:
    """Kernel -> its figures, including dynamic shared memory in "shared", "threads" per block, and "occupancy" (0 to
    1)."""
    figures = parse_log(log)
    reports: dict[str, dict[str, Any]] = {}
    for kernel in launches:
        of: dict[str, Any] = dict(figures.get(kernel.kernel, {}))
        if of:
            of["shared"] += kernel.dynamic_shared
            of["threads"] = kernel.threads
            of["occupancy"] = round(limits.occupancy(kernel.threads, of["registers"], of["shared"]), 4)
        reports[kernel.kernel] = of
    return reports
