"""Devices: a kind and an index. The set of kinds is open.

A device only names a place; what can be done there is its `DeviceAPI` (`backend.runtime.device_api`).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayc.backend.runtime.checks import as_integer
from relayc.backend.runtime.errors import DeviceError
from relayc.backend.runtime.registry import get_global_func

if TYPE_CHECKING:
    from relayc.backend.runtime.device_api import DeviceAPI

__all__ = [
    "Device",
    "DeviceAttrKind",
    "cpu",
    "cuda",
    "device",
    "device_kind_of",
    "dlpack_type_of",
    "get_device_api",
    "list_device_kinds",
    "register_device_kind",
]

_dlpack_types: dict[str, int] = {"cpu": 1, "cuda": 2, "cuda_host": 3, "ext_dev": 12, "interp": 40}
_CUDA_MANAGED = 13  # kDLCUDAManaged: memory that the driver moves between host and GPU, which a GPU uses as its own
_kinds: dict[int, str] = {code: kind for kind, code in _dlpack_types.items()} | {_CUDA_MANAGED: "cuda"}
_aliases: dict[str, str] = {"llvm": "cpu", "c": "cpu", "gpu": "cuda"}
_RESERVED = range(1, 32)  # DLPack's own device types, and room for those to come; strangers take larger numbers
_SPELLING = re.compile(r"([A-Za-z_]\w*)(?::(\d+))?")


class DeviceAttrKind(enum.IntEnum):
    """Attributes of `DeviceAPI.get_attr`; the numbers are TVM's where TVM has the attribute."""

    EXIST = 0  # bool
    MAX_THREADS_PER_BLOCK = 1  # int
    WARP_SIZE = 2  # int
    MAX_SHARED_MEMORY_PER_BLOCK = 3  # int, bytes
    COMPUTE_VERSION = 4  # str, such as "9.0"
    DEVICE_NAME = 5  # str
    MAX_CLOCK_RATE = 6  # int, kHz
    MULTI_PROCESSOR_COUNT = 7  # int: cores of a CPU, multiprocessors of a GPU
    MAX_THREAD_DIMENSIONS = 8  # tuple of three ints
    MAX_REGISTERS_PER_BLOCK = 9  # int
    GCN_ARCH = 10  # str
    API_VERSION = 11  # int
    DRIVER_VERSION = 12  # str
    L2_CACHE_SIZE_BYTES = 13  # int
    TOTAL_GLOBAL_MEMORY = 14  # int, bytes
    AVAILABLE_GLOBAL_MEMORY = 15  # int, bytes
    L1_CACHE_SIZE_BYTES = 16  # int: data cache of one core
    L3_CACHE_SIZE_BYTES = 17  # int


def register_device_kind(kind: str, dlpack_type: int) -> None:
    """Register a kind of device with its number in a `DLTensor`, `dlpack_type` (> 31).

    Registering the same pair again is allowed. Raises `DeviceError` when the name or the number is taken.
    """
    if _dlpack_types.get(kind) == dlpack_type:
        return
    if kind in _dlpack_types:
        raise DeviceError(f"device kind {kind!r} has DLPack type {_dlpack_types[kind]}; can't make it {dlpack_type}")
    if dlpack_type in _kinds:
        raise DeviceError(f"DLPack type {dlpack_type} is taken by device kind {_kinds[dlpack_type]!r}; choose another")
    if dlpack_type in _RESERVED or dlpack_type < 0:
        raise DeviceError(f"DLPack type {dlpack_type} is reserved; choose one above {_RESERVED[-1]} for {kind!r}")
    _dlpack_types[kind] = dlpack_type
    _kinds[dlpack_type] = kind


def list_device_kinds() -> dict[str, int]:
    """All kinds of device with their DLPack types."""
    return dict(_dlpack_types)


def dlpack_type_of(kind: str) -> int:
    """The DLPack device type of a kind. Raises `DeviceError` for an unknown one."""
    found = _dlpack_types.get(kind)
    if found is None:
        raise DeviceError(
            f"unknown device kind {kind!r}; known are {', '.join(_dlpack_types)}. "
            "Add a new one with register_device_kind(kind, dlpack_type)"
        )
    return found


def device_kind_of(dlpack_type: int) -> str:
    """The kind of device whose API serves a DLPack device type. Raises `DeviceError` for an unknown one."""
    found = _kinds.get(dlpack_type)
    if found is None:
        raise DeviceError(f"no device kind has DLPack type {dlpack_type}; known are {_dlpack_types}")
    return found


