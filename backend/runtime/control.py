"""Control flow: `If` and `Loop` instructions that run subgraphs.

A loop's body is one graph with its own runner, so the cost of an iteration does not depend on their number.
Loop-carried values are passed by reference, not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol

import numpy as np

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.execution_plan import IfStep, LoopStep
from relayc.backend.runtime.graph import GraphNode
from relayc.backend.runtime.ndarray import NDArray, array
from relayc.backend.runtime.sequences import Value, joined

__all__ = ["BodyRunner", "Record", "run_if", "run_loop", "tensor_of"]

_BLOCK = 32
"""Iteration numbers in one array."""
_INT64_BYTES = 8

Record = Callable[[GraphNode, float, Mapping[str, int]], None]
"""Callback of profiling runs: takes each kernel's node, its time in seconds, and the sizes that it ran with."""


class BodyRunner(Protocol):
    """Interface of the runner of a subgraph."""

    def run(
        self, inputs: Sequence[Value], inherited: Mapping[str, int] | None = None, record: Record | None = None
    ) -> None: ...

    def value(self, position: int) -> Value: ...

    def flag(self, position: int) -> bool: ...

    def release(self) -> None: ...


def run_if(
    step: IfStep,
    runners: Sequence[BodyRunner],
    read: Callable[[int], Value],
    sizes: Mapping[str, int],
    record: Record | None = None,
) -> list[Value]:
    """Run the branch that the condition selects and return its results."""
    chosen = 0 if tensor_of(read(step.condition)).first() else 1
    runner = runners[chosen]
    runner.run([read(i) for i in step.inputs[chosen]], sizes, record)
    results = [runner.value(k) for k in range(len(step.outputs))]
    runner.release()
    return results


def run_loop(
    step: LoopStep,
    runner: BodyRunner,
    read: Callable[[int], Value],
    sizes: Mapping[str, int],
    where: Device,
    empty: Callable[[int], NDArray],
    record: Record | None = None,
) -> list[Value]:
    """Run a loop: the final carried values, then the stacked outputs (`empty(k)` after zero iterations)."""
    trips, alive = tensor_of(read(step.trips)).first(), tensor_of(read(step.condition)).first()
    carried, outside = [read(i) for i in step.carried], [read(i) for i in step.outside]
    stacks: list[list[NDArray]] = [[] for _ in step.outputs[len(carried) :]]
    goes_on = array(np.array(True), where)
    numbers = _numbers(where)
    iteration = 0
    while alive and iteration < trips:
        runner.run([next(numbers), goes_on, *carried, *outside], sizes, record)
        alive = runner.flag(0)
        carried = [runner.value(1 + k) for k in range(len(carried))]
        for k, stack in enumerate(stacks, start=1 + len(carried)):
            stack.append(tensor_of(runner.value(k)))
        iteration += 1
    runner.release()
    stacked = zip(stacks, step.outputs[len(carried) :], strict=True)
    return [*carried, *[_stacked(step, s, where) if s else empty(i) for s, i in stacked]]


def _numbers(where: Device) -> Iterator[NDArray]:
    """0, 1, 2, ..., of which `_BLOCK` are made at a time."""
    for begin in count(0, _BLOCK):
        block = array(np.arange(begin, begin + _BLOCK), where)
        for i in range(_BLOCK):
            yield NDArray(block.handle, (), "int64", where, block, byte_offset=block.byte_offset + _INT64_BYTES * i)


def tensor_of(value: Value) -> NDArray:
    """The value, which is a tensor."""
    assert isinstance(value, NDArray), "a graph that was checked has a tensor here"
    return value


def _stacked(step: LoopStep, values: Sequence[NDArray], where: Device) -> NDArray:
    shapes = dict.fromkeys(value.shape for value in values)
    if len(shapes) > 1:
        listed = " and ".join(map(str, list(shapes)[:2]))
        raise ArgumentError(f"{step.source}: iterations give values of shapes {listed} to be stacked; expected one")
    return joined(values, 0, where, new_axis=True)
