"""Graphs with dynamic shapes: the order of their steps and the sharing of their memory.

Size variables get their values from the shapes of the inputs, and from small integer tensors that the graph computes
(the function's attribute "bound_sizes"). The nodes are scheduled in rounds: everything that depends only on known
variables runs, then further variables are bound, and so on; a model without such tensors has one round.

Which intermediate tensors share memory is decided at compile time, their addresses at run time: tensors whose lifetimes
do not overlap may share a slot, which is as large as the largest of them at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relayc.backend.runtime.dynamic import RESULT_SIZE
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
)
from relayc.relay.op.control import IfElse, WhileLoop
from relayc.relay.op.host import OnHost
from relayc.relay.op.sequence import Cut, Join, SequenceOperator
from relayc.relay.sizes import likely, product, size_variables
from relayc.te.errors import CompileError
from relayc.te.tir import Dim

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


class _Rounds:
    """Orders nodes, bindings and checks so that every size is known before it is used."""

    def __init__(
        self, graph: ExecutionGraph, bound: list[BoundSize], tensors: list[int], checks: list[tuple[Dim, Dim, str]]
    ) -> None:
        self.graph, self.waiting, self.checks = graph, list(zip(bound, tensors, strict=True)), checks
        late = {b.name for b in bound}
        late |= {v for control in graph.control_nodes for v in self._results(control) if v.startswith(RESULT_SIZE)}
        self.known = set(size_variables(d for i in graph.inputs for d in graph.tensors[i].shape))
        if graph.attrs.get("nested"):
            self.known |= _sizes_from_outside(graph)
        self.known |= set(size_variables([length for _, _, length, _ in graph.attrs.get("caches", ())]))
        self.known -= late
        self.known_at = dict.fromkeys(sorted(self.known), 0)
        self.nodes: list[GraphNode] = []
        self.controls = list(graph.control_nodes)
        self.inherited = {id(c): set[str]().union(*map(_sizes_from_outside, c.graphs)) for c in self.controls}
        results = {i for control in self.controls for i in control.outputs}
        placed = (graph.base_of(i) for i in range(len(graph.tensors)) if graph.tensors[graph.base_of(i)].storage)
        self.written = {i for i in placed if i not in results}

    def run(self) -> list[tuple[int, int]]:
        """Fill in the graph's nodes, sizes and steps."""
        graph, left, rounds = self.graph, list(self.graph.nodes), list[tuple[int, int]]()
        steps = self._checks()
        while left or self.waiting or self.controls:
            first = len(self.nodes)
            left = self._run_ready(left)
            if len(self.nodes) > first:
                rounds.append((first, len(self.nodes)))
                steps.append({"step": "run", "first": first, "last": len(self.nodes), "entry": None})
            binds = [*self._bind_ready(), *self._control_ready()]
            if len(self.nodes) == first and not binds:
                wanted = [*map(self._needs, left), *[self.inherited[id(c)] for c in self.controls]]
                missing = sorted(set[str]().union(*wanted) - self.known)
                raise CompileError(f"the sizes {', '.join(missing)} are determined by no input and no node")
            steps += [*binds, *self._checks()]
        graph.nodes, graph.sizes, graph.steps = self.nodes, tuple(self.known_at), steps
        return rounds

    def _needs(self, node: GraphNode) -> set[str]:
        numbers = (*node.inputs, *node.outputs)
        return set(size_variables([node.sizes, *[self.graph.tensors[i].shape for i in numbers]]))

    def _run_ready(self, left: list[GraphNode]) -> list[GraphNode]:
        """Schedule the nodes that can run now; returns the others."""
        rest: list[GraphNode] = []
        for node in left:
            there = all(self.graph.source_of(i) in self.written for i in node.inputs)
            ready = there and self._needs(node) <= self.known
            (self.nodes if ready else rest).append(node)
            if ready:
                self.written.update(self.graph.source_of(i) for i in node.outputs)
        return rest

    def _bind_ready(self) -> list[dict[str, Any]]:
        ready = [(b, t) for b, t in self.waiting if self.graph.source_of(t) in self.written]
        self.waiting = [pair for pair in self.waiting if pair not in ready]
        stage = max(self.known_at.values(), default=0) + 1
        for b, _ in ready:
            self.known.add(b.name)
            self.known_at[b.name] = stage
        return [{"step": "bind", "name": b.name, "tensor": t, "element": b.element, "source": b.source}
                for b, t in ready]  # fmt: skip

    def _results(self, control: ControlNode) -> dict[str, Any]:
        return size_variables(self.graph.tensors[i].shape for i in control.outputs)

    def _control_ready(self) -> list[dict[str, Any]]:
        """The control-flow nodes whose arguments are available."""
        graph = self.graph
        ready = [c for c in self.controls if all(graph.source_of(i) in self.written for i in c.inputs)
                 and self.inherited[id(c)] | _variables(graph, c.inputs) <= self.known]  # fmt: skip
        self.controls = [c for c in self.controls if c not in ready]
        stage = max(self.known_at.values(), default=0) + 1
        for control in ready:
            self.written.update(control.outputs)
            for name in self._results(control):
                self.known.add(name)
                self.known_at.setdefault(name, stage)
        return [_control_step(c) for c in ready]

    def _checks(self) -> list[dict[str, Any]]:
        ready = [c for c in self.checks if set(size_variables(c[:2])) <= self.known]
        self.checks = [c for c in self.checks if c not in ready]
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


@dataclass
class _Slot:
    """Memory for tensors whose lifetimes do not overlap; `likely` bytes, free after step `until`."""

    number: int
    nbytes: Dim
    likely: int
    until: int


def _with_late_shapes(graph: ExecutionGraph, stage_of: Callable[[Iterable[Dim]], int]) -> set[int]:
    """Outputs that are views with a shape known only after the value is computed: the caller's buffer comes too late
    for them."""
    shapes = {i: (graph.tensors[i].shape, graph.tensors[graph.base_of(i)].shape) for i in graph.outputs}
    return {i for i, (shown, computed) in shapes.items() if stage_of(shown) > stage_of(computed)}


def _place_slots(graph: ExecutionGraph, stage_of: Callable[[Iterable[Dim]], int]) -> None:
    """Give every intermediate tensor a slot: a free one of its own size, else the free one nearest in size, else a new
    one.

    Tensors whose sizes become known at different stages do not share.
    """
    last = last_reads(graph)
    slots: dict[int, list[_Slot]] = {}
    count = 0
    for step, node in enumerate(graph.nodes):
        for number in dict.fromkeys(graph.base_of(i) for i in node.outputs):
            tensor = graph.tensors[number]
            if tensor.storage is not None:
                continue
            nbytes = product((*tensor.shape, max(tensor.tensor_type.dtype.nbytes, 1)))
            estimate = likely(nbytes)
            pool = slots.setdefault(stage_of(tensor.shape), [])
            free = [s for s in pool if s.until < step]
            slot = min(free, key=lambda s: (s.nbytes is not nbytes, abs(s.likely - estimate)), default=None)
            if slot is None or (slot.nbytes is not nbytes and not estimate / 4 <= slot.likely <= estimate * 4):
                slot = _Slot(count, nbytes, estimate, 0)
                count += 1
                pool.append(slot)
            slot.until, slot.likely = last[number], max(slot.likely, estimate)
            tensor.storage = ("slot", slot.number)
