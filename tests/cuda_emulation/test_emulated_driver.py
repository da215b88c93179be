"""The emulated driver through cuda-python: its results, and the errors that a real one returns."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from tests.cuda_emulation import emulation
from tests.cuda_emulation.compiler import compile_cuda

cuda = pytest.importorskip("cuda.bindings.driver")
if emulation.real_driver() or emulation.unavailable():
    pytest.skip("the stand-in driver is not used on this machine", allow_module_level=True)

KERNELS = """
extern "C" __global__ void __launch_bounds__(64) scale(const float* __restrict__ x, float* __restrict__ y,
                                                         float by, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}
extern "C" __global__ void __launch_bounds__(256) sums(const float* __restrict__ x, float* __restrict__ y) {
  RC_DYN_SHARED(float, all);
  all[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  for (int step = 128; step > 0; step >>= 1) {
    __syncthreads();
    if (threadIdx.x < step) all[threadIdx.x] += all[threadIdx.x + step];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = all[0];
}
"""


def ok(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, cuda.cuGetErrorName(result[0])
    return result[1] if len(result) == 2 else result[1:]


def code(result: tuple[Any, ...]) -> str:
    return result[0].name.removeprefix("CUDA_ERROR_")


@pytest.fixture(autouse=True)
def context() -> Generator[Any, None, None]:
    emulation.start()
    ok(cuda.cuInit(0))
    made = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))
    ok(cuda.cuCtxSetCurrent(made))
    yield made
    emulation.reset()
    ok(cuda.cuCtxSetCurrent(made))
    ok(cuda.cuCtxSynchronize())


@pytest.fixture
def stream() -> Any:
    return ok(cuda.cuStreamCreate(1))


@pytest.fixture(scope="module")
def image() -> bytes:
    return compile_cuda(KERNELS, "sm_90")


class Arguments:
    """Kernel arguments as an array of pointers."""

    def __init__(self, *values: Any) -> None:
        self.values = [v if isinstance(v, ctypes._SimpleCData) else ctypes.c_uint64(int(v)) for v in values]
        self.pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in self.values])

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)


def upload(array: np.ndarray, stream: Any) -> int:
    address = int(ok(cuda.cuMemAllocAsync(array.nbytes, stream)))
    ok(cuda.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, stream))
    return address


def download(address: int, count: int, stream: Any) -> np.ndarray:
    result = np.empty(count, np.float32)
    ok(cuda.cuMemcpyDtoHAsync(result.ctypes.data, address, result.nbytes, stream))
    ok(cuda.cuStreamSynchronize(stream))
    return result


def launch(function: Any, grid: int, block: int, arguments: Arguments, stream: Any, shared: int = 0) -> tuple[Any, ...]:
    return cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments.address, 0)


def test_a_kernel_runs(image: bytes, stream: Any) -> None:
    x = np.arange(100, dtype=np.float32)
    scale = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"scale"))
    a, b = upload(x, stream), int(ok(cuda.cuMemAllocAsync(400, stream)))
    ok(launch(scale, 2, 64, Arguments(a, b, ctypes.c_float(3), ctypes.c_int(100)), stream))
    assert np.array_equal(download(b, 100, stream), 3 * x)


def test_barriers_and_dynamic_shared_memory(image: bytes, stream: Any) -> None:
    x = np.random.default_rng(0).integers(0, 100, (5, 256)).astype(np.float32)
    sums = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"sums"))
    a, b = upload(x, stream), int(ok(cuda.cuMemAllocAsync(20, stream)))
    ok(launch(sums, 5, 256, Arguments(a, b), stream, shared=1024))
    assert np.array_equal(download(b, 5, stream), x.sum(1))


def test_work_runs_at_synchronisation(image: bytes, stream: Any) -> None:
    """A result read too early is not there yet: fresh memory is NaN."""
    pinned = int(ok(cuda.cuMemAllocHost(400)))
    host = np.ctypeslib.as_array((ctypes.c_float * 100).from_address(pinned))
    a = upload(np.ones(100, np.float32), stream)
    ok(cuda.cuMemcpyDtoHAsync(pinned, a, 400, stream))
    assert np.isnan(host).all()
    assert code(cuda.cuStreamQuery(stream)) == "NOT_READY"
    ok(cuda.cuStreamSynchronize(stream))
    assert (host == 1).all()


def test_work_behind_a_failed_kernel_never_runs(image: bytes, stream: Any) -> None:
    """What a reset leaves would write to memory of the host that is another's by then."""
    pinned = int(ok(cuda.cuMemAllocHost(400)))
    host = np.ctypeslib.as_array((ctypes.c_float * 100).from_address(pinned))
    a = upload(np.ones(100, np.float32), stream)
    ok(cuda.cuStreamSynchronize(stream))
    scale = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"scale"))
    ok(launch(scale, 2, 64, Arguments(a, a + 400, ctypes.c_float(3), ctypes.c_int(100)), stream))
    ok(cuda.cuMemcpyDtoHAsync(pinned, a, 400, stream))
    assert code(cuda.cuStreamSynchronize(stream)) == "ILLEGAL_ADDRESS"
    emulation.reset()
    ok(cuda.cuStreamSynchronize(stream))
    assert np.isnan(host).all()


