"""Sequences of tensors whose length is known when compiling: tuples, of which nothing is left at run time."""

from __future__ import annotations

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr, Tuple


def _elements(node: OnnxNode, index: int) -> tuple[Expr, ...]:
    """The tensors of the sequence in input `index`."""
    sequence = node[index]
    if not isinstance(sequence, Tuple):
        raise node.error(f"input {index} is {sequence.ty}", expected="a sequence")
    return sequence.fields


def _position(node: OnnxNode, index: int, count: int, last: int) -> int:
    """The position in input `index` of a sequence of `count` elements, counted from the front: 0 .. `last`."""
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
    elements = _elements(node, 0)
    return elements[_position(node, 1, len(elements), len(elements) - 1)]


@converter("SequenceLength", since=11)
def sequence_length(node: OnnxNode) -> Expr:
    return Constant(np.array(len(_elements(node, 0)), np.int64))


@converter("SequenceInsert", since=11)
def sequence_insert(node: OnnxNode) -> list[Expr]:
    """Before the position; at the end without one."""
    elements = _elements(node, 0)
    at = len(elements) if node.get(2) is None else _position(node, 2, len(elements), len(elements))
    return [Tuple((*elements[:at], node[1], *elements[at:]))]


@converter("SequenceErase", since=11)
def sequence_erase(node: OnnxNode) -> list[Expr]:
    """The element at the position; the last without one."""
    elements = _elements(node, 0)
    at = len(elements) - 1 if node.get(1) is None else _position(node, 1, len(elements), len(elements) - 1)
    return [Tuple((*elements[:at], *elements[at + 1 :]))]


@converter("SplitToSequence", since=11)
def split_to_sequence(node: OnnxNode) -> list[Expr]:
    """Parts of the given sizes, of one size (the last may be smaller), or slices of 1 without their axis."""
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    extent, keep = node.extent(node[0], axis, "the parts"), node.attr_bool("keepdims", True)
    if node.get(1) is None:
        sizes = [1] * extent
    elif node.rank(1) == 0:
        keep, size = True, node.constant_ints(1, "the size")[0]
        if size < 1:
            raise node.error(f"parts of {size} elements", expected="1 or more")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        keep, sizes = True, list(node.constant_ints(1, "the sizes"))
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise node.error(f"parts of {sizes} of axis {axis}", expected=f"sizes that add up to {extent}")
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = op.split(node[0], cuts, axis=axis) if cuts else (node[0],)
    return [Tuple(tuple(part if keep else op.squeeze(part, axis=(axis,)) for part in parts))]


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(node: OnnxNode) -> Expr:
    """The elements along an axis that they have, or along a new one."""
    elements = _elements(node, 0)
    if not elements:
        raise node.error("an empty sequence", expected="at least one element")
    new = node.attr_bool("new_axis", False)
    axis = node.axis(node.attr_int("axis"), len(elements[0].shape) + int(new))
    return op.concatenate([op.expand_dims(e, axis) for e in elements] if new else elements, axis=axis)


@converter("SequenceMap", since=17)
def sequence_map(node: OnnxNode) -> list[Expr]:
    """The body applied to each element; other sequences walk along, tensors are the same every time."""
    body, count = node.attr_graph("body"), len(_elements(node, 0))
    results: list[list[Expr]] = []
    for position in range(count):
        args = [x.fields[position] if isinstance(x, Tuple) else x for x in node.all_inputs()]
        results.append(node.convert_graph(body, args))
    return [Tuple(tuple(column)) for column in zip(*results, strict=True)]
