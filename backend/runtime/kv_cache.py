"""KV caches of decoders, which an executor keeps between runs and appends to in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.graph import Graph, GraphKVCache
from relayc.backend.runtime.ndarray import NDArray, array, copy_strided, row_bytes, zeros
from relayc.backend.runtime.sequences import Value
from relayc.backend.runtime.sizes import Size, evaluate, size_text, variables

__all__ = ["KVCaches"]

_GROWTH = 2
"""A cache that outgrows its capacity gets 1 / _GROWTH more than it needs."""


class KVCaches:
    """The KV caches of one executor. All hold the same number of rows, `length`, and have the same capacity.

    `lay_out` before a run reserves capacity for the rows that it appends; `keep` after the run commits them.
    """

    def __init__(self, graph: Graph, where: Device) -> None:
        self._graph, self._device = graph, where
        self._caches = {cache.position: cache for cache in graph.caches}
        self.arrays: dict[int, NDArray] = {}
        """what holds each cache, by position, once it is laid out"""
        self._views: list[npt.NDArray[Any] | None] = []
        self._lengths = sorted({cache.length for cache in graph.caches})
        self._added_sizes = list(dict.fromkeys(cache.added for cache in graph.caches))
        shapes = [(cache.axis, graph.tensors[graph.inputs[cache.position]].shape) for cache in graph.caches]
        others = [size for at, shape in shapes for axis, size in enumerate(shape) if axis != at]
        wanted = {name for size in (*self._added_sizes, *others) for name in variables(size)}
        self._sources = [(d, position, axis) for position, index in enumerate(graph.inputs)
                         for axis, d in enumerate(graph.tensors[index].shape)
                         if position not in self._caches and isinstance(d, str) and d in wanted]  # fmt: skip
        """size variables with an axis of another input that binds them"""
        self._is_steady = wanted.isdisjoint(self._lengths)
        """do runs on inputs of the same sizes need caches of the same sizes?"""
        self._bound: dict[str, int] | None = None
        """the sizes of inputs that the arrays have room for, `_step` rows at a time"""
        self._room = self._step = self._added = self._reserved = 0
        self.length = self._written = 0
        """rows that are valid; rows that runs have written to, more after a truncation or a run that was left"""

    def __contains__(self, position: int) -> bool:
        return position in self._caches

    def __bool__(self) -> bool:
        return bool(self._caches)

    @property
    def names(self) -> list[str]:
        """The names of the caches."""
        return [self._name(position) for position in self._caches]

    def lay_out(self, inputs: Mapping[int, Value | npt.NDArray[Any]]) -> dict[str, int]:
        """Make room for the rows that a run on the other inputs appends; returns the caches' length variables.

        Raises `ArgumentError` when the other inputs contradict the shapes of the caches.
        """
        lengths = dict.fromkeys(self._lengths, self.length)
        bound = {name: _shape_of(inputs[position])[axis] for name, position, axis in self._sources}
        if self._written > self.length:
            self._clear()
        if bound != self._bound or self.length + self._step > self._room:
            self._make_room(bound, lengths)
        self._added = self._step
        self._written = self.length + self._step
        return lengths

    def _clear(self) -> None:
        """Write zeros behind the valid rows: where a run appends fewer rows to one entry of a batch than to another,
        what is left there is read, and masked. That makes nothing of any number, but not of NaN."""
        for position, held in self.arrays.items():
            cache = self._caches[position]
            count, room = math.prod(held.shape[: cache.axis]), row_bytes(held, cache.axis)
            row = row_bytes(held, cache.axis + 1)
            begin, width = self.length * row, min(self._written * row, room) - self.length * row
            if held.shape[_entries_axis(held.shape)] > 1 and width > 0:
                nothing = zeros((count, width), "uint8", self._device)
                copy_strided(nothing, 0, width, held._create_view((count, room), "uint8"), begin, room, width, count)

    def _make_room(self, bound: dict[str, int], lengths: dict[str, int]) -> None:
        """Make room for a run on inputs of other sizes than the last run's, or on more rows."""
        self._bound, sizes = None, bound | lengths
        added = {evaluate(size, sizes) for size in self._added_sizes}
        if len(added) > 1:
            raise ArgumentError(f"model {self._graph.name!r} adds {sorted(added)} rows to its caches, not one number")
        self._step = added.pop() if added else 0
        needed = self.length + self._step
        if needed > self._room:
            self._room = needed + needed // _GROWTH if needed > self._reserved else self._reserved
        for position, cache in self._caches.items():
            shape = self._shape(cache, sizes)
            if position not in self.arrays or self.arrays[position].shape != shape:
                self.arrays[position] = self._moved(cache, shape)
        self._views = []
        if self._is_steady:
            self._bound = bound

    @property
    def views(self) -> list[npt.NDArray[Any] | None]:
        """For each input of the graph the cache in the host's memory as numpy; None for other inputs."""
        if not self._views:
            arrays = [self.arrays.get(position) for position in range(len(self._graph.inputs))]
            self._views = [None if held is None else np.asarray(held, copy=False) for held in arrays]
        return self._views

    def keep(self) -> None:
        """Commit the rows that the last run appended."""
        self.length, self._added = self.length + self._added, 0

    def reserve(self, rows: int) -> None:
        """Give the caches room for so many rows from the next run on, so that they are not moved until then."""
        if rows < 0:
            raise ArgumentError(f"caches can't have room for {rows} rows")
        self._reserved = rows
        self._room = self._room if self._room >= rows else 0

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of the rows of each cache by name; empty where nothing has run."""
        found: dict[str, npt.NDArray[Any]] = {}
        for position, held in self.arrays.items():
            cache = self._caches[position]
            found[self._name(position)] = held.numpy()[(*[slice(None)] * cache.axis, slice(self.length))].copy()
        return found

    def set(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Make the caches hold these rows, by name; none make them empty."""
        by_name = {self._name(position): position for position in self._caches}
        if values and set(values) != set(by_name):
            raise ArgumentError(
                f"model {self._graph.name!r} keeps the caches {', '.join(by_name)}; got {', '.join(values)}"
            )
        arrays: dict[int, NDArray] = {}
        lengths: set[int] = set()
        for name, passed in values.items():
            cache, value = self._caches[by_name[name]], np.asarray(passed)
            tensor = self._graph.tensors[self._graph.inputs[cache.position]]
            expected = to_numpy(tensor.dtype)
            fixed = [(axis, d) for axis, d in enumerate(tensor.shape) if isinstance(d, int)]
            if value.dtype != expected or value.ndim != len(tensor.shape) or any(value.shape[a] != d for a, d in fixed):
                rows = [cache.length if axis == cache.axis else d for axis, d in enumerate(tensor.shape)]
                raise ArgumentError(
                    f"cache {name!r} of model {self._graph.name!r}: got shape {value.shape}, dtype {value.dtype}; "
                    f"expected {tensor.dtype} in ({', '.join(map(size_text, rows))})"
                )
            lengths.add(value.shape[cache.axis])
            arrays[cache.position] = array(np.ascontiguousarray(value), self._device)
        if len(lengths) > 1:
            raise ArgumentError(f"caches of {sorted(lengths)} rows; expected one number for all")
        self.length = self._room = self._written = lengths.pop() if lengths else 0
        self.arrays, self._bound = arrays, None

    def truncate(self, length: int) -> None:
        """Keep only the first `length` rows."""
        if not 0 <= length <= self.length:
            raise ArgumentError(f"caches of {self.length} rows can't be truncated to {length}")
        self.length = length

    def reorder(self, entries: Sequence[int]) -> None:
        """Make entry i of the batch what entry `entries[i]` was; an entry may be repeated or dropped."""
        chosen, self._bound = np.array(entries, np.intp), None
        for position, before in self.arrays.items():
            cache, axis = self._caches[position], _entries_axis(before.shape)
            if cache.axis == axis or chosen.ndim != 1 or not ((chosen >= 0) & (chosen < before.shape[axis])).all():
                raise ArgumentError(
                    f"cache {self._name(position)!r} of model {self._graph.name!r}, of shape {before.shape} with rows "
                    f"along axis {cache.axis}, can't be reordered by {list(entries)}; expected those of axis {axis}"
                )
            made = zeros((*before.shape[:axis], len(chosen), *before.shape[axis + 1 :]), before.dtype, self._device)
            for outer in range(math.prod(before.shape[:axis])):
                for entry, source in enumerate(chosen.tolist()):
                    self._copy_rows(cache, before, outer * before.shape[axis] + source, made,
                                    outer * len(chosen) + entry, axis + 1)  # fmt: skip
            self.arrays[position] = made

    def _shape(self, cache: GraphKVCache, sizes: Mapping[str, int]) -> tuple[int, ...]:
        dims: Sequence[Size] = self._graph.tensors[self._graph.inputs[cache.position]].shape
        return tuple([self._room if axis == cache.axis else evaluate(d, sizes) for axis, d in enumerate(dims)])

    def _moved(self, cache: GraphKVCache, shape: tuple[int, ...]) -> NDArray:
        """Reallocate a cache with `shape` and copy its rows."""
        tensor = self._graph.tensors[self._graph.inputs[cache.position]]
        if not self.length:
            return zeros(shape, tensor.dtype, self._device)
        before = self.arrays[cache.position]
        others = [tuple(np.delete(size, cache.axis)) for size in (before.shape, shape)]
        if others[0] != others[1]:
            raise ArgumentError(
                f"cache {tensor.name!r} of model {self._graph.name!r} has {self.length} rows in a shape "
                f"{before.shape}, and the inputs require {shape}; truncate_caches() forgets them"
            )
        made = zeros(shape, tensor.dtype, self._device)
        self._copy_rows(cache, before, 0, made, 0, 0)
        return made

    def _copy_rows(
        self, cache: GraphKVCache, before: NDArray, source: int, made: NDArray, target: int, axis: int
    ) -> None:
        """Copy the rows in sub-array `source` of a cache to sub-array `target` of zeros, on their device.

        The dimensions of a sub-array are those from `axis` on.
        Behind the rows there have to be numbers: entries that end earlier than others read them, masked.
        """
        count = math.prod(made.shape[axis : cache.axis])
        wide, room = row_bytes(before, cache.axis), row_bytes(made, cache.axis)
        copy_strided(
            before._create_view((count, wide), "uint8", source * count * wide), 0, wide,
            made._create_view((count, room), "uint8", target * count * room), 0, room,
            self.length * row_bytes(made, cache.axis + 1), count,
        )  # fmt: skip

    def _name(self, position: int) -> str:
        """The name of the cache that is this input."""
        return self._graph.tensors[self._graph.inputs[position]].name


def _entries_axis(shape: tuple[int, ...]) -> int:
    """The axis of the batch: 1 of keys and values in one tensor (2, batch, heads, rows, size), else 0."""
    return 1 if len(shape) == 5 and shape[0] == 2 else 0


def _shape_of(value: Value | npt.NDArray[Any]) -> tuple[int, ...]:
    assert isinstance(value, NDArray | np.ndarray), "a sequence binds no size"
    return value.shape
