"""The device "cuda_host": page-locked (pinned) host memory that GPUs access directly.

Copies between it and a GPU need no staging buffer. PyTorch's pinned tensors are imported as arrays on it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from relayc.backend.cuda.device import CUDADeviceAPI, cuda_device_api
from relayc.backend.cuda.driver import DriverError, call, is_gone, probe
from relayc.backend.runtime.device import Device, DeviceAttrKind
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT, DeviceAPI, check_allocation

__all__ = ["CUDAHostDeviceAPI", "cuda_host_device_api"]

_PAGE = 4096  # bytes; what the driver aligns pinned memory to at least
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every GPU
_GPU = Device("cuda", 0)


class CUDAHostDeviceAPI(DeviceAPI):
    """Pinned memory. Handles are host addresses; there is one such device, without streams."""

    host_accessible = True

    def __init__(self, gpus: CUDADeviceAPI) -> None:
        super().__init__()
        self._gpus = gpus

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        return device.index == 0 and probe()[0] > 0 if kind == DeviceAttrKind.EXIST else None

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = ALLOC_ALIGNMENT) -> int:
        check_allocation(device, nbytes, alignment, _PAGE)
        self._gpus.set_device(_GPU)
        try:
            return int(call("cuMemHostAlloc", max(nbytes, 1), _PORTABLE))
        except DriverError as error:
            raise DriverError(f"can't pin {nbytes} bytes on {device}: {error}", error.code) from error

    def free_data_space(self, device: Device, handle: int) -> None:
        if not is_gone():
            self._gpus.opened(_GPU).leave("cuMemFreeHost", handle)

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
def cuda_host_device_api() -> CUDAHostDeviceAPI:
    """The process-wide `CUDAHostDeviceAPI`."""
    return CUDAHostDeviceAPI(cuda_device_api())
