"""The facts of a transpose, by which its plan is chosen: exchanged dimensions, strides of both sides, what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import CONFLICT_BYTES, LINE_BYTES, PAGE_BYTES, level_of
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers
from relayc.topi.groups import constant_size, extent_of, has_gaps, is_static
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import CacheBytes, Target
    from relayc.te.tir import Dim

__all__ = ["SHARES", "TransposeFacts"]

SHARES = 4
"""Parts of the work for each core, at least, for load balance."""


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
    def has_gaps(self) -> bool:
        """Whether `out` is written into a larger tensor, with gaps between its rows."""
        return has_gaps(self.out)

    @property
    def is_of_matrices(self) -> bool:
        """Whether `out` is matrices of `tensor`, each transposed: static sizes, no gaps, other dimensions in place."""
        *outer, rows, columns = self.out.shape
        exchanged = list(self.tensor.shape) == [*outer, columns, rows] and self.number == self.out.ndim - 2
        return exchanged and is_static(outer) and not self.has_gaps

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
    def result_has_set_conflicts(self) -> bool:
        """Whether the output's rows conflict in cache sets."""
        return self._result_alignment >= CONFLICT_BYTES

    @property
    def is_page_strided(self) -> bool:
        """Whether the output's rows are a multiple of pages apart."""
        return self._result_alignment >= PAGE_BYTES

    @property
    def has_unaligned_rows(self) -> bool:
        """Whether rows of `out` are no whole cache lines, but begin at static offsets in them."""
        columns, known = self.columns, is_static(self.out.shape[1:])
        return known and isinstance(columns, int) and columns % self.line != 0

    def elements_stored(self, width: int) -> int:
        """`at_once` if that is whole cache lines within `width` elements; else a line."""
        return self.at_once if self.at_once % self.line == 0 and self.at_once <= width else self.line

    def store(self, s: te.Schedule, column: te.IterVar, elements: int, *, tail: str = "shift") -> te.IterVar:
        """Store so many elements at a time along a loop; returns the loop over those."""
        vectors, vector = s[self.out].split(column, factor=elements, tail=tail)
        s[self.out].vectorize(vector)
        return vectors

    def prefetch(
        self, s: te.Schedule, stage: te.Tensor, loop: te.IterVar, lines: int, together: int,
        place: Callable[[int], Callable[..., Sequence[PrimExpr]]],
    ) -> None:  # fmt: skip
        """Prefetch `lines` cache lines of the input in each iteration of `loop`, `together` of them contiguous.

        `place` gives the index function of those from a line on. They go to L1, or to L2 if it has few fill buffers.
        """
        for first in range(0, lines, together):
            count = min(together, lines - first)
            s[stage].prefetch(self.tensor, loop, te.Prefetch(0, level_of(self.target), place(first), count))

    def prefetch_ahead(self, s: te.Schedule, stage: te.Tensor, loop: te.IterVar, elements: int) -> None:
        """Prefetch the input so many elements ahead of what an iteration of `loop` reads."""
        s[stage].prefetch(self.tensor, loop, te.Prefetch(elements, level_of(self.target)))

    def copied(
        self, s: te.Schedule, *, lines_first: bool = False
    ) -> tuple[te.Tensor, te.Tensor, te.IterVar, te.IterVar]:
        """Add the transpose's stages: (source, transposed copy, its loop over blocks, its loop over vectors).

        The source is the input, or, with `lines_first`, a copy of some of its rows. Copies are left for the caller to
        attach.
        """
        readers = [op for op in operations_behind([self.out]) if self.tensor in op.input_tensors]
        source = s.cache_read(self.tensor, "local", readers) if lines_first else self.tensor
        copy, blocks, vectors = transpose_in_registers(s, source, readers, self.position, self.lanes)
        if lines_first:
            s[source].vectorize(s[source].op.axis[-1])
        return source, copy, blocks, vectors

    def read_at(self, place: Sequence[PrimExpr]) -> list[PrimExpr]:
        """The input's index of element `place` of the transposed copy, whose last two dimensions are exchanged."""
        last = len(self.tensor.shape) - 1
        dims = [*[d for d in range(last) if d != self.position], last, self.position]
        return [e for _, e in sorted(zip(dims, place, strict=True), key=lambda pair: pair[0])]

    def split_columns(self, s: te.Schedule, width: int) -> tuple[te.IterVar, Sequence[te.IterVar]]:
        """Split rows of `out` at cache-line boundaries: the loop over tiles of `width`, and the loops inside of a tile.

        A tile begins on a cache line of memory; it covers up to one cache line more than `width`.
        """
        tile, each, column = s[self.out].split_lines(width, self.line)
        s[self.out].unroll(each)
        return tile, (each, column)

    @property
    def _result_alignment(self) -> int:
        return _alignment(constant_size(self.out.shape[self.number + 1 :]) * self.out.dtype.nbytes)


def _alignment(nbytes: int) -> int:
    return nbytes & -nbytes
