"""Data types of the compiler: interned strings that know their parts.

A `DType` *is* a string (`x.dtype == "float32"` holds), named as in numpy and TVM, with `x<lanes>` appended for vectors:
``"float32"``, ``"int8x16"``, ``"bool"``, ``"handle"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from relayc.te.errors import DTypeError

__all__ = ["BOOL", "FLOAT32", "HANDLE", "INT32", "INT64", "DType", "dtype"]

_NAME = re.compile(r"(bool|handle|void|string|bfloat|float|uint|int)(\d+)?(_[a-z0-9]+?)?(?:x(\d+))?")
_FIXED_BITS = {"bool": 1, "handle": 64, "void": 0, "string": 64}
_FLOAT8 = {"_e4m3fn", "_e4m3fnuz", "_e5m2", "_e5m2fnuz", "_e8m0fnu"}
_WIDTHS = {
    "int": {2, 4, 8, 16, 32, 64},
    "uint": {2, 4, 8, 16, 32, 64},
    "float": {4, 8, 16, 32, 64},
    "bfloat": {16},
}


class DType(str):
    """One scalar or vector element type. Make it with `dtype`; equal names are the same object.

    Attributes: `code` ("bool", "int", "uint", "float", "bfloat", "handle", "void", "string"), `bits` of one lane,
    `lanes`, `variant` ("" or the minifloat layout, such as "_e4m3fn").
    """

    __slots__ = ("bits", "code", "is_bool", "is_float", "is_int", "is_uint", "lanes", "variant")

    code: str
    bits: int
    lanes: int
    variant: str
    is_float: bool
    is_int: bool
    is_uint: bool
    is_bool: bool

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """Copied and pickled by name, so that equal names stay the same object."""
        return dtype, (str(self),)

    @property
    def is_integral(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.is_int or self.is_uint

    @property
    def is_handle(self) -> bool:
        return self.code == "handle"

    @property
    def element(self) -> DType:
        """The type of one lane."""
        return self if self.lanes == 1 else self.with_lanes(1)

    @property
    def nbytes(self) -> int:
        """Bytes of storage of one value, all lanes; sub-byte types are rounded up."""
        return max(1, (self.bits * self.lanes + 7) // 8)

    def with_lanes(self, lanes: int) -> DType:
        """This element type with `lanes` lanes."""
        if lanes == self.lanes:
            return self
        found = _vectors.get((self, lanes))
        if found is None:
            scalar = str(self) if self.lanes == 1 else str(self).rsplit("x", 1)[0]
            found = _vectors[self, lanes] = dtype(scalar if lanes == 1 else f"{scalar}x{lanes}")
        return found

    def min_value(self) -> int:
        """Smallest value of an integer or bool type."""
        return -(1 << (self.bits - 1)) if self.is_int else 0

    def max_value(self) -> int:
        """Largest value of an integer or bool type."""
        return (1 << (self.bits - (1 if self.is_int else 0))) - 1


_interned: dict[str, DType] = {}
_vectors: dict[tuple[DType, int], DType] = {}


def dtype(name: str) -> DType:
    """The `DType` of this name.

    Raises `DTypeError` for a name of no type, and for what is no name.
    """
    if not isinstance(name, str):
        raise DTypeError(f"a dtype is given as {name!r}; expected a name such as 'float32'")
    found = _interned.get(name)
    return found if found is not None else _interned.setdefault(name, _parse(name))


def _parse(name: str) -> DType:
    match = _NAME.fullmatch(name)
    if match is None:
        raise DTypeError(f"unknown dtype {name!r}; examples: float32, int64, uint8, bool, bfloat16, float8_e4m3fn")
    code, bits, variant, lanes = match[1], match[2], match[3] or "", match[4]
    if code in _FIXED_BITS:
        if bits is not None or variant:
            raise DTypeError(f"unknown dtype {name!r}: {code} takes no width")
        width = _FIXED_BITS[code]
    else:
        width = int(bits or 0)
        if width not in _WIDTHS[code] or not _variant_fits(code, width, variant):
            raise DTypeError(f"unknown dtype {name!r}: no such width for {code}")
    result = DType(name)
    result.code, result.bits, result.variant = code, width, variant
    result.lanes = int(lanes) if lanes else 1
    result.is_float = code in ("float", "bfloat")
    result.is_int, result.is_uint, result.is_bool = code == "int", code == "uint", code == "bool"
    return result


def _variant_fits(code: str, width: int, variant: str) -> bool:
    if code != "float":
        return variant == ""
    if width == 8:
        return variant in _FLOAT8
    if width == 4:
        return variant == "_e2m1fn"
    return variant == ""


BOOL = dtype("bool")
INT32 = dtype("int32")
INT64 = dtype("int64")
FLOAT32 = dtype("float32")
HANDLE = dtype("handle")
