"""What is turned by a transposition, and where lines of both sides lie in memory: tiles are chosen by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.te.tir import Dim

__all__ = ["PAGE_BYTES", "TransposeGeometry"]

_SHARED_BYTES, PAGE_BYTES = 512, 4096
"""Lines that are multiples of these apart share few sets, of the caches and of what memory works on at once."""


@dataclass(frozen=True, slots=True)
class TransposeGeometry:
    """`tensor` is turned in registers, into vectors of `lanes`, for `out`.

    The last dimension of `tensor` lies along axis `number` of `out`, its dimension `position` along the last axis.
    `near`: what is read ahead is asked into the first-level cache, else into the second.
    """

    out: te.Tensor
    number: int
    tensor: te.Tensor
    position: int
    lanes: int
    near: bool = True

    @property
    def rows(self) -> Dim:
        """Lines of `out` along axis `number`."""
        return extent_of(self._operation.axis[self.number])

    @property
    def columns(self) -> Dim:
        """Elements of a line of `out`."""
        return extent_of(self._operation.axis[-1])

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
        """Columns of the input that are turned at once."""
        return block_of(self.lanes, self.tensor.dtype)

    @property
    def apart(self) -> int:
        """Elements between neighbouring lines of the input."""
        return constant_size(self.tensor.shape[self.position + 1 :])

    @property
    def power(self) -> int:
        """The largest power of two that divides the bytes between neighbouring lines of the input."""
        return _power_of_two(self.apart * self.tensor.dtype.nbytes)

    @property
    def has_set_conflicts(self) -> bool:
        """Do the input's lines lie in few sets of the caches, in which they would not stay until they are used up?"""
        return self.power >= _SHARED_BYTES

    @property
    def result_has_set_conflicts(self) -> bool:
        """Do the output's lines lie in few sets?"""
        return self._power_of_result >= _SHARED_BYTES

    @property
    def ends_in_pages(self) -> bool:
        """Are the output's lines apart by powers of two, from pages on?"""
        return self._power_of_result >= PAGE_BYTES

    @property
    def begins_anywhere(self) -> bool:
        """Are lines of `out` no whole cache lines, so that they begin anywhere in one? It is known where."""
        columns, known = self.columns, all(isinstance(d, int) for d in self.out.shape[1:])
        return known and isinstance(columns, int) and columns % self.line != 0

    def copied(
        self, s: te.Schedule, *, lines_first: bool = False
    ) -> tuple[te.Tensor, te.Tensor, te.IterVar, te.IterVar]:
        """What is turned and a turned copy of it, to be attached, and the copy's loops over blocks and over vectors.

        What is turned is the input, or, with `lines_first`, a copy of some of its lines, to be attached, too.
        """
        readers = [op for op in operations_behind([self.out]) if self.tensor in op.input_tensors]
        source = s.cache_read(self.tensor, "local", readers) if lines_first else self.tensor
        copy, blocks, vectors = transpose_in_registers(s, source, readers, self.position, self.lanes)
        if lines_first:
            s[source].vectorize(s[source].op.axis[-1])
        return source, copy, blocks, vectors

    def read_at(self, place: Sequence[PrimExpr]) -> list[PrimExpr]:
        """The input's index that a `place` in the turned copy is of, whose last two dimensions are the two turned."""
        last = len(self.tensor.shape) - 1
        dims = [*[d for d in range(last) if d != self.position], last, self.position]
        return [e for _, e in sorted(zip(dims, place, strict=True), key=lambda pair: pair[0])]

    def split_columns(self, s: te.Schedule, width: int) -> tuple[te.IterVar, Sequence[te.IterVar]]:
        """Cut lines of `out` that begin anywhere as memory has them: the loop over tiles of `width`, those inside.

        A tile is computed from where a cache line begins in memory, one further on than the others at most.
        """
        tile, each, column = s[self.out].split_lines(width, self.line)
        s[self.out].unroll(each)
        return tile, (each, column)

    @property
    def _power_of_result(self) -> int:
        return _power_of_two(constant_size(self.out.shape[self.number + 1 :]) * self.out.dtype.nbytes)

    @property
    def _operation(self) -> te.ComputeOp:
        assert isinstance(self.out.op, te.ComputeOp)
        return self.out.op


def _power_of_two(nbytes: int) -> int:
    return nbytes & -nbytes
