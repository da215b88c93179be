"""Modules of target kind "c": a shared library, and the C text it was compiled from."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from relayc.backend.runtime.errors import ArtifactError, ModuleError
from relayc.backend.runtime.fields import Record
from relayc.backend.runtime.module import HOST_SUFFIX, Module, exposed_names
from relayc.backend.runtime.packed_func import HostFunc, KernelFunc, PackedFunc, read_messages, read_params

__all__ = ["CFunction", "CModule", "load_from_bytes"]

_MAGIC = b"RELAYC-2"
_HEADER = struct.Struct("<8sIII")  # magic; bytes of the table, the source, the library


@dataclass(frozen=True, slots=True)
class CFunction:
    """One function of a library: its name, its symbol, and either a kernel's parameter kinds or a host function's
    messages (see `HostFunc`)."""

    name: str
    symbol: str
    params: tuple[str, ...]
    messages: tuple[str, ...] | None


class CModule(Module):
    """A shared library, loaded at the first lookup, after the processor has been checked for `features`."""

    type_key = "c"

    def __init__(self, source: str, library: bytes, functions: Sequence[CFunction], features: Sequence[str]) -> None:
        super().__init__()
        self._source = source
        self._library = library
        self._functions = {function.name: function for function in functions}
        self._features = tuple(features)
        self._loaded: ctypes.CDLL | None = None

    def function_names(self) -> list[str]:
        return exposed_names(self._functions)

    def _find(self, name: str) -> PackedFunc | None:
        entry = self._functions.get(name)
        if entry is None:
            return None
        if self._loaded is None:
            self._loaded = _load_library(self._library, self._features)
        try:
            address = ctypes.cast(self._loaded[entry.symbol], ctypes.c_void_p).value
        except AttributeError as error:
            raise ArtifactError(f"damaged c module: its library has no function {entry.symbol!r}") from error
        assert address is not None
        if entry.messages is None:
            return KernelFunc(name, address, entry.params, self)
        messages = dict(enumerate(entry.messages, 1))
        return HostFunc(name.removesuffix(HOST_SUFFIX), address, messages, self, self.find_function)

    def get_source(self, fmt: str = "") -> str:
        if fmt not in ("", "c"):
            raise ModuleError(f"module of type 'c' has its source in format 'c', not {fmt!r}")
        return self._source

    def save_to_bytes(self) -> bytes:
        table = {"features": self._features, "functions": [asdict(f) for f in self._functions.values()]}
        parts = [json.dumps(table, sort_keys=True).encode(), self._source.encode(), self._library]
        return _HEADER.pack(_MAGIC, *[len(part) for part in parts]) + b"".join(parts)


def load_from_bytes(data: bytes | memoryview) -> CModule:
    """The module saved by `CModule.save_to_bytes`. Raises ArtifactError for other bytes."""
    data = bytes(data)
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        raise ArtifactError("these bytes are not a module of type 'c'; build it again")
    _, *sizes = _HEADER.unpack_from(data)
    if _HEADER.size + sum(sizes) != len(data):
        raise ArtifactError(f"module of type 'c' has {len(data)} bytes, expected {_HEADER.size + sum(sizes)}: damaged")
    parts: list[bytes] = []
    start = _HEADER.size
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    try:
        table, source = Record(json.loads(parts[0]), "c module"), parts[1].decode()
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the table of a module of type 'c' is damaged: {error!r}; build it again") from error
    table.only("features", "functions")
    functions = [_function_of(row) for row in table.records("functions")]
    return CModule(source, parts[2], functions, table.strings("features"))


def _function_of(row: Record) -> CFunction:
    row.only("name", "symbol", "params", "messages")
    messages = None if row.value.get("messages") is None else row.get("messages", list)
    return CFunction(row.get("name", str), row.get("symbol", str), read_params(row.get("params", list), row.where),
                     read_messages(messages, row.where))  # fmt: skip


def _load_library(library: bytes, features: Sequence[str]) -> ctypes.CDLL:
    """Load a shared library from memory through a temporary file.

    Raises ArtifactError when it is no library of this platform or needs features that the processor lacks.
    """
    number, path = tempfile.mkstemp(prefix="relayc-", suffix=".so")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(library)
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ArtifactError(f"a library of target kind 'c' can't be loaded on this machine: {error}") from error
    finally:
        os.unlink(path)
    missing = int(loaded.relayc_missing_feature())
    if not 0 <= missing <= len(features):
        raise ArtifactError(f"damaged c module: it misses feature {missing} of {len(features)}; compile it again")
    if missing:
        raise ArtifactError(
            f"this code needs the instructions {features[missing - 1]}, which this processor lacks; compile it for "
            "this machine (target c), or for all (target c -mcpu=x86-64-v2)"
        )
    return loaded
