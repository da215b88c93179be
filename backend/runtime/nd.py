"""The public namespace of NDArray: `nd.array`, `nd.empty`, `nd.zeros`, `nd.from_dlpack`. TVM: `tvm.nd`."""

from __future__ import annotations

from relayc.backend.runtime.device import cpu, cuda, device
from relayc.backend.runtime.ndarray import NDArray, array, empty, from_dlpack, zeros

__all__ = ["NDArray", "array", "cpu", "cuda", "device", "empty", "from_dlpack", "zeros"]
