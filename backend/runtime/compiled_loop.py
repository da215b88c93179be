"""Loops that compiled code runs: a call of it runs many iterations, of this loop and of those inside of it.

Compiled code can't be interrupted, so it is given a number of turns, after which it returns and is called again. In
between, signals are handled and errors raised, those of other threads included (`Context.fail`). The turns double until
a call takes a hundredth of a second.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any

from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.execution_plan import LoopStep
from relayc.backend.runtime.frames import Frame, FrameMemory
from relayc.backend.runtime.layouts import shapes_of
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.sequences import Value

__all__ = ["CompiledLoop"]

_CALL_SECONDS = 0.01
"""Time that a call of compiled code should take, and so the longest delay of a signal by a loop of short iterations."""
_MAX_TURNS = 1 << 40
_STACK_BYTES = 1 << 20
"""Memory that a stacked output gets at first, if the trip count allows more; it is doubled when it is full."""


class CompiledLoop:
    """Runs a loop by its compiled function `entry`, ``void entry(Ctx*, int64* frame)``."""

    def __init__(
        self, step: LoopStep, entry: Any, context: Context, params: Mapping[str, NDArray], where: Device
    ) -> None:
        self._step, self._entry, self._context, self._device = step, entry, context, where
        self._turns = ctypes.c_int64()
        self._frame = Frame(step.graph, step, params, ctypes.addressof(self._turns))
        self._arena: NDArray | None = None
        self._laid_out: tuple[list[tuple[int, ...]], dict[str, int]] | None = None
        self._fits = False
        self._most_turns = 1

    def run(self, trips: int, arguments: Sequence[NDArray], sizes: Mapping[str, int]) -> list[Value] | None:
        """The carried values after at most `trips` > 0 iterations, and the stacked outputs.

        `arguments` are the carried values and the captured ones, `sizes` those of the graph around. None if some graph,
        perhaps one that would not be run, can't have the sizes that follow.
        """
        if not self._lay_out(arguments, sizes):
            return None
        frame, graph, carried = self._frame, self._step.graph, len(self._step.carried)
        words = frame.words
        frame.begin()
        for number, value in zip(graph.inputs[2:], arguments, strict=True):
            words[number] = value.handle
        stacks = [_Stack(frame, k, trips, self._device) for k in range(1 + carried, len(graph.outputs))]
        iterations = self._iterate(trips, stacks)
        results: list[Value] = []
        for number, value in zip(graph.inputs[2 : 2 + carried], arguments, strict=False):
            address = int(words[number])
            if address == value.handle:
                results.append(value)
                continue
            result = empty(value.shape, value.dtype, self._device)
            ctypes.memmove(result.handle, address, result.nbytes)
            results.append(result)
        return [*results, *[stack.taken(iterations) for stack in stacks]]

    def _lay_out(self, arguments: Sequence[NDArray], sizes: Mapping[str, int]) -> bool:
        shapes = shapes_of(arguments)
        if self._laid_out is None or self._laid_out != (shapes, sizes):
            memory = FrameMemory()
            try:
                self._fits = self._frame.lay_out([(), (), *shapes], sizes, memory)
            except ArgumentError:
                self._fits = False
            if self._fits:
                self._arena = memory.allocate(self._arena, self._device)
            self._laid_out = shapes, dict(sizes)
            self._most_turns = 1
        return self._fits

    def _iterate(self, trips: int, stacks: Sequence[_Stack]) -> int:
        """Run the iterations, and return their number."""
        words, layout = self._frame.words, self._frame.layout
        done = ctypes.c_int64.from_address(int(words[self._step.graph.inputs[0]]))
        done.value = 0
        limit = words[layout.limit] = min([trips, *[stack.room for stack in stacks]])
        while True:
            self._turns.value, start = self._most_turns, time.perf_counter()
            self._entry(self._context.address, self._frame.address)
            self._context.check()
            if done.value < words[layout.limit]:  # no turns were left
                self._adapt(time.perf_counter() - start)
            elif words[layout.limit] < limit or limit == trips:  # the condition, or the trip count, ended the loop
                return done.value
            else:
                for stack in stacks:
                    stack.make_room(limit, 2 * limit)
                limit = words[layout.limit] = min(trips, 2 * limit)

    def _adapt(self, seconds: float) -> None:
        if seconds < _CALL_SECONDS / 2:
            self._most_turns = min(2 * self._most_turns, _MAX_TURNS)
        elif seconds > 2 * _CALL_SECONDS:
            self._most_turns = max(self._most_turns // 2, 1)


class _Stack:
    """A stacked output of a loop: result `k` of each iteration, one after another."""

    def __init__(self, frame: Frame, k: int, trips: int, where: Device) -> None:
        tensor = frame.graph.outputs[k]
        self._frame, self._k, self._device = frame, k, where
        self._shape, self._dtype = frame.shape(tensor), frame.graph.tensors[tensor].dtype
        self._nbytes = frame.nbytes(tensor)
        self.room = min(max(_STACK_BYTES // max(self._nbytes, 1), 1), trips)
        """Number of iterations whose results fit"""
        self._memory = empty((self.room, *self._shape), self._dtype, where)
        frame.words[frame.layout.results + k] = self._memory.handle

    def make_room(self, iterations: int, room: int) -> None:
        """Move the results of so many iterations to memory for `room` of them."""
        before, filled = self._memory, iterations * self._nbytes
        if room > self.room:
            self._memory, self.room = empty((room, *self._shape), self._dtype, self._device), room
            ctypes.memmove(self._memory.handle, before.handle, filled)
            self._frame.words[self._frame.layout.results + self._k] = self._memory.handle + filled

    def taken(self, iterations: int) -> NDArray:
        """The results of all iterations."""
        if iterations == self.room:
            return self._memory
        part = self._memory._create_view((iterations, *self._shape))
        return part if 2 * iterations >= self.room else part.copyto(self._device)
