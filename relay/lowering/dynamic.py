"""Graphs with dynamic shapes: the order of their steps and the sharing of their memory.

Size variables get their values from the shapes of the inputs, and from small integer tensors that the graph computes
(the function's attribute "bound_sizes"). The nodes are scheduled in rounds: everything that depends only on known
variables runs, then further variables are bound, and so on; a model without such tensors has one round.

Which intermediate tensors share memory is decided at compile time, their addresses at run time: tensors whose lifetimes
do not overlap may share a slot, which is as large as the largest of them at run time.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from relayc.backend.runtime.layouts import RESULT_SIZE
from relayc.backend.size_json import size_to_json
from relayc.relay.lowering.graph import (
    ControlNode,
    ExecutionGraph,
    GraphNode,
    last_reads,
    place_outputs,
    reuse_dying_buffer,
    reuse_inputs,
    share_storage,
    time_steps,
)
from relayc.relay.op.control import IfElse, WhileLoop
from relayc.relay.op.host import OnHost
from relayc.relay.op.sequence import Cut, Join, SequenceOperator
from relayc.relay.sizes import likely, product, size_variables
from relayc.te.errors import CompileError
from relayc.te.tir import Dim, as_int

__all__ = ["BoundSize", "plan_dynamic"]


@dataclass(frozen=True)
class BoundSize:
    """The size variable `name` is element `element` of output `output` of the function; `source` is its origin in the
    model.

    With a negative element it is a size of the output, which exists only so that its producer is computed.
    """

    name: str
    output: int
    element: int
    source: str


def plan_dynamic(graph: ExecutionGraph, in_place: Mapping[str, Sequence[int]]) -> list[tuple[int, int]]:
    """Order the nodes, write the steps and place the tensors; returns the nodes of each round as (first, last).

    The function's attributes are "bound_sizes" (the fields of `BoundSize`) and "size_checks" (left, right, source).
    """
    attrs = graph.attrs
    bound = [BoundSize(*record) for record in attrs.get("bound_sizes", ())]
    checks: list[tuple[Dim, Dim, str]] = list(attrs.get("size_checks", ()))
    real = len(graph.outputs) - len({b.output for b in bound})
    bound = [b for b in bound if b.element >= 0]
    tensors = [graph.outputs[b.output] for b in bound]
    order = _Rounds(graph, bound, tensors, checks)
    rounds = order.run()
    graph.outputs = graph.outputs[:real]
    late = _with_late_shapes(graph, order.stage_of)
    graph.kept = {*tensors, *late, *(i for control in graph.control_nodes for i in control.inputs)}
    place_outputs(graph, late)
    reuse_dying_buffer(graph)
    reuse_inputs(graph, in_place)
    _place_slots(graph, order.stage_of)
    share_storage(graph)
    return rounds


class _Waiting:
    """Items of one kind that wait for tensors (by number) and sizes (by name); those that are ready in order."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.missing: list[set[int | str]] = []
        self.ready: list[int] = []
        """the positions of items that wait for nothing: a heap"""

    def __len__(self) -> int:
        return len(self.ready) + sum(map(bool, self.missing))

    def take(self) -> list[Any]:
        """The items that are ready, which wait no longer."""
        ready, self.ready = sorted(self.ready), []
        return [self.items[i] for i in ready]


