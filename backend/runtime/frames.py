"""Frames: what the compiled functions of loops know of the graphs they run. A frame is a table of 64-bit words.

    addresses of the tensors | values of the size variables | their capacities | addresses of the results
    | spare addresses of the results | limit | stage | address of the turns that are left | frames of the graphs inside

Compiled code (`relay.lowering.compiled_loops`) exchanges addresses in it: that of a carried value with the one of the
result that becomes the next carried value, and the result's with its spare one. The iterations of a loop end at the
limit. The stage tells how far a run of the graph came that was left because no turns were left, 0 for none. Where
iterations change size variables, memory is laid out for their capacities; a larger value uses up the turns.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import nbytes as nbytes_of
from relayc.backend.runtime.execution_plan import Check, IfStep, LoopStep
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.layouts import ALIGNMENT, Stage, bind_sizes, tensor_bytes
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.sizes import Size, evaluate

__all__ = ["WORD_BYTES", "Frame", "FrameLayout", "FrameMemory", "Inside", "graphs_inside"]

WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The positions of words in the frame of a graph with so many tensors, size variables, results, and graphs
    inside."""

    tensor_count: int
    size_count: int
    result_count: int
    child_count: int

    @property
    def sizes(self) -> int:
        return self.tensor_count

    @property
    def capacities(self) -> int:
        return self.sizes + self.size_count

    @property
    def results(self) -> int:
        return self.capacities + self.size_count

    @property
    def spares(self) -> int:
        return self.results + self.result_count

    @property
    def limit(self) -> int:
        return self.spares + self.result_count

    @property
    def stage(self) -> int:
        return self.limit + 1

    @property
    def turns(self) -> int:
        return self.limit + 2

    @property
    def children(self) -> int:
        return self.limit + 3

    @property
    def words(self) -> int:
        return self.children + self.child_count


