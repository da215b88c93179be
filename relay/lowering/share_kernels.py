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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var, const
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.graph import ExecutionGraph, GraphTensor
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.op.transform import StridedSlice
from relayc.relay.sizes import assuming
from relayc.te.ir import PassContext

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
        return _share(graph, lambda function: function, 2)


class ShareSlices(GraphPass):
    """Nodes of a graph, its variants and the graphs inside of it run the same kernel if only the positions of slices
    differ, where this saves many kernels.

    Slices that can be views are views already. Tensors are not placed yet.
    """

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        return _share(graph, _with_positions, _MANY_SLICES)


def _share(graph: ExecutionGraph, form: Callable[[Function], Function | None], least: int) -> bool:
    """Let nodes share a kernel if in a certain form of their functions only constants differ, and at least so many
    functions are alike; do any?"""
    nodes = [node for part in graph.all_graphs() for node in part.nodes]
    shared = _shared({node.workload.key: node.workload for node in nodes}.values(), form, least)
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
    workloads: Iterable[Workload], form: Callable[[Function], Function | None], least: int
) -> dict[str, tuple[Workload, list[Constant]]]:
    """Key of a workload -> the workload that replaces it, and the constants that are its last arguments."""
    alike: dict[str, list[_Abstracted]] = {}
    for workload in workloads:
        function = form(workload.function)
        abstracted = None if function is None else _Abstracted.of(workload.key, function)
        if abstracted is not None:
            alike.setdefault(abstracted.text, []).append(abstracted)
    return {key: value for group in alike.values() if len(group) >= least for key, value in _generalized(group)}


def _with_positions(function: Function) -> Function | None:
    """The function with the positions of its slices as operands; None if it has none, or computes more than elements
    one by one."""
    calls = [call.op for call in _calls(function) if isinstance(call.op, OpDef)]
    if not any(isinstance(op, StridedSlice) for op in calls) or any(op.pattern > OpPattern.INJECTIVE for op in calls):
        return None
    return None if sizes_of(function) or "strides" in function.attrs else rewrite_calls(function, _at_position)


def _at_position(call: Call) -> Expr:
    if not isinstance(call.op, StridedSlice):
        return call
    first, steps, sizes = call.op.resolved(call.args[0].shape)
    axes = tuple([a for a, (d, size) in enumerate(zip(call.args[0].shape, sizes, strict=True)) if d != size])
    begins = [const(np.array(first[a], np.int32)) for a in axes]
    attributes = {"sizes": tuple([sizes[a] for a in axes]), "strides": tuple([steps[a] for a in axes]), "axes": axes}
    return make_call("slice_at", (call.args[0], *begins), call.span, **attributes)


def _generalized(group: Sequence[_Abstracted]) -> Iterator[tuple[str, tuple[Workload, list[Constant]]]]:
    """The function that replaces functions equal up to constants; constants that always coincide are one parameter."""
    columns = list(zip(*[[_identity(n) for n in function.numbers] for function in group], strict=True))
    first: dict[tuple[Scalar, ...], int] = {}
    for place, column in enumerate(columns):
        if len(set(column)) > 1:
            first.setdefault(column, place)
    common = group[0].with_parameters({place: first[column] for place, column in enumerate(columns) if column in first})
    for function in group:
        yield function.key, (common, [function.numbers[place] for place in first.values()])


@dataclass(frozen=True, slots=True)
class _Abstracted:
    """The function of the workload `key`, whose constants `numbers` may be parameters, in order of use; `text` is the
    function without them."""

    key: str
    function: Function
    numbers: list[Constant]
    text: str

    @staticmethod
    def of(key: str, function: Function) -> _Abstracted | None:
        """The function of a workload; None if it has no such constants."""
        numbers = [number for call in _calls(function) for _, number in _numbers(call)]
        if not numbers:
            return None
        places = range(len(numbers))
        return _Abstracted(key, function, numbers, str(_parametrized(function, dict(zip(places, places, strict=True)))))

    def with_parameters(self, places: dict[int, int]) -> Workload:
        """The function in which the constant at place p is the parameter for place `places[p]`."""
        return Workload.of(_parametrized(self.function, places))


def _parametrized(function: Function, places: dict[int, int]) -> Function:
    params: dict[int, Var] = {}
    made: dict[int, Expr] = {}
    place = 0
    with assuming():  # what was assumed of the model's sizes holds here as well
        for e in evaluation_order(function.body):
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


def _calls(function: Function) -> Iterator[Call]:
    for e in evaluation_order(function.body):
        if isinstance(e, Call):
            yield e


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
