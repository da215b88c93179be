"""If, Loop and Scan: chosen and unrolled where their course is known and short, else run by the executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from frontends.onnx.errors import UnsupportedOperatorError, ValueNeededError
from frontends.onnx.fold import rewrite_free
from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import transposed
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, const
from relay.sizes import dims_equal, dims_match, size_variables
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
    if not all(isinstance(ty, TensorType) for ty in (*_types(then_branch), *_types(else_branch))):
        raise node.value_needed("the condition, which chooses between sequences, is computed at run time", node[0])
    results: list[TensorType] = []
    count = len(branches[0].output)
    pairs = zip(_types(then_branch)[:count], _types(else_branch)[:count], strict=True)
    for k, (a, b) in enumerate(pairs):
        if a.dtype != b.dtype or a.ndim != b.ndim:
            what = f"the condition, which makes output {k} {a} or {b}, is computed at run time"
            raise node.value_needed(what, node[0])
        differ = [i for i, (d, e) in enumerate(zip(a.shape, b.shape, strict=True)) if not _outside(node, d, e)]
        results.append(node.fresh_sizes(a, differ, f"#result{k}", ones=_ones(node, a, b)))
    return _fields(op.if_else(node[0], then_branch, else_branch, then_args, else_args, results))


def _outside(node: OnnxNode, d: Dim, e: Dim) -> bool:
    """Are the two sizes one that is known outside of the bodies too?"""
    return dims_equal(d, e) and not any(n.startswith("#") for n in size_variables((d,)))


def _ones(node: OnnxNode, a: TensorType, b: TensorType) -> list[int]:
    """The axes that are 1 in one of two types, or may be, and not in the other."""
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return [i for i, (d, e) in pairs if not dims_equal(d, e) and any(x == 1 or node.may_be_one(x) for x in (d, e))]


def _types(function: Function) -> list[TensorType]:
    """The types of the tensors that a function gives."""
    ty = function.body.ty
    return [ty] if isinstance(ty, TensorType) else list(ty.fields)  # type: ignore[attr-defined]


def _fields(call: Call) -> list[Expr]:
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
    results = [node.fresh_sizes(ty, _unsettled(ty), f"#result{k}", ones=_may_be_ones(node, ty))
               for k, ty in enumerate(types[: len(carried)])]  # fmt: skip
    for k, ty in enumerate(types[len(carried) :], start=len(carried)):
        stack = ty.with_shape((1, *ty.shape))
        results.append(node.fresh_sizes(stack, [0, *_unsettled(stack)], f"#result{k}"))
    trips = const(np.array(MOST_TRIPS, np.int64)) if node.get(0) is None else op.cast(node[0], "int64")
    condition = const(np.array(True)) if node.get(1) is None else node[1]
    return _fields(op.while_loop(trips, condition, carried, outside, function, results))


def _unsettled(ty: TensorType, first: int = 0) -> list[int]:
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
            given = _types(function)[1 : len(body.output)]
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
    return [*carried, *(_stacked(node, values, 0) for values in collected)]


def _known_condition(node: OnnxNode, condition: Expr) -> bool:
    value = node.value_or_none(condition)
    if value is None:
        raise node.unsupported(
            "the number of iterations depends on values computed at run time",
            expected="a loop whose end is known when compiling",
        )
    return bool(value.reshape(-1)[0])


def _stacked(node: OnnxNode, values: Sequence[Expr], axis: int) -> Expr:
    if not values:
        raise node.unsupported("a scanned output of no iterations")
    return op.concatenate([op.expand_dims(value, axis) for value in values], axis=axis)


@converter("Scan", since=9)
def scan(node: OnnxNode) -> Sequence[Expr]:
    """State first, then one slice of each scanned input per iteration."""
    states = len(node) - node.attr_int("num_scan_inputs")
    axes = node.attr_ints("scan_input_axes", (0,) * (len(node) - states))
    known = [node.type(states + i).shape[axis] for i, axis in enumerate(axes) if states + i < len(node)]
    if known and isinstance(known[0], int) and 1 <= known[0] <= UNROLLED:
        return _unrolled_scan(node)
    return _scan_at_run_time(node)


def _scan_at_run_time(node: OnnxNode) -> Sequence[Expr]:
    """A loop over the positions, which takes its slices from the whole inputs."""
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    states = len(node) - count
    outputs = len(body.output) - states
    if count < 1 or states < 0 or outputs < 0:
        raise node.error(f"{len(node)} inputs of which {count} are scanned, {len(body.output)} outputs")
    in_axes = _axes(node, "scan_input_axes", count, [node.rank(states + i) for i in range(count)])
    backwards_in = node.attr_ints("scan_input_directions", (0,) * count)
    backwards_out = node.attr_ints("scan_output_directions", (0,) * outputs)
    out_axes = node.attr_ints("scan_output_axes", (0,) * outputs)
    scanned = [node[states + i] for i in range(count)]
    lengths = [x.shape[axis] for x, axis in zip(scanned, in_axes, strict=True)]
    if not all(dims_match(n, lengths[0]) for n in lengths):
        raise node.error(f"scanned inputs of lengths {lengths}", expected="one length")
    types = [node.type(i) for i in range(states)]
    slices = [x.tensor_type.with_shape([d for a, d in enumerate(x.shape) if a != axis])
              for x, axis in zip(scanned, in_axes, strict=True)]  # fmt: skip
    params = [Var(f"state{k}", ty) for k, ty in enumerate([*types, *slices])]
    function, outside = node.close_graph(body, params)
    given = _types(function)[: len(body.output)]
    if any(a is not b for a, b in zip(types, given, strict=False)):
        raise node.unsupported("states that change their type", expected="states of one type")
    iteration, goes_on = Var("iteration", TensorType((), "int64")), Var("goes_on", TensorType((), "bool"))
    whole = [Var(f"scanned{k}", x.ty) for k, x in enumerate(scanned)]
    last = op.subtract(op.sizes((lengths[0],), ()), const(np.array(1, np.int64)))
    taken: dict[int, Expr] = {}
    for k, (x, axis) in enumerate(zip(whole, in_axes, strict=True)):
        at = op.subtract(last, iteration) if backwards_in[k] else iteration
        taken[id(params[states + k])] = op.take(x, at, axis=axis, mode="clip")
    inner = rewrite_free(function.body, taken)
    assert isinstance(inner, Tuple)
    step = Tuple((const(np.array(True)), *inner.fields))
    attrs = dict(function.attrs)
    if "bound_sizes" in attrs:
        attrs["bound_sizes"] = tuple((n, output + 1, e, s) for n, output, e, s in attrs["bound_sizes"])
    kept = function.params[len(params) :]
    loop_body = Function((iteration, goes_on, *params[:states], *whole, *kept), step, attrs)
    results = [*types]
    for k, ty in enumerate(given[states:], start=states):
        results.append(node.fresh_sizes(ty.with_shape((lengths[0], *ty.shape)), _unsettled(ty, 1), f"#result{k}"))
    trips, begin = op.sizes((lengths[0],), ()), const(np.array(True))
    states_in = [node[i] for i in range(states)]
    fields = _fields(op.while_loop(trips, begin, states_in, [*scanned, *outside], loop_body, results))
    for k in range(outputs):
        x = fields[states + k]
        x = op.reverse(x, axis=0) if backwards_out[k] else x
        rank = len(x.shape)
        to = node.axis(out_axes[k], rank)
        fields[states + k] = transposed(x, (*range(1, to + 1), 0, *range(to + 1, rank)))
    return fields


def _unrolled_scan(node: OnnxNode) -> Sequence[Expr]:
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    states = len(node) - count
    outputs = len(body.output) - states
    if count < 1 or states < 0 or outputs < 0:
        raise node.error(f"{len(node)} inputs of which {count} are scanned, {len(body.output)} outputs")
    in_axes = _axes(node, "scan_input_axes", count, [node.rank(states + i) for i in range(count)])
    backwards_in = node.attr_ints("scan_input_directions", (0,) * count)
    backwards_out = node.attr_ints("scan_output_directions", (0,) * outputs)
    out_axes = node.attr_ints("scan_output_axes", (0,) * outputs)
    lengths = {node.extent(node[states + i], axis, "the slices") for i, axis in enumerate(in_axes)}
    if len(lengths) != 1:
        raise node.error(f"scanned inputs of lengths {sorted(lengths)}", expected="one length")
    length = lengths.pop()
    if not 1 <= length <= MAX_ITERATIONS:
        raise node.unsupported(f"a scan of {length} iterations", expected=f"1 to {MAX_ITERATIONS}")
    carried = [node[i] for i in range(states)]
    collected: list[list[Expr]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices = [
            _at(node[states + i], axis, length - 1 - step if backwards_in[i] else step)
            for i, axis in enumerate(in_axes)
        ]
        results = node.convert_graph(body, [*carried, *slices])
        carried = results[:states]
        for values, value in zip(collected, results[states:], strict=True):
            values.append(value)
    stacked = [
        _stacked(node, values[::-1] if backwards_out[i] else values, node.axis(out_axes[i], len(values[0].shape) + 1))
        for i, values in enumerate(collected)
    ]
    return [*carried, *stacked]


@converter("Scan", since=8)
def scan_8(node: OnnxNode) -> Sequence[Expr]:
    """Opset 8 scans each entry of a batch: tensors are [batch, ...], scanned ones [batch, length, ...]."""
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    backwards = node.attr_ints("directions", (0,) * count)
    if node.get(0) is not None:
        raise node.unsupported("lengths that differ within a batch")
    inputs = node.inputs[1:]
    states = len(inputs) - count
    lengths = {node.extent(node[1 + states + i], 1, "the slices") for i in range(count)}
    if count < 1 or states < 0 or len(lengths) != 1:
        raise node.error(f"{len(inputs)} inputs of which {count} are scanned, of lengths {sorted(lengths)}")
    length = lengths.pop()
    if not 1 <= length <= MAX_ITERATIONS:
        raise node.unsupported(f"a scan of {length} iterations", expected=f"1 to {MAX_ITERATIONS}")
    entries: list[list[Expr]] = []
    for entry in range(node.extent(node[1], 0, "the entries")):
        given = [_at(node[1 + i], 0, entry) for i in range(len(inputs))]
        carried, collected = given[:states], list[list[Expr]]()
        for step in range(length):
            at = [length - 1 - step if backward else step for backward in backwards]
            slices = [_at(x, 0, i) for x, i in zip(given[states:], at, strict=True)]
            results = node.convert_graph(body, [*carried, *slices])
            carried = results[:states]
            collected.append(results[states:])
        entries.append([*carried, *(_stacked(node, column, 0) for column in zip(*collected, strict=True))])
    return [_stacked(node, column, 0) for column in zip(*entries, strict=True)]


def _axes(node: OnnxNode, name: str, count: int, ranks: Sequence[int]) -> list[int]:
    axes = node.attr_ints(name, (0,) * count)
    if len(axes) != count:
        raise node.error(f"{name} has {len(axes)} numbers", expected=f"{count}")
    return [node.axis(axis, rank) for axis, rank in zip(axes, ranks, strict=True)]


def _at(x: Expr, axis: int, index: int) -> Expr:
    return op.squeeze(op.strided_slice(x, (index,), (index + 1,), (1,), axes=(axis,)), axis=(axis,))
