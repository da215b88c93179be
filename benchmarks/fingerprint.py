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

from relayc.backend.llvm.object_file import EXECUTED, FIRST_RESERVED, UNDEFINED, ObjectFile

__all__ = ["Fingerprint", "fingerprint"]

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


def _relocations(file: ObjectFile, section: int) -> npt.NDArray[Any]:
    """The relocations of a section, by their offsets."""
    found = file.relocations(section)
    return found[np.argsort(found["offset"], kind="stable")]


def _pieces(file: ObjectFile) -> Iterator[bytes | memoryview]:
    """All that is hashed."""
    ordinals = {index: ordinal for ordinal, index in enumerate(file.loaded)}
    outside: dict[str, int] = {}
    for index in file.loaded:
        section, relocations = file.sections[index], _relocations(file, index)
        facts = section.type, section.flags, section.align, section.entry, section.size
        yield struct.pack("<6Q", *facts, len(relocations))
        yield file.content(index)
        for relocation in relocations:
            yield struct.pack("<QI", int(relocation["offset"]), int(relocation["type"]))
            yield _referent(file, int(relocation["symbol"]), int(relocation["addend"]), ordinals, outside)


def _referent(file: ObjectFile, number: int, addend: int, ordinals: dict[int, int], outside: dict[str, int]) -> bytes:
    """What a relocation refers to; `ordinals` numbers the loaded sections, `outside` the functions that are
    elsewhere."""
    symbol = file.symbols[number]
    index, value = int(symbol["section"]), int(symbol["value"])
    if index == UNDEFINED and number:
        name = file.names[number]
        known = name if _LIBRARY.fullmatch(name) else str(outside.setdefault(name, len(outside)))
        return f"outside {known} {addend};".encode()
    if index == UNDEFINED or index >= FIRST_RESERVED:
        return f"reserved {index} {value + addend};".encode()
    return f"inside {ordinals.get(index, -1)} {value + addend};".encode()


def fingerprint(code: bytes) -> Fingerprint:
    """The fingerprint of an object file. Raises `MalformedObject` for one of another format."""
    file = ObjectFile.read(code)
    digest = hashlib.sha256()
    for piece in _pieces(file):
        digest.update(piece)
    sizes = [file.sections[number].size for number in file.loaded if file.sections[number].flags & EXECUTED]
    return Fingerprint(digest.hexdigest()[:_HASH_CHARACTERS], sum(sizes))
