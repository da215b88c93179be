"""Scan: unrolled if short, batched (vectorised) if no state changes, else a loop run by the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from relayc.frontends.onnx.fold import rewrite_free
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import transposed
from relayc.frontends.onnx.ops.control import MAX_ITERATIONS, UNROLLED, stacked
from relayc.frontends.onnx.ops.flow import counted_loop, loop_variables, may_be_ones, settled_body, unsettled
from relayc.frontends.onnx.ops.scan_batched import batched_scan
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, Function, Var, const
from relayc.relay.sizes import dims_match
from relayc.relay.type import TensorType
from relayc.te.tir import Dim


@dataclass(frozen=True, slots=True)
class _Scan:
    """The states and scanned inputs of a Scan, and its axes and directions per scanned input or output."""

    body: GraphProto
    states: Sequence[Expr]
    scanned: Sequence[Expr]
    in_axes: Sequence[int]
    out_axes: Sequence[int]
    backwards_in: Sequence[int]
    backwards_out: Sequence[int]

    @property
    def length(self) -> Dim:
        return self.scanned[0].shape[self.in_axes[0]]

    @property
    def outputs(self) -> int:
        """Number of stacked outputs."""
        return len(self.out_axes)


@converter("Scan", since=9)
def scan(node: OnnxNode) -> Sequence[Expr]:
    """Unrolled, vectorised or run as a loop."""
    form = _form(node)
    if isinstance(form.length, int) and 1 <= form.length <= UNROLLED:
        return _unrolled(node, form, form.length)
    return _dynamic(node, form)


def _form(node: OnnxNode) -> _Scan:
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    states = len(node) - count
    outputs = len(body.output) - states
    if count < 1 or states < 0 or outputs < 0:
        raise node.error(f"{len(node)} inputs of which {count} are scanned, {len(body.output)} outputs")
    scanned = [node[states + i] for i in range(count)]
    axes = _per_tensor(node, "scan_input_axes", count)
    in_axes = [node.axis(axis, len(x.shape)) for axis, x in zip(axes, scanned, strict=True)]
    lengths = [x.shape[axis] for x, axis in zip(scanned, in_axes, strict=True)]
    if not all(dims_match(n, lengths[0]) for n in lengths):
        raise node.error(f"scanned inputs of lengths {lengths}", expected="one length")
    return _Scan(
        body=body,
        states=[node[i] for i in range(states)],
        scanned=scanned,
        in_axes=in_axes,
        out_axes=_per_tensor(node, "scan_output_axes", outputs),
        backwards_in=_per_tensor(node, "scan_input_directions", count),
        backwards_out=_per_tensor(node, "scan_output_directions", outputs),
    )


def _per_tensor(node: OnnxNode, name: str, count: int) -> Sequence[int]:
    """An attribute with an integer per scanned input or output, all 0 by default."""
    numbers = node.attr_ints(name, (0,) * count)
    if len(numbers) != count:
        raise node.error(f"{name} has {len(numbers)} numbers", expected=f"{count}")
    return numbers


def _dynamic(node: OnnxNode, form: _Scan) -> Sequence[Expr]:
    """A batched scan or a loop that slices the scanned inputs."""
    states = len(form.states)
    slices = [x.tensor_type.with_shape([d for a, d in enumerate(x.shape) if a != axis])
              for x, axis in zip(form.scanned, form.in_axes, strict=True)]  # fmt: skip
    settled = settled_body(node, form.body, form.states, after=[Var(f"slice{k}", ty) for k, ty in enumerate(slices)])
    whole = [_in_front(x, axis, backwards)
             for x, axis, backwards in zip(form.scanned, form.in_axes, form.backwards_in, strict=True)]  # fmt: skip
    known = batched_scan(settled.function, states, [*form.states, *whole, *settled.outside], form.length)
    if known is not None:
        return [*known[:states], *(_placed(node, form, k, x) for k, x in enumerate(known[states:]))]
    types = [ty for ty in settled.types if isinstance(ty, TensorType)]
    if len(types) < len(settled.types):
        raise node.error("a body that gives sequences or optional values", expected="tensors")
    results = [node.fresh_sizes(ty, unsettled(ty), f"#result{k}", ones=may_be_ones(node, ty))
               for k, ty in enumerate(types[:states])]  # fmt: skip
    for k, ty in enumerate(types[states:], start=states):
        results.append(node.fresh_sizes(ty.with_shape((form.length, *ty.shape)), unsettled(ty, 1), f"#result{k}"))
    body = _loop_body(form, settled.function)
    fields = counted_loop(form.length, form.states, [*form.scanned, *settled.outside], body, results)
    return [*fields[:states], *(_placed(node, form, k, x) for k, x in enumerate(fields[states:]))]


def _in_front(x: Expr, axis: int, backwards: int) -> Expr:
    """A scanned input with the scan axis first, in scan order."""
    moved = transposed(x, (axis, *[a for a in range(len(x.shape)) if a != axis]))
    return op.reverse(moved, axis=0) if backwards else moved


def _loop_body(form: _Scan, function: Function) -> Function:
    """The scan's body, a function of states and slices, as a loop body of iteration, states and whole inputs."""
    states, own = len(form.states), len(form.states) + len(form.scanned)
    iteration, goes_on = loop_variables()
    whole = [Var(f"scanned{k}", x.ty) for k, x in enumerate(form.scanned)]
    last = op.subtract(op.size_tensor((form.length,), ()), const(np.array(1, np.int64)))
    taken: dict[int, Expr] = {}
    for k, (x, axis) in enumerate(zip(whole, form.in_axes, strict=True)):
        at = op.subtract(last, iteration) if form.backwards_in[k] else iteration
        taken[id(function.params[states + k])] = op.take(x, at, axis=axis, mode="clip")
    params = (iteration, goes_on, *function.params[:states], *whole, *function.params[own:])
    return Function(params, rewrite_free(function.body, taken), function.attrs)


