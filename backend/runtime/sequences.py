"""Runtime sequences and optional values: persistent sequences of array references.

A sequence is immutable. Appending is nevertheless amortised constant time: versions of a sequence share one store, and
the newest version extends it in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArgumentError, SizeMismatchError
from relayc.backend.runtime.execution_plan import SequenceStep
from relayc.backend.runtime.ndarray import NDArray, array, copy_strided, empty, row_bytes

__all__ = ["ArraySequence", "Value", "joined", "run_sequence_action"]


class ArraySequence:
    """An immutable sequence of arrays, or of such sequences.

    It is a window on a store shared by several versions: dropping an element at either end makes a smaller window,
    appending to the version at the end of the store extends the store. All other changes copy the references, and so
    does a window of less than half of its store, so that dropped elements are freed.

    A sequence may be made of a `stack` of its elements, which are copied only when it changes or is iterated over.
    """

    __slots__ = ("_elements", "_start", "_stop", "stack")

    def __init__(self, items: Sequence[Value] = ()) -> None:
        self._elements: list[Value] = list(items)
        self.stack: NDArray | None = None
        self._start, self._stop = 0, len(self._elements)

    @staticmethod
    def of_stack(stack: NDArray) -> ArraySequence:
        """The slices of an array along its first axis."""
        made = ArraySequence()
        made.stack, made._stop = stack, stack.shape[0]
        return made

    @property
    def _store(self) -> list[Value]:
        if self.stack is not None:
            parts = _parts(self.stack, [1] * len(self), 0, self.stack.device)
            self._elements = [part._create_view(part.shape[1:]) for part in parts]
            self.stack = None
        return self._elements

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> Value:
        """The element at a non-negative position."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self.stack is not None:
            return self.stack._create_view(self.stack.shape[1:], None, index * row_bytes(self.stack, 1))
        return self._store[self._start + index]

    def __iter__(self) -> Iterator[Value]:
        return (self._store[i] for i in range(self._start, self._stop))

    def inserted(self, index: int, item: Value) -> ArraySequence:
        """The sequence with `item` inserted before position `index`, 0 to the length."""
        if index == len(self) and self._stop == len(self._store):
            self._store.append(item)
            return self._window(self._start, self._stop + 1)
        items = self._store[self._start : self._stop]
        items.insert(index, item)
        return ArraySequence(items)

    def erased(self, index: int) -> ArraySequence:
        """The sequence without the element at position `index`, 0 to the length - 1."""
        if index == 0:
            return self._window(self._start + 1, self._stop)
        if index == len(self) - 1:
            return self._window(self._start, self._stop - 1)
        items = self._store[self._start : self._stop]
        del items[index]
        return ArraySequence(items)

    def _window(self, start: int, stop: int) -> ArraySequence:
        if 2 * (stop - start) < len(self._store):
            return ArraySequence(self._store[start:stop])
        made = ArraySequence()
        made._elements, made._start, made._stop = self._store, start, stop
        return made


Value = NDArray | ArraySequence
"""Runtime value: an array, or a sequence; an optional value is a sequence of at most one element."""

Read = Callable[[int], Value]


def run_sequence_action(step: SequenceStep, read: Read, where: Device) -> Value:
    """The result of one sequence operation. Raises `ArgumentError` for invalid positions, sizes or shapes."""
    values = [read(i) for i in step.inputs]
    return _ACTIONS[step.action](step, values, where)


