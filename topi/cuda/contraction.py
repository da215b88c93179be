"""Operations that sum products of two operands, viewed as matrix products.

A dense layer, a batched matrix product, a convolution of any rank and layout, grouped or transposed: each is

    result[i...] = sum over k... of  left(i..., k...) * right(i..., k...)

and each data axis is read by one operand or by both. Axes that both read are a *batch*; the axes of the operand that
reads the innermost data axis are the *columns*, those of the other the *rows*, and the reduce axes together are the
*depth* (K). A schedule rewrites such a stage as

    left'[b, k, r] and right'[b, k, c]         views of the operands (a schedule keeps their tiles in shared memory)
    product[b, r, c] = sum over k of left'[b, k, r] * right'[b, k, c]
    result[i...] = product[b, r, c]            a view: written out, or read by the epilogue

so that one schedule serves them all: a convolution becomes an implicit GEMM. Rows, columns and depth are padded with
zeros to whole tiles, so that no tile is guarded while it is computed; the borders of a padded convolution are zeros of
the views as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.arith import Analyzer
from relayc.te.ir import post_order
from relayc.te.rewrite import map_reads
from relayc.te.tir import (
    Add,
    Call,
    Cast,
    Dim,
    FloatImm,
    IntImm,
    IterVar,
    Mul,
    PrimExpr,
    ProducerLoad,
    Range,
    Reduce,
    Var,
    as_dim,
    as_int,
)
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import inlined
from relayc.topi.utils import num_elements, ravel_index, unravel_index

__all__ = ["Contraction", "Operand", "contraction_of", "factors_of", "guarded_load", "within", "zero_filled"]

Group = tuple[IterVar, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand as a matrix: `value` over the axes `batch`, `free` (rows or columns) and `depth`.

    Where the value is computed from words that hold several elements along the depth, their number is `packed`, and
    words of adjacent rows or columns are contiguous in memory.
    """

    value: PrimExpr
    batch: Group
    free: Group
    depth: Group
    packed: int = 1

    @property
    def dtype(self) -> str:
        """The type of the elements in memory."""
        return str(self.value.dtype)

    @property
    def free_size(self) -> Dim:
        """The number of rows or columns."""
        return num_elements(_sizes(self.free))

    @property
    def depth_size(self) -> Dim:
        """The number of elements per row or column."""
        return num_elements(_sizes(self.depth))

    def copy_direction(self, widest: int) -> tuple[str, int]:
        """The direction, "free" or "depth", that is contiguous in memory, and `vector_width` along it (at least 1).

        If neither has contiguous runs, the one whose last axis is contiguous. "words" for packed elements: as many
        along the depth, of adjacent rows or columns.
        """
        if self.packed > 1:
            return "words", min(self.packed, widest)
        free, depth = self.vector_width("free", widest), self.vector_width("depth", widest)
        if free == depth == 0:
            return ("depth" if self._follows_memory(self.depth) else "free"), 1
        return ("free", free) if free >= depth else ("depth", depth)

    def _follows_memory(self, group: Group) -> bool:
        """Is the last axis of a group contiguous, and longer than one?"""
        _, load = guarded_load(self.value)
        axes = [axis for axis, size in zip(group, _sizes(group), strict=True) if as_int(size) != 1]
        if load is None or not axes:
            return False
        analyzer = Analyzer()
        form = analyzer.linear(ravel_index(load.indices, load.producer.shape))
        return form.terms.get(analyzer.variable(axes[-1].var), 0) == 1

    def at(self, b: Any, f: Any, k: Any) -> PrimExpr:
        """The element at positions `b`, `f` and `k` along the three groups."""
        values: dict[Var, Any] = {}
        for group, position in ((self.batch, b), (self.free, f), (self.depth, k)):
            values.update(zip([a.var for a in group], unravel_index(position, _sizes(group)), strict=True))
        return substitute(self.value, values)

    def vector_width(self, along: str, widest: int) -> int:
        """The largest number of contiguous elements, at most `widest`, along "free" or "depth".

        A width of v means that v elements from any multiple of v on are contiguous and aligned to v elements, and are
        all inside the borders or all outside. 0: adjacent elements are not contiguous.
        """
        width = widest
        while width > 1 and not self._is_vector(along, width):
            width //= 2
        return width if width > 1 or self._is_vector(along, 2, aligned=False) else 0

    def _is_vector(self, along: str, width: int, aligned: bool = True) -> bool:
        size = num_elements(_sizes(self.free if along == "free" else self.depth))
        if aligned and not (isinstance(size, int) and size % width == 0):
            return False
        analyzer, number, lane = Analyzer(), Var("number"), Var("lane")
        analyzer.bind(number, Range(0, as_dim((size + width - 1) // width)))
        analyzer.bind(lane, Range(0, width))
        batch, other = Var("batch"), Var("other")
        analyzer.bind(batch, Range(0, num_elements(_sizes(self.batch))))
        analyzer.bind(other, Range(0, num_elements(_sizes(self.depth if along == "free" else self.free))))
        place = number * width + lane
        value = self.at(batch, place, other) if along == "free" else self.at(batch, other, place)
        conditions, load = guarded_load(value)
        if load is None or any(_mentions(analyzer.simplify(c), lane) for c in conditions if aligned):
            return False
        form = analyzer.linear(ravel_index(load.indices, load.producer.shape))
        atom = analyzer.variable(lane)
        rest = form.without(atom)
        if form.terms.get(atom, 0) != 1 or lane in rest.vars:
            return False
        return not aligned or all(c % width == 0 for c in (*rest.terms.values(), rest.const))


@dataclass(frozen=True, slots=True)
class Contraction:
    """The operands of a sum of products: `left` has the rows of the result, `right` its columns.

    `axes` maps axes of the result: the positions of those of the batch, the rows and the columns. For a grouped
    operation, `split` is (the position of the shared axis, its size in a group); its outer part is the batch, and its
    position is listed with the rows or columns that its inner part belongs to.
    """

    op: te.ComputeOp
    left: Operand
    right: Operand
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    split: tuple[int, int] | None
    wide: str
    """The type of the accumulator."""

    @property
    def batch(self) -> Dim:
        """The number of matrix products."""
        return num_elements(_sizes(self.left.batch))

    @property
    def rows(self) -> Dim:
        """Rows of the result."""
        return num_elements(_sizes(self.left.free))

    @property
    def columns(self) -> Dim:
        """Columns of the result."""
        return num_elements(_sizes(self.right.free))

    @property
    def depth(self) -> Dim:
        """Products summed per element."""
        return num_elements(_sizes(self.left.depth))

    @property
    def split_in_rows(self) -> bool:
        """Is the axis split into groups one of the rows?"""
        return self.split is not None and self.split[0] in self.axes[1]

    def position(self, index: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Batch, row and column of element `index` of the result."""
        parts = list(index)
        outer: list[Any] = []
        if self.split is not None:
            axis, size = self.split
            outer, parts[axis] = [index[axis] // size], index[axis] % size
        groups = [[parts[i] for i in group] for group in self.axes]
        groups[0] += outer
        free = (self.left.batch, self.left.free, self.right.free)
        b, r, c = (ravel_index(g, _sizes(axes)) for g, axes in zip(groups, free, strict=True))
        return b, r, c

    def loops(self, s: te.Schedule, tensor: te.Tensor) -> tuple[IterVar, IterVar, IterVar]:
        """Fuse the loops of a tensor of the result's shape into three: over batch, rows and columns."""
        axes = list(s[tensor].op.axis)
        outer: list[IterVar] = []
        if self.split is not None:
            position, size = self.split
            part, axes[position] = s[tensor].split(axes[position], factor=size)
            outer = [part]
        groups = [[axes[i] for i in group] for group in self.axes]
        groups[0] += outer
        s[tensor].reorder(*groups[0], *groups[1], *groups[2])
        batch, rows, columns = (s[tensor].fuse(*group) for group in groups)
        s[tensor].reorder(batch, rows, columns)
        return batch, rows, columns

    def rewrite(self, s: te.Schedule, left: te.Tensor, right: te.Tensor) -> te.Tensor:
        """Make the operation read the product of views `left` (batch, depth, rows) and `right` (batch, depth, columns).

        Returns the product, (batch, rows, columns), whose sizes are those of the views.
        """
        k = te.reduce_axis((0, left.shape[1]), name="k")

        def element(b: Any, i: Any, j: Any) -> PrimExpr:
            return te.sum(te.cast(self.wide, left(b, k, i)) * te.cast(self.wide, right(b, k, j)), axis=k)

        product = te.compute((left.shape[0], left.shape[2], right.shape[2]), element, name="product")
        result = self.op.output(0)
        view = te.compute(result.shape, lambda *i: product(*self.position(i)), name=self.op.name, tag=self.op.tag)
        s.recompute(result, view)
        return product


def contraction_of(op: te.Operation) -> Contraction | None:
    """`op` as a contraction, or None if it is none (a depthwise convolution has one input channel per group)."""
    factors = factors_of(op)
    if factors is None or not isinstance(op, te.ComputeOp):
        return None
    wide, values = factors
    axes = list(op.axis)
    outer: tuple[IterVar, ...] = ()
    split: tuple[int, int] | None = None
    if int(op.attrs.get("groups", 1)) > 1:
        found = _split_groups(axes, values, int(op.attrs["groups"]))
        if found is None:
            return None
        group, split, values = found
        outer = (group,)
    batch, own, nobody = _classified(axes, values)
    last = next((a for a in reversed(axes) if a in own[0] or a in own[1]), None)
    if last is None or any(b is axes[-1] for b in batch):
        return None
    across = 0 if last in own[0] else 1
    rows = tuple([a for a in axes if a in own[1 - across] or a in nobody])
    columns = tuple([a for a in axes if a in own[across]])
    batches = (*batch, *outer)
    left = Operand(values[1 - across], batches, rows, tuple(op.reduce_axis))
    right = Operand(values[across], batches, columns, tuple(op.reduce_axis))
    where = (_positions(axes, batch), _positions(axes, rows), _positions(axes, columns))
    return Contraction(op, left, right, where, split, wide)


def _positions(axes: Sequence[IterVar], group: Sequence[IterVar]) -> tuple[int, ...]:
    return tuple([axes.index(a) for a in group])


def _split_groups(
    axes: list[IterVar], values: Sequence[PrimExpr], groups: int
) -> tuple[IterVar, tuple[int, int], list[PrimExpr]] | None:
    """Split the axis of output channels, which both operands read, into (group, channel of the group).

    The channel takes its place in `axes`. Returns the axis of the groups, (that place, channels per group) and the
    operands over the new axes; None when there is no such axis, or one channel per group.
    """
    batch, _, _ = _classified(axes, values)
    size = as_int(_sizes(batch)[0]) if len(batch) == 1 else None
    if size is None or size == groups:
        return None
    size //= groups
    position = axes.index(batch[0])
    group = IterVar(Range(0, groups), Var("group"), "data")
    channel = IterVar(Range(0, size), Var(batch[0].var.name), "data")
    analyzer = Analyzer()
    analyzer.bind(group.var, Range(0, groups))
    analyzer.bind(channel.var, Range(0, size))
    parts = {batch[0].var: group.var * size + channel.var}
    axes[position] = channel
    return group, (position, size), [_simplified(analyzer, substitute(v, parts)) for v in values]


def _simplified(analyzer: Analyzer, value: PrimExpr) -> PrimExpr:
    """`value` with simple indices and conditions."""
    if isinstance(value, Call) and value.op == "if_then_else":
        condition, a, b = value.args
        return te.if_then_else(analyzer.simplify(condition), _simplified(analyzer, a), b)

    def read(load: ProducerLoad) -> PrimExpr:
        return ProducerLoad(load.producer, tuple([analyzer.simplify(i) for i in load.indices]))

    return map_reads(value, read)


def factors_of(op: te.Operation) -> tuple[str, list[PrimExpr]] | None:
    """The accumulator's type and the two operands, with elementwise and index-mapping producers inlined."""
    if not isinstance(op, te.ComputeOp) or len(op.body) != 1 or not isinstance(op.body[0], Reduce):
        return None
    reduction = op.body[0]
    product = reduction.source[0]
    is_sum = len(reduction.source) == 1 and isinstance(reduction.combiner.result[0], Add)
    if not is_sum or as_int(reduction.condition) != 1 or not isinstance(product, Mul):
        return None
    wide = str(product.dtype)
    values: list[PrimExpr] = []
    for factor in (product.a, product.b):
        narrow = factor.value if isinstance(factor, Cast) and str(factor.dtype) == wide else factor
        values.append(inlined(narrow))
    return wide, values


def _classified(
    axes: Sequence[IterVar], values: Sequence[PrimExpr]
) -> tuple[list[IterVar], tuple[list[IterVar], list[IterVar]], list[IterVar]]:
    """(axes in both values, (those in the first, those in the second), those in neither)."""
    used = [{id(n) for n in post_order(v) if isinstance(n, Var)} for v in values]
    batch: list[IterVar] = []
    own: tuple[list[IterVar], list[IterVar]] = ([], [])
    nobody: list[IterVar] = []
    for axis in axes:
        first, second = (id(axis.var) in u for u in used)
        (batch if first and second else own[0] if first else own[1] if second else nobody).append(axis)
    return batch, own, nobody


def _sizes(axes: Sequence[IterVar]) -> list[Dim]:
    sizes: list[Dim] = []
    for axis in axes:
        assert axis.dom is not None
        sizes.append(axis.dom.extent)
    return sizes


def _mentions(expr: PrimExpr, *variables: Var) -> bool:
    return any(node is var for node in post_order(expr) for var in variables)


def zero_filled(value: PrimExpr, *inside: PrimExpr) -> PrimExpr:
    """`value` where all of `inside` hold, else 0."""
    return te.if_then_else(te.all(*inside), value, te.const(0, value.dtype)) if inside else value


def within(position: Any, size: Dim, tile: int, width: int) -> list[PrimExpr]:
    """The condition that `position` is inside `size`, if that is not a whole number of tiles."""
    if isinstance(size, int) and size % tile == 0:
        return []
    return [position // width < size // width] if width > 1 else [position < size]


def guarded_load(value: PrimExpr) -> tuple[list[PrimExpr], ProducerLoad | None]:
    """`value` as a load under conditions, zero where one fails; None when it is something else."""
    conditions: list[PrimExpr] = []
    while isinstance(value, Call) and value.op == "if_then_else" and _is_zero(value.args[2]):
        conditions.append(value.args[0])
        value = value.args[1]
    return conditions, value if isinstance(value, ProducerLoad) else None


def _is_zero(value: PrimExpr) -> bool:
    return isinstance(value, IntImm | FloatImm) and value.value == 0
