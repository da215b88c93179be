from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path

import pytest

from relayc.backend.runtime import (
    ArgumentError,
    Device,
    DeviceError,
    cpu,
    device,
    get_device_api,
    nd,
    register_device_kind,
)
from relayc.backend.runtime.device_api import WORKSPACE_PAGE


def test_device_names():
    assert device("cpu") == device("cpu", 0) == device("cpu:0") == cpu() == device(cpu())
    assert device("llvm") == cpu()
    assert device("cuda", 1) == device("cuda:1") == Device("cuda", 1)
    assert str(device("cuda", 1)) == "cuda:1"


@pytest.mark.parametrize(
    ("kind", "index", "text"),
    [
        ("warp", 0, "unknown device kind 'warp'; known are cpu"),
        ("cpu", -1, "expected 0 or more"),
        ("cpu:", 0, "expected"),
        (3, None, "device 3, .*expected such as"),
    ],
)
def test_invalid_device_names_are_rejected(kind, index, text):
    with pytest.raises(DeviceError, match=text):
        device(kind, index)


def test_the_kinds_are_open_and_unique(toy):
    register_device_kind("toy", 71)
    with pytest.raises(DeviceError, match="'toy' has DLPack type 71; can't make it 78"):
        register_device_kind("toy", 78)
    with pytest.raises(DeviceError, match="taken by device kind 'toy'"):
        register_device_kind("other", 71)
    with pytest.raises(DeviceError, match="reserved"):
        register_device_kind("other", 17)
    assert toy[0].dlpack_type == 71


def test_attributes_that_do_not_apply_are_none(toy):
    where, _ = toy
    assert where.exist and where.warp_size == 4
    assert where.max_threads_per_block is None and where.device_name is None
    assert not device("toy", 5).exist


def test_attributes_of_the_cpu():
    assert cpu().exist
    assert cpu().multi_processor_count >= 1
    assert cpu().total_global_memory > 1 << 20
    assert cpu().warp_size is None and cpu().max_shared_memory_per_block is None and cpu().compute_version is None
    assert not cpu(1).exist


def test_a_kind_without_an_api_says_so():
    register_device_kind("bare", 78)
    assert not device("bare").exist
    with pytest.raises(DeviceError, match=r"no device API for 'bare'.*device_api\.bare"):
        device("bare").sync()


@pytest.mark.parametrize("alignment", [1, 64, 4096])
@pytest.mark.parametrize("nbytes", [0, 1, 100_000])
def test_data_space_is_aligned(nbytes, alignment):
    api = get_device_api("cpu")
    handle = api.alloc_data_space(cpu(), nbytes, alignment)
    assert handle % max(alignment, 64) == 0
    api.free_data_space(cpu(), handle)


def test_memory_is_freed_once():
    api = get_device_api("cpu")
    handle = api.alloc_data_space(cpu(), 64)
    api.free_data_space(cpu(), handle)
    for wrong in (handle, 12345):
        with pytest.raises(DeviceError, match=f"can't free {wrong:#x} on cpu:0"):
            api.free_data_space(cpu(), wrong)


def test_an_impossible_allocation_is_an_error():
    for nbytes in (1 << 60, 1 << 64, (1 << 70) + 8):
        with pytest.raises(DeviceError, match=f"out of memory: can't allocate {nbytes} bytes"):
            get_device_api("cpu").alloc_data_space(cpu(), nbytes)
    with pytest.raises(DeviceError, match="out of memory"):
        nd.empty((1 << 43,), "float64")
    with pytest.raises(ArgumentError, match="a product of at most"):
        nd.empty((1 << 32, 1 << 32), "uint8")
    with pytest.raises(DeviceError, match=r"aligned to 48 on cpu:0: expected 0 bytes or more, and a power of 2$"):
        get_device_api("cpu").alloc_data_space(cpu(), 64, 48)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages")
def test_large_memory_of_the_cpu_is_in_huge_pages_where_there_are_any():
    api = get_device_api("cpu")
    handle = api.alloc_data_space(cpu(), 16 << 20)
    middle = handle + (8 << 20)
    inside, flags = False, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= middle < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line
    api.free_data_space(cpu(), handle)
    assert "hg" in flags.split()


@pytest.mark.parametrize("nbytes", [4 << 20, (6 << 20) + 64])
def test_large_memory_of_the_cpu_begins_with_a_huge_page_and_goes_back_when_freed(nbytes: int):
    """Even if the heap has free memory in small pages."""
    api = get_device_api("cpu")
    for handle in [api.alloc_data_space(cpu(), 3 << 20) for _ in range(4)]:
        api.free_data_space(cpu(), handle)
    handle = api.alloc_data_space(cpu(), nbytes)
    assert handle % (2 << 20) == 0
    ctypes.memset(handle, 1, nbytes)
    api.free_data_space(cpu(), handle)
    with pytest.raises(DeviceError, match="no data space that was allocated"):
        api.free_data_space(cpu(), handle)


def test_workspace_reuses_its_blocks(toy):
    where, api = toy
    before = len(api.spaces)
    first = api.alloc_workspace(where, 10)
    second = api.alloc_workspace(where, WORKSPACE_PAGE + 1)
    assert first != second and len(api.spaces[second]) == 2 * WORKSPACE_PAGE
    api.free_workspace(where, second)
    assert api.alloc_workspace(where, 2 * WORKSPACE_PAGE) == second
    api.free_workspace(where, second)
    api.free_workspace(where, first)
    assert api.alloc_workspace(where, 1) == first, "the smallest that fits"
    large = api.alloc_workspace(where, 5 * WORKSPACE_PAGE)
    assert second not in api.spaces, "the largest free block gives way to a larger one"
    api.free_workspace(where, first)  # not in reverse order: allowed, only slower
    api.free_workspace(where, large)
    assert len(api.spaces) == before + 2
    api._pool(where).release()
    assert len(api.spaces) == before


def test_foreign_workspace_is_rejected(toy):
    where, api = toy
    with pytest.raises(DeviceError, match="not one that this thread allocated"):
        api.free_workspace(where, 12345)
    with pytest.raises(DeviceError, match="expected 0 or more"):
        api.alloc_workspace(where, -1)


def test_workspace_belongs_to_its_thread():
    api, found = get_device_api("cpu"), []
    handle = api.alloc_workspace(cpu(), 100)

    def other():
        try:
            api.free_workspace(cpu(), handle)
        except DeviceError as error:
            found.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found and "not one that this thread allocated" in found[0]
    api.free_workspace(cpu(), handle)