class FrameMemory:
    """Places tensors of several frames in one arena; a place becomes an address when `allocate` is called."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._placed: list[tuple[np.ndarray[Any, Any], Any, Any]] = []

    def place(self, words: np.ndarray[Any, Any], which: Any, nbytes: int, offsets: Any = 0) -> None:
        """Reserve memory; words[which] will be its address plus `offsets`."""
        self._placed.append((words, which, self._nbytes + offsets))
        self._nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT

    def allocate(self, where: Device) -> NDArray:
        """The arena."""
        arena = empty((max(self._nbytes, 1),), "uint8", where)
        for words, which, offsets in self._placed:
            words[which] = arena.handle + offsets
        return arena


class Frame:
    """The frame of a graph of control flow, at `address`, with `children`, those of the graphs inside of it.

    `words` are its words. `loop` is the loop whose body the graph is, None for a branch.
    """

    def __init__(self, graph: Graph, loop: LoopStep | None, params: Mapping[str, NDArray], turns: int) -> None:
        self.graph, self.loop = graph, loop
        self._inside = list(graphs_inside(graph))
        self.layout = FrameLayout(len(graph.tensors), len(graph.sizes), len(graph.outputs), len(self._inside))
        self.words = np.zeros(self.layout.words, np.int64)
        self.address = int(self.words.ctypes.data)
        self.sizes: dict[str, int] = {}
        self._growing = () if loop is None else loop.growing
        self._room: dict[str, int] = {}
        """the sizes that memory is laid out for"""
        self.children = [Frame(each.graph, each.loop, params, turns) for each in self._inside]
        self._slots = Stage(graph, [i for i, t in enumerate(graph.tensors) if t.storage == "slot"], ())
        self._buffers = [i for i, t in enumerate(graph.tensors) if t.storage in ("own", "value") and t.place == i]
        self._checks = [step for step in graph.steps if isinstance(step, Check)]
        self.words[self.layout.turns] = turns
        self.words[self.layout.children :] = [child.address for child in self.children]
        for i, tensor in enumerate(graph.tensors):
            if tensor.storage == "param":
                self.words[i] = params[str(tensor.place)].handle

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor of the graph."""
        return tuple([evaluate(d, self.sizes) for d in self._dims(tensor)])

    def nbytes(self, tensor: int) -> int:
        return nbytes_of(self.graph.tensors[tensor].dtype, math.prod(self.shape(tensor)))

    def lay_out(
        self,
        shapes: Sequence[tuple[int, ...]],
        inherited: Mapping[str, int],
        memory: FrameMemory,
        room: int = 1,
    ) -> bool:
        """Place all tensors for inputs of these shapes; false where a check of sizes fails, or results have other
        shapes than expected.

        The sizes that a loop changes may grow by the factor `room`. Raises `ArgumentError` for sizes that the graph, or
        one inside of it, can't have.
        """
        self.sizes = bind_sizes(self.graph, shapes, inherited)
        self.set_sizes()
        capacities = {name: room * self.sizes[name] + room - 1 for name in self._growing}
        self._room = {**self.sizes, **capacities}
        start = self.layout.capacities
        for name, capacity in capacities.items():
            self.words[start + self.graph.sizes.index(name)] = capacity
        if any(evaluate(check.left, self.sizes) != evaluate(check.right, self.sizes) for check in self._checks):
            return False
        offsets, total = self._slots.layout(self._room)
        memory.place(self.words, self._slots.numbers, total, offsets)
        for i in self._buffers:
            memory.place(self.words, i, self._room_for(i))
        if self.loop is not None:
            self._lay_out_loop(self.loop, memory)
        pairs = zip(self.children, self._inside, strict=True)
        return self._keeps_shapes() and all(self._lay_out_child(child, inside, memory) for child, inside in pairs)

    def set_sizes(self) -> None:
        """Set the size variables to `sizes`."""
        self.words[self.layout.sizes : self.layout.capacities] = [self.sizes.get(n, 0) for n in self.graph.sizes]

    def read_sizes(self) -> None:
        """Update `sizes` by those that iterations changed."""
        for name in self._growing:
            self.sizes[name] = int(self.words[self.layout.sizes + self.graph.sizes.index(name)])

    @property
    def is_outgrown(self) -> bool:
        """Did sizes get larger than the memory was laid out for? Asked after `read_sizes`."""
        return any(self.sizes[name] > self._room[name] for name in self._growing)

    def _lay_out_child(self, child: Frame, inside: Inside, memory: FrameMemory) -> bool:
        fits = child.lay_out([self.shape(i) for i in inside.arguments], self.sizes, memory)
        given = child.graph.outputs if child.loop is None else child.graph.outputs[1:]
        shapes = [(self.shape(i), child.shape(own)) for i, own in zip(inside.step.outputs, given, strict=True)]
        return fits and all(shape[len(shape) - len(part) :] == part for shape, part in shapes)  # part of a stack

    def _keeps_shapes(self) -> bool:
        """Does a body give carried values of the shapes that it takes, but for the sizes that it changes?"""
        carried = 0 if self.loop is None else len(self.loop.carried)
        pairs = zip(self.graph.inputs[2:], self.graph.outputs[1 : 1 + carried], strict=False)
        dims = [each for a, b in pairs for each in zip(self._dims(a), self.shape(a), self.shape(b), strict=True)]
        return all(taken == given or name in self._growing for name, taken, given in dims)

    def _dims(self, tensor: int) -> tuple[Size, ...]:
        return self.graph.tensors[tensor].shape

    def _lay_out_loop(self, loop: LoopStep, memory: FrameMemory) -> None:
        """Place what the loop itself writes: iteration, condition, and two buffers for every carried value."""
        graph, layout = self.graph, self.layout
        for i in graph.inputs[:2]:
            memory.place(self.words, i, WORD_BYTES)
        memory.place(self.words, layout.results, WORD_BYTES)
        for k, number in enumerate(graph.outputs[1:], start=1):
            nbytes = self._room_for(number)
            if k <= len(loop.carried):
                memory.place(self.words, layout.results + k, nbytes)
                memory.place(self.words, layout.spares + k, nbytes)

    def _room_for(self, tensor: int) -> int:
        of = self.graph.tensors[tensor]
        return tensor_bytes(of.shape, of.dtype, self._room)

    def begin(self) -> None:
        """Set the conditions that bodies are passed, and forget a run that was left."""
        self.words[self.layout.stage] = 0
        if self.loop is not None:
            ctypes.c_bool.from_address(int(self.words[self.graph.inputs[1]])).value = True
        for child in self.children:
            child.begin()


@dataclass(frozen=True, slots=True)
class Inside:
    """A graph of a control-flow step, and the tensors it is passed: a loop's iteration and condition have the shapes of
    its trip count and first condition."""

    graph: Graph
    step: IfStep | LoopStep
    arguments: tuple[int, ...]

    @property
    def loop(self) -> LoopStep | None:
        """The loop whose body the graph is; None for a branch."""
        return self.step if isinstance(self.step, LoopStep) else None


def graphs_inside(graph: Graph) -> Iterator[Inside]:
    """The graphs of the control flow of a graph, whose frames are the children of its frame in this order."""
    for step in graph.steps:
        if isinstance(step, IfStep):
            for branch, arguments in zip(step.graphs, step.inputs, strict=True):
                yield Inside(branch, step, arguments)
        elif isinstance(step, LoopStep):
            yield Inside(step.graph, step, (step.trips, step.condition, *step.carried, *step.outside))
