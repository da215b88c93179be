"""The run-time part of the llvm backend: `LLVMModule` loads object code and looks up its functions.

It imports only backend.runtime and the parts of this package that link and run code, which need no llvmlite; that is
imported only for functions that the process does not provide. The serialised form is a JSON
header (format, triple, features, functions) and the object files; it is validated before any of it is run.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from relayc.backend.llvm.linking import Image, link, process_triple
from relayc.backend.llvm.pool import offer
from relayc.backend.runtime.cpu_features import host_features
from relayc.backend.runtime.device import cpu
from relayc.backend.runtime.errors import ArtifactError, ModuleError
from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.module import HOST_SUFFIX, Module, exposed_names
from relayc.backend.runtime.packed_func import HostFunc, KernelFunc, PackedFunc, read_messages, read_params

__all__ = ["FunctionEntry", "LLVMModule", "ObjectCode", "load_from_bytes"]

_MAGIC = b"RLLVM\x00\x00\x03"
_HEADER = struct.Struct("<8sQ")


class FunctionEntry(NamedTuple):
    """A function in object code: its parameter kinds (see `KernelFunc`), and the messages of its argument checks (see
    `HostFunc`), or None for a raw kernel."""

    name: str
    params: tuple[str, ...]
    messages: tuple[str, ...] | None = None


class ObjectCode(NamedTuple):
    """One object file, its exported functions, and the names of the functions that it imports."""

    code: bytes
    functions: tuple[FunctionEntry, ...]
    externals: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """All but the code, for a JSON header; `from_description` reads it."""
        return {
            "size": len(self.code),
            "sha256": hashlib.sha256(self.code).hexdigest(),
            "functions": [[e.name, list(e.params), e.messages and list(e.messages)] for e in self.functions],
            "externals": list(self.externals),
        }

    @staticmethod
    def from_description(part: Record, code: bytes | memoryview) -> ObjectCode:
        """Code with its description by `describe`. Raises `ArtifactError` if they don't match."""
        part.only("size", "sha256", "functions", "externals")
        if len(code) != part.number("size") or hashlib.sha256(code).hexdigest() != part.get("sha256", str):
            raise ArtifactError(f"{part.where}: its object code differs from what was saved. Compile the model again")
        entries = tuple([_entry(row, part.where) for row in part.get("functions", list)])
        return ObjectCode(bytes(code), entries, part.strings("externals"))


def _entry(row: Any, where: str) -> FunctionEntry:
    match row:
        case [str(name), list(params), (None | list()) as messages]:
            place = f"{where}.{name}"
            return FunctionEntry(name, read_params(params, place), read_messages(messages, place))
        case _:
            raise damaged(f"{where}.functions", row, "[name, parameter kinds, messages or null]")


