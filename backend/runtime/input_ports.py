"""The inputs of an executor: the memory that runs read, and the copies of users' values into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.arguments import as_argument, as_sequence, as_string_arrays, check_placement, check_type
from relayc.backend.runtime.checks import position_of
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import nbytes, to_numpy
from relayc.backend.runtime.errors import ArgumentError, raise_if_foreign
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.kv_cache import KVCaches
from relayc.backend.runtime.ndarray import NDArray, empty, from_dlpack, wrap_numpy
from relayc.backend.runtime.runners import serves
from relayc.backend.runtime.sequences import Value
from relayc.backend.runtime.sizes import size_text
from relayc.backend.runtime.string_ports import StringPorts

__all__ = ["InputPorts"]

_BORROWED_BYTES = 1 << 16
"""Bytes from which to pass the address of an array takes less time than to copy it."""
_GROWTH = 4
"""An input that outgrows its memory gets 1 / _GROWTH more than it needs."""


class InputPorts:
    """The inputs of one executor by position or name. Buffers are allocated when values are first copied into them."""

    def __init__(self, graph: Graph, where: Device) -> None:
        self._graph, self._device = graph, where
        self._tensors = [graph.tensors[index] for index in graph.inputs]
        self._ranks = [_ranks_of(graph, position) for position in range(len(self._tensors))]
        """ranks that each input may have at any sizes, which are those of a specialisation"""
        self._positions = {tensor.name: position for position, tensor in enumerate(self._tensors)}
        self.strings = StringPorts(graph)
        self.caches = KVCaches(graph, where)
        self._passed = [i for i in range(len(self._tensors)) if i not in self.caches]
        """the inputs that users pass"""
        self.kept_sizes: dict[str, int] = {}
        """the sizes of the KV caches"""
        self.moved: set[int] = set()
        """the inputs whose memory changed since a runner cleared this"""
        self.release()

    def release(self) -> None:
        """Drop all values and their memory, but for KV caches."""
        self._values: dict[int, Value] = {}
        self._own: dict[int, NDArray] = {}
        self._memory: dict[int, NDArray] = {}
        """the memory of `_own`, which may be larger; that of arrays given to users is not used under other shapes"""
        self._views: dict[int | str, tuple[npt.NDArray[Any], tuple[int, ...], np.dtype[Any]]] = {}
        """buffers of `_own` that runs read, as numpy with shape and type, by position and by name"""
        self.strings.release()

    # -- facts

    def tensor(self, position: int) -> GraphTensor:
        """The graph's tensor of an input."""
        return self._tensors[position]

    def index(self, key: int | str, weights: Mapping[str, Any]) -> int:
        """The position of an input. Raises `ArgumentError` listing the inputs for an unknown one."""
        position = position_of(key, self._positions)
        if position in self.caches:
            raise ArgumentError(
                f"input {self.tensor(position).name!r} of model {self._graph.name!r} is a cache, which the "
                "executor keeps; truncate_caches() makes it shorter"
            )
        if not 0 <= position < len(self._tensors):
            is_weight = isinstance(key, str) and key in weights
            hint = f"; {key!r} is a weight, bound when the model was compiled" if is_weight else ""
            raise ArgumentError(
                f"model {self._graph.name!r} has no input {key!r}{hint}. Its inputs are: {self.signature()}"
            )
        return position

    def passed(self) -> list[tuple[GraphTensor, str]]:
        """The inputs that users pass (all but KV caches), with their element types."""
        inputs = [(i, self._tensors[i]) for i in self._passed]
        return [(tensor, "string" if i in self.strings.inputs else tensor.dtype) for i, tensor in inputs]

    def signature(self) -> str:
        """The inputs as text, for errors."""
        return ", ".join(
            f"{t.name}: {'a list of ' if t.is_sequence else ''}{dtype}[{', '.join(map(size_text, t.shape))}]"
            for t, dtype in self.passed()
        )

    def check_passed_once(self, positions: Iterable[int], others: Iterable[int]) -> None:
        """Raise `ArgumentError` if an input is in both lists."""
        names = [self.tensor(position).name for position in sorted(set(positions) & set(others))]
        if names:
            raise ArgumentError(f"model {self._graph.name!r}: inputs {names} are passed twice; expected one value")

    # -- values

    def copy_array(self, key: int | str, value: Any) -> bool:
        """Copy a numpy array of the type of the last one; false, and nothing is done, for all else.

        Raises `ArgumentError` for another shape than the input may have.
        """
        found = self._views.get(key)
        if found is None or type(value) is not np.ndarray:
            return False
        view, shape, dtype = found
        if value.dtype != dtype:
            return False
        if value.shape != shape:
            position = self._positions[key] if isinstance(key, str) else key
            check_type(self.tensor(position), value.shape, self.tensor(position).dtype, self._graph.name,
                       self._ranks[position])  # fmt: skip
            self._place(position, self._own_buffer(position, value.shape))
            view = self._views[key][0]
        view[...] = value
        return True

    def borrow(self, name: str, value: Any) -> int | None:
        """Make runs read a large, dense numpy array in place until it is dropped; returns the input's position.

        None, and nothing is done, for all else. Raises `ArgumentError` for another shape than the input may have.
        """
        if type(value) is not np.ndarray or value.nbytes < _BORROWED_BYTES:
            return None
        position, flags = self._positions.get(name), value.flags
        if position is None or position in self.caches or not (flags.c_contiguous and flags.aligned):
            return None
        if value.dtype != to_numpy(self.tensor(position).dtype):
            return None
        array = wrap_numpy(value)
        self._check(position, array)
        self._place(position, array)
        return position

    def drop(self, positions: Iterable[int]) -> None:
        """Forget the values of inputs."""
        for position in positions:
            if self._values.pop(position, None) is not None:
                self._drop_view(position)

    def set(self, position: int, value: Any) -> None:
        """Copy a value of any form."""
        tensor = self.tensor(position)
        try:
            if position in self.strings.inputs:
                self.strings.set(position, as_string_arrays(tensor, value, self._graph.name))
            else:
                self._copy(position, value)
        except Exception as error:
            raise_if_foreign(error, f"setting input {tensor.name!r} of model {self._graph.name!r}")
            raise

    def set_zero_copy(self, position: int, value: Any) -> None:
        """Make runs read the memory of `value`. Raises `ArgumentError` unless its type and placement allow that."""
        tensor = self.tensor(position)
        if tensor.is_sequence or position in self.strings.inputs:
            kind = "a sequence" if tensor.is_sequence else "of strings"
            raise ArgumentError(f"input {tensor.name!r} of model {self._graph.name!r} is {kind}; use set_input")
        passed = value if isinstance(value, NDArray) else from_dlpack(value)
        self._check(position, passed)
        name = f"input {tensor.name!r} of model {self._graph.name!r}"
        check_placement(passed, self._device, name, "set_input, which copies")
        self._place(position, passed)

    def share(self, other: InputPorts) -> None:
        """Read the values of another executor's inputs, without a copy of arrays. Raises `ArgumentError` as `set`."""
        other.strings.copy_to(self.strings)
        for position, value in other._values.items():
            if position not in self.strings.inputs and self._values.get(position) is not value:
                if isinstance(value, NDArray):
                    self._check(position, value)
                self._place(position, value)

    def buffer(self, position: int) -> NDArray:
        """The array that runs read an input from, allocated if no value was set yet."""
        name, kind = self.tensor(position).name, "of strings" if position in self.strings.inputs else "a sequence"
        if position in self.strings.inputs or self.tensor(position).is_sequence:
            raise ArgumentError(f"input {name!r} of model {self._graph.name!r} is {kind}, which has no buffer")
        if position not in self._values:
            shape = tuple([d if isinstance(d, int) else 0 for d in self.tensor(position).shape])
            self._place(position, self._own_buffer(position, shape))
        self._memory.pop(position, None)
        return self.array(position)

    def array(self, position: int) -> NDArray:
        """The array of an input that has one."""
        found = self._values[position]
        assert isinstance(found, NDArray), "a graph with lists has a runner of its own"
        return found

    @property
    def are_set(self) -> bool:
        """Has any input a value?"""
        return bool(self._values)

    def has_value(self, position: int) -> bool:
        """Will the next run read a value that is there already?"""
        return position in self._values

    def prepare(self) -> None:
        """Complete the values of the next run. Raises `ArgumentError` naming inputs that were never set."""
        if len(self._values) < len(self._tensors):
            self._check_all_set()
        if self.strings.are_used:
            for position, numbers in self.strings.numbers().items():
                self._copy(position, numbers)
        if self.caches:
            self.kept_sizes = self.caches.lay_out(self._values)
            self._values.update(self.caches.arrays)

    def with_caches(self, arrays: list[Any]) -> list[Any] | None:
        """Arrays for all inputs, of those that users pass and the caches; None if one is no array of the input's rank.

        Raises `ArgumentError` when they contradict the shapes of the caches.
        """
        for position, value in zip(self._passed, arrays, strict=True):
            if type(value) is not np.ndarray or value.ndim != len(self._tensors[position].shape):
                return None
        passed = dict(zip(self._passed, arrays, strict=True))
        self.kept_sizes = self.caches.lay_out(passed)
        found = self.caches.views.copy()
        for position, value in passed.items():
            found[position] = value
        return found

    @property
    def values(self) -> list[Value]:
        """The values of the next run, once it is prepared."""
        return [self._values[position] for position in range(len(self._tensors))]

    def check_sizes(self) -> None:
        """Raise `SizeMismatchError` for values that have been set for a specialisation, and have other sizes."""
        if any(self._ranks):
            for position, value in self._values.items():
                if isinstance(value, NDArray):
                    check_type(self.tensor(position), value.shape, value.dtype, self._graph.name)

    def _check(self, position: int, passed: Any) -> None:
        """Raise `ArgumentError` for a value of another type or, unless a specialisation may have it, shape."""
        check_type(self.tensor(position), passed.shape, passed.dtype, self._graph.name, self._ranks[position])

    def _check_all_set(self) -> None:
        positions = [i for i in range(len(self._tensors)) if i not in self._values and i not in self.caches]
        missing = [self.tensor(i).name for i in positions if not self.strings.is_set(i)]
        if missing:
            raise ArgumentError(
                f"model {self._graph.name!r}: inputs {missing} were never set, or only for a call of infer. Its inputs "
                f"are: {self.signature()}"
            )

    def _copy(self, position: int, value: Any) -> None:
        tensor = self.tensor(position)
        if tensor.is_sequence:
            self._values[position] = as_sequence(tensor, value, self._graph.name, self._device)
            return
        passed = as_argument(tensor, value, self._graph.name)
        self._check(position, passed)
        self._place(position, self._own_buffer(position, passed.shape).copyfrom(passed))

    def _own_buffer(self, position: int, shape: tuple[int, ...]) -> NDArray:
        """The array of that shape in the input's own memory, which is used again if it serves."""
        own, dtype = self._own.get(position), self.tensor(position).dtype
        if own is not None and own.shape == shape:
            return own
        needed, memory = nbytes(dtype, math.prod(shape)), self._memory.get(position)
        if memory is None or not serves(memory.nbytes, needed):
            more = 0 if memory is None or needed < memory.nbytes else needed // _GROWTH
            memory = self._memory[position] = empty((needed + more,), "uint8", self._device)
        own = self._own[position] = memory._create_view(shape, dtype)
        return own

    def _place(self, position: int, value: Value) -> None:
        """Make runs read `value`."""
        if self._values.get(position) is value:
            return
        self._values[position] = value
        copied = position not in self.strings.inputs and value is self._own.get(position)
        self._drop_view(position)
        if copied and isinstance(value, NDArray) and self._device.api.host_accessible:
            view = np.asarray(value, copy=False)
            self._views[position] = self._views[self.tensor(position).name] = view, view.shape, view.dtype
        self.moved.add(position)

    def _drop_view(self, position: int) -> None:
        for key in (position, self.tensor(position).name):
            self._views.pop(key, None)


def _ranks_of(graph: Graph, position: int) -> set[int]:
    """The ranks of an input in a graph and its specialisations; none if there are no specialisations."""
    graphs = [graph, *[variant for _, variant in graph.variants]] if graph.variants else []
    return {len(g.tensors[g.inputs[position]].shape) for g in graphs}
