"""Reading of object files: ELF of 64 bits, little endian, for any processor.

An object file may come from anywhere, so nothing in it is believed: `ObjectFile.read` accepts a file only if every
section, name, symbol and relocation of it lies where it may lie. What a linker does with them is its own matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.errors import ArtifactError

__all__ = ["ALLOCATED", "EXECUTED", "FIRST_RESERVED", "NO_BITS", "RELOCATION", "SYMBOL", "UNDEFINED", "WRITABLE",
           "MalformedObject", "ObjectFile", "Section"]  # fmt: skip

WRITABLE, ALLOCATED, EXECUTED = 1, 2, 4  # flags of sections
UNDEFINED, FIRST_RESERVED, _ABSOLUTE, _COMMON = 0, 0xFF00, 0xFFF1, 0xFFF2  # section indices of symbols
NO_BITS = 8
_SYMBOLS, _STRINGS, _RELOCATIONS, _SHORT_RELOCATIONS, _X86_UNWIND = 2, 3, 4, 9, 0x70000001  # types of sections
_RELOCATABLE = 1  # type of file
_HEADER = struct.Struct("<16x2H20xQ10x3H")  # type, processor, place of the sections, their entry size, count and names
SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
                    ("size", "<u8")])  # fmt: skip
RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_LARGEST_ALIGNMENT = 4096
"""Alignment of a page, the most that loaded memory has."""
_NARROWEST = 4
"""Bytes that the narrowest relocation patches."""


class MalformedObject(ArtifactError):
    """An object file that contradicts itself or its format."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"malformed object file: {fault}. It is damaged or was changed; compile the model again")


