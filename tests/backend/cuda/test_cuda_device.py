"""The device API of NVIDIA GPUs: attributes, memory, copies, streams, time."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest

from relayc.backend.cuda import gpu as gpu_module
from relayc.backend.cuda.driver import DriverError
from relayc.backend.runtime import ArgumentError, DeviceAttrKind, DeviceError, device, nd

RNG = np.random.default_rng(0)


def test_every_attribute_is_of_its_type(cuda_device):
    assert cuda_device.exist and not device("cuda", 99).exist
    assert cuda_device.warp_size == 32 and cuda_device.max_threads_per_block >= 1024
    assert [int(n) for n in cuda_device.compute_version.split(".")] >= [7, 5]
    assert cuda_device.max_shared_memory_per_block >= 48 << 10
    assert len(cuda_device.max_thread_dimensions) == 3
    assert 0 < cuda_device.available_global_memory <= cuda_device.total_global_memory
    assert cuda_device.api_version >= 13000 and float(cuda_device.driver_version) >= 13
    assert isinstance(cuda_device.device_name, str) and cuda_device.device_name
    absent = {DeviceAttrKind.GCN_ARCH, DeviceAttrKind.L1_CACHE_SIZE_BYTES, DeviceAttrKind.L3_CACHE_SIZE_BYTES}
    for kind in DeviceAttrKind:
        value = cuda_device.api.get_attr(cuda_device, kind)
        assert (value is None) == (kind in absent), kind
        assert not isinstance(value, int) or value > 0, kind


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1 << 18,), (3, 1 << 20)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_copies_round_trip(cuda_device, shape, dtype):
    values = RNG.integers(-100, 100, shape).astype(dtype)
    there = nd.array(values, cuda_device)
    assert there.device == cuda_device and there.shape == shape and there.dtype == dtype
    assert np.array_equal(there.numpy(), values)
    again = there.copyto(cuda_device)
    assert again.handle != there.handle
    assert np.array_equal(again.copyto(device("cpu", 0)).numpy(), values)


def test_host_memory_is_free_after_a_copy(cuda_device):
    values = RNG.random(3 << 18).astype("float32")
    there = nd.empty(values.shape, "float32", cuda_device)
    source = values.copy()
    there.copyfrom(source)
    source[:] = 0
    assert np.array_equal(there.numpy(), values)


def test_more_copies_than_pinned_buffers(cuda_device):
    rows = [RNG.random(1000).astype("float32") for _ in range(50)]
    there = [nd.array(row, cuda_device) for row in rows]
    assert all(np.array_equal(x.numpy(), row) for x, row in zip(there, rows, strict=True))


def test_pinned_memory(cuda_device):
    pinned = device("cuda_host", 0)
    assert pinned.exist and not device("cuda_host", 1).exist and pinned.device_name is None
    values = RNG.random(1 << 19).astype("float32")
    x = nd.array(values, pinned)
    assert x.__dlpack_device__() == (3, 0)
    there = x.copyto(cuda_device)
    np.asarray(x, copy=False)[:] = 0
    assert np.array_equal(there.numpy(), values)
    assert np.array_equal(there.copyto(pinned).numpy(), values)
    assert nd.from_dlpack(x).device == pinned
    with pytest.raises(DeviceError, match="can't pin"):
        nd.empty((1 << 43,), "uint8", pinned)


def test_copies_within_an_array(cuda_device):
    api, x = cuda_device.api, nd.array(np.arange(8, dtype="int32"), cuda_device)
    api.copy_data_from_to(x.handle, 0, x.handle, 16, 8, cuda_device, cuda_device)
    assert x.numpy().tolist() == [0, 1, 2, 3, 0, 1, 6, 7]


def test_allocations_are_aligned_and_bounded(cuda_device):
    assert all(nd.empty((n,), "uint8", cuda_device).handle % 64 == 0 for n in range(5))
    with pytest.raises(DeviceError, match=r"can't allocate \d+ bytes on cuda:0: .*OUT_OF_MEMORY.* \d+ bytes are free"):
        nd.empty((1 << 43,), "uint8", cuda_device)
    with pytest.raises(DeviceError, match="aligned to 3"):
        cuda_device.api.alloc_data_space(cuda_device, 16, 3)
    with pytest.raises(DeviceError, match="was not allocated here"):
        cuda_device.api.free_data_space(cuda_device, 0x1234)


def test_freed_memory_is_reused(cuda_device):
    before = cuda_device.available_global_memory
    for _ in range(20):
        nd.empty((16 << 20,), "uint8", cuda_device)
    cuda_device.sync()
    assert before - cuda_device.available_global_memory <= 128 << 20


def test_pooled_memory_is_released(cuda_device):
    x = nd.array(RNG.random(1 << 20), cuda_device)
    del x
    cuda_device.api.release_memory(cuda_device)
    assert nd.array([1.0], cuda_device).numpy().tolist() == [1]


def test_allocation_waits_for_pending_frees_when_memory_is_short(cuda_device, monkeypatch):
    """The first attempt to allocate fails; the second comes after waiting and trimming."""
    seen, real = [], gpu_module.call

    def call(name, *args):
        seen.append(name)
        if name == "cuMemAllocAsync" and seen.count(name) == 1:
            raise DriverError("cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", 2)
        return real(name, *args)

    cuda_device.api.set_device(cuda_device)
    monkeypatch.setattr(gpu_module, "call", call)
    x = nd.empty((100,), "float32", cuda_device)
    assert [name for name in seen if "Alloc" in name or "Sync" in name or "Trim" in name] == [
        "cuMemAllocAsync", "cuCtxSynchronize", "cuMemPoolTrimTo", "cuMemAllocAsync",
    ]  # fmt: skip
    x.copyfrom(np.ones(100, "float32"))


def test_streams(cuda_device):
    api = cuda_device.api
    first, second = cuda_device.create_raw_stream(), cuda_device.create_raw_stream()
    assert first != second and api.current_stream(cuda_device) is None
    values = RNG.random(1000).astype("float32")
    cuda_device.set_raw_stream(first)
    assert api.current_stream(cuda_device) == first
    x = nd.array(values, cuda_device)
    api.sync_stream_from_to(cuda_device, first, second)
    cuda_device.set_raw_stream(second)
    y = x.copyto(cuda_device)
    assert np.array_equal(y.numpy(), values)
    cuda_device.sync(first)
    cuda_device.free_raw_stream(second)
    assert api.current_stream(cuda_device) is None
    cuda_device.free_raw_stream(first)
    del x, y  # allocated on destroyed streams
    with pytest.raises(DeviceError, match="was not made by create_stream"):
        cuda_device.free_raw_stream(first)


def test_memory_is_not_reused_before_other_streams_are_done_with_it(cuda_device):
    """The array is freed while a copy of it is queued on another stream; the next allocation must not overtake that."""
    api = cuda_device.api
    values = RNG.random(1 << 16).astype("float32")
    side = cuda_device.create_raw_stream()
    x, y = nd.array(values, cuda_device), nd.empty(values.shape, "float32", cuda_device)
    api.sync_stream_from_to(cuda_device, None, side)
    api.copy_data_from_to(x.handle, 0, y.handle, 0, x.nbytes, cuda_device, cuda_device, side)
    handle = x.handle
    del x
    others = [nd.zeros(values.shape, "float32", cuda_device) for _ in range(4)]
    cuda_device.sync()
    cuda_device.sync(side)
    assert np.array_equal(y.numpy(), values), handle in [other.handle for other in others]
    cuda_device.free_raw_stream(side)


def test_stream_objects_of_other_libraries(cuda_device):
    handle = cuda_device.create_raw_stream()
    kinds = [
        type("Protocol", (), {"__cuda_stream__": lambda self: (0, handle)})(),
        type("Torch", (), {"cuda_stream": handle})(),
        type("Cupy", (), {"ptr": handle})(),
    ]
    for stream in kinds:
        cuda_device.set_raw_stream(stream)
        assert cuda_device.api.current_stream(cuda_device) == handle
    cuda_device.set_raw_stream(type("LegacyOfTorch", (), {"cuda_stream": 0})())
    assert cuda_device.api.current_stream(cuda_device) == 1
    cuda_device.set_raw_stream(None)
    with pytest.raises(ArgumentError, match="is not a CUDA stream"):
        cuda_device.set_raw_stream("fast")
    cuda_device.free_raw_stream(handle)


def test_the_current_stream_is_thread_local(cuda_device):
    stream = cuda_device.create_raw_stream()
    cuda_device.set_raw_stream(stream)
    seen, values = [], RNG.random(100).astype("float32")

    def work():
        seen.append(cuda_device.api.current_stream(cuda_device))
        seen.append(nd.array(values, cuda_device).numpy())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] is None and np.array_equal(seen[1], values)
    cuda_device.free_raw_stream(stream)


def test_time_between_two_events(cuda_device):
    api = cuda_device.api
    x = nd.zeros((1 << 20,), "float32", cuda_device)
    start = api.record_mark(cuda_device)
    for _ in range(3):
        x.copyto(cuda_device)
    end = api.record_mark(cuda_device)
    assert 0 < api.seconds_between(cuda_device, start, end) < 10


def test_workspaces(cuda_device):
    api = cuda_device.api
    one, two = api.alloc_workspace(cuda_device, 100), api.alloc_workspace(cuda_device, 0)
    assert one and two and one != two
    api.free_workspace(cuda_device, two)
    api.free_workspace(cuda_device, one)


def test_two_devices(cuda_device):
    other = device("cuda", 1)
    if not other.exist:
        pytest.skip("this machine has one CUDA device")
    values = RNG.random(1 << 12).astype("float32")
    x = nd.array(values, cuda_device)
    y = x.copyto(other)
    assert y.device == other
    z = y.copyto(cuda_device)
    assert np.array_equal(y.numpy(), values) and np.array_equal(z.numpy(), values)


def test_copies_with_another_kind_of_device_go_by_way_of_the_host(cuda_device):
    values = RNG.random(10).astype("float32")
    there = nd.array(values, device("interp", 0))
    assert np.array_equal(there.copyto(cuda_device).copyto(device("interp", 0)).numpy(), values)
    with pytest.raises(DeviceError, match="copy by way of the cpu"):
        x = nd.array(values, cuda_device)
        cuda_device.api.copy_data_from_to(there.handle, 0, x.handle, 0, 40, there.device, cuda_device)


def test_pickled_arrays_return_to_their_device(cuda_device):
    rebuild, state = nd.array([1.0, 2.0], cuda_device).__reduce__()
    again = rebuild(*state)
    assert again.device == cuda_device and again.numpy().tolist() == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_reports_why_it_has_no_device(cuda_device):
    x = nd.array([1.0, 2.0], cuda_device)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        lines = [str(cuda_device.exist)]
        for use in (x.numpy, cuda_device.sync, lambda: nd.zeros((3,), "float32", cuda_device)):
            try:
                use()
            except DeviceError as error:
                lines.append(str(error))
        os.write(writing, "\n".join(lines).encode())
        os._exit(0)
    os.waitpid(child, 0)
    exists, *errors = os.read(reading, 1 << 16).decode().split("\n")
    os.close(reading)
    os.close(writing)
    assert exists == "False" and len(errors) == 3
    assert all("the driver does not survive a fork; start processes by 'spawn'" in error for error in errors)
    assert x.numpy().tolist() == [1, 2]


def test_fills_with_a_scalar(cuda_device):
    x = nd.zeros((3,), "float32", cuda_device)
    x[:] = 2
    assert x.numpy().tolist() == [2, 2, 2] and ctypes.sizeof(x.tensor) == 48
