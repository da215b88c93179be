"""This machine's own ceilings, measured: fused multiply-adds from registers, and streaming copies from memory."""

from __future__ import annotations

import ctypes
import time

import llvmlite.binding as llvm
import numpy as np

__all__ = ["FmaLoop", "copy_bandwidth"]

_CHAINS = 12
"""Independent accumulators: more than latency times ports, fewer than there are registers."""


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
    """A loop of nothing but vector multiply-adds on one core."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_assembly(self.lanes)), machine)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)
        self._function = signature(self._engine.get_function_address("fma_loop"))

    def gflops(self, count: int = 200_000) -> float:
        """GFLOP/s of float32 in one run of `count` rounds, about a millisecond."""
        start = time.perf_counter()
        self._function(count, 0.1)
        return 2 * _CHAINS * self.lanes * count / (time.perf_counter() - start) / 1e9


def copy_bandwidth(megabytes: int = 256) -> float:
    """GB/s read plus written by one core copying far more than the caches hold; the best of five."""
    source = np.ones(megabytes << 18, dtype=np.float32)
    target = np.empty_like(source)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start) / 1e9)
    return best


if __name__ == "__main__":
    loop = FmaLoop()
    print(f"multiply-add peak of one core: {max(loop.gflops() for _ in range(20)):.1f} GFLOP/s float32")
    print(f"copy bandwidth of one core: {copy_bandwidth():.1f} GB/s")
