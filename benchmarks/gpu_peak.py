"""A GPU's ceilings, measured: copy bandwidth, FMA and tensor-core throughput from registers.

    python -m benchmarks.gpu_peak

The tensor-core loop uses `mma.sync`; sm_90 has wider instructions, so that where torch is installed the ceiling is the
larger of this loop and torch's float16 product of 8192^3.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from relayc.backend.cuda.driver import probe
from relayc.backend.cuda.nvrtc import compile_flags, compile_source
from relayc.backend.cuda.runtime import CUDAModule
from relayc.backend.runtime import Device, device, nd

__all__ = ["Ceilings", "measure_ceilings"]

_THREADS, _BLOCKS_PER_SM, _CHAINS = 256, 4, 8

_SOURCE = """
extern "C" __global__ void __launch_bounds__(256) fma_loop(float* out, float seed, int count) {
  float x = seed + threadIdx.x, sum[8];
  for (int c = 0; c < 8; ++c) sum[c] = c;
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int u = 0; u < 16; ++u)
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] = fmaf(sum[c], x, x);
  float total = 0;
  for (int c = 0; c < 8; ++c) total += sum[c];
  if (total == 12345.0f) out[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(256) mma_loop(float* out, float seed, int count) {
  unsigned a[4], b[2];
  float d[8][4];
  for (int i = 0; i < 4; ++i) a[i] = threadIdx.x * 77 + i;
  for (int i = 0; i < 2; ++i) b[i] = threadIdx.x * 33 + i;
  for (int c = 0; c < 8; ++c) for (int i = 0; i < 4; ++i) d[c][i] = seed;
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int u = 0; u < 4; ++u)
#pragma unroll
      for (int c = 0; c < 8; ++c)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  float total = 0;
  for (int c = 0; c < 8; ++c) for (int i = 0; i < 4; ++i) total += d[c][i];
  if (total == 12345.0f) out[blockIdx.x] = total;
}
"""
_FLOPS = {"fma_loop": 2 * 16 * _CHAINS, "mma_loop": 2 * 16 * 8 * 16 * 4 * _CHAINS / 32}
"""Operations of a thread in one round; those of a warp are divided by its 32 threads."""


@dataclass(frozen=True)
class Ceilings:
    """GB/s read plus written by a copy; GFLOP/s in float32 and of float16 tensor cores."""

    copy_gbs: float
    float32: float
    float16: float

    def gflops(self, precision: str) -> float:
        """The arithmetic ceiling of a precision."""
        return self.float32 if precision == "float32" else self.float16


def measure_ceilings(gpu: Device) -> Ceilings:
    """Measure a GPU's ceilings: about two seconds."""
    return Ceilings(copy_bandwidth(gpu), _loop(gpu, "fma_loop"), max(_loop(gpu, "mma_loop"), _torch_product()))


def copy_bandwidth(gpu: Device, megabytes: int = 1024) -> float:
    """GB/s read plus written by copies far larger than the caches; the best of five."""
    source, target = (nd.empty((megabytes << 18,), "float32", gpu) for _ in range(2))
    api, best = gpu.api, 0.0
    for _ in range(6):
        start = api.record_mark(gpu)
        for _ in range(10):
            source.copyto(target)
        seconds = api.seconds_between(gpu, start, api.record_mark(gpu))
        best = max(best, 10 * 2 * (megabytes << 20) / seconds / 1e9)
    return best


def _loop(gpu: Device, name: str, count: int = 20_000) -> float:
    """GFLOP/s of one of the loops; the best of five."""
    arch = "sm_" + str(gpu.compute_version).replace(".", "")
    image = compile_source(_SOURCE, arch, compile_flags(arch))
    blocks = _BLOCKS_PER_SM * int(gpu.multi_processor_count or 1)
    kernel = {"name": name, "grid": [blocks, 1, 1], "block": [_THREADS, 1, 1], "dynamic_shared": 0,
              "arguments": [["param", 0], ["param", 1], ["param", 2]]}  # fmt: skip
    params = [{"name": "out", "kind": "buffer", "dtype": "float32", "shape": [blocks]},
              {"name": "seed", "kind": "scalar", "dtype": "float32"},
              {"name": "count", "kind": "scalar", "dtype": "int32"}]  # fmt: skip
    table: dict[str, Any] = {name: {"params": params, "workspaces": [], "kernels": [kernel]}}
    module = CUDAModule(image.code, image.format, arch, table, _SOURCE, {})
    out = nd.empty((blocks,), "float32", gpu)
    best = module.time_evaluator(name, gpu, number=3, repeat=5)(out, 0.5, count).min
    return blocks * _THREADS * _FLOPS[name] * count / best / 1e9


def _torch_product(size: int = 8192) -> float:
    """GFLOP/s of torch's float16 matrix product; 0 without torch."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return 0.0
    if not torch.cuda.is_available():
        return 0.0
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    best = 0.0
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            torch.matmul(a, b)
        end.record()
        end.synchronize()
        best = max(best, 10 * 2 * size**3 / (start.elapsed_time(end) * 1e-3) / 1e9)
    return best


if __name__ == "__main__":
    found, reason = probe()
    if found == 0:
        print(f"nothing measured: there is no CUDA device: {reason}", file=sys.stderr)
        raise SystemExit(2)
    gpu = device("cuda", 0)
    here, narrow = measure_ceilings(gpu), _loop(gpu, "mma_loop")
    print(f"copy: {here.copy_gbs:.0f} GB/s")
    print(f"float32 multiply-adds: {here.float32 / 1e3:.1f} TFLOP/s")
    print(f"float16 tensor cores: {here.float16 / 1e3:.1f} TFLOP/s; by mma.sync {narrow / 1e3:.1f}")
