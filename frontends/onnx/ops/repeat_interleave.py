"""Recognition of torch's `repeat_interleave` with computed repeats, which its exporter writes as a loop.

Iteration i expands part i of a tensor, of size 1, to the size that element i of the repeats says, and appends the
result to a sequence, which is concatenated after the loop. Models of speech spread the features of phonemes over
their durations like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto, numpy_helper

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.appended import append_to, appended_sequences
from relayc.frontends.onnx.ops.body_pattern import BodyPattern, attribute, values_outside
from relayc.relay import op
from relayc.relay.container_type import ElementType, SequenceType
from relayc.relay.expr import Call, Expr, const
from relayc.relay.sizes import dims_equal
from relayc.te.tir import Dim

__all__ = ["repeated_parts_loop"]


def repeated_parts_loop(node: OnnxNode) -> Expr | None:
    """The sequence that a Loop makes of the parts of a tensor, each repeated; None for other loops.

    It is the whole result, cut: concatenating it again costs nothing.
    """
    graph = node.attr_graph("body")
    if len(node) != 3 or len(graph.input) != 3 or len(graph.output) != 2:
        return None
    if appended_sequences(graph, [node[2]]) != [0]:
        return None
    body = _Body(node, graph)
    match = body.match() if body.goes_on() else None
    if match is None:
        return None
    parts, repeats = (_uncut(x) for x in values_outside(node, [match.parts, match.repeats]))
    if parts is None or repeats is None or len(repeats[0].shape) != 1 or not repeats[0].tensor_type.dtype.is_int:
        return None
    (x, axis), counts = parts, op.cast(repeats[0], "int64")
    trips, extent = node.sizes_or_none(0), x.shape[axis]
    as_many = trips is not None and len(trips) == 1 and dims_equal(trips[0], extent)
    if not as_many or not dims_equal(counts.shape[0], extent) or not match.repeats_along(axis, x.shape):
        return None
    if match.one_for_minus_one:
        counts = op.where(op.equal(counts, const(-1, "int64")), const(1, "int64"), counts)
    sums = [op.sum(c, axis=0, keepdims=True) for c in (counts, op.maximum(counts, const(0, "int64")))]
    total, positive = node.bind(op.concatenate(sums, axis=0), "the sum of the repeats")
    node.check_equal(total, positive, "the repeats, none of which is negative: their sum")
    of_result = op.searchsorted(op.cumsum(counts, axis=0), op.arange(0, total, 1, "int64"), right=True, dtype="int64")
    whole = op.take(x, of_result, axis=axis, mode="clip")
    part = ElementType([*x.shape[:axis], None, *x.shape[axis + 1 :]], x.dtype)
    return op.sequence.cut(whole, counts, axis, True, SequenceType(part))


def _uncut(sequence: Expr) -> tuple[Expr, int] | None:
    """The tensor, and its axis, that a sequence has all parts of size 1 of."""
    if not isinstance(sequence, Call) or not isinstance(sequence.op, op.sequence.Cut) or not sequence.op.keepdims:
        return None
    axis, element = sequence.op.axis, sequence.op.ty.element
    ones = isinstance(element, ElementType) and element.shape is not None and element.shape[axis] == 1
    return (sequence.args[0], axis) if ones else None


@dataclass(frozen=True)
class _Match:
    """What the body of such a loop says."""

    parts: str
    repeats: str
    """names of the captured sequences"""
    new_axis: list[int] | None
    """the axes that Unsqueeze adds to a part"""
    before: list[int]
    behind: list[int]
    """the sizes that Expand gives, before and behind the repeats"""
    result: list[int] | None
    """the shape that Reshape gives"""
    one_for_minus_one: bool
    """does a repeat of -1 stand for 1, as exporters of `expand` write it?"""

    def repeats_along(self, axis: int, shape: Sequence[Dim]) -> bool:
        """Do the shapes keep a part of a tensor of `shape` but for `axis`, along which it is repeated?"""
        rank, others = len(shape), [*shape[:axis], *shape[axis + 1 :]]
        if self.new_axis != [axis + 1] or self.result is None or len(self.result) != rank:
            return False
        if len(self.before) != axis + 1 or len(self.behind) != rank - axis - 1 or self.before[-1] not in (1, -1):
            return False
        kept = zip([*self.before[:-1], *self.behind], others, strict=True)
        return all(size in (1, -1) or dims_equal(size, d) for size, d in kept) and all(
            size == -1 if k == axis else dims_equal(size, d) or (size == 0 and k < axis)
            for k, (size, d) in enumerate(zip(self.result, shape, strict=True))
        )


class _Body(BodyPattern):
    """The body of a loop that expands parts."""

    def match(self) -> _Match | None:
        append = append_to(self.graph, 0)
        reshape = None if append is None else self.by("Reshape", append.input[1])
        expand = None if reshape is None else self.by("Expand", reshape.input[0])
        wide = None if expand is None else self.by("Unsqueeze", expand.input[0])
        joined = None if expand is None else self._joined(expand.input[1])
        if reshape is None or expand is None or wide is None or joined is None:
            return None
        if attribute(reshape, "allowzero", 0) or attribute(joined, "axis", 0):
            return None
        sizes, part = [self.ints(joined, k) for k in range(len(joined.input))], self._element(wide.input[0])
        if part is None or sizes.count(None) != 1:
            return None
        place = sizes.index(None)
        repeats = self._element(joined.input[place])
        if repeats is None:
            return None
        before, behind = [[n for ints in some for n in ints or ()] for some in (sizes[:place], sizes[place + 1 :])]
        spelled = joined.output[0] != expand.input[1]
        return _Match(part, repeats, self.ints(wide, 1), before, behind, self.ints(reshape, 1), spelled)

    def _joined(self, name: str) -> NodeProto | None:
        """The Concat behind a shape, in which -1 may be replaced by 1."""
        where = self.by("Where", name)
        if where is None:
            return self.by("Concat", name)
        equal, joined = self.by("Equal", where.input[0]), self.by("Concat", where.input[2])
        if equal is None or joined is None or joined.output[0] not in equal.input:
            return None
        other = next((n for n in equal.input if n != joined.output[0]), "")
        return joined if self._is_filled(other, -1) and self._is_filled(where.input[1], 1) else None

    def _is_filled(self, name: str, value: int) -> bool:
        """Are all elements of a tensor equal to `value`?"""
        product, made = self.by("Mul", name), self.by("ConstantOfShape", name)
        if product is not None:
            pairs = (product.input, product.input[::-1])
            return any(self._is_filled(a, 1) and self._is_filled(b, value) for a, b in pairs)
        filled = None if made is None else attribute(made, "value", None)
        known = self.constant(name) if filled is None else numpy_helper.to_array(filled)
        return known is not None and bool((known == value).all())

    def _element(self, name: str) -> str | None:
        """The name of the captured sequence that a value is element i of."""
        at = self.by("SequenceAt", name)
        if at is None or at.input[1] != self.iteration or not self.is_outside(at.input[0]):
            return None
        return at.input[0]
