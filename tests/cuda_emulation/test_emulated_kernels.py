"""Kernels on the host: their results, and the faults that the emulation detects."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from relayc.backend.runtime import Device
from tests.cuda_emulation import emulation
from tests.cuda_emulation.compiler import compile_cuda, split_kernels

pytestmark = pytest.mark.usefixtures("emulated_cuda_device")


class Emulated:
    """A kernel that takes numpy arrays and scalars."""

    def __init__(self, source: str) -> None:
        from cuda.bindings import driver

        self.driver = driver
        assert int(driver.cuInit(0)[0]) == 0
        assert int(driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])[0]) == 0
        self.module = driver.cuModuleLoadData(compile_cuda(source, "sm_90"))[1]
        self.function = driver.cuModuleGetFunction(self.module, b"f")[1]

    def __call__(self, grid: int, block: int, *arguments: Any, shared: int = 0) -> None:
        """Run it, with arrays copied in and out. Raises RuntimeError with the kernel's fault."""
        d = self.driver
        addresses = {i: int(d.cuMemAlloc(a.nbytes)[1]) for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
        for i, address in addresses.items():
            d.cuMemcpyHtoD(address, arguments[i].ctypes.data, arguments[i].nbytes)
        values = tuple(addresses.get(i, a) for i, a in enumerate(arguments))
        kinds = tuple(ctypes.c_void_p if i in addresses else ctypes.c_int for i in range(len(values)))
        d.cuLaunchKernel(self.function, grid, 1, 1, block, 1, 1, shared, 0, (values, kinds), 0)
        if int(d.cuCtxSynchronize()[0]):
            raise RuntimeError(emulation.last_error())
        for i, address in addresses.items():
            d.cuMemcpyDtoH(arguments[i].ctypes.data, address, arguments[i].nbytes)
            d.cuMemFree(address)


def run(body: str, *arguments: Any, parameters: str = "const float* x, float* y", grid: int = 1, block: int = 64,
        shared: int = 0) -> None:  # fmt: skip
    kernel = Emulated(f'extern "C" __global__ void __launch_bounds__({block}) f({parameters}) {{\n{body}\n}}')
    kernel(grid, block, *arguments, shared=shared)


def floats(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal(count, dtype=np.float32)


REVERSE = "RC_SHARED(float, s, 64); int t = threadIdx.x; s[t] = x[t]; {} y[t] = s[63 - t];"


def test_barriers_order_the_threads() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    run(REVERSE.format("__syncthreads();"), x, y)
    assert np.array_equal(y, x[::-1])


def test_a_missing_barrier_gives_wrong_results() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    run(REVERSE.format(""), x, y)
    assert np.isnan(y).any()


@pytest.mark.parametrize("reads", ["s[t ? t - 1 : 63]", "s[(t + 1) % 64]"])
def test_dependences_in_both_directions_are_detected(reads: str) -> None:
    """Even blocks run their threads in ascending, odd blocks in descending order."""
    x, y = floats(128), np.zeros(128, np.float32)
    body = "RC_SHARED(float, s, 64); int t = threadIdx.x, b = blockIdx.x * 64; s[t] = x[b + t]; {} y[b + t] = {};"
    run(body.format("", "s[0] * 0 + " + reads), x, y, grid=2)
    assert np.isnan(y[:64]).sum() + np.isnan(y[64:]).sum() > 2
    run(body.format("__syncthreads();", reads), x, y, grid=2)
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x < 32) __syncthreads();", "divergent barrier: of 64 threads 32 wait at the barrier of line 2"),
        ("if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();", "divergent barrier: at line 3"),
        ("if (threadIdx.x & 1) y[0] = __shfl_xor_sync(~0u, x[0], 1);\n__syncthreads();", "32 in a warp operation"),
        ("if (threadIdx.x & 1) y[0] = __shfl_xor_sync(0xaaaaaaaa, x[0], 1);", "lane 30, which does not take part"),
        ("y[0] = threadIdx.x ? __shfl_sync(~0u, x[0], 0) :\n__shfl_sync(~0u, x[1], 0);", "divergent warp operation"),
        ("y[0] = __shfl_sync(1u, x[0], 0);", "leaves out its own lane 1"),
        ("y[threadIdx.x * 5000] = 1;", r"thread \(1, 0, 0\): access to memory that is not the device's"),
        ("y[threadIdx.x * 4000000] = 1;", r"thread \(1, 0, 0\): access to memory that is not the device's"),
        ("RC_SHARED(float, s, 64); s[threadIdx.x * 500000] = 1;", r"thread \(1, 0, 0\): access to memory"),
    ],
)
def test_faults_are_described(body: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(body, floats(64), floats(64))


def test_a_write_just_past_the_end_is_found() -> None:
    with pytest.raises(RuntimeError, match="wrote past the end of argument 1"):
        run("y[threadIdx.x + 1] = 1;", floats(64), floats(32), block=32)


def test_an_error_names_the_kernel_the_block_and_the_thread() -> None:
    with pytest.raises(RuntimeError, match=r"kernel f, block \(1, 0, 0\), thread \(\d+, 0, 0\)"):
        run("if (blockIdx.x && threadIdx.x) __syncthreads();", floats(64), floats(64), grid=2)


@pytest.mark.parametrize("block", [64, 48])
def test_shuffles(block: int) -> None:
    x, y = floats(block), np.zeros(block, np.float32)
    lanes = np.arange(block)
    for text, source in {
        "__shfl_xor_sync(~0u, v, 5)": lanes ^ 5,
        "__shfl_sync(~0u, v, 3)": lanes // 32 * 32 + 3,
        "__shfl_down_sync(~0u, v, 4, 8)": np.where(lanes % 8 < 4, lanes + 4, lanes),
        "__shfl_up_sync(~0u, v, 1, 16)": np.where(lanes % 16 > 0, lanes - 1, lanes),
    }.items():
        run(f"float v = x[threadIdx.x]; y[threadIdx.x] = {text};", x, y, block=block)
        assert np.array_equal(y, x[source]), text


def test_divergent_warps_and_half_warps() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    run("""float v = x[threadIdx.x]; unsigned lane = threadIdx.x & 31;
           if (lane < 16) { for (int i = 1; i < 16; i *= 2) v += __shfl_xor_sync(0xffff, v, i); }
           else { for (int i = 1; i < 4; i *= 2) v += __shfl_xor_sync(0xffff0000, v, i); }
           __syncwarp();
           y[threadIdx.x] = v + __shfl_sync(~0u, v, 0);""", x, y)  # fmt: skip
    w = x.reshape(2, 32)
    low = np.repeat(w[:, :16].sum(1), 16).reshape(2, 16)
    high = np.repeat(w[:, 16:].reshape(2, 4, 4).sum(2), 4, axis=1)
    assert np.allclose(y.reshape(2, 32), np.concatenate([low, high], 1) + low[:, :1], atol=1e-5)


def test_votes_and_integer_functions() -> None:
    y = np.zeros(64, np.int32)
    run("int t = threadIdx.x; y[t] = __ballot_sync(~0u, t % 3 == 0); if (!__any_sync(~0u, t == 40)) y[t] = __clz(t);",
        floats(64), y, parameters="const float* x, int* y")  # fmt: skip
    assert (y[:32] == [32 - int(t).bit_length() for t in range(32)]).all()
    assert (y[32:].view(np.uint32) == sum(1 << (t - 32) for t in range(32, 64) if t % 3 == 0)).all()


def test_every_block_starts_with_fresh_shared_memory() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    body = "RC_SHARED(float, s, 32); int t = threadIdx.x; if (blockIdx.x == 0) s[t] = 1; y[blockIdx.x * 32 + t] = s[t];"
    run(body, x, y, grid=2, block=32)
    assert (y[:32] == 1).all()
    assert np.isnan(y[32:]).all()


@pytest.mark.parametrize("wait", [0, 1])
def test_asynchronous_copies_complete_at_the_wait(wait: int) -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    run(f"""RC_SHARED(float, s, 64); int t = threadIdx.x;
            rc_async_copy<4>(&s[t], &x[t], t < 60); rc_async_commit(); rc_async_wait<{wait}>(); __syncthreads();
            y[t] = s[63 - t];""", x, y)  # fmt: skip
    if wait == 0:
        assert np.array_equal(y[4:], x[:60][::-1]) and (y[:4] == 0).all()
    else:
        assert np.isnan(y).all()


def test_misaligned_asynchronous_copies_are_rejected() -> None:
    with pytest.raises(RuntimeError, match="misaligned shared address 4 for 16 bytes"):
        run("RC_SHARED(float, s, 64); rc_async_copy<16>(&s[1], &x[0], true);", floats(64), floats(64))


def test_kernels_of_a_source_are_split_and_compiled_separately() -> None:
    head, kernels = split_kernels('int a;\nextern "C" __global__ void f() {}\nextern "C" __global__ void g() {}\n')
    assert head == "int a;\n"
    assert [k.split()[4] for k in kernels] == ["f()", "g()"]
    assert split_kernels("int a;\n") == ("int a;\n", [])


def test_compile_errors_have_a_location(emulated_cuda_device: Device) -> None:
    with pytest.raises(RuntimeError, match=r"f:2:.*nonsense"):
        compile_cuda('extern "C" __global__ void f() {\n  nonsense();\n}', "sm_90")
