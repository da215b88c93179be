"""The order in which a product's result is stored if it is transposed: by rows of the product, or across them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers, transposed_vectors
from relayc.topi.cpu.tiling import largest_partition
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.registry import operations_behind
from relayc.topi.utils import num_elements, ravel_index, unravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.topi.cpu.products.plan import ProductPlan

__all__ = ["StoreOrder", "store_transposed", "transpose_line"]

_BLOCK_SHARE = 1 / 2
"""Part of the L1 cache for a block of results that are transposed."""
_SHIFTED = 1.2
"""Most that blocks cost whose last one is shifted, relative to the best."""


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """The store order of a product: `result` (rows..., columns) is what it computes, with the elementwise tail.

    What is stored is `source`, the result or a view of it, with its dimensions permuted. `rows` and `columns` are the
    axes of the stored tensor, by number, outermost first.
    """

    result: te.Tensor
    source: te.Tensor
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @staticmethod
    def of(out: te.Tensor) -> StoreOrder:
        """The order of `out`: a result itself, or a transpose of one, possibly of views."""
        axes = out.op.attrs.get("permutation")
        if axes is None:
            *rows, column = range(out.ndim)
            return StoreOrder(out, out, tuple(rows), (column,))
        (source,) = out.op.input_tensors
        result = source
        while result.op.attrs.get("is_view"):
            (result,) = result.op.input_tensors
        first, places = source.ndim, [axes.index(d) for d in range(source.ndim)]
        while first > 0 and constant_size(source.shape[first:]) < constant_size(result.shape[-1:]):
            first -= 1
        return StoreOrder(result, source, tuple(places[:first]), tuple(places[first:]))

    @property
    def is_transposed(self) -> bool:
        """Whether memory is contiguous along rows of the product, so that its tiles have to be transposed."""
        return max(self.rows, default=-1) > max(self.columns)

    @property
    def run(self) -> int:
        """Contiguous columns of a row in memory; 0 for all."""
        return constant_size(self.source.shape[-1:]) if len(self.columns) > 1 else 0

    @property
    def kept(self) -> list[te.Operation]:
        """Stages that are computed separately from the store."""
        return [self.source.op] if self.is_transposed else []

    def in_whole_vectors(self, s: te.Schedule, out: te.Tensor, anchor: te.Operation, lanes: int) -> te.Tensor | None:
        """The result as rows x columns, a stage of which `out` stores partial vectors; None where it stores whole ones.

        None also where the result is the reduction of `anchor`, which is a stage in any case.
        """
        if self.run % lanes == 0 or self.result.op is anchor:
            return None
        *lead, columns = self.result.shape
        readers = [op for op in operations_behind([out]) if self.result in op.input_tensors]
        return s.cache_read_packed(
            self.result, "local", readers, (num_elements(lead), columns),
            lambda result, m, n: result(*unravel_index(m, lead), n),
            lambda *i: (ravel_index(i[:-1], lead), i[-1]),
        )  # fmt: skip

    def loops(self, s: te.Schedule, out: te.Tensor) -> tuple[te.IterVar, te.IterVar]:
        """The stored tensor's loops over all rows and all columns of the product."""
        axes = s[out].op.axis
        rows, columns = [axes[i] for i in self.rows], [axes[i] for i in self.columns]
        s[out].reorder(*rows, *columns)
        return s[out].fuse(*rows), s[out].fuse(*columns)

    def loops_of_matrices(self, s: te.Schedule, out: te.Tensor) -> tuple[list[te.IterVar], te.IterVar, te.IterVar]:
        """The stored tensor's loops over the batch, the rows and the columns of matrices."""
        axes = s[out].op.axis
        *batch, row = [axes[i] for i in self.rows]
        columns = [axes[i] for i in self.columns]
        s[out].reorder(*batch, row, *columns)
        return batch, row, s[out].fuse(*columns)


