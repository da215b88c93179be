"""If and Loop: chosen and unrolled where their course is known and short, else run by the executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from frontends.onnx.errors import UnsupportedOperatorError, ValueNeededError
from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Call, Constant, Expr, Function, TupleGetItem, Var, const
from relay.sizes import dims_equal, size_variables
from relay.type import TensorType, TupleType
from te.tir import Dim

MAX_ITERATIONS = 1024
"""Iterations unrolled at most, where a loop can't be one of the executor's."""

UNROLLED = 16
"""Iterations of loops that are better unrolled."""

MOST_TRIPS = (1 << 62) - 1


@converter("If")
def if_(node: OnnxNode) -> Sequence[Expr]:
    """The branch that the condition selects: now, when it is known, else when the model runs."""
    known = node.known_value(0)
    branches = [node.attr_graph("then_branch"), node.attr_graph("else_branch")]
    if known is not None:
        return node.convert_graph(branches[0 if bool(known.reshape(-1)[0]) else 1], [])
    (then_branch, then_args), (else_branch, else_args) = (node.close_graph(graph, []) for graph in branches)
    if not all(isinstance(ty, TensorType) for ty in (*types_of(then_branch), *types_of(else_branch))):
        raise node.value_needed("the condition, which chooses between sequences, is computed at run time", node[0])
    results: list[TensorType] = []
    count = len(branches[0].output)
    pairs = zip(types_of(then_branch)[:count], types_of(else_branch)[:count], strict=True)
    for k, (a, b) in enumerate(pairs):
        if a.dtype != b.dtype or a.ndim != b.ndim:
            what = f"the condition, which makes output {k} {a} or {b}, is computed at run time"
            raise node.value_needed(what, node[0])
        differ = [i for i, (d, e) in enumerate(zip(a.shape, b.shape, strict=True)) if not _outside(node, d, e)]
        results.append(node.fresh_sizes(a, differ, f"#result{k}", ones=_ones(node, a, b)))
    return fields_of(op.if_else(node[0], then_branch, else_branch, then_args, else_args, results))


def _outside(node: OnnxNode, d: Dim, e: Dim) -> bool:
    """Are the two sizes one that is known outside of the bodies too?"""
    return dims_equal(d, e) and not any(n.startswith("#") for n in size_variables((d,)))


def _ones(node: OnnxNode, a: TensorType, b: TensorType) -> list[int]:
    """The axes that are 1 in one of two types, or may be, and not in the other."""
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return [i for i, (d, e) in pairs if not dims_equal(d, e) and any(x == 1 or node.may_be_one(x) for x in (d, e))]


def types_of(function: Function) -> list[TensorType]:
    """The types of the tensors that a function gives."""
    ty = function.body.ty
    return [ty] if isinstance(ty, TensorType) else list(ty.fields)  # type: ignore[attr-defined]


def fields_of(call: Call) -> list[Expr]:
    """The fields of a call's tuple."""
    assert isinstance(call.ty, TupleType)
    return [TupleGetItem(call, i) for i in range(len(call.ty.fields))]


@converter("Loop")
def loop(node: OnnxNode) -> Sequence[Expr]:
    """Body inputs: iteration, condition, carried values; its outputs: condition, carried values, scanned values.

    A short loop whose course is known is unrolled, as is one whose values change their rank; others run at run time.
    """
    trips, condition = node.known_value(0), node.known_value(1)
    count = None if trips is None else int(trips.reshape(-1)[0])
    if count is not None and count <= UNROLLED and (node.get(1) is None or condition is not None):
        try:
            with node.attempt():
                return _unrolled_loop(node)
        except UnsupportedOperatorError:
            return _loop_at_run_time(node)
    try:
        with node.attempt():
            return _loop_at_run_time(node)
    except (UnsupportedOperatorError, ValueNeededError):
        if trips is None and node.get(0) is not None:
            what = "the trip count of a loop whose values are sequences, or change their rank, is computed at run time"
            raise node.value_needed(what, node[0]) from None
        return _unrolled_loop(node)


def _loop_at_run_time(node: OnnxNode) -> Sequence[Expr]:
    body = node.attr_graph("body")
    carried = [node[i] for i in range(2, len(node))]
    scans = len(body.output) - 1 - len(carried)
    if scans < 0 or len(body.input) != 2 + len(carried):
        raise node.error(f"a body of {len(body.input)} inputs and {len(body.output)} outputs")
    if not all(isinstance(x.ty, TensorType) for x in carried):
        raise node.unsupported("a loop that carries a sequence and whose course depends on values at run time")
    function, outside, types = _body_of(node, body, carried)
    results = [node.fresh_sizes(ty, unsettled(ty), f"#result{k}", ones=_may_be_ones(node, ty))
               for k, ty in enumerate(types[: len(carried)])]  # fmt: skip
    for k, ty in enumerate(types[len(carried) :], start=len(carried)):
        stack = ty.with_shape((1, *ty.shape))
        results.append(node.fresh_sizes(stack, [0, *unsettled(stack)], f"#result{k}"))
    trips = const(np.array(MOST_TRIPS, np.int64)) if node.get(0) is None else op.cast(node[0], "int64")
    condition = const(np.array(True)) if node.get(1) is None else node[1]
    return fields_of(op.while_loop(trips, condition, carried, outside, function, results))


