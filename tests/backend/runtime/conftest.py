"""A device as a stranger would add it: opaque handles, memory of its own, a log of what was asked of it."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from backend.runtime import Device, DeviceAPI, DeviceAttrKind, DeviceError, device, register_device_kind, register_func


class ToyDeviceAPI(DeviceAPI):
    addressable = False

    def __init__(self) -> None:
        super().__init__()
        self.spaces: dict[int, Any] = {}
        self.log: list[tuple[Any, ...]] = []
        self._handles = itertools.count(1)

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        return {DeviceAttrKind.EXIST: device.index < 2, DeviceAttrKind.WARP_SIZE: 4}.get(kind)

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = 64) -> int:
        if nbytes > 1 << 20:
            raise DeviceError(f"out of memory: can't allocate {nbytes} bytes on {device}")
        handle = next(self._handles)
        self.spaces[handle] = (ctypes.c_uint8 * max(nbytes, 1))(*[0xCD] * nbytes)
        return handle

    def free_data_space(self, device: Device, handle: int) -> None:
        del self.spaces[handle]

    def copy_data_from_to(
        self, source, source_offset, target, target_offset, nbytes, device_from, device_to, stream=None
    ) -> None:
        self.log.append(("copy", str(device_from), str(device_to), nbytes, stream))
        data = ctypes.string_at(self._address(source, device_from) + source_offset, nbytes)
        ctypes.memmove(self._address(target, device_to) + target_offset, data, nbytes)

    def stream_sync(self, device: Device, stream: Any = None) -> None:
        self.log.append(("sync", stream))

    def sync_stream_from_to(self, device: Device, source: Any, target: Any) -> None:
        self.log.append(("order", source, target))

    def host_array(self, handle: int) -> np.ndarray:
        return np.frombuffer(self.spaces[handle], np.uint8)

    def _address(self, handle: int, device: Device) -> int:
        return handle if device.kind == "cpu" else ctypes.addressof(self.spaces[handle])


_api = ToyDeviceAPI()


@pytest.fixture
def toy():
    """(the toy device, its API with an empty log)"""
    register_device_kind("toy", 77)
    register_func("device_api.toy", lambda: _api, override=True)
    _api.log.clear()
    return device("toy", 1), _api
