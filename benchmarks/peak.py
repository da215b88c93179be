"""This machine's own ceilings, for 1 thread and for all: multiply-adds from registers, copies from memory.

    python -m benchmarks.peak

And what of the former is left to a register tile of a matrix product, which reads a number for each of its rows and a
few vectors of its columns in every step, all of them from the first-level cache: no product by such tiles is faster.
"""

from __future__ import annotations

import ctypes
import platform
import statistics
import time

import llvmlite.binding as llvm
import numpy as np

from relayc.backend.llvm.ceilings import FmaLoop, StreamingCopy
from relayc.backend.runtime import num_threads

_STEPS, _ROUNDS, _TIMES = 128, 40_000, 9
_FMA_ROUNDS = 20_000_000
"""As long as the tiles': tens of milliseconds, as processors change their clock by what they do, but not at once."""
TILES = {16: ((14, 2), (13, 2), (12, 2), (9, 3), (8, 3), (6, 4)), 8: ((6, 2), (4, 3))}
"""Rows and vectors of the columns, by the elements of a vector."""


class TileLoop:
    """A register tile of `rows` and `vectors` of `lanes` columns that sums up 128 products, again and again.

    In assembly for x86-64, so that nothing but what has to be there is.
    """

    def __init__(self, rows: int, vectors: int, lanes: int) -> None:
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        llvm.initialize_native_asmparser()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(self.assembly()), machine)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._function = signature(self._engine.get_function_address("tile"))
        self._data = [np.zeros(n * _STEPS + lanes, np.float32) for n in (rows, vectors * lanes)]
        self._places = [memory.ctypes.data + -memory.ctypes.data % (4 * lanes) for memory in self._data]

    def assembly(self) -> str:
        """A function of where the rows are, one behind the other, where the columns are, and of how many rounds."""
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
        """GFLOP/s of float32 in one run of some tens of milliseconds."""
        start = time.perf_counter()
        self._function(*self._places, _ROUNDS)
        return 2 * self.rows * self.vectors * self.lanes * _STEPS * _ROUNDS / (time.perf_counter() - start) / 1e9


def main() -> None:
    """Measure and print, a line for each number of threads and each tile."""
    for threads in sorted({1, num_threads()}):
        loop, copy = FmaLoop(threads), StreamingCopy(threads)
        gflops, gbs = max(loop.gflops() for _ in range(20)), max(copy.gbs() for _ in range(5))
        print(f"{threads} threads: multiply-adds {gflops:.1f} GFLOP/s float32, copy {gbs:.1f} GB/s")
    loop = FmaLoop()
    for rows, vectors in TILES.get(loop.lanes, ()) if platform.machine() in ("x86_64", "AMD64") else ():
        tile = TileLoop(rows, vectors, loop.lanes)
        both = [(loop.gflops(_FMA_ROUNDS), tile.gflops()) for _ in range(_TIMES)]
        peak, found = (statistics.median(each) for each in zip(*both, strict=True))
        print(f"tile of {rows} x {vectors} vectors in the first-level cache: {found:.1f}, {100 * found / peak:.1f} %")


if __name__ == "__main__":
    main()
