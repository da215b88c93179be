"""If, Loop and Scan whose course is known when compiling: branches are chosen and loops unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr

MAX_ITERATIONS = 1024
"""Iterations unrolled at most."""


@converter("If")
def if_(node: OnnxNode) -> Sequence[Expr]:
    """The branch that the condition, a constant, selects."""
    chosen = bool(node.constant(0, "the condition").reshape(-1)[0])
    then_branch, else_branch = node.attr_graph("then_branch"), node.attr_graph("else_branch")
    return node.convert_graph(then_branch if chosen else else_branch, [])


@converter("Loop")
def loop(node: OnnxNode) -> Sequence[Expr]:
    """Body inputs: iteration, condition, carried values; its outputs: condition, carried values, scanned values."""
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
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    states = len(node) - count
    outputs = len(body.output) - states
    if count < 1 or states < 0 or outputs < 0:
        raise node.error(f"{len(node)} inputs of which {count} are scanned, {len(body.output)} outputs")
    in_axes = _axes(node, "scan_input_axes", count, [node.rank(states + i) for i in range(count)])
    backwards_in = node.attr_ints("scan_input_directions", (0,) * count)
    backwards_out = node.attr_ints("scan_output_directions", (0,) * outputs)
    out_axes = node.attr_ints("scan_output_axes", (0,) * outputs)
    lengths = {node.shape(states + i)[axis] for i, axis in enumerate(in_axes)}
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
    lengths = {node.shape(1 + states + i)[1] for i in range(count)}
    if count < 1 or states < 0 or len(lengths) != 1:
        raise node.error(f"{len(inputs)} inputs of which {count} are scanned, of lengths {sorted(lengths)}")
    length = lengths.pop()
    if not 1 <= length <= MAX_ITERATIONS:
        raise node.unsupported(f"a scan of {length} iterations", expected=f"1 to {MAX_ITERATIONS}")
    entries: list[list[Expr]] = []
    for entry in range(node.shape(1)[0]):
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