def unsettled(ty: TensorType, first: int = 0) -> list[int]:
    """The axes, counted from `first`, whose sizes belong to an iteration."""
    return [a for a, d in enumerate(ty.shape, start=first) if any(n.startswith("#") for n in size_variables((d,)))]


def _may_be_ones(node: OnnxNode, ty: TensorType) -> list[int]:
    return [a for a, d in enumerate(ty.shape) if node.may_be_one(d)]


def _body_of(
    node: OnnxNode, body: GraphProto, carried: Sequence[Expr]
) -> tuple[Function, list[Expr], list[TensorType]]:
    """The body as a function over carried types that it keeps: sizes that change become variables."""
    types = [x.tensor_type for x in carried]
    changing: set[tuple[int, int]] = set()  # (carried value, axis)
    while True:
        params = [
            Var("iteration", TensorType((), "int64")),
            Var("goes_on", TensorType((), "bool")),
            *[Var(f"carried{k}", ty) for k, ty in enumerate(types)],
        ]
        with node.attempt() as forget:
            function, outside = node.close_graph(body, params)
            given = types_of(function)[1 : len(body.output)]
            if not all(isinstance(ty, TensorType) for ty in given):
                raise node.unsupported("a loop that makes sequences and whose course depends on values at run time")
            changed = _changes(node, types, given) - changing
            if not changed:
                return function, outside, [*types, *given[len(types) :]]
            forget()
        for k, (before, after) in enumerate(zip(types, given, strict=False)):
            axes = [a for number, a in changed if number == k]
            if axes:
                types[k] = node.fresh_sizes(before, axes, f"#carried{k}", inside=True, ones=_ones(node, before, after))
        changing |= changed


def _changes(node: OnnxNode, types: Sequence[TensorType], given: Sequence[TensorType]) -> set[tuple[int, int]]:
    """Which axes of which carried values an iteration gives another size."""
    changes: set[tuple[int, int]] = set()
    for k, (before, after) in enumerate(zip(types, given, strict=False)):
        if before.dtype != after.dtype or before.ndim != after.ndim:
            raise node.unsupported(f"a carried value that changes from {before} to {after}")
        pairs = enumerate(zip(before.shape, after.shape, strict=True))
        changes |= {(k, a) for a, (d, e) in pairs if not dims_equal(d, e)}
    return changes


def _unrolled_loop(node: OnnxNode) -> Sequence[Expr]:
    body = node.attr_graph("body")
    trips = node.constant_or_none(0, "the trip count")
    condition = node.constant_or_none(1, "the condition")
    limit = MAX_ITERATIONS + 1 if trips is None else int(trips.reshape(-1)[0])
    alive = True if condition is None else bool(condition.reshape(-1)[0])
    carried = [node[i] for i in range(2, len(node))]
    scans = len(body.output) - 1 - len(carried)
    if scans < 0 or len(body.input) != 2 + len(carried):
        raise node.error(f"a body of {len(body.input)} inputs and {len(body.output)} outputs")
    collected: list[list[Expr]] = [[] for _ in range(scans)]
    iteration = 0
    while alive and iteration < limit:
        if iteration >= MAX_ITERATIONS:
            raise node.unsupported(f"a loop of more than {MAX_ITERATIONS} iterations")
        args = [Constant(np.array(iteration, np.int64)), Constant(np.array(True)), *carried]
        results = node.convert_graph(body, args)
        alive = _known_condition(node, results[0])
        carried = results[1 : 1 + len(carried)]
        for values, value in zip(collected, results[1 + len(carried) :], strict=True):
            values.append(value)
        iteration += 1
    return [*carried, *(stacked(node, values, 0) for values in collected)]


def _known_condition(node: OnnxNode, condition: Expr) -> bool:
    value = node.value_or_none(condition)
    if value is None:
        raise node.unsupported(
            "the number of iterations depends on values computed at run time",
            expected="a loop whose end is known when compiling",
        )
    return bool(value.reshape(-1)[0])


def stacked(node: OnnxNode, values: Sequence[Expr], axis: int) -> Expr:
    """What the iterations gave, one after another along a new axis."""
    if not values:
        raise node.unsupported("a scanned output of no iterations")
    return op.concatenate([op.expand_dims(value, axis) for value in values], axis=axis)