class _Rounds:
    """Orders nodes, bindings and checks so that every size is known before it is used.

    Each waits for the tensors and sizes that it needs; what becomes available is told to those that wait for it.
    """

    def __init__(
        self, graph: ExecutionGraph, bound: list[BoundSize], tensors: list[int], checks: list[tuple[Dim, Dim, str]]
    ) -> None:
        self.graph = graph
        late = {b.name for b in bound}
        late |= {v for control in graph.control_nodes for v in self._results(control) if v.startswith(RESULT_SIZE)}
        known = set(size_variables(d for i in graph.inputs for d in graph.tensors[i].shape))
        if graph.attrs.get("nested"):
            known |= _sizes_from_outside(graph)
        known |= set(size_variables([length for _, _, length, _ in graph.attrs.get("caches", ())]))
        known -= late
        self.known_at = dict.fromkeys(sorted(known), 0)
        self.stage = 0
        results = {i for control in graph.control_nodes for i in control.outputs}
        placed = (graph.base_of(i) for i in range(len(graph.tensors)) if graph.tensors[graph.base_of(i)].storage)
        self.available: set[int | str] = {*known, *[i for i in placed if i not in results]}
        self.waiting_for: dict[int | str, list[tuple[_Waiting, int]]] = {}
        self.nodes, self.controls, self.binds, self.checks = _Waiting(), _Waiting(), _Waiting(), _Waiting()
        for node in graph.nodes:
            self._wait(self.nodes, node, node.inputs, self._needs(node))
        for control in graph.control_nodes:
            inherited = set[str]().union(*map(_sizes_from_outside, control.graphs))
            self._wait(self.controls, control, control.inputs, inherited | _variables(graph, control.inputs))
        for b, tensor in zip(bound, tensors, strict=True):
            self._wait(self.binds, (b, tensor), [tensor], ())
        for check in checks:
            self._wait(self.checks, check, [], size_variables(check[:2]))

    def _wait(self, kind: _Waiting, item: Any, tensors: Iterable[int], sizes: Iterable[str]) -> None:
        wanted: set[int | str] = {*map(self.graph.source_of, tensors), *sizes} - self.available
        position = len(kind.items)
        kind.items.append(item)
        kind.missing.append(wanted)
        for one in wanted:
            self.waiting_for.setdefault(one, []).append((kind, position))
        if not wanted:
            heappush(kind.ready, position)

    def _provide(self, available: Iterable[int | str]) -> None:
        for one in available:
            self.available.add(one)
            for kind, position in self.waiting_for.pop(one, ()):
                kind.missing[position].discard(one)
                if not kind.missing[position]:
                    heappush(kind.ready, position)

    def run(self) -> list[tuple[int, int]]:
        """Fill in the graph's nodes, sizes and steps."""
        graph, done, rounds = self.graph, list[GraphNode](), list[tuple[int, int]]()
        steps = self._checks()
        left = len(self.nodes) + len(self.controls) + len(self.binds)
        while left:
            first = len(done)
            done += self._run_ready()
            if len(done) > first:
                rounds.append((first, len(done)))
                steps.append({"step": "run", "first": first, "last": len(done), "entry": None})
            binds = [*self._bind_ready(), *self._control_ready()]
            left -= len(done) - first + len(binds)
            if len(done) == first and not binds:
                missing = {one for kind in (self.nodes, self.controls) for wanted in kind.missing for one in wanted}
                names = ", ".join(sorted(one for one in missing if isinstance(one, str)))
                raise CompileError(f"the sizes {names} are determined by no input and no node")
            steps += [*binds, *self._checks()]
        graph.nodes, graph.sizes, graph.steps = done, tuple(self.known_at), steps
        return rounds

    def _needs(self, node: GraphNode) -> set[str]:
        numbers = (*node.inputs, *node.outputs)
        return set(size_variables([node.sizes, *[self.graph.tensors[i].shape for i in numbers]]))

    def _run_ready(self) -> Iterator[GraphNode]:
        """The nodes that can run now, in order."""
        while self.nodes.ready:
            node: GraphNode = self.nodes.items[heappop(self.nodes.ready)]
            yield node
            self._provide(map(self.graph.source_of, node.outputs))

    def _bind_ready(self) -> list[dict[str, Any]]:
        ready: list[tuple[BoundSize, int]] = self.binds.take()
        self._learn([b.name for b, _ in ready])
        return [{"step": "bind", "name": b.name, "tensor": t, "element": b.element, "source": b.source}
                for b, t in ready]  # fmt: skip

    def _learn(self, names: Sequence[str]) -> None:
        """The sizes `names` become known at a new stage, unless they were known before."""
        new = [name for name in names if name not in self.known_at]
        if new:
            self.stage += 1
            self.known_at.update(dict.fromkeys(new, self.stage))
        self._provide(names)

    def _results(self, control: ControlNode) -> dict[str, Any]:
        return size_variables(self.graph.tensors[i].shape for i in control.outputs)

    def _control_ready(self) -> list[dict[str, Any]]:
        """The control-flow nodes whose arguments are available."""
        ready: list[ControlNode] = self.controls.take()
        self._provide([i for control in ready for i in control.outputs])
        self._learn([name for control in ready for name in self._results(control)])
        return [_control_step(c) for c in ready]

    def _checks(self) -> list[dict[str, Any]]:
        ready: list[tuple[Dim, Dim, str]] = self.checks.take()
        return [{"step": "check", "left": size_to_json(a), "right": size_to_json(b), "source": source}
                for a, b, source in ready]  # fmt: skip

    def stage_of(self, dims: Iterable[Dim]) -> int:
        """The stage at which a shape becomes known."""
        return max([self.known_at[v] for v in size_variables(dims)], default=0)


