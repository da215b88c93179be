"""The memory of graphs of static shapes: one arena, and the buffers of outputs until these are written.

A chain of layers needs two tensors at a time. With the buffer of its output as one of them, the arena holds only the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relayc.relay.lowering.graph import (
    ExecutionGraph,
    lifetimes,
    place_outputs,
    plan_arena,
    reuse_inputs,
    share_storage,
)
from relayc.relay.lowering.memory_plan import MemoryPlan

__all__ = ["place_tensors"]


def place_tensors(graph: ExecutionGraph, in_place: Mapping[str, Sequence[int]] | None = None) -> None:
    """Decide where every tensor is placed; `in_place` names the inputs that kernels may overwrite, by the kernel's
    name.

    For graphs with symbolic sizes see `relay.lowering.dynamic`.
    """
    place_outputs(graph)
    reuse_inputs(graph, in_place or {})
    graph.plan = _plan(graph)
    for number, offset in graph.plan.offsets.items():
        graph.tensors[number].storage = ("arena", offset)
    share_storage(graph)


def _plan(graph: ExecutionGraph) -> MemoryPlan:
    """Plan the arena; tensors as large as an output use its buffer while it is free, if the arena shrinks by that."""
    plan, guests = plan_arena(graph), _guests(graph)
    for number, output in guests.items():
        graph.tensors[number].storage = ("output", output)
    smaller = plan_arena(graph) if guests else plan
    if smaller.arena_bytes < plan.arena_bytes:
        return smaller
    for number in guests:
        graph.tensors[number].storage = None
    return plan


def _guests(graph: ExecutionGraph) -> dict[int, int]:
    """Tensors that fit into the buffer of an output, with its position: from the last one before the output is written
    back to the first."""
    alive = lifetimes(graph)
    sliced = {graph.base_of(n) for n, tensor in enumerate(graph.tensors) if tensor.begins is not None}
    free = [t for n, t in alive.items() if graph.tensors[n].storage is None and n not in sliced]
    free.sort(key=lambda t: (t.last, t.first), reverse=True)
    guests: dict[int, int] = {}
    for position, number in enumerate(graph.outputs):
        output = alive.get(graph.base_of(number))
        if output is None or graph.tensors[output.key].storage != ("output", position):
            continue
        until = output.first
        for tensor in free:
            if tensor.key not in guests and tensor.nbytes == output.nbytes and tensor.last < until:
                guests[tensor.key], until = position, tensor.first
    return guests
