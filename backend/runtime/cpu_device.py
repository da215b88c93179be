"""The device API of the host CPU: aligned heap memory, copies by memmove, synchronous execution."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from relayc.backend.runtime.device import Device, DeviceAttrKind
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT, DeviceAPI, check_allocation
from relayc.backend.runtime.errors import DeviceError
from relayc.backend.runtime.huge_pages import HUGE_PAGE, first_huge_page, map_huge_pages
from relayc.backend.runtime.threads import available_cpus

__all__ = ["CPUDeviceAPI", "cpu_device_api"]

_CPU_FOLDER = Path("/sys/devices/system/cpu")
_HUGE_FROM = 4 << 20
"""Bytes of the smallest allocation that is backed by huge pages."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class CPUDeviceAPI(DeviceAPI):
    """The host CPU. Handles are addresses, aligned to 64 bytes at least; every stream is None."""

    host_accessible = True
    assumed_alignment = 1

    def __init__(self) -> None:
        super().__init__()
        libc = ctypes.CDLL(None)
        self._memalign = libc.posix_memalign
        self._memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
        self._memalign.restype = ctypes.c_int
        self._free = libc.free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self._spaces: dict[int, mmap.mmap | None] = {}  # handles that are out, and the pages of large ones

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        if kind == DeviceAttrKind.EXIST:
            return device.index == 0
        query = _ATTRIBUTES.get(kind)
        return None if query is None else query()

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = ALLOC_ALIGNMENT) -> int:
        check_allocation(device, nbytes, alignment)
        pages = map_huge_pages(nbytes) if nbytes >= _HUGE_FROM and alignment <= HUGE_PAGE else None
        handle = self._from_heap(nbytes, alignment) if pages is None else first_huge_page(pages)
        if not handle:
            raise DeviceError(f"out of memory: can't allocate {nbytes} bytes aligned to {alignment} on {device}")
        self._spaces[handle] = pages
        return handle

    def _from_heap(self, nbytes: int, alignment: int) -> int:
        """Allocate on the C heap; 0 when memory is exhausted."""
        address = ctypes.c_void_p()
        failed = self._memalign(ctypes.byref(address), max(alignment, ALLOC_ALIGNMENT), max(nbytes, 1))
        return 0 if failed else address.value or 0

    def free_data_space(self, device: Device, handle: int) -> None:
        if handle not in self._spaces:
            raise DeviceError(f"can't free {handle:#x} on {device}: no data space that was allocated and not freed yet")
        pages = self._spaces.pop(handle)
        if pages is None:
            self._free(handle)
        else:
            pages.close()

    def copy_data_from_to(
        self,
        source: int,
        source_offset: int,
        target: int,
        target_offset: int,
        nbytes: int,
        device_from: Device,
        device_to: Device,
        stream: Any = None,
    ) -> None:
        ctypes.memmove(target + target_offset, source + source_offset, nbytes)


@lru_cache(maxsize=1)
def cpu_device_api() -> CPUDeviceAPI:
    """The one `CPUDeviceAPI` of the process."""
    return CPUDeviceAPI()


def _device_name() -> str | None:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _max_clock_khz() -> int | None:
    lines = _lines(_CPU_FOLDER / "cpu0/cpufreq/cpuinfo_max_freq")
    return int(lines[0]) if lines and lines[0].isdigit() else None


@lru_cache(maxsize=1)
def _cache_bytes() -> dict[str, int]:
    """Sizes in bytes of core 0's data (or unified) caches by level."""
    found: dict[str, int] = {}
    for folder in sorted((_CPU_FOLDER / "cpu0/cache").glob("index*")):
        level, kind, size = ["".join(_lines(folder / name)[:1]).strip() for name in ("level", "type", "size")]
        if kind != "Instruction" and size[:-1].isdigit() and size[-1] in _UNITS:
            found.setdefault(level, int(size[:-1]) * _UNITS[size[-1]])
    return found


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_memory() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


_ATTRIBUTES = {
    DeviceAttrKind.DEVICE_NAME: _device_name,
    DeviceAttrKind.MAX_CLOCK_RATE: _max_clock_khz,
    DeviceAttrKind.MULTI_PROCESSOR_COUNT: available_cpus,
    DeviceAttrKind.L1_CACHE_SIZE_BYTES: lambda: _cache_bytes().get("1"),
    DeviceAttrKind.L2_CACHE_SIZE_BYTES: lambda: _cache_bytes().get("2"),
    DeviceAttrKind.L3_CACHE_SIZE_BYTES: lambda: _cache_bytes().get("3"),
    DeviceAttrKind.TOTAL_GLOBAL_MEMORY: _total_memory,
    DeviceAttrKind.AVAILABLE_GLOBAL_MEMORY: _available_memory,
}
