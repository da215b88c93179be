"""Measures this machine's roofline ceilings: fused multiply-adds from registers, and streaming copies of memory.

Interleave the measurements with those compared to them: clock frequencies and neighbouring load vary over seconds.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
import numpy as np

from relayc.backend.runtime.ceilings import Ceilings

__all__ = ["CeilingMeter", "FmaLoop", "StreamingCopy"]

_CHAINS = 12
"""Number of independent accumulators: more than latency times ports, fewer than there are registers."""
_ROUNDS = 1_000_000
_COPY_BYTES = 128 << 20
"""Bytes copied: several times the cache size of most machines."""


def _assembly(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    chains = range(_CHAINS)
    phis = "\n".join(f"  %p{i} = phi {vector} [%x, %entry], [%n{i}, %loop]" for i in chains)
    steps = "\n".join(
        f"  %n{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %p{i}, {vector} %x, {vector} %x)" for i in chains
    )
    sums = "\n".join(f"  %s{i} = fadd {vector} %{'n0' if i == 1 else f's{i - 1}'}, %n{i}" for i in chains if i)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define float @fma_loop(i64 %count, float %seed) {{
entry:
  %v = insertelement {vector} poison, float %seed, i32 0
  %x = shufflevector {vector} %v, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
{sums}
  %r = extractelement {vector} %s{_CHAINS - 1}, i32 0
  ret float %r
}}
"""


class FmaLoop:
    """A loop of only vector multiply-adds, run on each of `threads` threads."""

    def __init__(self, threads: int = 1) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
        self.threads = threads
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_assembly(self.lanes)), machine)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)
        self._function = signature(self._engine.get_function_address("fma_loop"))

    def gflops(self, count: int = _ROUNDS) -> float:
        """GFLOP/s of float32 in one run of `count` rounds, some milliseconds."""
        seconds = _seconds([lambda: self._function(count, 0.1)] * self.threads)
        return 2 * _CHAINS * self.lanes * count * self.threads / seconds / 1e9


class StreamingCopy:
    """A copy of `nbytes` bytes, partitioned among `threads` threads."""

    def __init__(self, threads: int = 1, nbytes: int = _COPY_BYTES) -> None:
        source = np.ones(nbytes // 4, dtype=np.float32)
        self._nbytes = source.nbytes
        target = np.zeros_like(source)
        self._shares = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def gbs(self) -> float:
        """GB/s read plus written in one run."""
        copies = [lambda t=target, s=source: np.copyto(t, s) for target, source in self._shares]
        return 2 * self._nbytes / _seconds(copies) / 1e9


def _seconds(works: Sequence[Callable[[], object]]) -> float:
    """Seconds until all of `works`, each on a thread of its own, have finished."""
    if len(works) == 1:
        start = time.perf_counter()
        works[0]()
        return time.perf_counter() - start
    together = threading.Barrier(len(works) + 1)

    def run(work: Callable[[], object]) -> None:
        together.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    together.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


class CeilingMeter:
    """Accumulates samples of both ceilings for `threads` threads; `ceilings` returns the medians."""

    def __init__(self, threads: int = 1) -> None:
        self._loop, self._copy = FmaLoop(threads), StreamingCopy(threads)
        self._gflops: list[float] = []
        self._gbs: list[float] = []
        self._loop.gflops()
        self._copy.gbs()

    def sample(self, times: int = 3) -> None:
        """Measure both ceilings `times` times."""
        self._gflops += [self._loop.gflops() for _ in range(times)]
        self._gbs += [self._copy.gbs() for _ in range(times)]

    @property
    def ceilings(self) -> Ceilings:
        """The medians of all samples so far."""
        return Ceilings(statistics.median(self._gflops), statistics.median(self._gbs))
