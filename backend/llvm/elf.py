"""An in-memory linker of object files, without LLVM: position-independent ELF for x86-64 as our code generator emits
it.

Loading LLVM's library to link a few objects would take ten times the memory of a small model and most of its load time.
All sections go into one mapping, in the order code, constants, data, each page-aligned; calls of external functions go
through stubs after the code and a table of addresses (GOT) among the constants.

Only the features that compiled code needs are supported: no thread-local storage, no constructors, no exceptions.
`UnsupportedObject` is raised for an object that LLVM's own linker has to link instead.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ElfImage", "UnsupportedObject", "process_symbol"]

_SECTION = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
    ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
])  # fmt: skip
_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
                    ("size", "<u8")])  # fmt: skip
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_X86_64 = 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWIND = 2, 4, 8, 0x70000001  # section types
_WRITE, _ALLOCATED, _EXECUTED = 1, 2, 4  # section flags
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00  # section indices
_ABSOLUTE64, _RELATIVE32, _CALL32, _RELATIVE64 = 1, 2, 4, 24  # relocation types
_TABLE32 = (9, 41, 42)
_STUB = b"\xff\x25"  # jmp *[rip + 4 bytes]
_STUB_BYTES = 8

_CODE, _CONSTANTS, _DATA = range(3)
_PROTECTION = {_CODE: mmap.PROT_READ | mmap.PROT_EXEC, _CONSTANTS: mmap.PROT_READ}


class UnsupportedObject(Exception):
    """An object file outside the supported subset; the message gives the reason."""


@lru_cache(maxsize=1)
def _libraries() -> tuple[Any, ...]:
    """Libraries to resolve symbols in: the process and all it has loaded, then the libraries that compilers rely on."""
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libgcc_s.so.1"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return tuple(found)


def process_symbol(name: str) -> int | None:
    """The address of a function of the process or of the C library; None if it is undefined."""
    for library in _libraries():
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


@dataclass
class _Object:
    """One object file: its sections, its symbols, and the image offset of each section (-1: not loaded)."""

    data: memoryview
    sections: npt.NDArray[Any]
    symbols: npt.NDArray[Any]
    names: list[str]
    places: npt.NDArray[np.int64]

    @staticmethod
    def read(code: bytes) -> _Object:
        header = np.frombuffer(code[:64].ljust(64, b"\0"), "<u2")
        if code[:6] != b"\x7fELF\x02\x01" or (header[8], header[9]) != (1, _X86_64):
            raise UnsupportedObject("no relocatable ELF file for x86-64")
        start = int(np.frombuffer(code, "<u8", 1, 0x28)[0])
        sections = np.frombuffer(code, _SECTION, int(header[30]), start)
        tables = [s for s in sections if s["type"] == _SYMBOLS]
        symbols = _table(code, tables[0], _SYMBOL) if tables else np.zeros(0, _SYMBOL)
        texts = sections[int(tables[0]["link"])] if tables else None
        names = [_text(code, int(texts["offset"]) + int(n)) for n in symbols["name"]] if texts is not None else []
        return _Object(memoryview(code), sections, symbols, names, np.full(len(sections), -1, np.int64))

    def loaded(self) -> Iterable[tuple[int, int]]:
        """(number, part of the image) of the sections to load."""
        for number, section in enumerate(self.sections):
            flags = int(section["flags"])
            if flags & _ALLOCATED and section["type"] != _UNWIND and section["size"]:
                yield number, _CODE if flags & _EXECUTED else _DATA if flags & _WRITE else _CONSTANTS

    def relocations(self) -> Iterable[tuple[int, npt.NDArray[Any]]]:
        """(section to patch, relocations) for the loaded sections."""
        for section in self.sections:
            if section["type"] == _RELOCATIONS and self.places[int(section["info"])] >= 0:
                yield int(section["info"]), _table(self.data, section, _RELOCATION)

    def outside(self) -> list[str]:
        """Names of the undefined symbols."""
        return [self.names[i] for i in np.flatnonzero(self.symbols["section"] == _UNDEFINED) if self.names[i]]


def _table(code: bytes | memoryview, section: Any, entry: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(code, entry, int(section["size"]) // entry.itemsize, int(section["offset"]))


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


@dataclass
class _Layout:
    """Image layout: the next free offset, the starts of its three parts, the stubs and the table of external
    addresses."""

    end: int = 0
    parts: list[int] = field(default_factory=list)
    stubs: int = 0
    table: int = 0

    def take(self, size: int, align: int) -> int:
        start = -(-self.end // max(align, 1)) * max(align, 1)
        self.end = start + size
        return start


class ElfImage:
    """Objects linked in memory and executable. `address` looks up functions; the memory is freed with the image.

    Undefined functions are resolved in `known` (name -> address) and in the process. Raises `UnsupportedObject` for an
    unsupported object or an unresolved function.
    """

    def __init__(self, objects: Sequence[bytes], known: Mapping[str, int] | None = None) -> None:
        self._objects = [_Object.read(code) for code in objects]
        self._elsewhere = self._find_elsewhere(known or {})
        layout = self._place()
        self._base = _map(layout.end)
        self._release = weakref.finalize(self, _unmap, self._base, layout.end)
        self._release.atexit = False  # a daemon thread may be in this code until the process has ended
        self._memory = np.ctypeslib.as_array((ctypes.c_ubyte * layout.end).from_address(self._base))
        self._symbols = self._resolve()
        self._fill(layout)
        for part, (start, end) in enumerate(zip(layout.parts, [*layout.parts[1:], layout.end], strict=True)):
            if part in _PROTECTION and end > start:
                _protect(self._base + start, end - start, _PROTECTION[part])
        del self._objects, self._memory

    def address(self, name: str) -> int:
        """The address of a global symbol. Raises KeyError for an unknown one."""
        return self._symbols[name]

    def keep(self) -> None:
        """Never free the memory: code may run in it as long as the process lives."""
        self._release.detach()

    def _find_elsewhere(self, known: Mapping[str, int]) -> dict[str, int]:
        """The addresses of undefined functions, in the order of their stubs."""
        own = {name for made in self._objects for name in _definitions(made)}
        wanted = dict.fromkeys(name for made in self._objects for name in made.outside() if name not in own)
        found = {name: known[name] if name in known else process_symbol(name) for name in wanted}
        missing = [name for name, address in found.items() if address is None]
        if missing:
            raise UnsupportedObject(f"undefined symbols: {', '.join(missing)}")
        return {name: address for name, address in found.items() if address is not None}

    def _place(self) -> _Layout:
        layout = _Layout()
        for part in (_CODE, _CONSTANTS, _DATA):
            layout.parts.append(layout.take(0, mmap.PAGESIZE))
            for made in self._objects:
                for number, of in made.loaded():
                    if of == part:
                        section = made.sections[number]
                        made.places[number] = layout.take(int(section["size"]), int(section["align"]))
            if part == _CODE:
                layout.stubs = layout.take(_STUB_BYTES * len(self._elsewhere), 16)
            if part == _CONSTANTS:
                layout.table = layout.take(8 * len(self._elsewhere), 8)
        layout.take(0, mmap.PAGESIZE)
        return layout

    def _resolve(self) -> dict[str, int]:
        """The addresses of global symbols by name."""
        symbols: dict[str, int] = {}
        for made in self._objects:
            for name, index in _definitions(made).items():
                symbol = made.symbols[index]
                symbols.setdefault(name, self._base + int(made.places[symbol["section"]]) + int(symbol["value"]))
        return symbols

    def _fill(self, layout: _Layout) -> None:
        numbers = {name: i for i, name in enumerate(self._elsewhere)}
        for name, i in numbers.items():
            stub, slot = layout.stubs + _STUB_BYTES * i, layout.table + 8 * i
            self._write(slot, np.array([self._elsewhere[name]], "<u8"))
            self._write(stub, np.frombuffer(_STUB, np.uint8))
            self._write(stub + 2, np.array([slot - (stub + 6)], "<i4"))
        for made in self._objects:
            for number, _ in made.loaded():
                section, place = made.sections[number], int(made.places[number])
                if section["type"] != _NO_BITS:
                    start, size = int(section["offset"]), int(section["size"])
                    self._memory[place : place + size] = np.frombuffer(made.data, np.uint8, size, start)
        for made in self._objects:
            values, slots = self._symbol_values(made, numbers, layout)
            for number, patches in made.relocations():
                self._patch(int(made.places[number]), patches, values, slots)

    def _symbol_values(
        self, made: _Object, numbers: Mapping[str, int], layout: _Layout
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """For each symbol of an object its address (its stub's, if external) and that of its table entry, or 0."""
        sections = made.symbols["section"].astype(np.int64)
        ordinary = (sections != _UNDEFINED) & (sections < _FIRST_RESERVED)
        places = made.places[np.where(ordinary, sections, 0)]
        values = np.where(ordinary & (places >= 0), self._base + places + made.symbols["value"].astype(np.int64), 0)
        slots = np.zeros_like(values)
        for i in np.flatnonzero(~ordinary):
            name = made.names[i]
            if name in numbers:
                values[i] = self._base + layout.stubs + _STUB_BYTES * numbers[name]
                slots[i] = self._base + layout.table + 8 * numbers[name]
            else:
                values[i] = self._symbols.get(name, 0)
        return values, slots

    def _patch(
        self, place: int, patches: npt.NDArray[Any], values: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> None:
        """Apply the relocations of one section."""
        kinds, at = patches["type"], place + patches["offset"].astype(np.int64)
        chosen = np.where(np.isin(kinds, _TABLE32), slots[patches["symbol"]], values[patches["symbol"]])
        if not np.all(np.isin(kinds, (_ABSOLUTE64, _RELATIVE32, _CALL32, _RELATIVE64, *_TABLE32))):
            raise UnsupportedObject(f"relocations of kinds {sorted({int(k) for k in kinds})}")
        outside = slots[patches["symbol"]] != 0
        if not np.all(chosen) or np.any(outside & np.isin(kinds, (_ABSOLUTE64, _RELATIVE32, _RELATIVE64))):
            raise UnsupportedObject("relocations against data that is elsewhere")
        result = chosen + patches["addend"] - np.where(kinds == _ABSOLUTE64, 0, self._base + at)
        wide = (kinds == _ABSOLUTE64) | (kinds == _RELATIVE64)
        for selected, kind in ((wide, "<i8"), (~wide, "<i4")):
            found = result[selected].astype(kind)
            if np.any(found != result[selected]):
                raise UnsupportedObject("relocations beyond two gigabytes")
            raw = found.view(np.uint8).reshape(-1, np.dtype(kind).itemsize)
            self._memory[at[selected][:, None] + np.arange(raw.shape[1])] = raw

    def _write(self, at: int, values: npt.NDArray[Any]) -> None:
        raw = values.view(np.uint8)
        self._memory[at : at + len(raw)] = raw


def _definitions(made: _Object) -> dict[str, int]:
    """Global symbols that an object defines: name -> index."""
    sections = made.symbols["section"]
    chosen = (made.symbols["info"] >> 4 != 0) & (sections != _UNDEFINED) & (sections < _FIRST_RESERVED)
    return {made.names[i]: int(i) for i in np.flatnonzero(chosen)}


@lru_cache(maxsize=1)
def _system() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


def _map(size: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _system().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise UnsupportedObject(f"can't map {size} bytes of memory: errno {ctypes.get_errno()}")
    return address


def _protect(address: int, size: int, protection: int) -> None:
    if _system().mprotect(address, size, protection):
        raise UnsupportedObject(f"can't make memory executable: errno {ctypes.get_errno()}")


def _unmap(address: int, size: int) -> None:
    _system().munmap(address, size)