@dataclass(frozen=True, slots=True)
class Device:
    """One device: `Device("cuda", 0)` is the first GPU. Make it with `device`. TVM: `tvm.runtime.Device`.

    The attribute properties query the device API and are None where an attribute does not apply.
    """

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        dlpack_type_of(self.kind)
        number = as_integer(self.index)
        if number is None or number < 0:
            raise DeviceError(f"device index of {self.kind!r} is {self.index!r}; expected 0 or more")

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    @property
    def dlpack_type(self) -> int:
        """The number that stands for this kind in a `DLTensor`."""
        return _dlpack_types[self.kind]

    @property
    def api(self) -> DeviceAPI:
        """The device API of this kind. Raises `DeviceError` when there is none."""
        return get_device_api(self.kind)

    def sync(self, stream: Any = None) -> None:
        """Waits until all work submitted to `stream` (None: the current stream) is done."""
        self.api.stream_sync(self, stream)

    def create_raw_stream(self) -> Any:
        """A new stream of execution; None on a device with a single queue."""
        return self.api.create_stream(self)

    def free_raw_stream(self, stream: Any) -> None:
        """Frees a stream of `create_raw_stream`."""
        self.api.free_stream(self, stream)

    def set_raw_stream(self, stream: Any) -> None:
        """Makes `stream` the current stream of this device in this thread."""
        self.api.set_stream(self, stream)

    @property
    def exist(self) -> bool:
        """True when the device is there and can be used; never raises."""
        if get_global_func(f"device_api.{self.kind}", allow_missing=True) is None:
            return False
        try:
            return bool(self.api.get_attr(self, DeviceAttrKind.EXIST))
        except DeviceError:
            return False

    @property
    def max_threads_per_block(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.MAX_THREADS_PER_BLOCK)

    @property
    def warp_size(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.WARP_SIZE)

    @property
    def max_shared_memory_per_block(self) -> int | None:
        """Bytes."""
        return self.api.get_attr(self, DeviceAttrKind.MAX_SHARED_MEMORY_PER_BLOCK)

    @property
    def compute_version(self) -> str | None:
        """Such as "9.0"."""
        return self.api.get_attr(self, DeviceAttrKind.COMPUTE_VERSION)

    @property
    def device_name(self) -> str | None:
        return self.api.get_attr(self, DeviceAttrKind.DEVICE_NAME)

    @property
    def max_clock_rate(self) -> int | None:
        """kHz."""
        return self.api.get_attr(self, DeviceAttrKind.MAX_CLOCK_RATE)

    @property
    def multi_processor_count(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.MULTI_PROCESSOR_COUNT)

    @property
    def max_thread_dimensions(self) -> tuple[int, int, int] | None:
        return self.api.get_attr(self, DeviceAttrKind.MAX_THREAD_DIMENSIONS)

    @property
    def max_registers_per_block(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.MAX_REGISTERS_PER_BLOCK)

    @property
    def api_version(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.API_VERSION)

    @property
    def driver_version(self) -> str | None:
        return self.api.get_attr(self, DeviceAttrKind.DRIVER_VERSION)

    @property
    def l1_cache_size_bytes(self) -> int | None:
        """Data cache of one core."""
        return self.api.get_attr(self, DeviceAttrKind.L1_CACHE_SIZE_BYTES)

    @property
    def l2_cache_size_bytes(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.L2_CACHE_SIZE_BYTES)

    @property
    def l3_cache_size_bytes(self) -> int | None:
        return self.api.get_attr(self, DeviceAttrKind.L3_CACHE_SIZE_BYTES)

    @property
    def total_global_memory(self) -> int | None:
        """Bytes."""
        return self.api.get_attr(self, DeviceAttrKind.TOTAL_GLOBAL_MEMORY)

    @property
    def available_global_memory(self) -> int | None:
        """Bytes free now."""
        return self.api.get_attr(self, DeviceAttrKind.AVAILABLE_GLOBAL_MEMORY)


def device(kind: str | Device, index: int | None = None) -> Device:
    """The device `kind` ("cpu", "cuda", ...; "cuda:1" names the index too; "llvm" and "c" run on "cpu").

    Raises `DeviceError` for an unknown kind or a malformed name. TVM: `tvm.runtime.device`.
    """
    if isinstance(kind, Device):
        return kind if index is None else Device(kind.kind, index)
    match = _SPELLING.fullmatch(kind) if isinstance(kind, str) else None
    if match is None or (match[2] is not None and index is not None):
        raise DeviceError(f"device {kind!r}, index {index!r}: expected such as device('cuda', 1) or device('cuda:1')")
    chosen = int(match[2]) if match[2] is not None else index
    return Device(_aliases.get(match[1], match[1]), 0 if chosen is None else chosen)


def cpu(index: int = 0) -> Device:
    """The CPU. There is one device whatever the number of sockets."""
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """The NVIDIA GPU number `index`."""
    return Device("cuda", index)


_apis: dict[str, DeviceAPI] = {}


def get_device_api(kind: str) -> DeviceAPI:
    """The device API of `kind`, made once by the registry's function "device_api.<kind>".

    Raises `DeviceError` when nothing is registered for the kind or its driver package is missing.
    """
    api = _apis.get(kind)
    if api is None:
        dlpack_type_of(kind)
        make = get_global_func(f"device_api.{kind}", allow_missing=True)
        if make is None:
            raise DeviceError(
                f"no device API for {kind!r}: its package is not installed, or no function is registered under "
                f"'device_api.{kind}'"
            )
        api = _apis.setdefault(kind, make())
    return api
