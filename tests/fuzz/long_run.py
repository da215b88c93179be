"""Many random graphs in one process: none may fail, and its memory may not grow.

    python -m tests.fuzz.long_run --graphs 2000 [--start 0] [--seconds 600] [--device CUDA]

Prints resident memory over the run. Exits with 1 when a graph failed, or when memory grew by more than `GROWTH` a graph
after the first fifth of the run, in which everything is used for the first time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.fuzz.compare import Finding, check_seed
from tests.resident_memory import resident_mib

__all__ = ["main"]

GROWTH = 0.01
"""MiB of resident memory for each graph: less than one pass builder of LLVM's for each of its kernels."""

WARM_UP = 1000
"""Shorter runs are not judged by their memory: what the largest graph needed stays with the allocator."""


def main(arguments: list[str] | None = None) -> int:
    """Run the graphs of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--device", default="CPU", help="what to compile for: CPU or CUDA")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"  # what is compiled now is what is to be tested
    began, failed, memory = time.monotonic(), 0, list[float]()
    step = max(options.graphs // 20, 1)
    print("graphs  failed  MiB  seconds")
    for done in range(options.graphs + 1):
        late = time.monotonic() - began > options.seconds
        if done % step == 0 or late:
            memory.append(resident_mib() or 0.0)
            print(f"{done:6d}  {failed:6d}  {memory[-1]:.0f}  {time.monotonic() - began:.0f}", flush=True)
        if late or done == options.graphs:
            break
        try:
            check_seed(options.start + done, options.device)
        except Finding as finding:
            failed += 1
            print(finding, flush=True)
    first = max(len(memory) // 5, 1)
    settled = max(memory[1 : first + 1])
    grown = (memory[-1] - settled) / max(done - first * step, 1)
    print(f"{failed} graphs failed; memory from {settled:.0f} MiB to {memory[-1]:.0f} MiB")
    return 1 if failed or (done >= WARM_UP and grown > GROWTH) else 0


if __name__ == "__main__":
    sys.exit(main())
