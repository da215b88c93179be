"""An in-memory linker of object files, without LLVM: position-independent ELF for x86-64 as our code generator emits
it.

Loading LLVM's library to link a few objects would take ten times the memory of a small model and most of its load time.
All sections go into one mapping, in the order code, constants, data, each page-aligned; calls of external functions go
through stubs after the code and a table of addresses (GOT) among the constants.

Only the features that compiled code needs are supported: no thread-local storage, no constructors, no exceptions.
Everything else is a `MalformedObject`. It is not left to LLVM's linker, which aborts the process over what it refuses.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.llvm.object_file import (
    EXECUTED,
    FIRST_RESERVED,
    RELOCATION,
    SYMBOL,
    UNDEFINED,
    WRITABLE,
    MalformedObject,
    ObjectFile,
    Section,
)
from relayc.backend.runtime.errors import DeviceError

__all__ = ["ElfImage"]

_X86_64 = 62
_ABSOLUTE64, _RELATIVE32, _CALL32, _RELATIVE64 = 1, 2, 4, 24  # relocation types
_TABLE32 = (9, 41, 42)


def _by_type(values: Mapping[int, int]) -> npt.NDArray[np.uint8]:
    """A table of values by relocation type, 0 where there is none."""
    table = np.zeros(64, np.uint8)
    table[list(values)] = list(values.values())
    return table


_WIDTH = _by_type({_ABSOLUTE64: 8, _RELATIVE32: 4, _CALL32: 4, _RELATIVE64: 8, **dict.fromkeys(_TABLE32, 4)})
"""Bytes that a relocation patches, by its type."""
_IS_BY_TABLE = _by_type(dict.fromkeys(_TABLE32, 1)) > 0
_IS_OF_DATA = _by_type(dict.fromkeys((_ABSOLUTE64, _RELATIVE32, _RELATIVE64), 1)) > 0
_STUB = b"\xff\x25"  # jmp *[rip + 4 bytes]
_STUB_BYTES = 8
_NO_SYMBOLS, _NO_RELOCATIONS = np.zeros(0, SYMBOL), np.zeros(0, RELOCATION)
_LARGEST_IMAGE = (1 << 31) - 1
"""Bytes that relative addresses of 32 bits span."""

_CODE, _CONSTANTS, _DATA = range(3)
_PROTECTION = {_CODE: mmap.PROT_READ | mmap.PROT_EXEC, _CONSTANTS: mmap.PROT_READ}


class _Objects:
    """Object files as one: their sections, symbols and relocations, each of all files in their order.

    `places` is the image offset of each section (-1: not loaded). Sections and symbols of relocations, and sections of
    symbols, are numbered over all files; the section of a symbol that is in none is -1.
    """

    def __init__(self, files: Sequence[ObjectFile]) -> None:
        self.sections, self.names, self.contents = list[Section](), list[str](), list[memoryview]()
        self.loaded: list[int] = []
        tables, symbols, owners = list[npt.NDArray[Any]](), list[npt.NDArray[Any]](), list[tuple[int, int, int]]()
        for file in files:
            if file.processor != _X86_64:
                raise MalformedObject(f"code for the processor {file.processor}; expected {_X86_64}, x86-64")
            first_section, first_symbol = len(self.sections), len(self.names)
            self.sections += file.sections
            self.names += file.names
            symbols.append(file.symbols)
            for number in file.loaded:
                self.loaded.append(first_section + number)
                self.contents.append(file.content(number))
                patches = file.relocations(number)
                if len(patches):
                    tables.append(patches)
                    owners.append((len(patches), first_section + number, first_symbol))
        self.places = np.full(len(self.sections), -1, np.int64)
        joined = np.concatenate([_NO_SYMBOLS, *symbols])
        own = joined["section"].astype(np.int64)
        first = np.repeat(
            np.cumsum([0, *[len(file.sections) for file in files]])[:-1], [len(file.symbols) for file in files]
        )
        self.symbol_sections = np.where((own != UNDEFINED) & (own < FIRST_RESERVED), own + first, -1)
        self.symbol_values = joined["value"].astype(np.int64)
        self.is_global = joined["info"] >> 4 != 0
        self.relocations = np.concatenate([_NO_RELOCATIONS, *tables])
        counts, sections, first_symbols = np.array(owners, np.int64).reshape(-1, 3).T
        self.patched = np.repeat(sections, counts)
        self.patch_symbols = self.relocations["symbol"] + np.repeat(first_symbols, counts)
        self._check()

    def _check(self) -> None:
        """Raise `MalformedObject` for relocations that are not as those of our own code."""
        kinds, addends = self.relocations["type"], self.relocations["addend"]
        widths = _WIDTH[np.minimum(kinds, len(_WIDTH) - 1)]
        if not widths.all():
            raise MalformedObject(
                f"relocations of types {sorted(set(kinds[widths == 0].tolist()))}; expected those of "
                "position-independent code"
            )
        sizes = np.array([section.size for section in self.sections], np.uint64)[self.patched]
        beyond = self.relocations["offset"] + widths > sizes
        beyond |= (addends < -_LARGEST_IMAGE) | (addends > _LARGEST_IMAGE)
        if beyond.any():
            size = sizes[beyond][0]
            raise MalformedObject(f"relocations that reach beyond their section, of {size} bytes, or the image")

    def part(self, number: int) -> int:
        """The part of the image that a section is loaded to."""
        flags = self.sections[number].flags
        return _CODE if flags & EXECUTED else _DATA if flags & WRITABLE else _CONSTANTS


class _Layout:
    """Image layout: the next free offset, the starts of its three parts, the stubs and the table of external
    addresses."""

    def __init__(self) -> None:
        self.end = self.stubs = self.table = 0
        self.parts: list[int] = []

    def take(self, size: int, align: int) -> int:
        start = -(-self.end // max(align, 1)) * max(align, 1)
        self.end = start + size
        return start


def _place(objects: _Objects, stubs: int) -> _Layout:
    """Place the sections, and the stubs and addresses of as many external functions."""
    layout = _Layout()
    for part in (_CODE, _CONSTANTS, _DATA):
        layout.parts.append(layout.take(0, mmap.PAGESIZE))
        for number in objects.loaded:
            if objects.part(number) == part:
                section = objects.sections[number]
                objects.places[number] = layout.take(section.size, section.align)
        if part == _CODE:
            layout.stubs = layout.take(_STUB_BYTES * stubs, 16)
        if part == _CONSTANTS:
            layout.table = layout.take(8 * stubs, 8)
    layout.take(0, mmap.PAGESIZE)
    return layout


class ElfImage:
    """Objects linked in memory and executable. `address` looks up functions; the memory is freed with the image.

    `elsewhere` has the addresses of the functions that no object defines, by name. Raises `MalformedObject`.
    """

    def __init__(self, files: Sequence[ObjectFile], elsewhere: Mapping[str, int]) -> None:
        objects = _Objects(files)
        needed = sum([objects.sections[number].size + objects.sections[number].align for number in objects.loaded])
        if needed > _LARGEST_IMAGE:
            raise MalformedObject(f"sections of {needed} bytes; expected at most {_LARGEST_IMAGE}")
        layout = _place(objects, len(elsewhere))
        self._base = _map(layout.end)
        self._release = weakref.finalize(self, _unmap, self._base, layout.end)
        self._release.atexit = False  # a daemon thread may be in this code until the process has ended
        self._memory = np.frombuffer(memoryview((ctypes.c_ubyte * layout.end).from_address(self._base)), np.uint8)
        places = np.append(objects.places, -1)[objects.symbol_sections]
        values = np.where(places >= 0, self._base + places + objects.symbol_values, 0)
        named = np.flatnonzero(objects.is_global & (places >= 0)).tolist()
        self._symbols = {objects.names[i]: int(values[i]) for i in reversed(named)}  # the first of a name
        self._fill(objects, layout, values, elsewhere)
        for part, (start, end) in enumerate(zip(layout.parts, [*layout.parts[1:], layout.end], strict=True)):
            if part in _PROTECTION and end > start:
                _protect(self._base + start, end - start, _PROTECTION[part])
        self._code_end = self._base + layout.stubs
        del self._memory

    def address(self, name: str) -> int:
        """The address of a global function. Raises KeyError for an unknown one."""
        address = self._symbols[name]
        if address >= self._code_end:
            raise KeyError(name)
        return address

    def keep(self) -> None:
        """Never free the memory: code may run in it as long as the process lives."""
        self._release.detach()

    def _fill(
        self, objects: _Objects, layout: _Layout, values: npt.NDArray[np.int64], elsewhere: Mapping[str, int]
    ) -> None:
        """Write the image: stubs and addresses of external functions, sections, and what their relocations patch.

        `values` are the addresses of the symbols; those that are in no section are set here.
        """
        for i, address in enumerate(elsewhere.values()):
            stub, slot = layout.stubs + _STUB_BYTES * i, layout.table + 8 * i
            self._write(slot, np.array([address], "<u8"))
            self._write(stub, np.frombuffer(_STUB, np.uint8))
            self._write(stub + 2, np.array([slot - (stub + 6)], "<i4"))
        for number, content in zip(objects.loaded, objects.contents, strict=True):
            self._write(int(objects.places[number]), np.frombuffer(content, np.uint8))
        numbers = {name: i for i, name in enumerate(elsewhere)}
        slots = np.zeros_like(values)
        for i in np.flatnonzero(objects.symbol_sections < 0).tolist():
            external = numbers.get(objects.names[i])
            if external is None:
                values[i] = self._symbols.get(objects.names[i], 0)
            else:
                values[i] = self._base + layout.stubs + _STUB_BYTES * external
                slots[i] = self._base + layout.table + 8 * external
        self._patch(objects, values, slots)

    def _patch(self, objects: _Objects, values: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> None:
        """Apply the relocations; `values` and `slots` are addresses of symbols and of their table entries, or 0."""
        kinds, symbols = objects.relocations["type"], objects.patch_symbols
        at = objects.places[objects.patched] + objects.relocations["offset"].astype(np.int64)
        chosen = np.where(_IS_BY_TABLE[kinds], slots[symbols], values[symbols])
        outside = slots[symbols] != 0
        if not np.all(chosen) or np.any(outside & _IS_OF_DATA[kinds]):
            raise MalformedObject("relocations against data that is elsewhere")
        result = chosen + objects.relocations["addend"] - np.where(kinds == _ABSOLUTE64, 0, self._base + at)
        wide = _WIDTH[kinds] == 8
        for selected, kind in ((wide, "<i8"), (~wide, "<i4")):
            found = result[selected].astype(kind)
            if np.any(found != result[selected]):
                raise MalformedObject("relocations beyond two gigabytes")
            raw = found.view(np.uint8).reshape(-1, np.dtype(kind).itemsize)
            self._memory[at[selected][:, None] + np.arange(raw.shape[1])] = raw

    def _write(self, at: int, values: npt.NDArray[Any]) -> None:
        raw = values.view(np.uint8)
        self._memory[at : at + len(raw)] = raw


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
        raise DeviceError(f"out of memory: can't map {size} bytes for code (errno {ctypes.get_errno()}); free memory")
    return address


def _protect(address: int, size: int, protection: int) -> None:
    if _system().mprotect(address, size, protection):
        raise DeviceError(f"can't make memory executable (errno {ctypes.get_errno()}); allow it in the security policy")


def _unmap(address: int, size: int) -> None:
    _system().munmap(address, size)
