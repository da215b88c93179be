"""Tensor sequences: tuples of static length, else runtime sequences of the executor.

A tuple is resolved at compile time: its elements are separate tensors. It becomes a runtime sequence
(`_sequence_value`) when a position, or the size of a part, is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.containers import made, value_type
from relayc.frontends.onnx.fold import rewrite_free
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import transposed
from relayc.frontends.onnx.ops.flow import (
    counted_loop,
    loop_variables,
    outputs_of,
    outside_type,
    tensor_type,
    unsettled,
)
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.container_type import NOTHING, ContainerType, ElementType, SequenceType, join
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, Var
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import product, size_variables
from relayc.relay.type import TensorType
from relayc.te.tir import Dim

_MAX_TENSOR_PARTS = 64
"""Most parts of a split that are separate tensors; more become a runtime sequence."""


def _require_sequence(node: OnnxNode, index: int) -> Expr:
    """Input `index`, which must be a tuple or a runtime sequence."""
    sequence = node[index]
    if not isinstance(sequence, Tuple) and not isinstance(sequence.ty, SequenceType):
        raise node.error(f"input {index} is {sequence.ty}", expected="a sequence")
    return sequence


def _known(node: OnnxNode, *positions: int) -> tuple[Expr, ...] | None:
    """The elements of the sequence in input 0, if its length and the inputs at `positions` are static."""
    sequence = _require_sequence(node, 0)
    late = any(node.get(i) is not None and node.known_value(i) is None for i in positions)
    return sequence.fields if isinstance(sequence, Tuple) and not late else None


def _sequence_value(node: OnnxNode, sequence: Expr) -> Expr:
    """Convert to a runtime sequence."""
    ty = value_type(sequence)
    if not isinstance(ty, SequenceType):
        raise node.error(f"{sequence.ty}", expected="a sequence")
    return made(sequence, ty, node.span)


def _element(ty: SequenceType) -> ElementType:
    assert isinstance(ty.element, ElementType), "sequences hold tensors"
    return ty.element


def _sequence_type(x: Expr) -> SequenceType:
    assert isinstance(x.ty, SequenceType)
    return x.ty


def _position(node: OnnxNode, index: int, count: int, last: int) -> int:
    """The constant position in input `index`, normalised to 0 .. `last`, in a sequence of `count` elements."""
    position = node.constant_ints(index, "the position")[0]
    if not -count <= position <= last:
        raise node.error(f"position {position} in a sequence of {count}", expected=f"{-count} to {last}")
    return position if position >= 0 else position + count


@converter("SequenceConstruct", since=11)
def sequence_construct(node: OnnxNode) -> list[Expr]:
    return [Tuple(tuple(node.all_inputs()))]


@converter("SequenceEmpty", since=11)
def sequence_empty(node: OnnxNode) -> list[Expr]:
    node.attrs.ignore("dtype")
    return [Tuple(())]


@converter("SequenceAt", since=11)
def sequence_at(node: OnnxNode) -> Expr:
    elements = _known(node, 1)
    if elements is not None:
        return elements[_position(node, 1, len(elements), len(elements) - 1)]
    sequence = _sequence_value(node, node[0])
    return op.sequence.item(sequence, node[1], tensor_type(node, _element(_sequence_type(sequence)), "item"))


@converter("SequenceLength", since=11)
def sequence_length(node: OnnxNode) -> Expr:
    elements = _known(node)
    return op.sequence.length(node[0]) if elements is None else Constant(np.array(len(elements), np.int64))


@converter("SequenceInsert", since=11)
def sequence_insert(node: OnnxNode) -> list[Expr]:
    """Inserts before the position, at the end by default."""
    elements = _known(node, 2)
    if elements is None:
        return [op.sequence.insert(_sequence_value(node, node[0]), node[1], node.get(2))]
    at = len(elements) if node.get(2) is None else _position(node, 2, len(elements), len(elements))
    return [Tuple((*elements[:at], node[1], *elements[at:]))]


@converter("SequenceErase", since=11)
def sequence_erase(node: OnnxNode) -> list[Expr]:
    """Erases the element at the position, the last by default."""
    elements = _known(node, 1)
    if elements is None:
        return [op.sequence.erase(_sequence_value(node, node[0]), node.get(1))]
    last = node.get(1) is None
    at = len(elements) - 1 if last else _position(node, 1, len(elements), len(elements) - 1)
    if at < 0:
        raise node.error("the last element of an empty sequence", expected="a sequence with elements")
    return [Tuple((*elements[:at], *elements[at + 1 :]))]


@converter("SplitToSequence", since=11)
def split_to_sequence(node: OnnxNode) -> list[Expr]:
    """Parts of given sizes, of equal size (the last may be smaller), or slices of size 1."""
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    keep = node.attr_bool("keepdims", True) or node.get(1) is not None
    extent = node.type(0).shape[axis]
    sizes = _known_parts(node, axis, extent) if isinstance(extent, int) else None
    if sizes is None or len(sizes) > _MAX_TENSOR_PARTS:
        return [op.sequence.cut(node[0], node.get(1), axis, keep, _parts_type(node, axis, keep))]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = op.split(node[0], cuts, axis=axis) if cuts else (node[0],)
    return [Tuple(tuple(part if keep else op.squeeze(part, axis=(axis,)) for part in parts) if sizes else ())]


def _known_parts(node: OnnxNode, axis: int, extent: int) -> list[int] | None:
    """The sizes of the parts, if they are static and few enough to be separate tensors."""
    if node.get(1) is None:
        return [1] * extent if extent <= _MAX_TENSOR_PARTS else None
    if node.known_value(1) is None:
        return None
    known = node.constant_ints(1, "the sizes")
    if node.rank(1) == 0 and known[0] < 1:
        raise node.error(f"parts of {known[0]} elements", expected="1 or more")
    if node.rank(1) == 0 and extent > known[0] * _MAX_TENSOR_PARTS:
        return None
    sizes = [min(known[0], extent - start) for start in range(0, extent, known[0])] if node.rank(1) == 0 else [*known]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise node.error(f"parts of {sizes} of axis {axis}", expected=f"sizes that add up to {extent}")
    return sizes


def _parts_type(node: OnnxNode, axis: int, keep: bool) -> SequenceType:
    x = node.type(0)
    part = [_part_size(node)] if keep else []
    return SequenceType(ElementType([*x.shape[:axis], *part, *x.shape[axis + 1 :]], x.dtype))


def _part_size(node: OnnxNode) -> int | None:
    """The size of all parts, if it is known: torch's `repeat_interleave` cuts into parts of 1, as many as there are."""
    sizes = node.get(1)
    if sizes is None:
        return 1
    if isinstance(sizes, Call) and isinstance(sizes.op, OpDef) and sizes.op.name == "broadcast_to":
        sizes = sizes.args[0]
    known = node.value_or_none(sizes)
    if known is None or known.size == 0 or (known != known.flat[0]).any():
        return None
    size = int(known.flat[0])
    listed = node.rank(1) == 1 and size >= 0
    return size if listed or size == 1 else None  # of one size for all, the last part may be smaller


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(node: OnnxNode) -> Expr:
    """Concatenates or stacks the elements."""
    elements, new = _known(node), node.attr_bool("new_axis", False)
    if elements is None:
        return _join(node, new)
    if not elements:
        raise node.error("an empty sequence", expected="at least one element")
    axis = node.axis(node.attr_int("axis"), len(elements[0].shape) + int(new))
    return op.concatenate([op.expand_dims(e, axis) for e in elements] if new else elements, axis=axis)


