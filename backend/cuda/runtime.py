"""Entry point of the run-time part of the "cuda" target, independent of the compiler and usable without a GPU."""

from __future__ import annotations

from relayc.backend.cuda.device import CUDADeviceAPI, cuda_device_api
from relayc.backend.cuda.driver import DriverError, probe
from relayc.backend.cuda.module import CUDAModule, load_from_bytes
from relayc.backend.cuda.pinned import CUDAHostDeviceAPI, cuda_host_device_api

__all__ = [
    "CUDADeviceAPI",
    "CUDAHostDeviceAPI",
    "CUDAModule",
    "DriverError",
    "cuda_device_api",
    "cuda_host_device_api",
    "load_from_bytes",
    "probe",
]