def test_pinned_memory_is_read_late_and_pageable_immediately(stream: Any) -> None:
    pinned = int(ok(cuda.cuMemAllocHost(4)))
    host, pageable = (ctypes.c_float * 1).from_address(pinned), np.ones(1, np.float32)
    host[0] = 1
    a, b = upload(pageable, stream), int(ok(cuda.cuMemAllocAsync(4, stream)))
    ok(cuda.cuMemcpyHtoDAsync(b, pinned, 4, stream))
    host[0] = pageable[0] = 2
    assert download(a, 1, stream)[0] == 1
    assert download(b, 1, stream)[0] == 2


def test_a_stream_waits_for_an_event_of_another() -> None:
    first, second = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
    event = ok(cuda.cuEventCreate(0))
    a = upload(np.full(4, 7, np.float32), first)
    ok(cuda.cuEventRecord(event, first))
    ok(cuda.cuStreamWaitEvent(second, event, 0))
    assert (download(a, 4, second) == 7).all()
    assert int(cuda.cuEventQuery(event)[0]) == 0


def test_events_measure_the_time_between(image: bytes, stream: Any) -> None:
    x = np.ones((2000, 256), np.float32)
    sums = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"sums"))
    arguments = Arguments(upload(x, stream), int(ok(cuda.cuMemAllocAsync(8000, stream))))
    start, stop = (ok(cuda.cuEventCreate(0)) for _ in range(2))
    ok(cuda.cuEventRecord(start, stream))
    ok(launch(sums, 2000, 256, arguments, stream, shared=1024))
    ok(cuda.cuEventRecord(stop, stream))
    assert code(cuda.cuEventElapsedTime(start, stop)) == "NOT_READY"
    ok(cuda.cuEventSynchronize(stop))
    assert 0 < ok(cuda.cuEventElapsedTime(start, stop)) < 60_000


def test_a_captured_graph_replays_with_the_arguments_of_the_capture(image: bytes, stream: Any) -> None:
    x = np.arange(64, dtype=np.float32)
    scale = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"scale"))
    a, b = upload(x, stream), int(ok(cuda.cuMemAllocAsync(256, stream)))
    arguments = Arguments(a, b, ctypes.c_float(2), ctypes.c_int(64))
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    ok(launch(scale, 1, 64, arguments, stream))
    graph = ok(cuda.cuStreamEndCapture(stream))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphDestroy(graph))
    arguments.values[2].value = 5  # too late
    assert np.isnan(download(b, 64, stream)).all()
    for _ in range(2):
        ok(cuda.cuMemsetD8Async(b, 0, 256, stream))
        ok(cuda.cuGraphLaunch(executable, stream))
        assert np.array_equal(download(b, 64, stream), 2 * x)