def _join(node: OnnxNode, new: bool) -> Expr:
    """Join a runtime sequence. Elements of equal sizes are stacked along the first axis, then transposed."""
    element = _element(_sequence_type(node[0]))
    one = tensor_type(node, element, "element")
    axis = node.axis(node.attr_int("axis"), one.ndim + int(new))
    whole = None if new else _uncut(node, axis)
    if whole is not None:
        return whole
    equal = new or (element.shape is not None and element.shape[axis] is not None)
    if not equal:
        whole = node.fresh_sizes(one, [axis], "#result_whole")
        return op.sequence.join_items(node[0], axis, False, whole)
    stack = node.fresh_sizes(one.with_shape([1, *one.shape]), [0], "#result_stack")
    stacked = op.sequence.join_items(node[0], 0, True, stack)
    inner = transposed(stacked, (*range(1, axis + 1), 0, *range(axis + 1, stack.ndim)))
    if new:
        return inner
    along: list[Dim] = [product(inner.shape[axis : axis + 2])]
    return op.reshape(inner, (*inner.shape[:axis], *along, *inner.shape[axis + 2 :]))


def _uncut(node: OnnxNode, axis: int) -> Expr | None:
    """The tensor that input 0 is all the parts of, cut along `axis`."""
    cut = node[0]
    if not isinstance(cut, Call) or not isinstance(cut.op, op.sequence.Cut):
        return None
    if not cut.op.keepdims or cut.op.axis != axis:
        return None
    x, *sizes = cut.args
    if sizes and sizes[0].shape:
        (total,) = node.bind(op.cast(op.sum(sizes[0], axis=0, keepdims=True), "int64"), "the sum of the parts")
        node.check_equal(total, x.shape[axis], "the sum of the parts and the size that was cut")
    return x


