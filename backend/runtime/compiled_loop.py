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
from relayc.backend.runtime.errors import ArgumentError, DeviceError
from relayc.backend.runtime.execution_plan import LoopStep
from relayc.backend.runtime.frames import Frame, FrameMemory
from relayc.backend.runtime.layouts import shapes_of
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.sequences import Value

__all__ = ["CompiledLoop", "TurnLimit"]

_CALL_SECONDS = 0.01
"""Time that a call of compiled code should take, and so the longest delay of a signal by a loop of short iterations."""
_MAX_TURNS = 1 << 40
_ROOM = 2
"""Factor by which sizes that iterations change may grow before carried values are moved."""
_STACK_BYTES = 1 << 20
"""Memory that a stacked output gets at first, if the trip count allows more; it is doubled when it is full."""


class TurnLimit:
    """How many turns a call of compiled code is given."""

    def __init__(self) -> None:
        self.turns = 1

    def adapt(self, seconds: float) -> None:
        """Change the number after a call that used them up in so many seconds."""
        if seconds < _CALL_SECONDS / 2:
            self.turns = min(2 * self.turns, _MAX_TURNS)
        elif seconds > 2 * _CALL_SECONDS:
            self.turns = max(self.turns // 2, 1)


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
        self._begin_sizes: dict[str, int] = {}
        self._fits = False
        self._limit = TurnLimit()

    def run(self, trips: int, arguments: Sequence[NDArray], sizes: Mapping[str, int]) -> list[Value] | None:
        """The carried values after at most `trips` > 0 iterations, and the stacked outputs.

        `arguments` are the carried values and the captured ones, `sizes` those of the graph around. None if some graph,
        perhaps one that would not be run, can't have the sizes that follow.
        """
        if not self._lay_out(arguments, sizes):
            return None
        frame, graph, carried = self._frame, self._step.graph, len(self._step.carried)
        frame.begin()
        for number, value in zip(graph.inputs[2:], arguments, strict=True):
            frame.words[number] = value.handle
        stacks = [_Stack(frame, k, trips, self._device) for k in range(1 + carried, len(graph.outputs))]
        iterations = self._iterate(trips, stacks, sizes)
        pairs = zip(graph.inputs[2:], arguments[:carried], strict=False)
        return [*[self._result(*pair) for pair in pairs], *[stack.taken(iterations) for stack in stacks]]

    def _lay_out(self, arguments: Sequence[NDArray], sizes: Mapping[str, int]) -> bool:
        """Lay out the memory of all graphs, unless it was for the same shapes."""
        shapes = shapes_of(arguments)
        if self._laid_out is None or self._laid_out != (shapes, sizes):
            self._arena = self._laid_out = None
            try:
                self._fits = self._place(shapes, sizes)
            except ArgumentError:
                self._fits = False
            self._laid_out, self._begin_sizes = (shapes, dict(sizes)), dict(self._frame.sizes)
            self._limit = TurnLimit()
        elif self._step.growing:
            self._frame.sizes = dict(self._begin_sizes)
            self._frame.set_sizes()
        return self._fits

    def _place(self, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int], room: int = _ROOM) -> bool:
        """Place the tensors for arguments of these shapes, with room for growing ones if possible."""
        memory = FrameMemory()
        try:
            fits = self._frame.lay_out([(), (), *shapes], sizes, memory, room)
            self._arena = memory.allocate(self._device) if fits else None
        except (ArgumentError, DeviceError):
            if room == 1 or not self._step.growing:
                raise
            return self._place(shapes, sizes, 1)
        return fits

    def _iterate(self, trips: int, stacks: Sequence[_Stack], sizes: Mapping[str, int]) -> int:
        """Run the iterations, and return their number."""
        frame, limit_word = self._frame, self._frame.layout.limit
        done = self._set_iteration(0)
        limit = frame.words[limit_word] = min([trips, *[stack.room for stack in stacks]])
        while True:
            self._turns.value, start = self._limit.turns, time.perf_counter()
            self._entry(self._context.address, frame.address)
            self._context.check()
            frame.read_sizes()
            ended = done.value >= frame.words[limit_word]
            if ended and (frame.words[limit_word] < limit or limit == trips):  # by the condition, or the trip count
                return done.value
            if frame.is_outgrown:
                done = self._grow(done.value, sizes)
            elif not ended:
                self._limit.adapt(time.perf_counter() - start)
            if ended:
                for stack in stacks:
                    stack.make_room(limit, 2 * limit)
                limit = frame.words[limit_word] = min(trips, 2 * limit)

    def _set_iteration(self, number: int) -> ctypes.c_int64:
        """Set the number of iterations done, which is returned as a reference."""
        done = ctypes.c_int64.from_address(int(self._frame.words[self._step.graph.inputs[0]]))
        done.value = number
        return done

    def _grow(self, done: int, sizes: Mapping[str, int]) -> ctypes.c_int64:
        """Move the carried values to memory with room for larger ones.

        Raises `ArgumentError` if they would get too large.
        """
        frame, graph, before = self._frame, self._step.graph, self._arena
        numbers = graph.inputs[2:]
        places = [int(frame.words[number]) for number in numbers]
        spares = range(frame.layout.spares + 1, frame.layout.spares + 1 + len(self._step.carried))
        moved = [place == frame.words[spare] for place, spare in zip(places, spares, strict=False)]
        begun, self._laid_out = self._laid_out, None  # until it is whole again
        fits = self._place([frame.shape(number) for number in numbers], sizes)
        assert fits, "no check depends on what grows"
        frame.begin()
        for number, place, spare, is_moved in zip(numbers, places, spares, moved, strict=False):
            if is_moved:
                frame.words[number] = frame.words[spare]
                ctypes.memmove(int(frame.words[spare]), place, frame.nbytes(number))
        del before  # only now: it held the values
        self._laid_out = begun
        return self._set_iteration(done)

    def _result(self, number: int, begin: NDArray) -> NDArray:
        """The last value of a carried tensor: a copy, unless it is what the loop began with."""
        address = int(self._frame.words[number])
        if address == begin.handle:
            return begin
        result = empty(self._frame.shape(number), begin.dtype, self._device)
        ctypes.memmove(result.handle, address, result.nbytes)
        return result


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
