"""Permutations of tensors larger than the caches whose contiguous dimensions differ on both sides, as in patches.

Extracting patches from an image's planes, and the reverse, copies parts of rows and transposes them. Vectors of the
result would then take few elements each from many places. So a piece is first copied to a near cache in the order of
the result's dimensions, by runs that are contiguous on both sides; what is left are matrices, which are transposed in
registers, interleaved, or shuffled. Both tensors have several contiguous cache lines in a piece, and what the next
piece reads is prefetched meanwhile, in memory order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, const
from relayc.topi.cpu.accesses import read_of_one, static_shape
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors, is_beyond_caches, rows_ahead, rows_of_whole_lines
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers, transposed_vectors
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, has_gaps
from relayc.topi.registry import operations_behind
from relayc.topi.transform import MOST_INTERLEAVED
from relayc.topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PermutedTiles"]

_LINES_IN_ORDER, _LINES = (3, 1), ((12, 4), (6, 4))
"""Fewest contiguous cache lines of the input, and of the output, in a piece: for short pieces in the input's order, and
for others, the second choice where pieces get too large."""
_SHORT_BYTES = 4096
"""Most bytes of a piece in the input's order: longer ones of few lines are no faster. Where vectors are shorter than
cache lines they cost more."""
_WHOLE_BYTES = 4096
"""Dimensions up to so many bytes are not split."""
_PART_OF_L2 = 16
"""A piece is at most this fraction (1 / n) of the L2 cache: so is the next."""
_BLOCK_BYTES = 8192
"""Most bytes of a piece that are transposed before they leave the L1 cache."""
_MOST_RUNS = 8
"""Most runs of the input that a vector of the copy is assembled from."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that an output's axes are split into, outermost first: their `axes` and `sizes`.

    `order` are the parts' numbers as the input has them in memory, `inside` those that a piece covers whole.
    """

    axes: Sequence[int]
    sizes: Sequence[int]
    order: Sequence[int]
    inside: Sequence[int]

    @staticmethod
    def of(shape: Sequence[int], order: Sequence[int], counts: dict[int, int]) -> _Parts:
        """Split axes: a piece covers `counts` elements, one of others; `order` are the axes in the input's order."""
        axes: list[int] = []
        sizes: list[int] = []
        inside: list[int] = []
        for n, d in enumerate(shape):
            count = counts.get(n, 1)
            for size in (d // count, count) if 1 < count < d else (d,):
                axes.append(n)
                sizes.append(size)
            if count > 1 or d == 1:
                inside.append(len(axes) - 1)
        numbers = [i for n in order for i, axis in enumerate(axes) if axis == n]
        return _Parts(axes, sizes, numbers, inside)

    @property
    def outside(self) -> list[int]:
        """The parts that pieces are counted by, in the input's order."""
        return [i for i in self.order if i not in self.inside]

    @property
    def are_in_order(self) -> bool:
        """Whether a piece is contiguous in the input."""
        return set(self.order[: len(self.outside)]) == set(self.outside)

    def of_axis(self, axis: int) -> list[int]:
        """The parts of an axis: one, or two."""
        return [i for i, n in enumerate(self.axes) if n == axis]

    def size(self, parts: Iterable[int]) -> int:
        """Number of elements of `parts` together."""
        return math.prod([self.sizes[i] for i in parts])

    def stride(self, part: int) -> int:
        """Elements of the input from one index of a part to the next."""
        return self.size(self.order[self.order.index(part) + 1 :])

    def regrouped(
        self, index: Sequence[Any], old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]
    ) -> list[Any]:
        """An index into dimensions that are nested parts, `old`, as one into others, `new`, of the same parts."""
        at: dict[int, Any] = {}
        for group, e in zip(old, index, strict=True):
            at.update(zip(group, unravel_index(e, [self.sizes[i] for i in group]), strict=True))
        return [ravel_index([at[i] for i in group], [self.sizes[i] for i in group]) for group in new]

    def run(self, parts: Sequence[int]) -> int:
        """Elements of nested `parts` that the input has in the same order, at a constant stride."""
        order = self.order[: self.order.index(parts[-1]) + 1]
        pairs = zip(reversed(order), reversed(parts), strict=False)
        return self.size([i for i, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])

    def runs(self, parts: Sequence[int], count: int) -> int:
        """Runs of the input, up to gaps that shuffles skip, in which the first `count` elements of `parts` lie."""
        sizes, strides = [self.sizes[i] for i in parts], [self.stride(i) for i in parts]
        all_places = itertools.product(*[range(0, n * step, step) for n, step in zip(sizes, strides, strict=True)])
        places = sorted(map(sum, itertools.islice(all_places, count)))
        return 1 + sum(b - a > MOST_INTERLEAVED for a, b in itertools.pairwise(places))