def _placed(node: OnnxNode, form: _Scan, k: int, x: Expr) -> Expr:
    """Stacked output `k`, reversed and transposed to its direction and axis."""
    x = op.reverse(x, axis=0) if form.backwards_out[k] else x
    rank = len(x.shape)
    to = node.axis(form.out_axes[k], rank)
    return transposed(x, (*range(1, to + 1), 0, *range(to + 1, rank)))


def _unrolled(node: OnnxNode, form: _Scan, length: int) -> Sequence[Expr]:
    carried = list(form.states)
    collected: list[list[Expr]] = [[] for _ in range(form.outputs)]
    for step in range(length):
        at = [length - 1 - step if backward else step for backward in form.backwards_in]
        slices = [_slice(x, axis, i) for x, axis, i in zip(form.scanned, form.in_axes, at, strict=True)]
        results = node.convert_graph(form.body, [*carried, *slices])
        carried = results[: len(form.states)]
        for values, value in zip(collected, results[len(form.states) :], strict=True):
            values.append(value)
    stacks: list[Expr] = []
    for values, axis, backward in zip(collected, form.out_axes, form.backwards_out, strict=True):
        in_order = values[::-1] if backward else values
        stacks.append(stacked(node, in_order, node.axis(axis, len(values[0].shape) + 1)))
    return [*carried, *stacks]


@converter("Scan", since=8)
def scan_8(node: OnnxNode) -> Sequence[Expr]:
    """Scan of opset 8, over each batch entry: states are [batch, ...], scanned inputs [batch, length, ...]."""
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
        passed = [_slice(node[1 + i], 0, entry) for i in range(len(inputs))]
        carried, collected = passed[:states], list[list[Expr]]()
        for step in range(length):
            at = [length - 1 - step if backward else step for backward in backwards]
            slices = [_slice(x, 0, i) for x, i in zip(passed[states:], at, strict=True)]
            results = node.convert_graph(body, [*carried, *slices])
            carried = results[:states]
            collected.append(results[states:])
        entries.append([*carried, *(stacked(node, column, 0) for column in zip(*collected, strict=True))])
    return [stacked(node, column, 0) for column in zip(*entries, strict=True)]


def _slice(x: Expr, axis: int, index: int) -> Expr:
    return op.squeeze(op.strided_slice(x, (index,), (index + 1,), (1,), axes=(axis,)), axis=(axis,))