def _make(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    return ArraySequence(values)


def _insert(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    items, value, *position = values
    return items.inserted(_position(step, items, position, len(items), len(items)), value)


def _erase(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    items, *position = values
    return items.erased(_position(step, items, position, len(items) - 1, len(items) - 1))


def _item(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    items, *position = values
    return items[_position(step, items, position, len(items) - 1, len(items) - 1)]


def _get(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    if not values[0]:
        raise ArgumentError(f"{step.source}: the optional value has no element; expected one")
    return values[0][0]


def _length(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    return array(np.array(len(values[0]), np.int64), where)


def _join(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    if not len(values[0]):
        raise ArgumentError(f"{step.source}: the sequence is empty; expected at least one element")
    if step.new_axis and step.axis == 0 and values[0].stack is not None:
        return values[0].stack
    parts: list[NDArray] = list(values[0])
    shapes = dict.fromkeys(p.shape for p in parts)
    least = step.axis if step.new_axis else step.axis + 1
    if min(map(len, shapes)) < least:
        listed = ", ".join(map(str, shapes))
        raise SizeMismatchError(f"{step.source}: elements of shapes {listed}; expected {least} or more dimensions")
    if len({shape if step.new_axis else (*shape[: step.axis], *shape[step.axis + 1 :]) for shape in shapes}) != 1:
        listed = ", ".join(map(str, shapes))
        raise SizeMismatchError(f"{step.source}: elements of shapes {listed}; expected shapes that fit along one axis")
    return joined(parts, step.axis, where, new_axis=step.new_axis)


def _cut(step: SequenceStep, values: Sequence[Any], where: Device) -> Value:
    x: NDArray = values[0]
    extent = x.shape[step.axis]
    if len(values) == 1 or values[1].ndim == 0:
        size = 1 if len(values) == 1 else int(values[1].numpy())
        if size < 1:
            raise ArgumentError(f"{step.source}: parts of {size} elements; expected 1 or more")
        if step.axis == 0 and extent % size == 0:
            return ArraySequence.of_stack(x if step.new_axis else x._create_view((extent // size, size, *x.shape[1:])))
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = values[1].numpy().tolist()
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise ArgumentError(
                f"{step.source}: parts of {_few(sizes)} of axis {step.axis} of shape {x.shape}; "
                f"expected sizes that add up to {extent}"
            )
    parts = _parts(x, sizes, step.axis, where)
    if step.new_axis:
        parts = [p._create_view((*p.shape[: step.axis], *p.shape[step.axis + 1 :])) for p in parts]
    return ArraySequence(parts)


_ACTIONS: dict[str, Callable[[SequenceStep, Sequence[Any], Device], Value]] = {
    "make": _make,
    "insert": _insert,
    "erase": _erase,
    "item": _item,
    "get": _get,
    "length": _length,
    "join": _join,
    "cut": _cut,
}


def _few(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) <= 8 else f"[{', '.join(map(str, numbers[:8]))}, ...]"


def _position(step: SequenceStep, items: ArraySequence, passed: Sequence[NDArray], default: int, last: int) -> int:
    """The normalised, non-negative position of an operand; `default` without one."""
    at = passed[0].first() if passed else default
    count = len(items)
    if not -count <= at <= last or (at < 0 and not count):
        place = f"position {at} in" if passed else "the last element of"
        expected = f"a position from {-count} to {last}" if last >= 0 else "a sequence with elements"
        raise ArgumentError(f"{step.source}: {place} a sequence of {count}; expected {expected}")
    return at if at >= 0 else at + count


# copying bytes ------------------------------------------------------------------------------------------------------


def joined(parts: Sequence[NDArray], axis: int, where: Device, new_axis: bool = False) -> NDArray:
    """Concatenate arrays along an axis, or stack them along a new one with `new_axis`.

    There is at least one array, and all other dimensions are equal.
    """
    lead, rest = parts[0].shape[:axis], parts[0].shape[axis if new_axis else axis + 1 :]
    extent = len(parts) if new_axis else sum(p.shape[axis] for p in parts)
    whole = empty((*lead, extent, *rest), parts[0].dtype, where)
    row, at = row_bytes(whole, axis), 0
    for part in parts:
        width = row_bytes(part, axis)
        copy_strided(part, 0, width, whole, at, row, width, math.prod(lead))
        at += width
    return whole


def _parts(x: NDArray, sizes: Sequence[int], axis: int, where: Device) -> list[NDArray]:
    """Split an array along an axis into copies."""
    found: list[NDArray] = []
    at = 0
    for size in sizes:
        part = empty((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype, where)
        width = row_bytes(part, axis)
        copy_strided(x, at, row_bytes(x, axis), part, 0, width, width, math.prod(x.shape[:axis]))
        at += width
        found.append(part)
    return found