class LLVMModule(Module):
    """Functions compiled by LLVM, linked at the first lookup. Parts may call each other's functions.

    `features` are the instruction-set features that the code uses; loading it on a processor that lacks one raises
    `ArtifactError` instead of crashing later. `pool` returns an object file of the thread pool for the same machine,
    which is saved with the code. `sources` has the texts for `get_source`: format -> function, for modules compiled in
    this process.
    """

    type_key = "llvm"

    def __init__(
        self,
        parts: Sequence[ObjectCode],
        triple: str,
        features: Iterable[str],
        pool: Callable[[], bytes],
        sources: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._entries = {entry.name: entry for part in parts for entry in part.functions}
        super().__init__()
        self._parts = tuple(parts)
        self._triple = triple
        self._features = tuple(sorted(features))
        self._pool = pool
        self._sources = dict(sources or {})
        self._image: Image | None = None
        self._loading = threading.Lock()

    @property
    def triple(self) -> str:
        """The LLVM triple of the machines that the code is for."""
        return self._triple

    @property
    def features(self) -> tuple[str, ...]:
        """The instruction-set features that the code uses, by LLVM's names, sorted."""
        return self._features

    def object_files(self) -> list[bytes]:
        """The object files of the functions, and last that of the thread pool and of workspace memory
        (`backend.llvm.pool_code`): all that they call but functions of the C library."""
        return [*[part.code for part in self._parts], self._pool()]

    def function_names(self) -> list[str]:
        return exposed_names(self._entries)

    def address_of(self, name: str) -> int:
        """The address of a function's code. Raises `ModuleError` for an unknown one."""
        if name not in self._entries:
            raise ModuleError(f"llvm module has no function {name!r}; it has: {', '.join(self._entries)}")
        try:
            return self._loaded().address(name)
        except KeyError as error:
            raise ArtifactError(f"damaged llvm module: its code has no function {name!r}; compile it again") from error

    def get_source(self, fmt: str = "") -> str:
        """LLVM assembly after optimisation ("", "ll"), before it ("raw-ll"), or the processor's assembly ("asm")."""
        make = self._sources.get(fmt or "ll")
        if make is None:
            known = ", ".join(self._sources) or "none: a loaded module holds machine code only"
            raise ModuleError(f"llvm module has no source in format {fmt!r}; it has {known}")
        return make()

    def save_to_bytes(self) -> bytes:
        parts = [part.describe() for part in self._parts]
        shared = ObjectCode(self._pool(), ())
        header = {"triple": self._triple, "features": list(self._features), "parts": parts, "pool": shared.describe()}
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        codes = [part.code for part in (*self._parts, shared)]
        return b"".join([_HEADER.pack(_MAGIC, len(text)), text, *codes])

    def _find(self, name: str) -> PackedFunc | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        address = self.address_of(name)
        if entry.messages is None:
            return KernelFunc(name, address, entry.params, keep_alive=self._loaded())  # not self: no cycle
        messages = dict(enumerate(entry.messages, 1))
        return HostFunc(name.removesuffix(HOST_SUFFIX), address, messages, self, self.find_function)

    def _loaded(self) -> Image:
        with self._loading:
            if self._image is None:
                check_machine(self._triple, self._features)
                externals = {name for part in self._parts for name in part.externals} - set(self._entries)
                self._image = link([part.code for part in self._parts], sorted(externals))
            return self._image


def check_machine(triple: str, features: Iterable[str]) -> None:
    """Raises `ArtifactError` when code for this architecture and these features can't run here."""
    here = process_triple()
    if _platform(triple) != _platform(here):
        raise ArtifactError(f"this code was compiled for {triple}, this machine is {here}; compile it for this machine")
    missing = sorted(set(features) - host_features())
    if missing:  # LLVM's detection is more precise, and is loaded only in this case
        forbidden = [f for f in missing if f.startswith("amx")]  # by the operating system
        missing = sorted({*forbidden, *import_module("relayc.backend.llvm.jit").missing_features(missing)})
    if missing:
        raise ArtifactError(
            f"this code needs the instructions {', '.join(missing)}, which this processor ({cpu().device_name}) "
            "lacks; compile it for this machine (target llvm), or for all (target llvm -mcpu=x86-64-v2)"
        )


def _platform(triple: str) -> tuple[str, str]:
    words = triple.split("-")
    system = next((s for s in ("linux", "darwin", "windows") if any(w.startswith(s) for w in words)), "")
    if not system and any(w.startswith("macosx") for w in words):
        system = "darwin"
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(words[0], words[0]), system


def load_from_bytes(data: bytes | memoryview) -> LLVMModule:
    """The module that `LLVMModule.save_to_bytes` saved. Raises `ArtifactError` for anything else."""
    data = memoryview(data)
    magic, size = _HEADER.unpack(bytes(data[: _HEADER.size]).ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC and magic.startswith(_MAGIC[:-1]):
        raise ArtifactError(f"llvm module of format {magic[-1]}; expected {_MAGIC[-1]}: compile the model again")
    if magic != _MAGIC:
        raise ArtifactError(f"not an llvm module: it begins with {bytes(data[:8])!r}, expected {_MAGIC!r}")
    try:
        header = Record(json.loads(bytes(data[_HEADER.size : _HEADER.size + size])), "llvm module")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"damaged llvm module of {len(data)} bytes: {error!r}; compile the model again") from error
    header.only("triple", "features", "parts", "pool")
    *parts, shared = _read_parts([*header.records("parts"), header.record("pool")], data[_HEADER.size + size :])
    triple, features = header.get("triple", str), header.strings("features")
    if _platform(triple) == _platform(process_triple()):
        offer(shared.code)
    return LLVMModule(parts, triple, features, lambda: shared.code)


def _read_parts(described: list[Record], data: memoryview) -> list[ObjectCode]:
    parts: list[ObjectCode] = []
    for part in described:
        size = part.number("size", 0, len(data))
        parts.append(ObjectCode.from_description(part, data[:size]))
        data = data[size:]
    if len(data):
        raise ArtifactError(f"damaged llvm module: {len(data)} bytes too many")
    return parts