def _sizes_from_outside(graph: ExecutionGraph) -> set[str]:
    """The size variables that a graph, or one inside it, mentions but does not bind."""
    nodes = [*graph.nodes, *graph.control_nodes]
    mentioned = set(size_variables(node.sizes for node in nodes))
    mentioned.update(*[_variables(graph, (*node.inputs, *node.outputs)) for node in nodes])
    mentioned.update(_variables(graph, graph.outputs))
    for control in graph.control_nodes:
        mentioned.update(*map(_sizes_from_outside, control.graphs))
    bound = _variables(graph, graph.inputs) | {name for name, *_ in graph.attrs.get("bound_sizes", ())}
    results = {v for c in graph.control_nodes for v in _variables(graph, c.outputs) if v.startswith(RESULT_SIZE)}
    return mentioned - bound - results


def _variables(graph: ExecutionGraph, tensors: Iterable[int]) -> set[str]:
    return set(size_variables(graph.tensors[i].shape for i in tensors))


def _control_step(control: ControlNode) -> dict[str, Any]:
    """The step that runs a control-flow node; its graphs are added when they are planned."""
    op, inputs = control.operator, control.inputs
    if isinstance(op, SequenceOperator):
        return _sequence_step(control, op)
    if isinstance(op, OnHost):
        return _action_step(control, op)
    common = {"outputs": control.outputs, "source": control.source or op.name, "control": control}
    if isinstance(op, IfElse):
        split = 1 + len(op.then_branch.params)
        return {"step": "if", "condition": inputs[0], "inputs": [inputs[1:split], inputs[split:]], **common}
    assert isinstance(op, WhileLoop)
    carried = inputs[2 : 2 + op.carried]
    return {"step": "loop", "trips": inputs[0], "condition": inputs[1], "carried": carried,
            "outside": inputs[2 + op.carried :], **common}  # fmt: skip


def _sequence_step(control: ControlNode, op: SequenceOperator) -> dict[str, Any]:
    axis, new_axis = 0, False
    if isinstance(op, Join):
        axis, new_axis = op.axis % op.result.ndim, op.new_axis
    elif isinstance(op, Cut):
        axis, new_axis = op.axis, not op.keepdims
    action = op.name.rpartition(".")[2]
    return {"step": "list", "action": action, "inputs": control.inputs, "output": control.outputs[0], "axis": axis,
            "new_axis": new_axis, "source": control.source or op.name, "control": control}  # fmt: skip


def _action_step(control: ControlNode, op: OnHost) -> dict[str, Any]:
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in op.operator.settings().items()}
    return {"step": "text", "action": op.operator.action, "inputs": control.inputs, "outputs": control.outputs,
            "settings": settings, "source": control.source or op.operator.name, "control": control}  # fmt: skip


