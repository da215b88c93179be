"""What an object file holds, whatever its functions are called: a hash of its machine code, and the code's size.

Hashed are the sections that are loaded (code, constants, data) and their relocations. A relocation counts by what it
refers to: the place in a section of the same file, or a function elsewhere. Functions elsewhere are numbered in the
order in which the code refers to them; those of the C library and of the compiler's runtime library keep their names,
because calling another one of them is another program. Names of symbols and sections, the table of symbols, debugging
and unwinding information are left out. Files are ELF of 64 bits, little endian, for any processor.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Fingerprint", "fingerprint"]

_SECTION = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
    ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
])  # fmt: skip
_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
                    ("size", "<u8")])  # fmt: skip
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOL_TABLE, _RELOCATIONS, _NO_BITS, _X86_UNWIND = 2, 4, 8, 0x70000001  # types of sections
_ALLOCATED, _EXECUTED = 2, 4  # flags of sections
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00  # section indices of symbols
_HASH_CHARACTERS = 24
_LIBRARY = re.compile(
    r"mem(cpy|move|set|cmp)|bcmp|malloc|free|__\w+"
    r"|(exp|exp2|expm1|log|log2|log10|log1p|pow|fmod|remainder|cbrt|hypot|erf|erfc|tgamma|lgamma|ldexp|fma"
    r"|a?(sin|cos|tan)h?|atan2|sincos|round|roundeven|rint|nearbyint|floor|ceil|trunc|fmin|fmax|sqrt)[fl]?"
)
"""Functions of the C library and of the compiler's runtime library, which no project renames."""


class Fingerprint(NamedTuple):
    """A hash of what is loaded of an object file, and the bytes of its executable sections."""

    hash: str
    size: int

    def __str__(self) -> str:
        return f"{self.hash}:{self.size}"

    @staticmethod
    def read(text: str) -> Fingerprint:
        """The fingerprint whose text this is."""
        digest, _, size = text.partition(":")
        return Fingerprint(digest, int(size))


class _Object:
    """The sections and symbols of an object file."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"no ELF file of 64 bits, little endian: it begins with {code[:6]!r}")
        (start,) = struct.unpack_from("<Q", code, 0x28)
        count, names = struct.unpack_from("<2H", code, 0x3C)
        self.code = code
        self.sections = np.frombuffer(code, _SECTION, count, start)
        self._names = self.sections[names]
        tables = [s for s in self.sections if s["type"] == _SYMBOL_TABLE]
        self.symbols = self._table(tables[0], _SYMBOL) if tables else np.zeros(0, _SYMBOL)
        self._texts = self.sections[tables[0]["link"]] if tables else None
        loaded = [i for i, section in enumerate(self.sections) if self._is_loaded(section)]
        self.ordinals = {index: ordinal for ordinal, index in enumerate(loaded)}

    def _is_loaded(self, section: Any) -> bool:
        name = self._text(self._names, int(section["name"]))
        is_unwind = section["type"] == _X86_UNWIND or name == ".eh_frame"
        return bool(section["flags"] & _ALLOCATED) and section["size"] > 0 and not is_unwind

    def _table(self, section: Any, entry: np.dtype[Any]) -> npt.NDArray[Any]:
        count = int(section["size"]) // entry.itemsize
        return np.frombuffer(self.code, entry, count, int(section["offset"]))

    def _text(self, strings: Any, at: int) -> str:
        begin = int(strings["offset"]) + at
        return self.code[begin : self.code.index(b"\0", begin)].decode()

    def content(self, section: Any) -> bytes:
        """The bytes of a section; none for one that is zero from the start."""
        begin = int(section["offset"])
        return b"" if section["type"] == _NO_BITS else self.code[begin : begin + int(section["size"])]

    def relocations(self, index: int) -> npt.NDArray[Any]:
        """The relocations of a section, by their offsets."""
        tables = [self._table(s, _RELOCATION) for s in self.sections
                  if s["type"] == _RELOCATIONS and s["info"] == index]  # fmt: skip
        found = np.concatenate(tables) if tables else np.zeros(0, _RELOCATION)
        return found[np.argsort(found["offset"], kind="stable")]

    def symbol_name(self, number: int) -> str:
        """The name of a symbol."""
        return self._text(self._texts, int(self.symbols[number]["name"]))

    def pieces(self) -> Iterator[bytes]:
        """All that is hashed."""
        outside: dict[str, int] = {}
        for index in self.ordinals:
            section, relocations = self.sections[index], self.relocations(index)
            facts = [int(section[of]) for of in ("type", "flags", "align", "entry", "size")]
            yield struct.pack("<6Q", *facts, len(relocations))
            yield self.content(section)
            for relocation in relocations:
                yield struct.pack("<QI", int(relocation["offset"]), int(relocation["type"]))
                yield self._referent(int(relocation["symbol"]), int(relocation["addend"]), outside)

    def _referent(self, number: int, addend: int, outside: dict[str, int]) -> bytes:
        """What a relocation refers to; `outside` numbers the functions that are elsewhere."""
        symbol = self.symbols[number]
        index, value = int(symbol["section"]), int(symbol["value"])
        if index == _UNDEFINED and number:
            name = self.symbol_name(number)
            known = name if _LIBRARY.fullmatch(name) else str(outside.setdefault(name, len(outside)))
            return f"outside {known} {addend};".encode()
        if index == _UNDEFINED or index >= _FIRST_RESERVED:
            return f"reserved {index} {value + addend};".encode()
        return f"inside {self.ordinals.get(index, -1)} {value + addend};".encode()


def fingerprint(code: bytes) -> Fingerprint:
    """The fingerprint of an object file. Raises ValueError for one of another format."""
    read = _Object(code)
    digest = hashlib.sha256()
    for piece in read.pieces():
        digest.update(piece)
    sizes = [int(s["size"]) for s in read.sections[list(read.ordinals)] if s["flags"] & _EXECUTED]
    return Fingerprint(digest.hexdigest()[:_HASH_CHARACTERS], sum(sizes))
