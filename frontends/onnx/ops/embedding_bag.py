"""Recognition of embedding bags, which exporters write as loops of Slice, Gather and a reduction."""

from __future__ import annotations

from onnx import NodeProto

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.body_pattern import BodyPattern, attribute, values_outside
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import dims_equal, is_at_least
from relayc.te.tir import Dim

__all__ = ["embedding_bag_loop"]

_MODES = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}


def embedding_bag_loop(node: OnnxNode) -> Expr | None:
    """The result of a Loop that reduces table rows at positions[starts[i]:ends[i]] in iteration i; None for others.

    The body of torch's EmbeddingBag: Gather starts and ends, Slice, Gather rows, perhaps Mul by a slice of factors,
    ReduceSum, ReduceMean or ReduceMax.
    """
    graph = node.attr_graph("body")
    if len(node) > 2 or len(graph.output) != 2 or len(graph.input) != 2:
        return None
    found = _Body(node, graph).bag()
    if found is None:
        return None
    names, mode = found
    table, positions, starts, ends, *factors = values_outside(node, names)
    trips = node.sizes_or_none(0)
    vectors = all(len(x.shape) == 1 for x in (positions, starts, ends, *factors)) and len(table.shape) == 2
    typed = table.dtype.is_float and all(f.dtype == table.dtype for f in factors)
    if not vectors or not typed or trips is None or len(trips) != 1:
        return None
    bounds = [_first(x, trips[0]) for x in (starts, ends)]
    if bounds[0] is None or bounds[1] is None:
        return None
    return op.nn.embedding_bag(table, positions, bounds[0], bounds[1], *factors, mode=mode)


def _first(x: Expr, count: Dim) -> Expr | None:
    """The first `count` elements of a vector; None unless it is known to have as many."""
    if dims_equal(x.shape[0], count):
        return x
    return op.strided_slice(x, (0,), (count,), axes=(0,)) if is_at_least(x.shape[0], count) else None


class _Body(BodyPattern):
    """The body of a loop over bags."""

    def bag(self) -> tuple[list[str], str] | None:
        """The names of table, positions, starts, ends and perhaps factors, and the mode."""
        if not self.goes_on():
            return None
        reduction = self.made.get(self.graph.output[1].name)
        if reduction is None or reduction.op_type not in _MODES or not self._reduces_rows(reduction):
            return None
        gather, factors = self.by("Gather", reduction.input[0]), None
        product = self.by("Mul", reduction.input[0])
        if product is not None:
            gather, column = self.by("Gather", product.input[0]), self.by("Unsqueeze", product.input[1])
            factors = None if column is None or self.ints(column, 1) != [1] else self._slice(column.input[0])
            if factors is None:
                return None
        positions = None if gather is None or attribute(gather, "axis", 0) else self._slice(gather.input[1])
        if gather is None or positions is None or not self.is_outside(gather.input[0]):
            return None
        if factors is not None and factors[1:] != positions[1:]:
            return None
        return [gather.input[0], *positions, *(() if factors is None else factors[:1])], _MODES[reduction.op_type]

    def _reduces_rows(self, reduction: NodeProto) -> bool:
        axes = self.ints(reduction, 1) if len(reduction.input) > 1 else attribute(reduction, "axes", None)
        return axes is not None and list(axes) == [0] and attribute(reduction, "keepdims", 1) == 0

    def _slice(self, name: str) -> list[str] | None:
        """The names of x, starts and ends, if a value is x[starts[i]:ends[i]] in iteration i."""
        cut = self.by("Slice", name)
        if cut is None or len(cut.input) < 4 or self.ints(cut, 3) != [0] or not self.is_outside(cut.input[0]):
            return None
        if len(cut.input) > 4 and self.ints(cut, 4) != [1]:
            return None
        bounds = [self._element(name) for name in cut.input[1:3]]
        return [cut.input[0], *[b for b in bounds if b is not None]] if all(bounds) else None

    def _element(self, name: str) -> str | None:
        """The name of the vector of whose element i a value is a slice of length 1."""
        wide = self.by("Unsqueeze", name)
        gather = None if wide is None or self.ints(wide, 1) != [0] else self.by("Gather", wide.input[0])
        if gather is None or attribute(gather, "axis", 0) or gather.input[1] != self.iteration:
            return None
        return gather.input[0] if self.is_outside(gather.input[0]) else None
