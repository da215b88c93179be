"""Values of the loop IR in numpy: memory, pointers into it, and conversions to types."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np

from relayc.te.dtype import DType

__all__ = [
    "Memory", "Pointer", "convert_array", "memory_of", "numpy_dtype", "scalar", "truncated_quotient", "typed",
    "wrapped",
]  # fmt: skip


@cache
def numpy_dtype(kind: DType) -> np.dtype[Any]:
    """The numpy type of one lane, with ml_dtypes for bfloat16, float8 and 4-bit types."""
    name = str(kind.element)
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


class Memory:
    """A run of bytes with typed views, and a flag per byte that tells whether it was written, if that is watched."""

    __slots__ = ("data", "views", "written")

    def __init__(self, data: np.ndarray, written: np.ndarray | None = None) -> None:
        self.data = data
        self.views: dict[DType, np.ndarray] = {}
        self.written = written

    def view(self, kind: DType) -> np.ndarray:
        """All of it as elements of a type."""
        found = self.views.get(kind)
        if found is None:
            dtype = numpy_dtype(kind)
            whole = self.data.size // dtype.itemsize * dtype.itemsize
            found = self.views[kind] = self.data[:whole].view(dtype)
        return found


class Pointer:
    """A place in a memory, in bytes from its start."""

    __slots__ = ("memory", "offset")

    def __init__(self, memory: Memory, offset: int = 0) -> None:
        self.memory = memory
        self.offset = offset


def memory_of(array: np.ndarray) -> Memory:
    """The memory that an array (with strides of at least one element) lies in."""
    span = 1 + sum([(n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides, strict=True)])
    if array.size == 0:
        return Memory(np.zeros(0, np.uint8))
    words = array.view(f"u{array.itemsize}")  # numpy makes no strided view of some types of ml_dtypes
    flat = np.lib.stride_tricks.as_strided(words, (span,), (array.itemsize,))
    return Memory(flat.view(np.uint8))


def wrapped(kind: DType, value: Any) -> Any:
    """The result of scalar integer arithmetic wrapped to its type; floats and vectors are returned as they are."""
    if not isinstance(value, int):
        return value
    bits = kind.bits
    if kind.is_int:
        half = 1 << (bits - 1)
        return value if -half <= value < half else ((value + half) & ((1 << bits) - 1)) - half
    return value & ((1 << bits) - 1) if kind.is_uint else value


def scalar(kind: DType, value: Any) -> Any:
    """A number as a scalar of a type: floats truncate to integers, integers wrap, bool is `!= 0`."""
    if kind.is_bool:
        return bool(value)
    if kind.is_integral:
        if isinstance(value, int):
            return wrapped(kind, value)
        exact = float(value) if not isinstance(value, np.integer) else value
        return wrapped(kind, int(exact)) if np.isfinite(exact) else kind.min_value()
    if not kind.is_float or (isinstance(value, np.generic) and value.dtype == numpy_dtype(kind)):
        return value
    return convert_array(np.asarray(value), kind)[()]


def typed(kind: DType, value: Any) -> Any:
    """A number as a numpy scalar of a type; arrays, pointers and strings are returned as they are."""
    return value if isinstance(value, np.ndarray | Pointer | str) else np.asarray(value).astype(numpy_dtype(kind))[()]


def convert_array(value: np.ndarray, kind: DType) -> np.ndarray:
    """An array converted as `Cast` does it. A float64 is rounded once, where `ml_dtypes` rounds to float32 first."""
    if kind.is_bool:
        return value != 0
    if value.dtype == np.float64 and kind.is_float and kind.bits <= 16:
        value = _round_to_odd(value)
    return value.astype(numpy_dtype(kind))


def _round_to_odd(value: np.ndarray) -> np.ndarray:
    """float64 to float32 rounded to odd: an inexact result ends in a 1 bit, so that a second rounding is correct."""
    single = np.asarray(value.astype(np.float32))
    bits, back = single.view(np.int32), single.astype(np.float64)
    step = np.where(np.abs(back) < np.abs(value), 1, -1)
    inexact = (back != value) & ~np.isnan(value)
    return np.where(inexact & (bits & 1 == 0), bits + step, bits).astype(np.int32).view(np.float32)


def truncated_quotient(a: Any, b: Any) -> Any:
    """The quotient of integers rounded towards zero."""
    if isinstance(a, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    floor = a // b
    return floor + ((a % b != 0) & ((a < 0) != (b < 0)))