@converter("SequenceMap", since=17)
def sequence_map(node: OnnxNode) -> list[Expr]:
    """Applies the body to the elements of parallel sequences."""
    body, elements = node.attr_graph("body"), _known(node)
    tuples = all(isinstance(x, Tuple) or isinstance(x.ty, TensorType) for x in node.all_inputs())
    if elements is None or not tuples:
        return _map_dynamic(node)
    results: list[list[Expr]] = []
    for position in range(len(elements)):
        args = [x.fields[position] if isinstance(x, Tuple) else x for x in node.all_inputs()]
        results.append(node.convert_graph(body, args))
    if not results:
        return [Tuple(()) for _ in body.output]
    return [Tuple(tuple(column)) for column in zip(*results, strict=True)]


def _map_dynamic(node: OnnxNode) -> list[Expr]:
    """SequenceMap as a loop that reads an element of each sequence and appends to the results."""
    body = node.attr_graph("body")
    inputs = [x if isinstance(x.ty, TensorType) else _sequence_value(node, x) for x in node.all_inputs()]
    types = [tensor_type(node, _element(x.ty), f"item{k}", inside=True) if isinstance(x.ty, SequenceType)
             else x.tensor_type for k, x in enumerate(inputs)]  # fmt: skip
    params = [Var(f"element{k}", ty) for k, ty in enumerate(types)]
    function, outside = node.close_graph(body, params)
    results = [outside_type(node, SequenceType(ElementType.of(x.tensor_type))) for x in outputs_of(function, body)]
    lists = [x for x in inputs if isinstance(x.ty, SequenceType)]
    counts = [node.bind(op.sequence.length(x), f"the length of sequence {k}") for k, x in enumerate(lists)]
    for (count,) in counts[1:]:
        node.check_equal(counts[0][0], count, "the lengths of the sequences")
    start = [made(Tuple(()), SequenceType(join(NOTHING, ty.tensors)), node.span) for ty in results]
    loop_body = _map_body(node, function, inputs, results)
    return counted_loop(counts[0][0], start, [*inputs, *outside], loop_body, results)


def _map_body(
    node: OnnxNode, function: Function, inputs: Sequence[Expr], results: Sequence[ContainerType]
) -> Function:
    """The body, a function of elements, as a loop body of iteration, results so far, and the whole inputs."""
    iteration, goes_on = loop_variables()
    grown = [Var(f"result{k}", ty) for k, ty in enumerate(results)]
    whole = [Var(f"input{k}", x.ty) for k, x in enumerate(inputs)]
    elements, kept = function.params[: len(inputs)], function.params[len(inputs) :]
    taken = [op.sequence.Item(result=param.tensor_type)(x, iteration, span=node.span)
             if isinstance(x.ty, SequenceType) else x for param, x in zip(elements, whole, strict=True)]  # fmt: skip
    inner = rewrite_free(function.body, {id(param): x for param, x in zip(elements, taken, strict=True)})
    assert isinstance(inner, Tuple)
    longer = [op.sequence.Insert()(g, x, span=node.span) for g, x in zip(grown, inner.fields, strict=False)]
    fields = [*longer, *inner.fields[len(results) :]]
    bound = [*function.attrs.get("bound_sizes", ())]
    for item in taken:  # the body may use the sizes of an element only
        for axis in unsettled(item.ty) if isinstance(item, Call) and isinstance(item.ty, TensorType) else ():
            bound.append((next(iter(size_variables([item.shape[axis]]))), len(fields), -1 - axis, str(node.span)))
            fields.append(item)
    attrs = {**function.attrs, "bound_sizes": tuple(bound)}
    return Function((iteration, goes_on, *grown, *whole, *kept), Tuple(tuple(fields)), attrs)
