"""`CUDAModule`: machine code for a GPU, its launch parameters, source and compiler report."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from relayc.backend.cuda.device import CUDADeviceAPI, cuda_device_api
from relayc.backend.cuda.driver import DriverError, bindings, call
from relayc.backend.cuda.gpu import Gpu
from relayc.backend.cuda.launch import CUDAFunc
from relayc.backend.cuda.table import read_functions
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArtifactError, DeviceError, ModuleError
from relayc.backend.runtime.fields import Record
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.packed_func import PackedFunc

__all__ = ["CUDAModule", "load_from_bytes", "runs_on"]

_MAGIC = b"RELAYC-CUDA\x00\x00\x00\x00\x01"
_HEADER = struct.Struct("<16sQQQ")  # magic; bytes of the table, the source, the image
_ARCH = re.compile(r"(?:sm|compute)_(\d+)(\d)([af]?)")
_DEFAULT_SHARED = 48 << 10  # bytes of dynamic shared memory that every kernel may have
_FORMATS = ("cubin", "ptx")


class CUDAModule(Module):
    """Kernels of one image and the functions composed of them.

    `image` is machine code for `arch` ("cubin") or PTX ("ptx", for a GPU newer than the compiler); `functions` has for
    each function its parameters, workspaces and kernels in order (see `table`); `source` is the CUDA C++ text; `report`
    has the assembler's figures for each kernel. `sources` has further formats of `get_source`, for modules compiled in
    this process.

    The image is loaded on a GPU when a function is first bound there, and stays loaded as long as the module lives.
    """

    type_key = "cuda"

    def __init__(
        self,
        image: bytes,
        format: str,
        arch: str,
        functions: dict[str, Any],
        source: str,
        report: dict[str, Any],
        sources: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        super().__init__()
        if format not in _FORMATS or _ARCH.fullmatch(arch) is None:
            raise ArtifactError(f"cuda module of format {format!r} for {arch!r}; expected {_FORMATS} for such as sm_90")
        self.image = image
        self.format = format
        self.arch = arch
        self.functions = functions
        self.source = source
        self.report = report
        self.api: CUDADeviceAPI = cuda_device_api()
        self._sources = dict(sources or {})
        self._entries = read_functions(functions)
        self._loading = threading.Lock()
        self._loaded: dict[Gpu, int] = {}  # the driver's modules
        self._kernels: dict[tuple[int, str], tuple[int, int]] = {}  # (GPU, kernel) -> (handle, opted-in bytes)

    def function_names(self) -> list[str]:
        return list(self.functions)

    def _find(self, name: str) -> PackedFunc | None:
        entry = self._entries.get(name)
        return None if entry is None else CUDAFunc(entry, self)

    def kernel(self, gpu: Gpu, name: str, dynamic_shared: int) -> int:
        """The driver's handle of a kernel that may be launched with `dynamic_shared` bytes. `gpu` must be active.

        Raises `ArtifactError` when the GPU can't run this code, `DeviceError` when it has not that much memory.
        """
        with self._loading:
            handle, allowed = self._kernels.get((gpu.index, name), (0, _DEFAULT_SHARED))
            if not handle:
                handle = self._look_up(gpu, name)
            if dynamic_shared > allowed:
                self._opt_in(gpu, name, handle, dynamic_shared)
                allowed = dynamic_shared
            self._kernels[gpu.index, name] = handle, allowed
            return handle

    def check_device(self, where: Device) -> None:
        if where.kind == "cuda":
            self._check_architecture(self.api.gpu(where))

    def get_source(self, fmt: str = "") -> str:
        """CUDA C++ ("", "cuda"), "ptx" where the image is that, and the formats in `sources`."""
        if fmt in ("", "cuda"):
            return self.source
        if fmt == "ptx" and self.format == "ptx":
            return self.image.rstrip(b"\0").decode()
        if fmt in self._sources:
            return self._sources[fmt]()
        known = ", ".join(["cuda", *(["ptx"] if self.format == "ptx" else []), *self._sources])
        raise ModuleError(f"module of type 'cuda' has no source in format {fmt!r}; it has {known}")

    def save_to_bytes(self) -> bytes:
        table = {"format": self.format, "arch": self.arch, "functions": self.functions, "report": self.report}
        text = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
        parts = [text, self.source.encode(), self.image]
        return _HEADER.pack(_MAGIC, *map(len, parts)) + b"".join(parts)

    def __del__(self) -> None:
        for gpu, loaded in getattr(self, "_loaded", {}).items():
            gpu.leave("cuModuleUnload", loaded)

    def _look_up(self, gpu: Gpu, name: str) -> int:
        loaded = self._loaded.get(gpu)
        if loaded is None:
            loaded = self._loaded[gpu] = self._load(gpu)
        try:
            return int(call("cuModuleGetFunction", loaded, name.encode()))
        except DriverError as error:
            raise ArtifactError(f"cuda module has no kernel {name!r}, which its table names: {error}") from error

    def _check_architecture(self, gpu: Gpu) -> None:
        capability = gpu.compute_capability
        if not runs_on(self.arch, self.format, capability):
            here = f"sm_{capability[0]}{capability[1]}"
            raise ArtifactError(
                f"this code was compiled for {self.arch} ({self.format}) and can't run on cuda:{gpu.index}, which is "
                f"{here}; compile it with target 'cuda -arch={here}'"
            )

    def _load(self, gpu: Gpu) -> int:
        self._check_architecture(gpu)
        image = self.image + b"\0" if self.format == "ptx" else self.image
        try:
            return int(call("cuModuleLoadData", image))
        except DriverError as error:
            raise ArtifactError(
                f"the driver of cuda:{gpu.index} can't load this {self.format} for {self.arch}: {error}; compile it "
                "again on this machine, or install a newer driver"
            ) from error

    def _opt_in(self, gpu: Gpu, name: str, kernel: int, dynamic_shared: int) -> None:
        attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            call("cuFuncSetAttribute", kernel, attribute, dynamic_shared)
        except DriverError as error:
            most = gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
            raise DeviceError(
                f"kernel {name!r} needs {dynamic_shared} bytes of dynamic shared memory; cuda:{gpu.index} gives a "
                f"block {most} at most, static included: {error}"
            ) from error


def runs_on(arch: str, format: str, capability: tuple[int, int]) -> bool:
    """True when code for `arch` runs on a GPU of this compute capability.

    Machine code runs on the same major version from its minor version on; PTX on everything newer; code for
    architecture-specific features ("sm_90a") on that one only, for a family ("sm_100f") on that major version. Source:
    CUDA C++ Programming Guide, sections on binary and PTX compatibility.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        return False
    built = int(match[1]), int(match[2])
    if match[3] == "a":
        return capability == built
    if format == "ptx" and not match[3]:
        return capability >= built
    return capability[0] == built[0] and capability >= built


def load_from_bytes(data: bytes | memoryview) -> CUDAModule:
    """The module that `CUDAModule.save_to_bytes` saved; no GPU is needed. Raises `ArtifactError` for anything else."""
    data = bytes(data)
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ArtifactError("these bytes are not a module of type 'cuda'; build it again")
    _, *sizes = _HEADER.unpack_from(data)
    if _HEADER.size + sum(sizes) != len(data):
        raise ArtifactError(f"cuda module has {len(data)} bytes, expected {_HEADER.size + sum(sizes)}: it is damaged")
    table_end = _HEADER.size + sizes[0]
    source_end = table_end + sizes[1]
    try:
        table = Record(json.loads(data[_HEADER.size : table_end]), "cuda module")
        source = data[table_end:source_end].decode()
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the table of a cuda module is damaged: {error!r}; build it again") from error
    table.only("format", "arch", "functions", "report")
    return CUDAModule(
        data[source_end:],
        table.get("format", str),
        table.get("arch", str),
        table.get("functions", dict),
        source,
        table.get("report", dict),
    )