class Section(NamedTuple):
    """The header of a section, in the order of the file."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def has_bytes(self) -> bool:
        """Is the content in the file, not zeros?"""
        return self.type not in (0, NO_BITS)


_SECTION = struct.Struct("<2I4Q2I2Q")


@dataclass(eq=False, repr=False)
class ObjectFile:
    """An object file: sections, symbols (a structured array), and the names of both."""

    data: memoryview
    processor: int
    sections: tuple[Section, ...]
    section_names: tuple[str, ...]
    symbols: npt.NDArray[Any]
    names: tuple[str, ...]

    @staticmethod
    def read(code: bytes | memoryview) -> ObjectFile:
        """Parse a file. Raises `MalformedObject` for one of another format, or one that contradicts itself."""
        data = memoryview(code)
        if len(data) < 64 or bytes(data[:6]) != b"\x7fELF\x02\x01":
            raise MalformedObject(f"no ELF file of 64 bits, little endian; it begins with {bytes(data[:6])!r}")
        kind, processor, start, entry, count, names = _HEADER.unpack_from(data)
        if (kind, entry) != (_RELOCATABLE, _SECTION.size):
            raise MalformedObject(f"type {kind}, section headers of {entry} bytes; expected 1, {_SECTION.size}")
        if names >= count or start + count * entry > len(data):
            raise MalformedObject(f"{count} section headers at {start} in {len(data)} bytes; names in section {names}")
        sections = tuple(map(Section._make, _SECTION.iter_unpack(data[start : start + count * entry])))
        for number, section in enumerate(sections):
            _check_section(number, section, count, len(data))
        tables = [section for section in sections if section.type == _SYMBOLS]
        if len(tables) > 1:
            raise MalformedObject(f"{len(tables)} symbol tables; expected one")
        symbols = _table(data, tables[0], SYMBOL) if tables else np.zeros(0, SYMBOL)
        made = ObjectFile(
            data, processor, sections,
            _texts(data, sections[names], [section.name for section in sections]), symbols,
            _texts(data, sections[tables[0].link], symbols["name"].tolist()) if tables else (),
        )  # fmt: skip
        made._check_symbols()
        for number in made.loaded:
            made._check_relocations(number)
        return made

    @cached_property
    def loaded(self) -> tuple[int, ...]:
        """The numbers of the sections that are loaded: code, constants, data, but no unwinding information."""
        return tuple([
            number for number, (section, name) in enumerate(zip(self.sections, self.section_names, strict=True))
            if section.flags & ALLOCATED and section.size and section.type != _X86_UNWIND and name != ".eh_frame"
        ])  # fmt: skip

    @cached_property
    def undefined(self) -> tuple[str, ...]:
        """Names of the undefined symbols."""
        own = self.symbols["section"].tolist()
        return tuple([name for name, section in zip(self.names, own, strict=True) if section == UNDEFINED and name])

    @cached_property
    def defined(self) -> tuple[str, ...]:
        """Names of the global symbols that the file defines."""
        own, info = self.symbols["section"].tolist(), self.symbols["info"].tolist()
        found = zip(self.names, own, info, strict=True)
        return tuple([name for name, section, bits in found if section != UNDEFINED and bits >> 4])

    def content(self, number: int) -> memoryview:
        """The bytes of a section in the file: none for one that is zero from the start."""
        section = self.sections[number]
        return self.data[section.offset : section.offset + section.size] if section.has_bytes else self.data[:0]

    def relocations(self, number: int) -> npt.NDArray[Any]:
        """The relocations of a section, a structured array."""
        tables = [_table(self.data, s, RELOCATION) for s in self._relocation_tables(number)]
        return tables[0] if len(tables) == 1 else np.concatenate([np.zeros(0, RELOCATION), *tables])

    def _relocation_tables(self, number: int) -> Iterator[Section]:
        return (s for s in self.sections if s.type in (_RELOCATIONS, _SHORT_RELOCATIONS) and s.info == number)

    def _check_symbols(self) -> None:
        own = self.symbols["section"]
        ordinary = (own != UNDEFINED) & (own < FIRST_RESERVED)
        known = own < len(self.sections)
        wrong = np.where(ordinary, ~known, (own != UNDEFINED) & (own != _ABSOLUTE) & (own != _COMMON))
        sizes = np.array([section.size for section in self.sections], np.uint64)[np.where(ordinary & known, own, 0)]
        wrong |= ordinary & ((self.symbols["value"] > sizes) | (self.symbols["size"] > sizes - self.symbols["value"]))
        if wrong.any():
            index = int(np.flatnonzero(wrong)[0])
            raise MalformedObject(f"symbol {self.names[index]!r} is outside of section {own[index]}")

    def _check_relocations(self, number: int) -> None:
        section = self.sections[number]
        for table in self._relocation_tables(number):
            if table.type == _SHORT_RELOCATIONS or self.sections[table.link].type != _SYMBOLS:
                raise MalformedObject(f"relocations of section {number} without addends or symbols")
            found = _table(self.data, table, RELOCATION)
            if not len(found):
                continue
            if not section.has_bytes or section.size < _NARROWEST:
                raise MalformedObject(f"relocations in section {number}, of {section.size} bytes")
            if int(found["offset"].max()) > section.size - _NARROWEST:
                raise MalformedObject(f"a relocation beyond the {section.size} bytes of section {number}")
            if int(found["symbol"].max()) >= len(self.symbols):
                raise MalformedObject(f"a relocation by a symbol that is none of {len(self.symbols)}")


def _check_section(number: int, section: Section, count: int, size: int) -> None:
    if section.has_bytes and section.offset + section.size > size:
        raise MalformedObject(f"section {number} ends at {section.offset + section.size} in {size} bytes")
    if section.link >= count:
        raise MalformedObject(f"section {number} is linked to section {section.link} of {count}")
    if section.align & (section.align - 1) or section.align > _LARGEST_ALIGNMENT:
        raise MalformedObject(f"section {number} is aligned to {section.align} bytes")


def _table(data: memoryview, section: Section, record: np.dtype[Any]) -> npt.NDArray[Any]:
    if section.entry != record.itemsize or section.size % record.itemsize:
        raise MalformedObject(f"a table of {section.size} bytes with entries of {section.entry}, not {record.itemsize}")
    return np.frombuffer(data, record, section.size // record.itemsize, section.offset)


def _texts(data: memoryview, section: Section, starts: list[int]) -> tuple[str, ...]:
    """The texts that start at these places of a table of strings."""
    content = bytes(data[section.offset : section.offset + section.size])
    if section.type != _STRINGS or not content.endswith(b"\0"):
        raise MalformedObject("a table of names that is none")
    if max(starts, default=0) >= len(content):
        raise MalformedObject(f"a name at {max(starts)} in a table of {len(content)} bytes")
    try:
        return tuple([content[start : content.index(b"\0", start)].decode() for start in starts])
    except UnicodeDecodeError as error:
        raise MalformedObject(f"a name is no UTF-8 ({error})") from error
