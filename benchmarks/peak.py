"""This machine's own ceilings, for 1 thread and for all: multiply-adds from registers, copies from memory.

    python -m benchmarks.peak
"""

from __future__ import annotations

from backend.llvm.ceilings import FmaLoop, StreamingCopy
from backend.runtime import num_threads


def main() -> None:
    """Measure and print, a line for each number of threads."""
    for threads in sorted({1, num_threads()}):
        loop, copy = FmaLoop(threads), StreamingCopy(threads)
        gflops, gbs = max(loop.gflops() for _ in range(20)), max(copy.gbs() for _ in range(5))
        print(f"{threads} threads: multiply-adds {gflops:.1f} GFLOP/s float32, copy {gbs:.1f} GB/s")


if __name__ == "__main__":
    main()
