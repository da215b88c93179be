"""Constants whose values stay in the file of a model until they are needed.

A model of gigabytes is compiled weight by weight: packing a weight fetches it and releases it afterwards. Any other use
fetches the values once and keeps them. Weights multiplied by factors, dequantised, or in a larger type, are such
constants too: they are computed while they are fetched, and take no memory of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayc.relay.arrays import Arena
from relayc.relay.expr import Constant, numpy_dtype_name
from relayc.relay.type import TensorType
from relayc.te.ir import Span

__all__ = ["StoredConstant", "fetched", "place_of"]

Array = np.ndarray[Any, Any]
Fill = Callable[[Array, int], None]
"""Writes the values from a certain element on into an array in C order.

Raises CompileError if they are not available.
"""


class StoredConstant(Constant):
    """A constant whose values `fill` writes; `axes` permutes the dimensions of the stored `shape`.

    `fetch` reads some rows at a time, along the first stored dimension; `data` fetches all values and keeps them until
    `release`.
    """

    __slots__ = ("_axes", "_data", "_fill", "_form")

    def __init__(
        self, shape: Sequence[int], dtype: np.dtype[Any], fill: Fill, axes: Sequence[int] | None = None, *,
        span: Span | None = None,
    ) -> None:  # fmt: skip
        self._form, self._fill = (tuple(shape), dtype), fill
        self._axes = tuple(range(len(shape))) if axes is None else tuple(axes)
        self._data: Array | None = None
        self.span = span  # type: ignore[misc]
        self.ty = TensorType(tuple([shape[a] for a in self._axes]), numpy_dtype_name(dtype))  # type: ignore[misc]

    @property
    def data(self) -> Array:  # type: ignore[override]
        """The values, which are kept from now on."""
        found = self._data
        if found is None:
            stored = Arena(self.nbytes).empty(*self._form)
            self._fill(stored, 0)
            found = stored.transpose(self._axes)
            found.flags.writeable = False
            self._data = found
        return found

    @property
    def is_loaded(self) -> bool:
        """Are the values in memory?"""
        return self._data is not None

    @property
    def is_in_order(self) -> bool:
        """Are the values stored in the order of the dimensions?"""
        return self._axes == tuple(range(len(self._axes)))

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        shape, dtype = self._form
        return math.prod(shape) * dtype.itemsize

    @property
    def place(self) -> Hashable:
        """The source and the layout of the values: equal for constants of the same values."""
        return self._fill, self._form, self._axes

    @property
    def rows(self) -> int:
        """The number of rows that can be fetched."""
        return self._form[0][0]

    def blank(self) -> Array:
        """An array with the shape and strides of `data`, in memory that is never touched."""
        return np.empty(*self._form).transpose(self._axes)

    def fetch(self, memory: Array, begin: int, end: int) -> None:
        """Write the rows from `begin` to `end` into memory, uint8 of their size, as they are stored."""
        shape, dtype = self._form
        rows = memory.view(dtype).reshape(end - begin, *shape[1:])
        self._fill(rows, begin * math.prod(shape[1:]))

    def release(self) -> None:
        """Drop the values; the next use fetches them again. Arrays handed out before stay valid."""
        self._data = None

    def transposed(self, axes: Sequence[int]) -> StoredConstant:
        """The constant with the dimensions in another order; nothing is fetched."""
        order = [self._axes[a] for a in axes]
        return StoredConstant(*self._form, self._fill, order, span=self.span)

    @staticmethod
    def concatenated(parts: Sequence[StoredConstant]) -> StoredConstant | None:
        """Constants of equal shapes but for the first dimension, concatenated along it; None if they are stored
        differently."""
        first = parts[0]
        if any(part._axes != first._axes or part._form[1] != first._form[1] for part in parts):
            return None
        along, lengths = first._axes[0], [part._form[0][first._axes[0]] for part in parts]

        def fill_below_each_other(array: Array, start: int) -> None:
            begin = -(start // row_size)
            for part, length in zip(parts, lengths, strict=True):
                some = slice(max(begin, 0), max(begin + length, 0))
                if len(array[some]):
                    part._fill(array[some], (some.start - begin) * row_size)
                begin += length

        def fill_side_by_side(array: Array, start: int) -> None:
            begin = 0
            for part, length in zip(parts, lengths, strict=True):
                into = array[(*[slice(None)] * along, slice(begin, begin + length))]
                values = np.empty(into.shape, into.dtype)
                part._fill(values, start // row_size * math.prod(into.shape[1:]))
                into[...] = values
                begin += length

        shape = [*first._form[0]]
        shape[along] = sum(lengths)
        row_size = math.prod(shape[1:])
        fill = fill_side_by_side if along else fill_below_each_other
        return StoredConstant(shape, first._form[1], fill, first._axes, span=first.span)

    @staticmethod
    def scaled(weight: Constant, factors: Array, axis: int) -> StoredConstant:
        """`weight` times `factors`, one for each index of dimension `axis`, rounded once to the type of `weight`."""
        dtype = weight._form[1] if isinstance(weight, StoredConstant) else weight.data.dtype
        return StoredConstant._computed(weight, dtype, _multiply, [factors], axis)

    @staticmethod
    def dequantized(codes: Constant, scale: Array, zero_point: Array, axis: int) -> StoredConstant:
        """(codes - zero point) * scale in float32, with one scale and zero point, or one for each index of `axis`."""
        return StoredConstant._computed(codes, np.dtype(np.float32), _dequantize, [scale, zero_point], axis)

    @staticmethod
    def _computed(
        source: Constant, dtype: np.dtype[Any], compute: Callable[..., None], parameters: Sequence[Array], axis: int
    ) -> StoredConstant:
        """The constant whose values ``compute(values of source, *parameters, out)`` writes.

        A parameter has one value, or one for each index of dimension `axis`.
        """
        stored = source if isinstance(source, StoredConstant) and not source.is_loaded else None
        shape, axes = (source.data.shape, None) if stored is None else (stored._form[0], stored._axes)
        along = axis if axes is None else axes[axis]
        row_elements = max(math.prod(shape[1:]), 1)
        laid = [p.reshape([-1 if a == along else 1 for a in range(len(shape))]) for p in parameters]

        def fill(array: Array, start: int) -> None:
            rows = slice(start // row_elements, start // row_elements + len(array))
            if stored is None:
                values = source.data[rows]
            else:
                values = array if stored._form[1] == array.dtype else np.empty(array.shape, stored._form[1])
                stored._fill(values, start)
            compute(values, *[p[rows] if along == 0 and p.size > 1 else p for p in laid], array)

        return StoredConstant(shape, dtype, fill, axes, span=source.span)

    @staticmethod
    def widened(constant: Constant, dtype: np.dtype[Any]) -> StoredConstant:
        """`constant` in a larger type, which holds all values of its own."""
        stored = constant if isinstance(constant, StoredConstant) else None
        shape, axes = (constant.data.shape, None) if stored is None else (stored._form[0], stored._axes)
        return StoredConstant(shape, dtype, _Widened(place_of(constant), constant), axes, span=constant.span)

    @staticmethod
    def packed(
        source: StoredConstant, shape: Sequence[int], dtype: np.dtype[Any], group: int, pack: Callable[[Array], Array]
    ) -> StoredConstant:
        """The constant whose rows ``pack(rows of source)`` computes, each of `group` consecutive ones or of what is
        left; the source is stored as it is read, in rows along the first dimension."""
        assert source.is_in_order, "the source is stored in another order"
        return StoredConstant(shape, dtype, _Packed((source.place, group, pack), source), span=source.span)

    def replace(self, **changes: Any) -> Constant:
        """A plain constant with some fields changed."""
        return Constant(changes.get("data", self.data), span=changes.get("span", self.span))

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.data, self.span)


@dataclass(frozen=True, slots=True)
class _Widened:
    """Fills an array with the values of a constant of a smaller type. Equal for equal places."""

    place: Hashable
    source: Constant = field(compare=False)

    def __call__(self, array: Array, start: int) -> None:
        if isinstance(self.source, StoredConstant):
            values = np.empty(array.shape, self.source._form[1])
            self.source._fill(values, start)
        else:
            begin = start // max(math.prod(array.shape[1:]), 1)
            values = self.source.data[begin : begin + len(array)]
        array[...] = values


@dataclass(frozen=True, slots=True)
class _Packed:
    """Fills an array with packed groups of rows of a stored constant. Equal for equal places, groups and functions."""

    key: tuple[Hashable, int, Callable[[Array], Array]]
    source: StoredConstant = field(compare=False)

    def __call__(self, array: Array, start: int) -> None:
        _, group, pack = self.key
        begin = start // max(math.prod(array.shape[1:]), 1) * group
        end = min(begin + len(array) * group, self.source.rows)
        if begin < end:
            shape, dtype = self.source._form
            rows = np.empty((end - begin, *shape[1:]), dtype)
            self.source._fill(rows, begin * math.prod(shape[1:]))
            array[...] = pack(rows)


def fetched(constant: Constant) -> Array:
    """The values of a constant that is not needed afterwards: of a stored one they are not kept."""
    values = constant.data
    if isinstance(constant, StoredConstant):
        constant.release()
    return values


def place_of(constant: Constant) -> Hashable:
    """The source and the order of the values: constants of equal places, while they live, are the same tensor."""
    if isinstance(constant, StoredConstant):
        return constant.place
    array = constant.data
    return array.__array_interface__["data"][0], array.dtype.str, array.shape, array.strides


def _multiply(a: Array, b: Array, out: Array) -> None:
    if a.dtype == b.dtype:
        np.multiply(a, b, out=out)  # the nearest value to the product, as float64 would give; four times as fast
    else:
        np.multiply(a, b, out=out, dtype=np.float64, casting="unsafe")


def _dequantize(codes: Array, scale: Array, zero_point: Array, out: Array) -> None:
    out[...] = codes
    if zero_point.any():
        out -= zero_point.astype(np.float32)
    out *= scale


def _loaded(data: Array, span: Span | None) -> Constant:
    return Constant(data, span=span)