_SHARED_RATIO = 4
"""Most that the likely size of a slot is of that of a tensor with other symbolic dimensions."""


class _Slot:
    """Memory for tensors whose lifetimes do not overlap, the first of which is likely the largest.

    It has `likely` bytes, and a multiple of the product of its `symbolic` dimensions.
    """

    def __init__(self, number: int, likely: int, symbolic: tuple[str, ...]) -> None:
        self.number, self.likely, self.symbolic = number, likely, symbolic
        self.used: list[tuple[int, int]] = []
        """the first and the last step of each lifetime, in order"""

    def is_free(self, first: int, last: int) -> bool:
        """Whether no tensor in the slot is alive at one of these steps."""
        after = bisect_right(self.used, (last, sys.maxsize))
        return after == 0 or self.used[after - 1][1] < first


def _with_late_shapes(graph: ExecutionGraph, stage_of: Callable[[Iterable[Dim]], int]) -> set[int]:
    """Outputs that are views with a shape known only after the value is computed: the caller's buffer comes too late
    for them."""
    shapes = {i: (graph.tensors[i].shape, graph.tensors[graph.base_of(i)].shape) for i in graph.outputs}
    return {i for i, (shown, computed) in shapes.items() if stage_of(shown) > stage_of(computed)}


def _place_slots(graph: ExecutionGraph, stage_of: Callable[[Iterable[Dim]], int]) -> None:
    """Give every intermediate tensor a slot, the likely largest first: the largest that is free while it is alive and
    has the same symbolic dimensions, else the smallest of any, else a new one.

    So the memory that was written last is written again, which caches may still have. Tensors whose sizes become known
    at different stages do not share, as a slot gets its size at one stage; a tensor's size is known with the shape of
    the first of its views. Those of other symbolic dimensions, of which either may be the larger at run time, do if
    their likely sizes are at most `_SHARED_RATIO` apart. What leaves a run of nodes for slices of the batch has
    its memory from the beginning of the run, since each slice writes a part of it.
    """
    last = last_reads(graph)
    begun: dict[int, list[int]] = {}
    for run in graph.sliced_runs():
        written = [graph.base_of(i) for node in graph.nodes[run.first : run.last] for i in node.outputs]
        begun[run.first] = [number for number in written if number in run.passing]
    first: dict[int, int] = {}
    for position, (step, node) in enumerate(time_steps(graph.nodes)):
        for number in (*begun.get(position, ()), *map(graph.base_of, node.outputs)):
            if graph.tensors[number].storage is None:
                first.setdefault(number, step)
    estimates = {n: likely(product((*t.shape, max(t.tensor_type.dtype.nbytes, 1))))
                 for n in first for t in [graph.tensors[n]]}  # fmt: skip
    known: dict[int, int] = {}
    for number, tensor in enumerate(graph.tensors):
        if (base := graph.base_of(number)) in first:
            stage = stage_of(tensor.shape)
            known[base] = min(stage, known.get(base, stage))
    of_stage: dict[int, list[_Slot]] = {}
    count = itertools.count()
    for n in sorted(first, key=lambda n: (-estimates[n], first[n])):
        tensor = graph.tensors[n]
        slots, symbolic = of_stage.setdefault(known[n], []), _symbolic(tensor.shape)
        alike = (slot for slot in slots if slot.symbolic == symbolic)
        others = (slot for slot in reversed(slots) if slot.likely <= _SHARED_RATIO * estimates[n])
        slot = next((slot for slot in (*alike, *others) if slot.is_free(first[n], last[n])), None)
        if slot is None:
            slot = _Slot(next(count), estimates[n], symbolic)
            slots.append(slot)
        insort(slot.used, (first[n], last[n]))
        tensor.storage = ("slot", slot.number)


def _symbolic(dims: Iterable[Dim]) -> tuple[str, ...]:
    """Symbolic dimensions, in an order of their own: sizes in bytes with the same ones have a constant ratio."""
    return tuple(sorted([str(d) for d in dims if as_int(d) is None]))