def test_synchronisation_during_capture_invalidates_the_graph(stream: Any) -> None:
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    assert code(cuda.cuStreamSynchronize(stream)) == "STREAM_CAPTURE_UNSUPPORTED"
    assert code(cuda.cuMemAlloc(16)) == "STREAM_CAPTURE_UNSUPPORTED"
    assert code(cuda.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_peers() -> None:
    contexts = [ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(i)))) for i in (0, 1)]
    assert ok(cuda.cuDeviceCanAccessPeer(0, 1)) == 1
    addresses = []
    for context in contexts:
        ok(cuda.cuCtxSetCurrent(context))
        stream = ok(cuda.cuStreamCreate(1))
        addresses.append(upload(np.full(8, len(addresses), np.float32), stream))
        ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuMemcpyPeerAsync(addresses[1], contexts[1], addresses[0], contexts[0], 32, stream))
    assert (download(addresses[1], 8, stream) == 0).all()
    ok(cuda.cuCtxEnablePeerAccess(contexts[0], 0))
    assert code(cuda.cuCtxEnablePeerAccess(contexts[0], 0)) == "PEER_ACCESS_ALREADY_ENABLED"
    ok(cuda.cuCtxDisablePeerAccess(contexts[0]))


def test_invalid_launches(image: bytes, stream: Any) -> None:
    module = ok(cuda.cuModuleLoadData(image))
    sums = ok(cuda.cuModuleGetFunction(module, b"sums"))
    a = upload(np.ones(256, np.float32), stream)
    arguments = Arguments(a, a)
    assert code(launch(sums, 1, 2048, arguments, stream)) == "INVALID_VALUE"
    assert code(launch(sums, 0, 256, arguments, stream)) == "INVALID_VALUE"
    assert code(launch(sums, 1, 512, arguments, stream)) == "LAUNCH_OUT_OF_RESOURCES"  # its bound is 256
    assert code(launch(sums, 1, 256, arguments, stream, shared=60_000)) == "INVALID_VALUE"
    opt_in = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert code(cuda.cuFuncSetAttribute(sums, opt_in, 300_000)) == "INVALID_VALUE"
    ok(cuda.cuFuncSetAttribute(sums, opt_in, 60_000))
    ok(launch(sums, 1, 256, arguments, stream, shared=60_000))
    assert code(cuda.cuModuleGetFunction(module, b"nothing")) == "NOT_FOUND"
    assert code(cuda.cuModuleLoadData(b"\x7fELF" + bytes(64))) == "INVALID_IMAGE"


def test_invalid_memory_accesses(stream: Any) -> None:
    x = np.ones(64, np.float32)
    a = upload(x, stream)
    assert code(cuda.cuMemcpyHtoD(a, x.ctypes.data, 257)) == "INVALID_VALUE"
    assert code(cuda.cuMemcpyDtoH(x.ctypes.data, x.ctypes.data, 256)) == "INVALID_VALUE"
    assert code(cuda.cuMemAllocAsync(1 << 40, stream)) == "OUT_OF_MEMORY"
    ok(cuda.cuMemFreeAsync(a, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert code(cuda.cuMemFreeAsync(a, stream)) == "INVALID_VALUE"
    assert code(cuda.cuMemcpyDtoH(x.ctypes.data, a, 256)) == "INVALID_VALUE"


@pytest.mark.parametrize("kind", ["freed", "host", "short"])
def test_kernels_touch_only_live_device_memory(image: bytes, stream: Any, kind: str) -> None:
    x = np.ones(64, np.float32)
    scale = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"scale"))
    a, b = upload(x, stream), int(ok(cuda.cuMemAllocAsync(200 if kind == "short" else 256, stream)))
    if kind == "freed":
        ok(cuda.cuMemFreeAsync(b, stream))
    target = x.ctypes.data if kind == "host" else b
    ok(launch(scale, 1, 64, Arguments(a, target, ctypes.c_float(2), ctypes.c_int(64)), stream))
    assert code(cuda.cuStreamSynchronize(stream)) == "ILLEGAL_ADDRESS"
    assert code(cuda.cuMemAlloc(16)) == "ILLEGAL_ADDRESS", "the context is lost"
    assert "scale" in emulation.last_error()


def test_the_current_context_is_thread_local() -> None:
    from threading import Thread

    seen: list[str] = []
    worker = Thread(target=lambda: seen.append(code(cuda.cuMemAlloc(16))))
    worker.start()
    worker.join()
    assert seen == ["INVALID_CONTEXT"]
