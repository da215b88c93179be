"""KV caches of decoders, which an executor keeps between runs and appends to in place."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.graph import Graph, GraphKVCache
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.sequences import Value
from relayc.backend.runtime.sizes import Size, evaluate, variables

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
        self._arrays: dict[int, NDArray] = {}
        self._lengths = sorted({cache.length for cache in graph.caches})
        self._added_sizes = list(dict.fromkeys(cache.added for cache in graph.caches))
        shapes = [graph.tensors[graph.inputs[cache.position]].shape for cache in graph.caches]
        self._variables = sorted({name for shape in shapes for d in shape for name in variables(d)})
        wanted = {*self._variables, *[name for size in self._added_sizes for name in variables(size)]}
        self._sources = [(d, position, axis) for position, index in enumerate(graph.inputs)
                         for axis, d in enumerate(graph.tensors[index].shape)
                         if position not in self._caches and isinstance(d, str) and d in wanted]  # fmt: skip
        """size variables with an axis of another input that binds them"""
        self._laid_out: list[int | None] | None = None
        """the capacity and the sizes of the arrays"""
        self._room = self._added = 0
        self.length = 0

    def __contains__(self, position: int) -> bool:
        return position in self._caches

    def __bool__(self) -> bool:
        return bool(self._caches)

    def lay_out(self, inputs: MutableMapping[int, Value]) -> dict[str, int]:
        """Insert the caches into the inputs of the next run; returns their length variables.

        Raises `ArgumentError` when the other inputs contradict the shapes of the caches.
        """
        lengths = dict.fromkeys(self._lengths, self.length)
        sizes = {name: _shape_of(inputs[position])[axis] for name, position, axis in self._sources} | lengths
        added = {evaluate(size, sizes) for size in self._added_sizes}
        if len(added) > 1:
            raise ArgumentError(f"model {self._graph.name!r} adds {sorted(added)} rows to its caches, not one number")
        self._added = added.pop() if added else 0
        needed = self.length + self._added
        grows = needed > self._room
        self._room = needed + needed // _GROWTH if grows else self._room
        wanted = [self._room, *[sizes.get(name) for name in self._variables]]
        if wanted != self._laid_out:
            for position, cache in self._caches.items():
                shape = self._shape(cache, sizes)
                if position not in self._arrays or self._arrays[position].shape != shape:
                    self._arrays[position] = self._moved(cache, shape)
            self._laid_out = wanted
        inputs.update(self._arrays)
        return lengths

    def keep(self) -> None:
        """Commit the rows that the last run appended."""
        self.length, self._added = self.length + self._added, 0

    def truncate(self, length: int) -> None:
        """Keep only the first `length` rows."""
        if not 0 <= length <= self.length:
            raise ArgumentError(f"caches of {self.length} rows can't be truncated to {length}")
        self.length = length

    def reorder(self, entries: Sequence[int]) -> None:
        """Make entry i of the batch what entry `entries[i]` was; an entry may be repeated or dropped."""
        chosen, self._laid_out = np.array(entries, np.intp), None
        for position, before in self._arrays.items():
            cache = self._caches[position]
            if cache.axis == 0 or chosen.ndim != 1 or not ((chosen >= 0) & (chosen < before.shape[0])).all():
                name = self._graph.tensors[self._graph.inputs[position]].name
                raise ArgumentError(
                    f"cache {name!r} of model {self._graph.name!r}, of shape {before.shape} with rows along axis "
                    f"{cache.axis}, can't be reordered by {list(entries)}; expected entries along axis 0"
                )
            after = empty((len(chosen), *before.shape[1:]), before.dtype, self._device)
            rows = (*[slice(None)] * cache.axis, slice(0, self.length))
            _seen(after)[rows] = _seen(before)[rows][chosen]
            self._arrays[position] = after

    def _shape(self, cache: GraphKVCache, sizes: Mapping[str, int]) -> tuple[int, ...]:
        dims: Sequence[Size] = self._graph.tensors[self._graph.inputs[cache.position]].shape
        return tuple([self._room if axis == cache.axis else evaluate(d, sizes) for axis, d in enumerate(dims)])

    def _moved(self, cache: GraphKVCache, shape: tuple[int, ...]) -> NDArray:
        """Reallocate a cache with `shape` and copy its rows."""
        tensor = self._graph.tensors[self._graph.inputs[cache.position]]
        array = empty(shape, tensor.dtype, self._device)
        if not self.length:
            return array
        before = self._arrays[cache.position]
        others = [tuple(np.delete(a.shape, cache.axis)) for a in (before, array)]
        if others[0] != others[1]:
            raise ArgumentError(
                f"cache {tensor.name!r} of model {self._graph.name!r} has {self.length} rows in a shape "
                f"{before.shape}, and the inputs require {shape}; truncate_caches() forgets them"
            )
        rows = (*[slice(None)] * cache.axis, slice(0, self.length))
        _seen(array)[rows] = _seen(before)[rows]
        return array


def _shape_of(value: Value) -> tuple[int, ...]:
    assert isinstance(value, NDArray), "a sequence binds no size"
    return value.shape


def _seen(array: NDArray) -> npt.NDArray[Any]:
    """A host array's memory as numpy."""
    return np.from_dlpack(array)  # type: ignore[arg-type]