def _rows_of_a_block(rows: int, others: int, lanes: int, plan: ProductPlan, target: Target, nbytes: int) -> int:
    """Rows of whole tiles whose results are transposed together: at least `lanes`, at most half the L1 cache.

    As many as divide the rows evenly, and the cores, which share these blocks and `others` of each. A block costs about
    a tile more than its tiles: it reads its panel from the L2 cache first. Where sizes divide the rows no block is
    shifted, so it is static where on a line of an image tiles begin.
    """
    most = int(_BLOCK_SHARE * target.cache_bytes.l1) // (nbytes * plan.panel * plan.height)
    least = -(-lanes // plan.height)
    most = max(min(most, -(-rows // plan.height)), least)

    def cost(tiles: int) -> float:
        blocks = -(-rows // (tiles * plan.height))
        return blocks * (tiles + 1) * target.num_cores * largest_partition(blocks * others, target.num_cores)

    sizes = range(most, least - 1, -1)
    whole = [tiles for tiles in sizes if rows % (tiles * plan.height) == 0 and 2 * tiles > most]
    best, even = min(sizes, key=cost), min(whole, key=cost, default=None)
    tiles = best if even is None or cost(even) > _SHIFTED * cost(best) else even
    return min(tiles * plan.height, rows)


def store_transposed(
    s: te.Schedule, out: te.Tensor, source: te.Tensor, plan: ProductPlan, target: Target
) -> te.IterVar:
    """Blocks of rows x a panel of the product that `out` (..., columns, rows) transposes in registers.

    `source` (..., rows, columns) is computed by the block. Returns the loop that may be parallel.
    """
    source = s[source].op.output(0)
    *batch, column, row = s[out].op.axis
    rows, columns = constant_size([extent_of(row)]), constant_size([extent_of(column)])
    lanes = next(n for n in transposed_vectors(target, out.dtype) if n <= rows)
    width = block_of(lanes, out.dtype)
    whole = columns % plan.panel == 0
    others = constant_size([extent_of(axis) for axis in batch]) * (columns // plan.panel if whole else 1)
    size = _rows_of_a_block(rows, others, lanes, plan, target, out.dtype.nbytes)
    block, within = s[out].split(row, factor=size, tail="shift")
    group, step = s[out].split(column, factor=width, tail="shift")
    panel, group = s[out].split(group, factor=plan.panel // width)
    vector, lane = s[out].split(within, factor=lanes, tail="shift")
    if plan.separate_panels:
        outside = [panel, *batch, block]
    else:
        outside = [*batch, block, panel] if plan.tiles_per_step or not whole else [*batch, panel, block]
    s[out].reorder(*outside, group, vector, step, lane)
    s[out].unroll(step)
    s[out].vectorize(lane)
    transposed, _, vectors = transpose_in_registers(s, source, [s[out].op], source.ndim - 2, lanes)
    s[transposed].unroll(vectors)
    s[transposed].compute_at(s[out], vector)
    if plan.separate_panels:  # the thread that stores a panel's columns prepares it
        shared, inner = panel, s[out].fuse(*batch, block)
    elif whole:
        shared = inner = s[out].fuse(*outside)
    else:  # the partial last panel has a separate loop
        shared, inner = s[out].fuse(*batch, block), panel
    s[source].compute_at(s[out], inner)
    return shared


def transpose_line(
    s: te.Schedule, out: te.Tensor, source: te.Tensor, place: te.IterVar, channel: te.IterVar, x: te.IterVar,
    target: Target,
) -> None:  # fmt: skip
    """Transpose lines of some channels: `out` (N, C, ..., W) of `source` (N, ..., W, C), computed at `place`.

    `channel` and `x` are the loops over channels and columns inside of `place`, innermost.
    """
    lanes = next(n for n in transposed_vectors(target, out.dtype) if n <= constant_size([extent_of(x)]))
    group, step = s[out].split(channel, factor=block_of(lanes, out.dtype))
    vector, lane = s[out].split(x, factor=lanes, tail="shift")
    s[out].reorder(group, vector, step, lane)
    s[out].unroll(step)
    s[out].vectorize(lane)
    transposed, _, vectors = transpose_in_registers(s, source, [s[out].op], source.ndim - 2, lanes)
    s[transposed].unroll(vectors)
    s[transposed].compute_at(s[out], vector)
    s[source].compute_at(s[out], place)
