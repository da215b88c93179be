"""Keeps the rows of tensors of different lengths equally far apart in memory, so that layers can share a kernel.

Layers that differ only in their numbers of channels, as those of a DenseNet, may be computed by one kernel that takes
the number as data (`relay.lowering.share_extents`). The addresses of a register tile's rows would then be values of a
run, which don't all fit into registers. Here the tensors that such layers read get rows as long as those of the longest
one: a tensor becomes a slice of a larger one, whose other elements nothing reads or writes. The strides are constants
again.

Rows are an odd number of cache lines apart: those of one tile would otherwise be in few sets of the L1 cache. They are
longer than the longest one, whose kernel has strides like the others then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

from relayc.relay.lowering.buffer_aliasing import has_only_loops, note_strides
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, GraphTensor
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.share_extents import FEWEST_STATIC, open_axes, outlined
from relayc.te.ir import PassContext
from relayc.te.ir.decisions import is_recording, note
from relayc.topi.cpu.tiling import LINE_ELEMENTS

__all__ = ["SpaceRows"]

_MOST_GROWTH = 4
"""Most times that a tensor's memory grows. What is touched of it does not."""


class SpaceRows(GraphPass):
    """Tensors that layers which differ only in numbers of channels read become slices of tensors with equal rows, in
    graphs that are placed statically. Memory is not planned yet."""

    opt_level: ClassVar[int] = 2

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        if "ShareExtents" in context.disabled_pass:
            return False
        spaced = [_space_rows(part) for part in graph.all_graphs() if part.is_placed_statically]
        return any(spaced)


def _space_rows(graph: ExecutionGraph) -> bool:
    """Space the rows of one graph's tensors; are there any?"""
    groups = [group for each in _read_alike(graph) for group in _similar(graph, each)]
    for group in groups:
        lines = max(_row(graph, number) for number in group) // LINE_ELEMENTS
        _spread(graph, group, (lines + 1 + lines % 2) * LINE_ELEMENTS)
    if groups:
        note_strides(graph)
    return bool(groups)


def _read_alike(graph: ExecutionGraph) -> Iterator[list[int]]:
    """The tensors that may be slices in groups, each read by functions that differ only in extents."""
    coarse: dict[Hashable, list[tuple[int, GraphNode, int]]] = {}
    for number, reader, position in _movable(graph):
        ty = graph.tensors[number].tensor_type
        coarse.setdefault((reader.workload.operators, position, ty.dtype, ty.shape[:-1]), []).append(
            (number, reader, position)
        )
    for found in coarse.values():
        if len(found) < FEWEST_STATIC:
            continue
        alike: dict[Hashable, list[int]] = {}
        for number, reader, position in found:
            function = reader.workload.function
            axes, outline = open_axes(function), outlined(function)
            rank = graph.tensors[number].tensor_type.ndim
            if axes is not None and outline is not None and rank - 1 in axes[id(function.params[position])]:
                alike.setdefault(outline[0], []).append(number)
        yield from alike.values()


def _movable(graph: ExecutionGraph) -> Iterator[tuple[int, GraphNode, int]]:
    """The tensors whose memory may be elsewhere, of several rows in whole cache lines, with the only node that reads
    each and the position of the argument there. Nodes that access them work with any strides."""
    readers: dict[int, list[tuple[GraphNode, int]]] = {}
    writers: dict[int, list[GraphNode]] = {}
    for node in graph.nodes:
        for position, number in enumerate(node.inputs):
            readers.setdefault(number, []).append((node, position))
        for number in node.outputs:
            writers.setdefault(number, []).append(node)
    fixed = {graph.base_of(number) for number in graph.outputs}
    fixed |= {tensor.base for tensor in graph.tensors if tensor.base is not None}
    for number, written in writers.items():
        tensor, reads = graph.tensors[number], readers.get(number, [])
        if tensor.storage is not None or tensor.base is not None or number in fixed or len(reads) != 1:
            continue
        shape, nodes = tensor.tensor_type.static_shape, [reads[0][0], *written]
        lines = len(shape) > 1 and shape[-1] > 0 and shape[-1] % LINE_ELEMENTS == 0
        if lines and all(map(has_only_loops, nodes)):
            yield number, *reads[0]


def _similar(graph: ExecutionGraph, numbers: Sequence[int]) -> list[list[int]]:
    """The tensors in groups of rows of similar lengths, each of enough different ones to share a kernel."""
    groups: list[list[int]] = [[]]
    for number in sorted(numbers, key=lambda n: _row(graph, n)):
        if groups[-1] and _row(graph, number) > _MOST_GROWTH * _row(graph, groups[-1][0]):
            groups.append([])
        groups[-1].append(number)
    return [group for group in groups if len({_row(graph, number) for number in group}) >= FEWEST_STATIC]


def _row(graph: ExecutionGraph, number: int) -> int:
    return graph.tensors[number].tensor_type.static_shape[-1]


def _spread(graph: ExecutionGraph, group: Sequence[int], row: int) -> None:
    """Make tensors slices of ones with rows of so many elements."""
    for number in group:
        ty = graph.tensors[number].tensor_type
        graph.tensors.append(GraphTensor(f"t{len(graph.tensors)}", ty.with_shape((*ty.shape[:-1], row))))
        graph.tensors[number].base, graph.tensors[number].begins = len(graph.tensors) - 1, (0,) * ty.ndim
        if is_recording():
            note("rows equally far apart", f"{row} elements", node=f"{ty} in rows of {row}")
