"""Shares kernels between fused functions that differ only in the positions of slices.

Decoders project what the encoder found for all their layers in one product, and the attention of each layer reads
slices of it. At dynamic sizes a kernel of attention is expensive to compile: here the positions become values of size
variables, which a node passes as constants, and one kernel serves all layers.

A position is its least value and a multiple of a bounded variable, so that slices are known to lie inside of the
tensor, and to begin at multiples of what is copied together. Positions along the last axis stay in the code, which
loads vectors from there, and so do those of elementwise functions, which compile quickly and are views mostly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.graph import ExecutionGraph
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload
from relayc.relay.lowering.share_extents import as_sizes
from relayc.relay.op.base import OpPattern, expect_op
from relayc.relay.op.transform import StridedSlice
from relayc.relay.sizes import add_sizes, assuming
from relayc.te.ir import PassContext
from relayc.te.tir import Dim

__all__ = ["SharePositions"]


class SharePositions(GraphPass):
    """Nodes of a graph, its variants and the graphs inside of it run the same kernel if their functions take sizes,
    compute more than elements one by one, and differ only in where slices begin.

    The positions become values of the nodes' sizes.
    """

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        nodes = [node for part in graph.all_graphs() for node in part.nodes]
        alike: dict[str, list[_Sliced]] = {}
        for workload in {node.workload.key: node.workload for node in nodes}.values():
            sliced = _sliced(workload)
            if sliced is not None:
                alike.setdefault(sliced.outline, []).append(sliced)
        shared = {key: value for group in alike.values() if len(group) > 1 for key, value in _generalized(group)}
        for node in nodes:
            if node.workload.key in shared:
                node.workload, positions = shared[node.workload.key]
                node.names = {**node.names, **positions}
        return bool(shared)


class _Sliced(NamedTuple):
    """A workload, its text with all slices at the front, and where they begin: one number for each axis of each."""

    workload: Workload
    outline: str
    positions: tuple[int, ...]


def _sliced(workload: Workload) -> _Sliced | None:
    """The workload's slices that may begin elsewhere; None where there are none, or the kernel is cheap to compile."""
    function = workload.function
    if len({variable.dtype for variable in sizes_of(function).values()}) != 1:
        return None
    if not any(op.pattern >= OpPattern.COMM_REDUCE for op in workload.operator_classes):
        return None
    calls = [e for e in body_order(function) if isinstance(e, Call) and _is_movable(e)]
    begins = [begin for call in calls for begin in expect_op(call, StridedSlice).begin]
    positions = tuple([begin for begin in begins if isinstance(begin, int)])
    return _Sliced(workload, str(_at(function, [0] * len(positions))), positions) if positions else None


def _is_movable(call: Call) -> bool:
    """Is it a slice of rows one after the other, at known positions along known extents?"""
    op = call.op
    if not isinstance(op, StridedSlice) or any(stride != 1 for stride in op.strides):
        return False
    last, sizes = len(call.shape) - 1, [call.shape[axis] for axis in op.axes]
    numbers = (*op.begin, *op.end, *sizes, *[call.args[0].shape[axis] for axis in op.axes])
    if {last, -1} & {*op.axes} or not all(isinstance(number, int) and number >= 0 for number in numbers):
        return False
    return [add_sizes(begin, size) for begin, size in zip(op.begin, sizes, strict=True)] == [*op.end]


def _at(function: Function, positions: Sequence[Dim]) -> Function:
    """The function with slices that begin at other positions, in the order of `_Sliced.positions`."""
    left = iter(positions)

    def moved(call: Call) -> Call:
        if not _is_movable(call):
            return call
        op = expect_op(call, StridedSlice)
        begins = tuple([next(left) for _ in op.axes])
        ends = tuple([add_sizes(begin, call.shape[axis]) for begin, axis in zip(begins, op.axes, strict=True)])
        return Call(op.replace(begin=begins, end=ends), call.args, span=call.span)

    with assuming():  # what was assumed of the model's sizes holds here as well
        return rewrite_calls(function, moved)


def _generalized(group: Sequence[_Sliced]) -> Iterator[tuple[str, tuple[Workload, Mapping[str, int]]]]:
    """The function that replaces functions equal but for positions, and the values of its variables for each of them.
    """
    function = group[0].workload.function
    positions, variables = as_sizes(function, [each.positions for each in group])
    bounds = tuple([(variable.name, variable.most) for variable in variables.values()])
    moved = _at(function, positions)
    common = Workload.of(Function(moved.params, moved.body, {**function.attrs, "extents": bounds}))
    for i, each in enumerate(group):
        yield each.workload.key, (common, {variable.name: steps[i] for steps, variable in variables.items()})
