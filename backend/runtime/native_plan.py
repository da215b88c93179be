"""Runs of a compiled plan: the executor's side of a plan frame (`backend.runtime.plan_frame`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from relayc.backend.runtime.array_call import array_call
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.packed_func import KernelFunc
from relayc.backend.runtime.plan_frame import PlanFrame
from relayc.backend.runtime.sequences import ArraySequence, Value

__all__ = ["NativePlan"]


class NativePlan:
    """The frame of one graph, and the compiled function of its plan, ``void entry(Ctx*, int64* frame)``.

    `call` runs pieces from `at` on, and leaves in `at` the first one that it did not do. `words` are those of the
    frame.
    """

    def __init__(self, frame: PlanFrame, words: np.ndarray[Any, Any], entry: KernelFunc, context: Context) -> None:
        self._frame, self._entry, self._at = frame, entry.raw, frame.at
        self.words = memoryview(words.data)  # quicker than numpy for single words
        self.address = int(words.ctypes.data)
        self._arguments = context.address, self.address
        self._entry_address = entry.address
        self.end = len(frame.pieces)
        self.is_compiled = [frame.is_compiled(piece) for piece in frame.pieces]
        self._bound = [[(name, frame.sizes + frame.graph.sizes.index(name)) for name in frame.bound_by(piece)]
                       for piece in frame.pieces]  # fmt: skip
        self._around = [(name, frame.sizes + frame.graph.sizes.index(name)) for name in sorted(frame.around)]
        places: list[list[int]] = [[] for _ in frame.graph.inputs]
        for index, tensor in enumerate(frame.graph.tensors):
            if tensor.storage == "input":
                places[int(tensor.place)].append(index)
        ranks = [len(frame.graph.tensors[index].shape) for index in frame.graph.inputs]
        self._inputs = [*zip(places, frame.shapes, ranks, strict=False)]
        """for each input the tensors that are it, the first word of its shape, and its rank"""
        self._passed: list[Value | None] = [None] * len(places)
        self._stacks: dict[int, NDArray | None] = {}
        """what sequences lie in, which may drop it themselves"""
        owners = [(i, frame.buffers[i] + 1) for stage in frame.stages.values() for i in stage.owners]
        self.takes_arrays = all(self.is_compiled)
        """can it be called with arrays?"""
        tensors = frame.graph.tensors
        self.buffer_shapes = {i: self.words[k : k + len(tensors[i].shape)]
                              for i, k in owners if not tensors[i].is_static}  # fmt: skip
        """the words of the shape of the tensor in each buffer, if it has size variables"""
        for _, first in owners:
            self.words[first - 1] = -1  # there is no memory, not even for an empty tensor

    def begin(self, inputs: Sequence[Value], around: Mapping[str, int]) -> bool:
        """Set the inputs and the sizes that are known before; false if the executor has to bind the sizes itself."""
        words, passed = self.words, self._passed
        for position, value in enumerate(inputs):
            if value is passed[position]:
                continue
            aliases, first, rank = self._inputs[position]
            if isinstance(value, NDArray):
                handle, shape = value.handle, value.shape
                if len(shape) != rank:
                    return False
                for index in aliases:
                    words[index] = handle
                for size in shape:
                    words[first] = size
                    first += 1
            else:
                self._set_sequence(position, value)
            passed[position] = value
        return not self._around or self._set_sizes(around)

    def _set_sizes(self, around: Mapping[str, int]) -> bool:
        """Set the sizes that are known before; false if one is missing."""
        fits = True
        for name, word in self._around:
            size = around.get(name)
            fits = fits and size is not None
            self.words[word] = 0 if size is None else size
        return fits

    def _set_sequence(self, position: int, value: ArraySequence) -> None:
        """Let compiled code read the elements of a sequence if they lie in a stack and have the type that it takes."""
        aliases, first, _ = self._inputs[position]
        for index in aliases:
            self.words[index] = 0
        stack = self._stacks[position] = value.stack
        fits = stack is not None and self._frame.elements.get(position) == {(stack.shape[1:], str(stack.dtype))}
        if stack is not None and fits:
            row = nbytes(stack.dtype, math.prod(stack.shape[1:]))
            address = stack.handle + stack.byte_offset
            self.words[first], self.words[first + 1], self.words[first + 2] = address, stack.shape[0], row
        else:
            self.words[first + 1] = 0

    @property
    def stacks(self) -> tuple[NDArray | None, ...]:
        """What keeps the elements alive that compiled code reads."""
        return tuple(self._stacks.values())

    def forget(self) -> None:
        """Drop the references to the inputs."""
        self._passed = [None] * len(self._passed)
        self._stacks.clear()

    def call(self, at: int) -> int:
        """Run pieces from `at` on; returns the first that is left, `end` if there is none."""
        self.words[self._at] = at
        self._entry(*self._arguments)
        return self.words[self._at]

    def call_with_arrays(self, arrays: list[Any], around: Mapping[str, int]) -> int | None:
        """Run pieces from the first one on with numpy arrays as inputs, and the sizes that are known before; returns
        the first that is left.

        None, and nothing is done, where the arrays can't be read in place.
        """
        words, at = self.words, self._at
        words[at] = 0
        if self._around and not self._set_sizes(around):
            return None
        return words[at] if self._array_call(arrays) else None

    @cached_property
    def _array_call(self) -> Callable[[list[Any]], bool]:
        return array_call(self._frame.graph, self._entry_address, self._arguments, self.address, self._frame.shapes)

    def sizes_bound(self, first: int, last: int) -> dict[str, int]:
        """The values of the size variables that the pieces `first` ... `last` - 1 bind."""
        words = self.words
        return {name: words[word] for bound in self._bound[first:last] for name, word in bound}

    def set_arena(self, stage: int, array: NDArray) -> None:
        """Note the arena of a stage."""
        word = self._frame.arenas[stage]
        self.words[word], self.words[word + 1] = array.handle, array.nbytes

    def set_buffer(self, tensor: int, nbytes: int, shape: Sequence[int]) -> None:
        """Note the memory of a buffer, and the shape of the tensor in it."""
        word = self._frame.buffers[tensor]
        self.words[word] = nbytes
        for axis, size in enumerate(shape, start=word + 1):
            self.words[axis] = size