@dataclass(frozen=True, slots=True)
class PermutedTiles:
    """Pieces of `out`, which is `tensor` permuted, by their `parts`.

    A piece is made of matrices: `rows` are contiguous in the tensor, `columns` in the output. `transposed` is the
    length of vectors that are transposed in registers; 0 where none are. The copy is made by vectors of `vector`
    elements at constant strides in the input, out of `run`.
    """

    out: te.Tensor
    tensor: te.Tensor
    parts: _Parts
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    transposed: int
    run: int
    vector: int

    @staticmethod
    def of(out: te.Tensor, target: Target) -> PermutedTiles | Refused:
        """The pieces to use; refused where caches hold the output, the input is not permuted, or pieces are short."""
        shape = static_shape(out)
        if isinstance(shape, Refused):
            return shape
        found = Refused("the output has gaps") if has_gaps(out) else _permutation(out)
        if not found:
            return found
        tensor, order = found
        if not is_beyond_caches(out, target) and not _is_scattered(out, order, target):
            return Refused("the caches hold the output")
        along = next((n for n in reversed(order) if n != len(shape) - 1), -1)
        most = target.cache_bytes.l2 // _PART_OF_L2
        choices = [_pieces(out, tensor, order, along, lines, most) for lines in _LINES]
        if has_line_vectors(target):
            short = _pieces(out, tensor, order, along, _LINES_IN_ORDER, _SHORT_BYTES)
            choices = [short if short is not None and short.are_in_order else None, *choices]
        chosen = next((parts for parts in choices if parts is not None), None)
        if chosen is None:
            return Refused("pieces of some contiguous cache lines on both sides exceed their part of L2")
        return PermutedTiles._of_parts(out, tensor, chosen, along, target)

    @staticmethod
    def _of_parts(
        out: te.Tensor, tensor: te.Tensor, parts: _Parts, along: int, target: Target
    ) -> PermutedTiles | Refused:
        """Matrices of these pieces: the axis `along` which the input is contiguous is the last of rows."""
        last = max([i for i in parts.inside if parts.axes[i] == along])
        columns, most = [i for i in parts.inside if i > last], [i for i in parts.inside if i <= last]
        choices = [most[first:] for first in range(len(most))]
        sizes = [parts.size([*rows, *columns]) * out.dtype.nbytes for rows in choices]
        pairs = zip(choices, sizes, strict=True)
        whole = [rows for rows, size in pairs if size % LINE_BYTES == 0 or LINE_BYTES % size == 0]
        rows = max(whole or [most], key=lambda rows: parts.run([*columns, *rows]))
        lanes = vector_lanes(target, tensor.dtype.nbytes)
        run, vector, runs = _vector(parts, [*columns, *rows], lanes)
        if runs > _MOST_RUNS or not columns:
            return Refused("the input is contiguous along the last dimension, or vectors are made of many runs")
        x, y = parts.size(rows), parts.size(columns)
        fitting = transposed_vectors(target, tensor.dtype, (x, y))
        transposed = fitting[0] if fitting and y >= MOST_INTERLEAVED and x * y * out.dtype.nbytes >= LINE_BYTES else 0
        return PermutedTiles(out, tensor, parts, tuple(rows), tuple(columns), transposed, run, vector)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops over pieces, outermost first."""
        out, parts = self.out, self.parts
        copy = self._copied(s)
        loops: list[te.IterVar] = []
        for n, axis in enumerate(s[out].op.axis):
            mine = parts.of_axis(n)
            loops += s[out].split(axis, factor=parts.sizes[mine[1]]) if len(mine) > 1 else [axis]
        outside = [loops[i] for i in parts.outside]
        s[out].reorder(*outside, *[loops[i] for i in (*self._grid, *self.rows, *self.columns)])
        apart, together = self._apart, [i for i in (*self.rows, *self.columns) if i not in self._apart]
        if parts.size(together) < LINE_BYTES // out.dtype.nbytes and not apart:
            together = [*self._grid, *together]
        column = s[out].fuse(*[loops[i] for i in together])
        line, width = LINE_BYTES // out.dtype.nbytes, parts.size(self.columns)
        if self.transposed:
            height = self._height()
            if apart:
                row = s[out].fuse(*[loops[i] for i in apart])
                tile, _ = s[out].split(row, factor=height * width // parts.size(together))
            else:
                tile, column = s[out].split(column, factor=height * width)
            readers = [op for op in operations_behind([s.outputs[0].output(0)]) if copy in op.input_tensors]
            packed, _, _ = transpose_in_registers(s, copy, readers, len(copy.shape) - 2, self.transposed)
            s[packed].compute_at(s[out], tile)
        elif not apart and width <= MOST_INTERLEAVED:
            line *= width
        _, vector = s[out].split(column, factor=line, tail="shift")
        s[out].vectorize(vector)
        s[copy].compute_at(s[out], outside[-1])
        return outside

    @property
    def _grid(self) -> list[int]:
        """The parts that a piece's matrices are counted by."""
        return [i for i in self.parts.inside if i not in self.rows and i not in self.columns]

    @property
    def _apart(self) -> list[int]:
        """The rows' parts that aren't contiguous with the columns in the output."""
        beside = range(len(self.parts.axes) - len(self.columns) - 1, -1, -1)
        pairs = zip(beside, reversed(self.rows), strict=False)
        whole = [i for i, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        return [i for i in self.rows if i not in whole]

    def _height(self) -> int:
        """Rows that are transposed together: whole cache lines where these are contiguous."""
        parts, size = self.parts, self.out.dtype.nbytes
        count, width = parts.size(self.rows), parts.size(self.columns)
        beside = parts.size([i for i in self.rows if i not in self._apart])
        unit = beside if self._apart else rows_of_whole_lines(width * size)
        heights = [n for n in range(unit, count + 1, unit) if count % n == 0 and n * width * size <= _BLOCK_BYTES]
        return max([n for n in heights if n >= block_of(self.transposed, self.tensor.dtype)], default=count)

    def _copied(self, s: te.Schedule) -> te.Tensor:
        """Add a copy of the input as matrices of columns by rows."""
        parts = self.parts
        groups = [*[[i] for i in (*parts.outside, *self._grid)], self.columns, self.rows]
        dims = [parts.of_axis(n) for n in dict.fromkeys([parts.axes[i] for i in parts.order])]

        def element(source: te.Tensor, *place: Any) -> PrimExpr:
            return source(*parts.regrouped(place, groups, dims))

        def place(*index: Any) -> Sequence[Any]:
            return parts.regrouped(index, dims, groups)

        readers = [op for op in operations_behind([self.out]) if self.tensor in op.input_tensors]
        shape = [parts.size(group) for group in groups]
        copy = s.cache_read_packed(self.tensor, "local", readers, shape, element, place)
        *_, column, row = s[copy].op.axis
        vectors, vector = s[copy].split(s[copy].fuse(column, row), factor=self.run)
        if self.vector < self.run:
            vectors, vector = s[copy].split(vector, factor=self.vector, tail="shift")
        s[copy].vectorize(vector)
        s[copy].prefetch(self.tensor, vectors, te.Prefetch(order=self._in_later_piece))
        return copy

    def _in_later_piece(self, *place: PrimExpr) -> Sequence[PrimExpr]:
        """The flat index to prefetch: as far into a later piece, in memory order, as the copy of this one is.

        That is the next piece; where pieces are contiguous in the input, the one that memory delivers in time.
        """
        parts, outside, grid = self.parts, self.parts.outside, self._grid
        pieces = rows_ahead(parts.size(parts.inside) * self.tensor.dtype.nbytes) if parts.are_in_order else 1
        sizes = [*[parts.sizes[i] for i in grid], parts.size(self.columns), parts.size(self.rows)]
        come: PrimExpr = ravel_index(place[len(outside) :], sizes)
        begin: PrimExpr = const(pieces * parts.stride(outside[-1]))
        for i, e in zip(outside, place, strict=False):
            begin = begin + e * parts.stride(i)
        inside = [i for i in parts.order if i in parts.inside]
        while inside:
            size, step = 1, parts.stride(inside[-1])
            while inside and parts.stride(inside[-1]) == step * size:
                size *= parts.sizes[inside.pop()]
            begin, come = begin + (come % size if inside else come) * step, come // size
        return (begin,)


def _pieces(
    out: te.Tensor, tensor: te.Tensor, order: Sequence[int], along: int, lines: tuple[int, int], most: int
) -> _Parts | None:
    """Pieces of up to `most` bytes with so many contiguous cache lines in the input, and in the output."""
    shape, size = [d for d in out.shape if isinstance(d, int)], tensor.dtype.nbytes
    read = _side_by_side(order, shape, size, lines[0] * LINE_BYTES, 1)
    written = _side_by_side(range(len(shape)), shape, out.dtype.nbytes, lines[1] * LINE_BYTES, LINE_BYTES)
    if not written or along not in read:
        return None
    parts = _Parts.of(shape, order, {n: math.lcm(read.get(n, 1), written.get(n, 1)) for n in {*read, *written}})
    small = parts.size(parts.inside) * max(size, out.dtype.nbytes) <= most
    return parts if small and parts.outside else None


def _permutation(out: te.Tensor) -> tuple[te.Tensor, Sequence[int]] | Refused:
    """The one large input, and the axes of `out` that its dimensions lie along, each along another one."""
    assert isinstance(out.op, te.ComputeOp)
    read = read_of_one(out.op)
    if isinstance(read, Refused):
        return read
    numbers: dict[PrimExpr, int] = {axis.var: n for n, axis in enumerate(out.op.axis)}
    order = [numbers.get(e, -1) for e in read.index]
    in_order = list(range(len(out.shape)))
    return (read.tensor, order) if order != sorted(order) == in_order else Refused("the input is in order, or sliced")


def _is_scattered(out: te.Tensor, order: Sequence[int], target: Target) -> bool:
    """Whether few elements are contiguous in the output, which exceeds the L2 cache and has no rows to interleave.

    The rows of planes that they are stored to alias in L2 where image sides are powers of two. (2 x 2 of 64 channels,
    64 x 64: 2.8 ms, by pieces 0.43; 56 x 56 of 32: 0.14 and 0.11.)
    """
    size, last = constant_size(out.shape) * out.dtype.nbytes, len(out.shape) - 1
    few = constant_size(out.shape[-1:]) < vector_lanes(target, out.dtype.nbytes) and order[-1] < last - 1
    return few and size > target.cache_bytes.l2


def _side_by_side(axes: Sequence[int], shape: Sequence[int], nbytes: int, least: int, multiple: int) -> dict[int, int]:
    """Elements of `axes`, innermost first, for `least` contiguous bytes, a `multiple`; empty if there are none."""
    found: dict[int, int] = {}
    for n in reversed(axes):
        enough = [d for d in range(1, shape[n] + 1)
                  if shape[n] % d == 0 and nbytes * d >= least and nbytes * d % multiple == 0]  # fmt: skip
        whole = not enough or nbytes * shape[n] <= _WHOLE_BYTES
        found[n] = shape[n] if whole else enough[0]
        if enough:
            return found
        nbytes *= shape[n]
    return {}


def _vector(parts: _Parts, inner: Sequence[int], lanes: int) -> tuple[int, int, int]:
    """Elements of the innermost parts at a constant stride, the length of a vector, and the runs that it reads."""
    run, rest = parts.run(inner), list(inner)
    if run >= lanes:
        return run, lanes, 1
    length = 1
    while rest and length * parts.sizes[rest[-1]] <= lanes:
        length *= parts.sizes[rest.pop()]
    if rest:
        length *= max(d for d in range(1, lanes // length + 1) if parts.sizes[rest[-1]] % d == 0)
    return length, length, parts.runs(inner, length)
