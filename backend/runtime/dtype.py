"""Element types of the runtime: names, numpy types and DLPack triples.

A dtype is a string, named as in numpy and TVM, with `x<lanes>` appended for vectors: "float32", "bool", "bfloat16",
"float8_e4m3fn", "int4", "float32x4".

Sub-byte types (int4, uint4, int2, uint2, float4_e2m1fn) are stored padded, one element per byte in its low bits: in
numpy (`ml_dtypes`), in an `NDArray` and in compiled code. ONNX, and DLPack without the padded flag, pack several into
a byte, the first in the lowest bits; `unpack` unpacks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.errors import ArgumentError

__all__ = [
    "DTypeName", "DataType", "data_type", "dtype_name", "dtype_of", "from_dlpack_triple", "from_numpy", "nbytes",
    "to_numpy", "unpack",
]  # fmt: skip

_INT, _UINT, _FLOAT, _HANDLE, _BFLOAT, _BOOL = 0, 1, 2, 3, 4, 6  # DLDataTypeCode
_ML_DTYPES = None
"""In place of a numpy type: the one of that name in `ml_dtypes`, whose import of 5 ms most models do without."""
_SCALARS: dict[str, tuple[int, int, Any]] = {  # name: (DLPack code, bits, numpy type)
    "bool": (_BOOL, 8, np.bool_),
    "int2": (_INT, 2, _ML_DTYPES),
    "int4": (_INT, 4, _ML_DTYPES),
    "int8": (_INT, 8, np.int8),
    "int16": (_INT, 16, np.int16),
    "int32": (_INT, 32, np.int32),
    "int64": (_INT, 64, np.int64),
    "uint2": (_UINT, 2, _ML_DTYPES),
    "uint4": (_UINT, 4, _ML_DTYPES),
    "uint8": (_UINT, 8, np.uint8),
    "uint16": (_UINT, 16, np.uint16),
    "uint32": (_UINT, 32, np.uint32),
    "uint64": (_UINT, 64, np.uint64),
    "float16": (_FLOAT, 16, np.float16),
    "float32": (_FLOAT, 32, np.float32),
    "float64": (_FLOAT, 64, np.float64),
    "bfloat16": (_BFLOAT, 16, _ML_DTYPES),
    "float8_e4m3fn": (10, 8, _ML_DTYPES),
    "float8_e4m3fnuz": (11, 8, _ML_DTYPES),
    "float8_e5m2": (12, 8, _ML_DTYPES),
    "float8_e5m2fnuz": (13, 8, _ML_DTYPES),
    "float8_e8m0fnu": (14, 8, _ML_DTYPES),
    "float4_e2m1fn": (17, 4, _ML_DTYPES),
    "handle": (_HANDLE, 64, np.uint64),
}
_NAMES_BY_CODE = {(code, bits): name for name, (code, bits, _) in _SCALARS.items()}
_NAMES_BY_NUMPY = {
    np.dtype(scalar): name for name, (_, _, scalar) in _SCALARS.items() if scalar is not _ML_DTYPES and name != "handle"
}
_VECTOR = re.compile(r"(.+?)x([1-9]\d{0,4})")


class DTypeName(str):
    """A dtype's name that also equals numpy's types of that name: `array.dtype == np.float32`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        found = _numpy_type(other) if isinstance(other, type | np.dtype) else None
        return found is not None and str.__eq__(self, _name_of(found) or "")

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_name, (str(self),)


@cache
def dtype_name(name: str) -> DTypeName:
    """The `DTypeName` of a dtype, one object for each name."""
    return DTypeName(name)


def _numpy_type(of: type | np.dtype[Any]) -> np.dtype[Any] | None:
    """The numpy dtype that a type stands for; None if there is none."""
    try:
        return np.dtype(of)
    except TypeError:
        return None


def _name_of(dtype: np.dtype[Any]) -> str | None:
    """The name of a numpy dtype of the machine's byte order; None where the runtime lacks it."""
    found = _NAMES_BY_NUMPY.get(dtype)
    if found is None and dtype.type.__module__ == "ml_dtypes" and dtype.name in _SCALARS:
        return dtype.name
    return found


@dataclass(frozen=True, slots=True)
class DataType:
    """One dtype: DLPack's (code, bits, lanes) and the numpy type of a lane.

    `bits` is the width of one lane (8 for bool), `numpy` the type of one lane.
    """

    name: str
    code: int
    bits: int
    lanes: int
    numpy: np.dtype[Any]

    @property
    def rank(self) -> int:
        """0 for bool, 1 for integers, 2 for floats; converting to a type of lower rank loses values."""
        return {_BOOL: 0, _INT: 1, _UINT: 1}.get(self.code, 2)

    @property
    def is_subbyte(self) -> bool:
        """True for types of less than a byte, which are stored one per byte."""
        return self.bits < 8


@cache
def data_type(name: str) -> DataType:
    """The `DataType` named `name`. Raises `ArgumentError` for an unknown name."""
    scalar, lanes = name, 1
    vector = _VECTOR.fullmatch(name)
    if vector is not None and name not in _SCALARS:
        scalar, lanes = vector[1], int(vector[2])
    if scalar not in _SCALARS or (vector is not None and lanes == 1):
        raise ArgumentError(f"unknown dtype {name!r}; known are {', '.join(_SCALARS)}, and vectors such as float32x4")
    code, bits, numpy_type = _SCALARS[scalar]
    if numpy_type is _ML_DTYPES:
        numpy_type = getattr(import_module("ml_dtypes"), scalar)
    return DataType(name, code, bits, lanes, np.dtype(numpy_type))


def from_dlpack_triple(code: int, bits: int, lanes: int) -> str:
    """The dtype of a DLPack (code, bits, lanes). Raises `ArgumentError` when the runtime has no such type."""
    scalar = _NAMES_BY_CODE.get((code, bits))
    if scalar is None or lanes < 1:
        raise ArgumentError(f"DLPack dtype (code={code}, bits={bits}, lanes={lanes}) is not one the runtime has")
    return scalar if lanes == 1 else f"{scalar}x{lanes}"


def to_numpy(name: str) -> np.dtype[Any]:
    """The numpy type of one lane of `name`. Raises `ArgumentError` for an unknown name."""
    return data_type(name).numpy


def from_numpy(dtype: npt.DTypeLike) -> str:
    """The name of a numpy dtype of any byte order. Raises `ArgumentError` for one the runtime lacks."""
    known = dtype_of(dtype)
    found = _name_of(known.newbyteorder("="))
    if found is None:
        raise ArgumentError(f"numpy dtype {known} has no counterpart; known are {', '.join(_SCALARS)}")
    return found


def dtype_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """numpy's dtype of what numpy or `ml_dtypes` takes for one, such as "bfloat16"."""
    is_name = isinstance(dtype, str) and dtype in _SCALARS and _SCALARS[dtype][2] is _ML_DTYPES
    return to_numpy(str(dtype)) if is_name else np.dtype(dtype)


def nbytes(name: str, count: int) -> int:
    """Bytes of `count` contiguous elements of dtype `name`."""
    info = data_type(name)
    return count * info.lanes * info.numpy.itemsize


def unpack(packed: npt.NDArray[np.uint8], name: str, count: int) -> npt.NDArray[Any]:
    """The `count` elements of the sub-byte dtype `name` in `packed` bytes, as a flat array of its `ml_dtypes` type."""
    info = data_type(name)
    per_byte = 8 // info.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * info.bits
    codes = (packed.reshape(-1, 1) >> shifts) & ((1 << info.bits) - 1)
    return codes.astype(np.uint8).reshape(-1)[:count].view(info.numpy)
