"""Hand-written CUDA modules, for the tests of the run-time part."""

from __future__ import annotations

import pytest

from relayc.backend.cuda.build import prelude
from relayc.backend.cuda.module import CUDAModule
from relayc.backend.cuda.nvrtc import compile_flags, compile_source

KERNELS = """
extern "C" __global__ void __launch_bounds__(64) add_kernel0(const float* __restrict__ a, const float* __restrict__ b,
                                                               float* __restrict__ c, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void __launch_bounds__(64) scale_kernel0(const float* __restrict__ x, float* __restrict__ y,
                                                                 float by, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}
extern "C" __global__ void __launch_bounds__(1024) sums_kernel0(const float* __restrict__ x, float* __restrict__ y,
                                                                  int n) {
  RC_DYN_SHARED(float, all);
  for (int i = threadIdx.x; i < n; i += 64) all[i] = x[blockIdx.x * n + i];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += all[i];
    y[blockIdx.x] = sum;
  }
}
extern "C" __global__ void __launch_bounds__(64) astray_kernel0(float* __restrict__ x) { x[1ll << 40] = 1; }
"""
BLOCKS = ["//", ["+", "n", 63], 64]


def buffer(name, *shape):
    return {"name": name, "kind": "buffer", "dtype": "float32", "shape": list(shape)}


def kernel(name, grid, arguments, block=64, shared=0):
    return {"name": name, "grid": [grid, 1, 1], "block": [block, 1, 1], "dynamic_shared": shared,
            "arguments": arguments}  # fmt: skip


SIZE = ["size", "n", "int32"]
FUNCTIONS = {
    "add": {
        "params": [buffer("a", "n"), buffer("b", "n"), buffer("c", "n")],
        "workspaces": [],
        "kernels": [kernel("add_kernel0", BLOCKS, [["param", 0], ["param", 1], ["param", 2], SIZE])],
    },
    "scale": {
        "params": [buffer("x", "n"), buffer("y", "n"), {"name": "by", "kind": "scalar", "dtype": "float32"}],
        "workspaces": [],
        "kernels": [kernel("scale_kernel0", BLOCKS, [["param", 0], ["param", 1], ["param", 2], SIZE])],
    },
    "double_sum": {  # c = 2 * (a + b), by two kernels and a workspace between them
        "params": [buffer("a", "n"), buffer("b", "n"), buffer("c", "n")],
        "workspaces": [["*", "n", 4]],
        "kernels": [
            kernel("add_kernel0", BLOCKS, [["param", 0], ["param", 1], ["workspace", 0], SIZE]),
            kernel("add_kernel0", BLOCKS, [["workspace", 0], ["workspace", 0], ["param", 2], SIZE]),
        ],
    },
    "sums": {  # sums of rows, through dynamic shared memory
        "params": [buffer("x", "m", "n"), buffer("y", "m")],
        "workspaces": [],
        "kernels": [kernel("sums_kernel0", "m", [["param", 0], ["param", 1], SIZE], shared=["*", "n", 4])],
    },
    "crowd": {  # exceeds the threads per block of any GPU
        "params": [buffer("a", "n"), buffer("b", "n"), buffer("c", "n")],
        "workspaces": [],
        "kernels": [kernel("add_kernel0", 1, [["param", 0], ["param", 1], ["param", 2], SIZE], block=2048)],
    },
    "astray": {
        "params": [buffer("x", "n")],
        "workspaces": [],
        "kernels": [kernel("astray_kernel0", 1, [["param", 0]])],
    },
}


@pytest.fixture
def kernels(cuda_device):
    """A `CUDAModule` of the functions above for the available device."""
    source = prelude() + KERNELS
    arch = "sm_" + cuda_device.compute_version.replace(".", "")
    image = compile_source(source, arch, compile_flags(arch))
    return CUDAModule(image.code, image.format, arch, FUNCTIONS, source, {})
