"""The "interp" device: separate memory behind the device API, as an out-of-tree device would implement it.

A handle is the number of an allocation, not an address, so that only this API can access the bytes.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.device import Device, DeviceAttrKind
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT, DeviceAPI
from relayc.backend.runtime.errors import DeviceError

__all__ = ["InterpDeviceAPI", "interp_device_api"]


class InterpDeviceAPI(DeviceAPI):
    """Memory as numbered byte arrays; operations are synchronous, so streams are None."""

    addressable = False

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._spaces: dict[int, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        if kind == DeviceAttrKind.EXIST:
            return device.index == 0
        return "loop IR interpreter" if kind == DeviceAttrKind.DEVICE_NAME else None

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = ALLOC_ALIGNMENT) -> int:
        if nbytes < 0:
            raise DeviceError(f"can't allocate {nbytes} bytes on {device}: expected 0 or more")
        space = np.zeros(nbytes, np.uint8)
        with self._lock:
            handle = next(self._numbers)
            self._spaces[handle] = space
        return handle

    def free_data_space(self, device: Device, handle: int) -> None:
        with self._lock:
            found = self._spaces.pop(handle, None)
        if found is None:
            raise DeviceError(f"handle {handle} on {device} is not one that was allocated here")

    def memory(self, handle: int) -> npt.NDArray[np.uint8]:
        """The bytes behind a handle. Raises DeviceError for an unknown one."""
        found = self._spaces.get(handle)
        if found is None:
            raise DeviceError(f"handle {handle} is not an allocation of the interp device")
        return found

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
        read = self._bytes(device_from, source, source_offset, nbytes)
        self._bytes(device_to, target, target_offset, nbytes)[:] = read

    def _bytes(self, device: Device, handle: int, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """`nbytes` bytes of this device's memory or the host's."""
        if device.kind == "cpu":
            if nbytes == 0:
                return np.zeros(0, np.uint8)
            pointer = ctypes.cast(handle + offset, ctypes.POINTER(ctypes.c_uint8))
            return np.ctypeslib.as_array(pointer, (nbytes,))
        space = self.memory(handle)
        if offset < 0 or offset + nbytes > space.size:
            raise DeviceError(f"copy of {nbytes} bytes at {offset} leaves memory {handle} of {space.size} bytes")
        return space[offset : offset + nbytes]


@lru_cache(maxsize=1)
def interp_device_api() -> InterpDeviceAPI:
    """The process-wide `InterpDeviceAPI`."""
    return InterpDeviceAPI()
