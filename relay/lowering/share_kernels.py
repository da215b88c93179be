"""Shares kernels between fused functions that differ only in constants, which become parameters.

Every layer of a quantised model has its own scale and zero point, every level of a detector its own sizes of boxes.
With the constants in the code each would be a kernel of its own, to be compiled separately. Here the functions of a
model are compared without their constants. Where several are equal, the constants in which they differ become
parameters: scalar tensors, which are loaded once before the loops (`relay.lowering.load_scalars`).

Slices that differ only in their positions are compared likewise, if there are many: each part of a long split would be
a kernel. The positions of few stay in the code, where they are known to be aligned and parts may be views.

A constant stays in the code if the code is specialised on it (`OpDef.is_specialized_on`: an exponent, a divisor, a
factor of 1), if it is the same in all equal functions, and in a function that equals no other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, const
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.graph import ExecutionGraph, GraphTensor
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import OpDef, OpPattern, expect_op, make_call
from relayc.relay.op.transform import StridedSlice
from relayc.relay.printer import attribute_texts
from relayc.relay.sizes import assuming
from relayc.te.ir import PassContext
from relayc.te.tir import Dim

__all__ = ["ShareKernels", "ShareSlices"]

_MANY_SLICES = 32
"""The least different kernels that are replaced by one which takes the positions of its slices as data. A kernel
compiles in 3 ms."""

Scalar = tuple[str, bytes]
"""Type and bits of a scalar constant: equal for identical constants only."""


class ShareKernels(GraphPass):
    """Nodes of a graph, its variants and the graphs inside of it run the same kernel if only scalar constants differ.

    The constants become parameters of the graphs. Tensors are not placed yet.
    """

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        return _share(graph, False, 2)


class ShareSlices(GraphPass):
    """Nodes of a graph, its variants and the graphs inside of it run the same kernel if only the positions of slices
    differ, where this saves many kernels.

    Slices that can be views are views already. Tensors are not placed yet.
    """

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        return _share(graph, True, _MANY_SLICES)


def _share(graph: ExecutionGraph, by_position: bool, least: int) -> bool:
    """Let nodes share a kernel if only constants differ in their functions, or with `by_position` the positions of
    slices as well, and at least so many functions are alike; do any?"""
    nodes = [node for part in graph.all_graphs() for node in part.nodes]
    shared = _shared({node.workload.key: node.workload for node in nodes}.values(), by_position, least)
    for part in graph.all_graphs() if shared else ():
        known: dict[Scalar, int] = {}
        for node in part.nodes:
            if node.workload.key in shared:
                node.workload, numbers = shared[node.workload.key]
                node.inputs += [_parameter(part, number, known) for number in numbers]
    return bool(shared)


def _parameter(graph: ExecutionGraph, number: Constant, known: dict[Scalar, int]) -> int:
    """The tensor of the graph that holds the constant `number`."""
    identity = _identity(number)
    if identity not in known:
        name = f"p{len(graph.params)}"
        graph.params[name] = number.data
        known[identity] = len(graph.tensors)
        graph.tensors.append(GraphTensor(name, number.ty, ("param", name)))
    return known[identity]


def _shared(
    workloads: Iterable[Workload], by_position: bool, least: int
) -> dict[str, tuple[Workload, list[Constant]]]:
    """Key of a workload -> the workload that replaces it, and the constants that are its last arguments."""
    alike: dict[Hashable, list[_Abstracted]] = {}
    for workload in workloads:
        if by_position and not _has_movable_slices(workload.function):
            continue
        outline, numbers = _outlined(workload.function, by_position)
        if numbers:
            alike.setdefault(outline, []).append(_Abstracted(workload, numbers))
    groups = [group for group in alike.values() if len(group) >= least]
    return {key: value for group in groups for key, value in _generalized(group, by_position)}


def _has_movable_slices(function: Function) -> bool:
    """Does it have slices, and compute nothing but elements one by one?"""
    ops = [e.op for e in body_order(function) if isinstance(e, Call) and isinstance(e.op, OpDef)]
    if not any(isinstance(op, StridedSlice) for op in ops) or any(op.pattern > OpPattern.INJECTIVE for op in ops):
        return False
    return not sizes_of(function) and "strides" not in function.attrs


def _outlined(function: Function, by_position: bool) -> tuple[Hashable, list[Constant]]:
    """The function without the constants that may be parameters, equal for functions that differ only in these, and
    the constants in order of use."""
    values: dict[int, Hashable] = {id(p): i for i, p in enumerate(function.params)}
    rows: list[Hashable] = [repr(function.attrs), *[p.ty for p in function.params]]
    numbers: list[Constant] = []
    for e in body_order(function):
        if isinstance(e, Constant):
            values[id(e)] = e.ty, e.data.tobytes()
        elif id(e) not in values:
            own = dict(_numbers(e)) if isinstance(e, Call) else {}
            operands = [own[i].ty if i in own else values[id(child)] for i, child in enumerate(e.node_children())]
            numbers += own.values()
            content, begins = _content(e, by_position)
            numbers += begins
            rows.append((content, e.ty, *operands))
            values[id(e)] = len(values)
    return (*rows, values[id(function.body)]), numbers


def _content(e: Expr, by_position: bool) -> tuple[Hashable, list[Constant]]:
    """What an expression is without its operands, and with `by_position` without the positions of a slice."""
    match e:
        case Call(op=StridedSlice()) if by_position:
            begins, attributes = _position(e)
            return ("slice_at", *attributes.values()), begins
        case Call(op=OpDef() as op):
            return (op.name, *attribute_texts(op)), []
        case TupleGetItem():
            return e.index, []
        case _:
            return type(e) if isinstance(e, Tuple) else e, []


def _at_position(call: Call) -> Expr:
    """A slice with its positions as operands; any other call as it is."""
    if not isinstance(call.op, StridedSlice):
        return call
    begins, attributes = _position(call)
    return make_call("slice_at", (call.args[0], *begins), call.span, **attributes)


def _position(call: Call) -> tuple[list[Constant], Mapping[str, tuple[Dim, ...]]]:
    """The positions of a slice along the axes on which it is one, and the attributes of `slice_at`."""
    op, shape = expect_op(call, StridedSlice), call.args[0].shape
    first, steps, sizes = op.resolved(shape)
    axes = tuple([a for a, (d, size) in enumerate(zip(shape, sizes, strict=True)) if d != size])
    attributes = {"sizes": tuple([sizes[a] for a in axes]), "strides": tuple([steps[a] for a in axes]), "axes": axes}
    return [const(np.array(first[a], np.int32)) for a in axes], attributes


def _generalized(
    group: Sequence[_Abstracted], by_position: bool
) -> Iterator[tuple[str, tuple[Workload, list[Constant]]]]:
    """The function that replaces functions equal up to constants; constants that always coincide are one parameter."""
    columns = list(zip(*[[_identity(n) for n in each.numbers] for each in group], strict=True))
    first: dict[tuple[Scalar, ...], int] = {}
    for place, column in enumerate(columns):
        if len(set(column)) > 1:
            first.setdefault(column, place)
    function = group[0].workload.function
    opened = rewrite_calls(function, _at_position) if by_position else function
    places = {place: first[column] for place, column in enumerate(columns) if column in first}
    common = Workload.of(_parametrized(opened, places))
    for each in group:
        yield each.workload.key, (common, [each.numbers[place] for place in first.values()])


@dataclass(frozen=True, slots=True)
class _Abstracted:
    """A workload, and the constants of its function that may be parameters, in order of use."""

    workload: Workload
    numbers: list[Constant]


def _parametrized(function: Function, places: dict[int, int]) -> Function:
    params: dict[int, Var] = {}
    made: dict[int, Expr] = {}
    place = 0
    with assuming():  # what was assumed of the model's sizes holds here as well
        for e in body_order(function):
            if not isinstance(e, Call):
                made[id(e)] = e.rebuild(lambda child: made[id(child)])
                continue
            args = [made[id(a)] for a in e.args]
            for position, number in _numbers(e):
                if place in places:
                    at = places[place]
                    args[position] = params.setdefault(at, Var(f"number{at}", number.ty))
                place += 1
            changed = any(a is not b for a, b in zip(args, e.args, strict=True))
            made[id(e)] = Call(e.op, tuple(args), span=e.span) if changed else e
    return Function((*function.params, *params.values()), made[id(function.body)], function.attrs)


def _numbers(call: Call) -> Iterator[tuple[int, Constant]]:
    """The constant operands that may become parameters, with their positions."""
    if not isinstance(call.op, OpDef):
        return
    for position, e in enumerate(call.args):
        if isinstance(e, Constant) and _is_plain(e) and not call.op.is_specialized_on(position, e.data):
            yield position, e


def _is_plain(e: Constant) -> bool:
    """Is it a scalar constant of a type that processors support?"""
    return e.data.ndim == 0 and e.dtype.bits >= (16 if e.dtype.is_float else 8)


def _identity(number: Constant) -> Scalar:
    return str(number.dtype), number.data.tobytes()
