"""The facts of a transpose, by which its plan is chosen: exchanged dimensions, strides of both sides, what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import CONFLICT_BYTES, LINE_BYTES
from relayc.topi.cpu.register_transpose import block_of
from relayc.topi.groups import constant_size, extent_of, has_gaps, is_static

if TYPE_CHECKING:
    from relayc import te
    from relayc.backend.target import CacheBytes, Target
    from relayc.te.tir import Dim

__all__ = ["TransposeFacts"]

@dataclass(frozen=True, slots=True)
class TransposeFacts:
    """The transpose of `tensor` in registers, by vectors of `lanes` elements, into `out`, on a target.

    The last dimension of `tensor` lies along axis `number` of `out`, its dimension `position` along the last axis.
    `at_once`: elements of the output that are best computed together.
    """

    out: te.Tensor
    number: int
    tensor: te.Tensor
    position: int
    lanes: int
    at_once: int
    target: Target

    def __str__(self) -> str:
        apart = f"{self.row_stride} elements apart"
        return f"{self.rows} x {self.columns} of {self.out.dtype}, rows {apart}, vectors of {self.lanes}"

    @property
    def caches(self) -> CacheBytes:
        """Sizes of the caches."""
        return self.target.cache_bytes

    @property
    def rows(self) -> Dim:
        """Rows of `out` along axis `number`."""
        return extent_of(self.out.op.axis[self.number])

    @property
    def columns(self) -> Dim:
        """Elements of a row of `out`."""
        return extent_of(self.out.op.axis[-1])

    @property
    def is_static(self) -> bool:
        """Whether both axes are static."""
        return isinstance(self.rows, int) and isinstance(self.columns, int)

    @property
    def static_sizes(self) -> tuple[int, int]:
        """`rows` and `columns`, of a transpose along static axes."""
        rows, columns = self.rows, self.columns
        assert isinstance(rows, int) and isinstance(columns, int)
        return rows, columns

    @property
    def is_of_matrices(self) -> bool:
        """Whether `out` is matrices of `tensor`, each transposed: static sizes, no gaps, other dimensions in place."""
        *outer, rows, columns = self.out.shape
        exchanged = list(self.tensor.shape) == [*outer, columns, rows] and self.number == self.out.ndim - 2
        return exchanged and is_static(outer) and not has_gaps(self.out)

    @property
    def are_beyond_caches(self) -> bool:
        """Whether the larger tensor is static and exceeds the caches: otherwise they hold nearly both."""
        widest = max(self.tensor.dtype.nbytes, self.out.dtype.nbytes)
        return self.is_static and constant_size(self.out.shape) * widest >= max(self.caches.l2, self.caches.l3)

    @property
    def is_all_read(self) -> bool:
        """Whether `tensor` is all that `out` reads, so that its rows may be fused: others would be gathered then."""
        return all(read is self.tensor for read, _ in reads(self.out.op))

    @property
    def is_of_whole_lines(self) -> bool:
        """Whether the rows of a matrix, contiguous in `out`, are whole cache lines together."""
        rows, columns = self.static_sizes
        return self.number == self.out.ndim - 2 and rows * columns % self.line == 0

    @property
    def line(self) -> int:
        """Elements of `out` in a cache line."""
        return LINE_BYTES // self.out.dtype.nbytes

    @property
    def line_of_input(self) -> int:
        """Elements of `tensor` in a cache line."""
        return LINE_BYTES // self.tensor.dtype.nbytes

    @property
    def block(self) -> int:
        """Columns of the input in a register tile."""
        return block_of(self.lanes, self.tensor.dtype)

    @property
    def row_stride(self) -> int:
        """Elements between neighbouring rows of the input."""
        return constant_size(self.tensor.shape[self.position + 1 :])

    @property
    def stride_alignment(self) -> int:
        """The largest power of two that divides the distance in bytes between neighbouring rows of the input."""
        return _alignment(self.row_stride * self.tensor.dtype.nbytes)

    @property
    def has_set_conflicts(self) -> bool:
        """Whether the input's rows conflict in cache sets, so that they are evicted before they are used up."""
        return self.stride_alignment >= CONFLICT_BYTES

    @property
    def result_alignment(self) -> int:
        """The largest power of two that divides the distance in bytes between neighbouring rows of the output."""
        return _alignment(constant_size(self.out.shape[self.number + 1 :]) * self.out.dtype.nbytes)

    @property
    def has_unaligned_rows(self) -> bool:
        """Whether rows of `out` are no whole cache lines, but begin at static offsets in them."""
        columns, known = self.columns, is_static(self.out.shape[1:])
        return known and isinstance(columns, int) and columns % self.line != 0

    def elements_stored(self, width: int) -> int:
        """`at_once` if that is whole cache lines within `width` elements; else a line."""
        return self.at_once if self.at_once % self.line == 0 and self.at_once <= width else self.line


def _alignment(nbytes: int) -> int:
    return nbytes & -nbytes
