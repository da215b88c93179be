"""This machine's ceilings, for 1 thread and for all: FMA throughput from registers, copy bandwidth.

    python -m benchmarks.peak

It also measures register tiles of a matrix product, which load a broadcast element for each row and a few vectors of
columns in every step, all from L1: an upper bound for products with such tiles.
"""

from __future__ import annotations

import ctypes
import platform
import statistics
import time

import numpy as np

from relayc import relay
from relayc.backend.llvm.ceilings import FmaLoop, StreamingCopy, engine_of
from relayc.backend.runtime import device, graph_executor, num_threads

_STEPS, _ROUNDS, _TIMES = 128, 40_000, 9
_FMA_ROUNDS = 20_000_000
"""Iterations that take as long as those of the tiles, tens of milliseconds: the clock adapts with a delay."""
_READ_BYTES, _SUMS = 128 << 20, 5
"""Bytes of the sum that stands for the memory's bandwidth: several times the caches of most machines."""
TILES = {16: ((14, 2), (13, 2), (12, 2), (9, 3), (8, 3), (6, 4)), 8: ((6, 2), (4, 3))}
"""Rows, and vectors of columns, of register tiles, by the number of elements in a vector."""


class TileLoop:
    """A register tile of `rows` x `vectors` vectors of `lanes` columns that accumulates 128 products, repeatedly.

    It is written in x86-64 assembly, so that it has no other instructions.
    """

    def __init__(self, rows: int, vectors: int, lanes: int) -> None:
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        self._engine = engine_of(self.assembly())
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._function = signature(self._engine.get_function_address("tile"))
        self._data = [np.zeros(n * _STEPS + lanes, np.float32) for n in (rows, vectors * lanes)]
        self._places = [memory.ctypes.data + -memory.ctypes.data % (4 * lanes) for memory in self._data]

    def assembly(self) -> str:
        """LLVM IR of the loop: a function of the addresses of rows and columns, and of the number of rounds."""
        kind = "%zmm" if self.lanes == 16 else "%ymm"
        left, right = [f"{kind}{v}" for v in range(self.vectors)], f"{kind}{self.vectors}"
        sums = [[f"{kind}{self.vectors + 1 + r * self.vectors + v}" for v in range(self.vectors)]
                for r in range(self.rows)]  # fmt: skip
        lines = [f"vxorps {s}, {s}, {s}" for row in sums for s in row]
        lines += ["1:", "movq $0, %rax", "movq $1, %rcx", f"movl $${_STEPS}, %r8d", "2:"]
        lines += [f"vmovups {4 * self.lanes * v}(%rcx), {vector}" for v, vector in enumerate(left)]
        for r, row in enumerate(sums):
            lines.append(f"vbroadcastss {4 * _STEPS * r}(%rax), {right}")
            lines += [f"vfmadd231ps {vector}, {right}, {s}" for vector, s in zip(left, row, strict=True)]
        lines += ["addq $$4, %rax", f"addq $${4 * self.lanes * self.vectors}, %rcx", "decl %r8d", "jnz 2b"]
        lines += ["decq %r9", "jnz 1b"]
        changed = [*(f"xmm{i}" for i in range(32 if self.lanes == 16 else 16)), "rax", "rcx", "r8", "flags", "memory"]
        clobbered = ",".join(f"~{{{name}}}" for name in changed)
        text = "\\0A".join(["movq $2, %r9", *lines])
        call = f'call void asm sideeffect "{text}", "r,r,r,~{{r9}},{clobbered}"(ptr %a, ptr %b, i64 %rounds)'
        return f"define void @tile(ptr %a, ptr %b, i64 %rounds) {{\n  {call}\n  ret void\n}}"

    def gflops(self) -> float:
        """GFLOP/s of float32 in a run of some tens of milliseconds."""
        start = time.perf_counter()
        self._function(*self._places, _ROUNDS)
        return 2 * self.rows * self.vectors * self.lanes * _STEPS * _ROUNDS / (time.perf_counter() - start) / 1e9


class SumOfMemory:
    """A sum of 128 MiB on one thread, compiled by relayc: the bandwidth of reads."""

    nbytes = _READ_BYTES

    def __init__(self) -> None:
        x = relay.var("x", (_READ_BYTES // 4,))
        lib = relay.build(relay.IRModule.from_expr(relay.Function([x], relay.sum(x))), target="llvm")
        self._module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=1)
        self._module.set_input("x", np.ones(_READ_BYTES // 4, np.float32))
        self._module.run()

    def run(self) -> None:
        """Read once."""
        self._module.run()

    def gbs(self) -> float:
        """GB per CPU second, of several sums."""
        start = time.thread_time()
        for _ in range(_SUMS):
            self.run()
        return _SUMS * _READ_BYTES / (time.thread_time() - start) / 1e9


def main() -> None:
    """Print a line for each number of threads and each tile."""
    for threads in sorted({1, num_threads()}):
        loop, copy = FmaLoop(threads), StreamingCopy(threads)
        gflops, gbs = max(loop.gflops() for _ in range(20)), max(copy.gbs() for _ in range(5))
        print(f"{threads} threads: multiply-adds {gflops:.1f} GFLOP/s float32, copy {gbs:.1f} GB/s")
    loop = FmaLoop()
    for rows, vectors in TILES.get(loop.lanes, ()) if platform.machine() in ("x86_64", "AMD64") else ():
        tile = TileLoop(rows, vectors, loop.lanes)
        both = [(loop.gflops(_FMA_ROUNDS), tile.gflops()) for _ in range(_TIMES)]
        peak, found = (statistics.median(each) for each in zip(*both, strict=True))
        print(f"tile of {rows} x {vectors} vectors, operands in L1: {found:.1f}, {100 * found / peak:.1f} %")


if __name__ == "__main__":
    main()
