"""Control flow: steps of a graph that run graphs of their own, as often as values say.

The body of a loop is one graph with a runner of its own, so that an iteration costs the same however many there are.
Values that are carried from one iteration to the next are handed over, not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from backend.runtime.device import Device
from backend.runtime.ndarray import NDArray, array
from backend.runtime.steps import IfStep, LoopStep

__all__ = ["BodyRunner", "run_if", "run_loop"]


class BodyRunner(Protocol):
    """What runs the graph of a body."""

    def run(self, inputs: Sequence[NDArray], inherited: Mapping[str, int] | None = None) -> None: ...

    def value(self, position: int) -> NDArray: ...


def _flag(value: NDArray) -> bool:
    return bool(value.numpy().reshape(-1)[0])


def run_if(
    step: IfStep, runners: Sequence[BodyRunner], read: Callable[[int], NDArray], sizes: Mapping[str, int]
) -> list[NDArray]:
    """The results of the branch that the condition chooses."""
    chosen = 0 if _flag(read(step.condition)) else 1
    runner = runners[chosen]
    runner.run([read(i) for i in step.inputs[chosen]], sizes)
    return [runner.value(k) for k in range(len(step.outputs))]


def run_loop(
    step: LoopStep,
    runner: BodyRunner,
    read: Callable[[int], NDArray],
    sizes: Mapping[str, int],
    where: Device,
    empty: Callable[[int], NDArray],
) -> list[NDArray]:
    """The carried values after the last iteration, then the stacked values of all iterations; `empty` of none."""
    trips, alive = int(read(step.trips).numpy().reshape(-1)[0]), _flag(read(step.condition))
    carried, outside = [read(i) for i in step.carried], [read(i) for i in step.outside]
    stacks: list[list[np.ndarray[Any, Any]]] = [[] for _ in step.outputs[len(carried) :]]
    goes_on = array(np.array(True), where)
    iteration = 0
    while alive and iteration < trips:
        runner.run([array(np.array(iteration, np.int64), where), goes_on, *carried, *outside], sizes)
        alive = _flag(runner.value(0))
        carried = [runner.value(1 + k) for k in range(len(carried))]
        for k, stack in enumerate(stacks, start=1 + len(carried)):
            stack.append(runner.value(k).numpy().copy())
        iteration += 1
    numbers = step.outputs[len(carried) :]
    return [*carried, *[array(np.stack(s), where) if s else empty(i) for s, i in zip(stacks, numbers, strict=True)]]
