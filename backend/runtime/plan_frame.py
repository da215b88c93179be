"""Plan frames: what the compiled plan of a graph with size variables knows of a run. A frame is a table of words.

    addresses of the tensors | values of the size variables
    | for each input: its shape, or a sequence's stack, its number of elements, and the bytes of one
    | for each stage: address and capacity of its arena, bytes of each kind of tensor
    | for each buffer: capacity, shape | offset | bytes | is a piece done? | the piece to go on with

A word has 64 bits. A plan consists of *pieces*: binding the sizes, placing the tensors of a stage, and the steps. The
compiled function of a plan (`relay.lowering.plan`) runs pieces from the one that the frame names, and returns before
one that it can't do: because it has no code for it, as for strings, or because something is unusual, such as memory
that is too small or sizes that contradict each other. The executor then does that piece itself, or raises the error,
and calls the function again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from relayc.backend.runtime.execution_plan import Bind, Check, RunNodes, SequenceStep
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.layouts import FROM_INPUTS, Stage, stages_of
from relayc.backend.runtime.sizes import Size, variables

__all__ = ["Piece", "PlanFrame", "known_around", "largest_sizes"]

_MAX_BITS, _SUM_BITS = 31, 62
_BEHIND = -2
"""In place of a stage or tensor: the word behind those of all."""


class Piece(NamedTuple):
    """Binding the sizes of the inputs, placing the tensors of the stage `number`, or the step at position `number`."""

    kind: Literal["inputs", "place", "step"]
    number: int


@dataclass(frozen=True)
class PlanFrame:
    """The positions of words in the frame of a graph, and the pieces of its plan.

    `around` are the size variables whose values the plan is given, since a graph around it binds them, or the lengths
    of KV caches.
    """

    graph: Graph
    stages: Mapping[int, Stage]
    around: frozenset[str]

    @staticmethod
    def of(graph: Graph, around: Set[str] = frozenset()) -> PlanFrame:
        """The frame of a graph; `around` are the size variables of the graphs around it."""
        return PlanFrame(graph, stages_of(graph), known_around(graph, around))

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces in the order of a run."""
        return tuple(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        yield Piece("inputs", 0)
        yield Piece("place", FROM_INPUTS)
        for position, step in enumerate(self.graph.steps):
            if isinstance(step, RunNodes) and position in self.stages:
                yield Piece("place", position)
            yield Piece("step", position)
        last = len(self.graph.steps)
        if last in self.stages:
            yield Piece("place", last)

    def is_compiled(self, piece: Piece) -> bool:
        """Has the compiled function code for a piece?"""
        if piece.kind == "inputs":
            dims = [d for i in self.graph.inputs for d in self.graph.tensors[i].shape]
            bound = self.around | {d for d in dims if isinstance(d, str)}
            return bound.issuperset(name for d in dims for name in variables(d))
        if piece.kind == "place":
            return True
        step = self.graph.steps[piece.number]
        if isinstance(step, RunNodes):
            return step.entry is not None
        if isinstance(step, SequenceStep):
            return self._is_element(step)
        return isinstance(step, Check) or (isinstance(step, Bind) and self.graph.tensors[step.tensor].dtype == "int64")

    def _is_element(self, step: SequenceStep) -> bool:
        """Does a step take an element of static shape of a sequence that is an input, for kernels?"""
        if step.action != "item":
            return False
        graph, (source, position) = self.graph, (self.graph.tensors[i] for i in step.inputs)
        results = {graph.tensors[i].place for i in graph.outputs if graph.tensors[i].storage == "value"}
        plain = source.storage == "input" and position.dtype == "int64" and position.storage != "value"
        return plain and graph.tensors[step.output].is_static and step.output not in results

    @cached_property
    def elements(self) -> dict[int, set[tuple[tuple[int, ...], str]]]:
        """The types of the elements that compiled code takes of each input that is a sequence."""
        found: dict[int, set[tuple[tuple[int, ...], str]]] = {}
        for step in self.graph.steps:
            if isinstance(step, SequenceStep) and self._is_element(step):
                result = self.graph.tensors[step.output]
                place = int(self.graph.tensors[step.inputs[0]].place)
                found.setdefault(place, set()).add((result.static_shape, result.dtype))
        return found

    def bound_by(self, piece: Piece) -> tuple[str, ...]:
        """The size variables that a piece binds, results of control flow not counted."""
        if piece.kind == "inputs":
            return tuple([name for name in self.graph.sizes if name in self.graph.input_sizes])
        step = self.graph.steps[piece.number] if piece.kind == "step" else None
        return (step.name,) if isinstance(step, Bind) else ()

    # -- the words

    @property
    def sizes(self) -> int:
        return len(self.graph.tensors)

    @cached_property
    def shapes(self) -> tuple[int, ...]:
        """The first word of each input, and the word behind them."""
        tensors = [self.graph.tensors[i] for i in self.graph.inputs]
        ranks = [3 if tensor.is_sequence else len(tensor.shape) for tensor in tensors]
        return tuple(accumulate(ranks, initial=self.sizes + len(self.graph.sizes)))

    @cached_property
    def arenas(self) -> dict[int, int]:
        """The word with the address of each stage's arena; the next ones have its capacity and the bytes of kinds."""
        words = [2 + len(stage.kinds) for stage in self.stages.values()]
        return dict(zip((*self.stages, _BEHIND), accumulate(words, initial=self.shapes[-1]), strict=True))

    @cached_property
    def buffers(self) -> dict[int, int]:
        """The word with the capacity of the buffer that each of these tensors owns; its shape is in the next ones."""
        owners = [index for stage in self.stages.values() for index in stage.owners]
        words = [1 + len(self.graph.tensors[index].shape) for index in owners]
        return dict(zip((*owners, _BEHIND), accumulate(words, initial=self.arenas[_BEHIND]), strict=True))

    @property
    def offset(self) -> int:
        """The word with the bytes of an arena that are taken."""
        return self.buffers[_BEHIND]

    @property
    def nbytes(self) -> int:
        """A word for the bytes of one slot or buffer."""
        return self.offset + 1

    @property
    def is_done(self) -> int:
        return self.offset + 2

    @property
    def at(self) -> int:
        return self.offset + 3

    @property
    def words(self) -> int:
        return self.offset + 4


def known_around(graph: Graph, around: Set[str]) -> frozenset[str]:
    """The size variables that a graph mentions and does not bind, or that are bound around it as well."""
    return frozenset(graph.sizes) & (around | {cache.length for cache in graph.caches})


def largest_sizes(sizes: Sequence[Size]) -> int:
    """A bound for the size variables below which 64 bits are enough for every part of these sizes."""
    listed = {size for size in sizes if isinstance(size, tuple)}

    def exceeds(bits: int) -> bool:
        return any(_magnitude(size, 1 << bits) >= 1 << _SUM_BITS for size in listed)

    bits = bisect_left(range(1, _MAX_BITS + 1), True, key=exceeds)
    return 1 << bits if bits else 0


def _magnitude(size: Size, largest: int) -> int:
    """An upper bound for the absolute value of a size and all of its parts, for variables of up to `largest`."""
    if isinstance(size, int):
        return abs(size)
    if isinstance(size, str):
        return largest
    op, a, b = size[0], _magnitude(size[1], largest), _magnitude(size[2], largest)
    if op == "*":
        return max(a * b, a, b)
    return a + b if op in ("+", "-") else max(a, b)


class StateWords(NamedTuple):
    """The words of a loop-carried value: the tensors that are it, its shape, and the tensor that becomes it.

    `result` and `spare` are words with addresses, `result_nbytes` and `spare_nbytes` with capacities, of the memory
    that the next value is written to, by a kernel or else by a copy, and of that for the one after it.
    """

    state: tuple[int, ...]
    shape: int
    output: int
    is_written: bool
    result: int
    result_nbytes: int
    spare: int
    spare_nbytes: int


@dataclass(frozen=True)
class TurnsFrame:
    """The words of a loop, behind those of its body's plan, whose first inputs are the iteration and the condition.

    Its compiled function runs the plan, and makes its results the next inputs, until `limit` iterations are done or no
    `turns` are left. It leaves with the body's `at` at 0 between two iterations, else where the executor is needed; at
    the end of the pieces to make room for results.
    """

    plan: PlanFrame
    carried: int

    @property
    def limit(self) -> int:
        return self.plan.words

    @property
    def turns(self) -> int:
        return self.plan.words + 1

    @property
    def words(self) -> int:
        return self.plan.words + 2 + 4 * self.carried

    @cached_property
    def states(self) -> tuple[StateWords, ...]:
        """The carried values that iterations change."""
        inputs = self.plan.graph.inputs[2:]
        return tuple([self._state(k) for k in range(self.carried) if inputs[k] != self.plan.graph.outputs[1 + k]])

    def _state(self, k: int) -> StateWords:
        graph, own = self.plan.graph, self.plan.words + 2 + 4 * k
        places = [(tensor.storage, tensor.place) for tensor in graph.tensors]
        state = tuple([i for i, place in enumerate(places) if place == ("input", 2 + k)])
        output, is_written = graph.outputs[1 + k], graph.has_own_memory(1 + k)
        result, capacity = (output, self.plan.buffers[output]) if is_written else (own, own + 1)
        return StateWords(state, self.plan.shapes[2 + k], output, is_written, result, capacity, own + 2, own + 3)

    @staticmethod
    def can_run(plan: PlanFrame, carried: int) -> bool:
        """Can a compiled function run a loop with such a body? It has to do nothing but compiled pieces."""
        graph = plan.graph
        pairs = zip(graph.inputs[2:], graph.outputs[1:], strict=False)
        same_ranks = all(len(graph.tensors[i].shape) == len(graph.tensors[j].shape) for i, j in pairs)
        tensors = not any(graph.tensors[i].is_sequence for i in (*graph.inputs[: 2 + carried], *graph.outputs))
        return (
            graph.entry is not None and tensors and len(graph.outputs) == 1 + carried and same_ranks
            and all(map(plan.is_compiled, plan.pieces))
        )
