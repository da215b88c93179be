"""What the assembler says of each kernel, and what follows for a target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from backend.cuda.target import CudaLimits
from backend.kernels import Kernel

__all__ = ["kernel_reports", "parse_log"]

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_FIGURES = {
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "registers": re.compile(r"Used (\d+) registers"),
    "shared": re.compile(r"(\d+) bytes smem"),
}


def parse_log(log: str) -> dict[str, dict[str, int]]:
    """The figures in the log of ptxas (-v): kernel -> registers per thread, and bytes of the others.

    Empty for PTX, which has not been assembled, and for a log that says nothing.
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


def kernel_reports(
    log: str, kernels: Iterable[tuple[Kernel, int]], limits: CudaLimits
) -> dict[str, dict[str, Any]]:
    """Kernel -> its figures, with dynamic shared memory in "shared", "threads" per block, and "occupancy" (0 to 1).

    `kernels` come with their bytes of dynamic shared memory.
    """
    figures = parse_log(log)
    reports: dict[str, dict[str, Any]] = {}
    for kernel, dynamic in kernels:
        of: dict[str, Any] = dict(figures.get(kernel.name, {}))
        if of:
            of["shared"] += dynamic
            of["threads"] = kernel.threads
            of["occupancy"] = round(limits.occupancy(kernel.threads, of["registers"], of["shared"]), 4)
        reports[kernel.name] = of
    return reports
