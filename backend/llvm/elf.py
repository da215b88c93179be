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
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.llvm.object_file import (
    EXECUTED,
    FIRST_RESERVED,
    UNDEFINED,
    WRITABLE,
    MalformedObject,
    ObjectFile,
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
_LARGEST_IMAGE = (1 << 31) - 1
"""Bytes that relative addresses of 32 bits span."""

_CODE, _CONSTANTS, _DATA = range(3)
_PROTECTION = {_CODE: mmap.PROT_READ | mmap.PROT_EXEC, _CONSTANTS: mmap.PROT_READ}


class _Object:
    """An object file and the image offset of each of its sections (-1: not loaded)."""

    def __init__(self, file: ObjectFile) -> None:
        self.file = file
        self.places = np.full(len(file.sections), -1, np.int64)
        self.relocations = {number: file.relocations(number) for number in file.loaded}
        _check(file, self.relocations)

    def loaded(self) -> Iterable[tuple[int, int]]:
        """(number, part of the image) of the sections to load."""
        for number in self.file.loaded:
            flags = self.file.sections[number].flags
            yield number, _CODE if flags & EXECUTED else _DATA if flags & WRITABLE else _CONSTANTS

    @cached_property
    def definitions(self) -> dict[str, int]:
        """Global symbols that the object defines in loaded sections: name -> index."""
        symbols = self.file.symbols
        loaded, sections = set(self.file.loaded), symbols["section"].tolist()
        return {self.file.names[i]: int(i) for i in np.flatnonzero(symbols["info"] >> 4) if sections[i] in loaded}


def _check(file: ObjectFile, relocations: Mapping[int, npt.NDArray[Any]]) -> None:
    """Raise `MalformedObject` for another processor's code, and for relocations that are not as those of our own."""
    if file.processor != _X86_64:
        raise MalformedObject(f"code for the processor {file.processor}; expected {_X86_64}, x86-64")
    for number, patches in relocations.items():
        kinds, addends, size = patches["type"], patches["addend"], file.sections[number].size
        widths = _WIDTH[np.minimum(kinds, len(_WIDTH) - 1)]
        if not widths.all():
            raise MalformedObject(
                f"relocations of types {sorted(set(kinds.tolist()))} in section {number}; expected those of "
                "position-independent code"
            )
        ends = patches["offset"] + widths
        if np.any(ends > size) or np.any((addends < -_LARGEST_IMAGE) | (addends > _LARGEST_IMAGE)):
            raise MalformedObject(f"relocations that reach beyond section {number}, of {size} bytes, or the image")


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


class ElfImage:
    """Objects linked in memory and executable. `address` looks up functions; the memory is freed with the image.

    `elsewhere` has the addresses of the functions that no object defines, by name. Raises `MalformedObject`.
    """

    def __init__(self, files: Sequence[ObjectFile], elsewhere: Mapping[str, int]) -> None:
        self._objects = [_Object(file) for file in files]
        needed = sum([s.size + s.align for file in files for s in map(file.sections.__getitem__, file.loaded)])
        if needed > _LARGEST_IMAGE:
            raise MalformedObject(f"sections of {needed} bytes; expected at most {_LARGEST_IMAGE}")
        self._elsewhere = elsewhere
        layout = self._place()
        self._base = _map(layout.end)
        self._release = weakref.finalize(self, _unmap, self._base, layout.end)
        self._release.atexit = False  # a daemon thread may be in this code until the process has ended
        self._memory = np.frombuffer(memoryview((ctypes.c_ubyte * layout.end).from_address(self._base)), np.uint8)
        self._symbols = self._resolve()
        self._fill(layout)
        for part, (start, end) in enumerate(zip(layout.parts, [*layout.parts[1:], layout.end], strict=True)):
            if part in _PROTECTION and end > start:
                _protect(self._base + start, end - start, _PROTECTION[part])
        self._code_end = self._base + layout.stubs
        del self._objects, self._memory

    def address(self, name: str) -> int:
        """The address of a global function. Raises KeyError for an unknown one."""
        address = self._symbols[name]
        if address >= self._code_end:
            raise KeyError(name)
        return address

    def keep(self) -> None:
        """Never free the memory: code may run in it as long as the process lives."""
        self._release.detach()

    def _place(self) -> _Layout:
        layout = _Layout()
        for part in (_CODE, _CONSTANTS, _DATA):
            layout.parts.append(layout.take(0, mmap.PAGESIZE))
            for made in self._objects:
                for number, of in made.loaded():
                    if of == part:
                        section = made.file.sections[number]
                        made.places[number] = layout.take(section.size, section.align)
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
            for name, index in made.definitions.items():
                symbol = made.file.symbols[index]
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
                content, place = made.file.content(number), int(made.places[number])
                self._memory[place : place + len(content)] = np.frombuffer(content, np.uint8)
        for made in self._objects:
            values, slots = self._symbol_values(made, numbers, layout)
            for number, patches in made.relocations.items():
                self._patch(int(made.places[number]), patches, values, slots)

    def _symbol_values(
        self, made: _Object, numbers: Mapping[str, int], layout: _Layout
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """For each symbol of an object its address (its stub's, if external) and that of its table entry, or 0."""
        sections = made.file.symbols["section"].astype(np.int64)
        ordinary = (sections != UNDEFINED) & (sections < FIRST_RESERVED)
        places = made.places[np.where(ordinary, sections, 0)]
        offsets = places + made.file.symbols["value"].astype(np.int64)
        values = np.where(ordinary & (places >= 0), self._base + offsets, 0)
        slots = np.zeros_like(values)
        for i in np.flatnonzero(~ordinary):
            name = made.file.names[i]
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
        chosen = np.where(_IS_BY_TABLE[kinds], slots[patches["symbol"]], values[patches["symbol"]])
        outside = slots[patches["symbol"]] != 0
        if not np.all(chosen) or np.any(outside & _IS_OF_DATA[kinds]):
            raise MalformedObject("relocations against data that is elsewhere")
        result = chosen + patches["addend"] - np.where(kinds == _ABSOLUTE64, 0, self._base + at)
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
