"""Loops whose iterations bind sizes, run by compiled code: the executor's side of a `TurnsFrame`.

A call of the compiled function runs many iterations. In between, signals are handled and errors raised, as for other
compiled loops (`backend.runtime.compiled_loop`). Where memory is too small for a size, the executor makes room.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from relayc.backend.runtime.compiled_loop import TurnLimit
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.control import tensor_of
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.layouts import tensor_bytes
from relayc.backend.runtime.native_plan import NativePlan
from relayc.backend.runtime.ndarray import NDArray, array, empty
from relayc.backend.runtime.plan_frame import TurnsFrame
from relayc.backend.runtime.sequences import Value

__all__ = ["LoopBody", "TurningLoop"]

_GROWTH = 2
"""A result that is copied gets 1 / _GROWTH more memory than it needs."""


class LoopBody(Protocol):
    """Interface of the runner of a loop's body."""

    def do_piece(self, number: int, inputs: Sequence[Value], inherited: Mapping[str, int]) -> None: ...

    def hold_buffer(self, tensor: int) -> NDArray: ...

    def sizes_before(self, number: int, inherited: Mapping[str, int]) -> dict[str, int]: ...


class TurningLoop:
    """Runs a loop by its compiled function `entry`, ``void entry(Ctx*, int64* frame)``."""

    def __init__(
        self, frame: TurnsFrame, plan: NativePlan, body: LoopBody, entry: Any, context: Context, where: Device
    ) -> None:
        self._frame, self._plan, self._body, self._entry = frame, plan, body, entry
        self._context, self._device, self._words = context, where, plan.words
        self._iteration, self._condition = array(0, where, "int64"), array(True, where, "bool")
        self._count = ctypes.c_int64.from_address(self._iteration.handle)
        self._memory: dict[int, NDArray] = {}
        """arrays in the memory of states and results, by address"""
        self._limit = TurnLimit()
        for state in frame.states:
            self._words[state.result_nbytes] = self._words[state.spare_nbytes] = -1

    def run(self, trips: int, arguments: Sequence[Value], sizes: Mapping[str, int]) -> list[Value]:
        """The carried values after at most `trips` > 0 iterations.

        `arguments` are the carried values and the captured ones, `sizes` those of the graph around.
        """
        words, frame, end = self._words, self._frame, self._plan.end
        self._count.value, words[frame.limit] = 0, trips
        self._plan.forget()
        at = 0
        begins = [tensor_of(value) for value in arguments[: frame.carried]]
        if not self._plan.begin([self._iteration, self._condition, *arguments], sizes):
            at = self._do(0, arguments, sizes)
        while at or self._count.value < words[frame.limit]:
            at = self._turn(at)
            if at == end:
                self._make_room(self._body.sizes_before(at, sizes))
            elif at:
                at = self._do(at, arguments, sizes)
            elif not words[frame.plan.is_done]:  # it is not between two iterations, but before the first piece
                at = self._do(0, arguments, sizes)
        self._plan.forget()
        return [self._result(k, begin) for k, begin in enumerate(begins)]

    def _turn(self, at: int) -> int:
        """Call compiled code; returns the piece that is left, 0 between two iterations."""
        words, word = self._words, self._frame.plan.at
        words[word], words[self._frame.turns] = at, self._limit.turns
        start = time.perf_counter()
        self._entry(self._context.address, self._plan.address)
        self._context.check()
        if words[word] == 0:
            self._limit.adapt(time.perf_counter() - start)
        return words[word]

    def _do(self, number: int, arguments: Sequence[Value], sizes: Mapping[str, int]) -> int:
        """Let the executor do a piece; returns the next one."""
        carried = [self._state(k, tensor_of(begin)) for k, begin in enumerate(arguments[: self._frame.carried])]
        inputs = [self._iteration, self._condition, *carried, *arguments[self._frame.carried :]]
        self._body.do_piece(number, inputs, sizes)
        piece = self._frame.plan.pieces[number]
        if piece.kind == "place":
            self._hold([self._body.hold_buffer(i) for i in self._frame.plan.stages[piece.number].owners])
        return number + 1

    def _make_room(self, sizes: dict[str, int]) -> None:
        """Make the memory for copied results large enough."""
        graph = self._frame.plan.graph
        for state in self._frame.states:
            tensor = graph.tensors[state.output]
            if state.is_written:
                continue
            needed = tensor_bytes(tensor.shape, tensor.dtype, sizes)
            if needed > self._words[state.result_nbytes]:
                made = empty((needed + needed // _GROWTH,), "uint8", self._device)
                self._words[state.result], self._words[state.result_nbytes] = made.handle, made.nbytes
                self._hold([made])

    def _hold(self, arrays: Sequence[NDArray]) -> None:
        """Keep memory as long as a word of the frame has its address."""
        states = self._frame.states
        used = {self._words[word] for state in states for word in (state.state[0], state.result, state.spare)}
        held = {**self._memory, **{memory.handle: memory for memory in arrays}}
        self._memory = {address: memory for address, memory in held.items() if address in used}

    def _state(self, k: int, begin: NDArray) -> NDArray:
        """The carried value `k` as the next iteration takes it, which began as `begin`."""
        graph, first = self._frame.plan.graph, self._frame.plan.shapes[2 + k]
        index = graph.inputs[2 + k]
        address, rank = self._words[index], len(graph.tensors[index].shape)
        if address == begin.handle:
            return begin
        return NDArray(address, tuple(self._words[first : first + rank]), begin.dtype, self._device, None)

    def _result(self, k: int, begin: NDArray) -> NDArray:
        """The last value of a carried tensor: a copy, unless it is what the loop began with."""
        state = self._state(k, begin)
        return state if state is begin else state.copyto(self._device)
