"""Softmax and normalisations of short rows on CPUs: neighbouring rows together, turned in registers and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.rewrite import map_reads
from relayc.te.tir import PrimExpr, ProducerLoad
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import element_cost
from relayc.topi.cpu.norms.packed_transpose import can_pack, pack_rows
from relayc.topi.cpu.norms.row_statistics import is_worth_keeping, split_at, uses_reduction
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed
from relayc.topi.cpu.reductions.reduction import add_up_in_registers
from relayc.topi.cpu.reductions.short_rows import prefetch_rows_read
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers, transposed_vectors
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["TransposedRows"]

_CHAINS = 2
"""Columns that are computed step by step, where each waits for the steps before."""
_MOST_VECTORS, _SHARE_OF_L1 = 4, 4
"""Vectors of rows that are worked on together, so that their additions don't wait for each other, as long as what is
kept of them takes such a part of the first-level cache."""
_KEPT = 3
"""Tensors of rows that are kept: turned, computed, turned back."""
_SHORT = {"softmax": 64, "layer_norm": 48}
"""Rows of fewer elements are turned, whatever the vectors: adding up the lanes of one takes about as long as so much
of a row, for the sum and the largest of a softmax, or the two sums of a layer norm. Softmax has as many exponentials
for what is left of a row as for a vector. Rows of whole pairs of vectors aren't turned."""
_SHORT_OF_ONE_SUM = 16
"""Norms with one sum turn rows shorter than a vector and so many elements."""


@dataclass(frozen=True)
class TransposedRows:
    """Rows along the last dimension of `anchor`, of which `lanes` neighbours along the one before are a vector.

    `stages` are those of the kernel, `out` its result.
    """

    anchor: te.ComputeOp
    out: te.Tensor
    stages: tuple[te.ComputeOp, ...]
    lanes: int
    target: Target

    @staticmethod
    def of(anchor: te.Operation, outs: Sequence[te.Tensor], target: Target) -> TransposedRows | None:
        """None where rows are long or few, or where something is read or done that is of other elements."""
        if len(outs) > 1 or not isinstance(anchor, te.ComputeOp) or len(anchor.axis) < 2:
            return None
        stages = tuple([op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)])
        found = TransposedRows(anchor, outs[0], stages, vector_lanes(target), target)
        return found if found._are_short() and found._are_apart() else None

    def _are_short(self) -> bool:
        result = self.anchor.output(0)
        rows, length = result.shape[-2:]
        if not isinstance(rows, int) or not isinstance(length, int) or rows < self.lanes:
            return False
        most = _SHORT.get(self.anchor.tag, _SHORT_OF_ONE_SUM + self.lanes)
        short = length < most and length % (2 * self.lanes) != 0
        fits = block_of(self.lanes, result.dtype) <= length and bool(self._lanes_along(length))
        return short and fits and self.lanes in transposed_vectors(self.target, result.dtype)

    def _lanes_along(self, length: int) -> list[int]:
        """Lengths of vectors along a row, longest first."""
        return [n for n in transposed_vectors(self.target, self.anchor.output(0).dtype) if n <= length]

    def _are_apart(self) -> bool:
        """Is what is read of each row its own, element by element, or the same for all rows? Likewise for what follows.

        What follows reads elements only.
        """
        shape = tuple(self.anchor.output(0).shape)
        before, behind = split_at(list(self.stages), self.anchor)
        for op in [*filter(uses_reduction, before), self.anchor]:
            own = [axis.var for axis in (*op.axis, *op.reduce_axis)]
            row = own[len(shape) - 2]
            given = [(t, index) for t, index in reads(op) if not isinstance(t.op, te.ComputeOp)]
            if any(index != own if tuple(t.shape) == shape else row in post_order(tuple(index)) for t, index in given):
                return False
        tensors = [t for op in behind for t in (op.output(0), *(op.input_tensors if op is not self.anchor else ()))]
        return all(tuple(t.shape) == shape for t in tensors)

    def schedule(self) -> te.Schedule:
        """A few vectors of rows in each iteration: turned, all stages, turned back, stored in the order of memory."""
        s, result = te.create_schedule([self.out.op]), self.anchor.output(0)
        before, _ = split_at(list(self.stages), self.anchor)
        kept = [op for op in before if uses_reduction(op) or is_worth_keeping(op, self.stages, self.anchor, near=True)]
        made: dict[te.Tensor, te.Tensor] = {}
        for op in (*before, self.anchor):
            made[op.output(0)] = _turned(op, len(result.shape), made)
        turned = made[result]
        plain = te.compute(result.shape, lambda *i: turned(*i[:-2], i[-1], i[-2]), name=self.anchor.name)
        s.recompute(result, plain)
        computed = [made[op.output(0)] for op in (*kept, self.anchor)]
        out = s.outputs[0].output(0)
        for op in operations_behind([out]):
            if isinstance(op, te.ComputeOp) and op is not out.op and all(t.op is not op for t in computed):
                s[op].compute_inline()
        rows = self._rows_together()
        packed = self._is_packed(out)
        group, tile = self._packed_loops(s, out, rows) if packed else (self._loops(s, out, rows), None)
        if not packed:
            self._transpose_back(s, out, group, turned)
        copies = self._turn(s, out, group, turned)
        for stage in (*kept, self.anchor):
            tensor = made[stage.output(0)]
            columns = self._compute(s, tensor, out, tile if tile is not None and tensor is turned else group)
            if columns is not None and tensor is not turned:  # most arithmetic is there: memory is idle meanwhile
                copies = dict.fromkeys(copies, (tensor, columns, _CHAINS))
        for read, busy in copies.items():
            if is_streamed(read, rows * constant_size(out.shape[-1:]), self.target):
                prefetch_rows_read(s, read, *busy, rows, self.target)
        return s

    def _is_packed(self, out: te.Tensor) -> bool:
        """Are results `out` put together in registers as memory has them? They are turned back and nothing else.

        Not longer rows than there are registers.
        """
        if self.anchor is not self.out.op or "memory_strides" in self.out.op.attrs:
            return False
        length = constant_size(out.shape[-1:])
        return length < self.target.vector_registers and can_pack(self.target, self.lanes, out.dtype)

    def _rows_together(self) -> int:
        """A few vectors of rows, of which the rows are a multiple if that is more than one."""
        out = self.out
        rows, length = [constant_size([d]) for d in out.shape[-2:]]
        room = self.target.cache_bytes.l1 // _SHARE_OF_L1 // (_KEPT * length * max(out.dtype.nbytes, 4))
        whole = [n * self.lanes for n in (2, _MOST_VECTORS) if rows % (n * self.lanes) == 0]
        return max([n for n in whole if n <= room], default=self.lanes)

    def _loops(self, s: te.Schedule, out: te.Tensor, rows: int) -> te.IterVar:
        """The loop over groups of rows, which are stored as they lie in memory: as one line."""
        *lead, row, column = s[out].op.axis
        group, within = s[out].split(row, factor=rows, tail="shift")
        line = max(self.lanes, LINE_BYTES // out.dtype.nbytes)
        _, vector = s[out].split(s[out].fuse(within, column), factor=line, tail="shift")
        s[out].vectorize(vector)
        work = constant_size(out.shape) * element_cost(self.stages)
        return parallel_outer(s, out, [*lead, group], work, self.target)[-1]

    def _packed_loops(self, s: te.Schedule, out: te.Tensor, rows: int) -> tuple[te.IterVar, te.IterVar]:
        """As `_loops`, a vector of rows at a time turned back and stored; that loop, too."""
        *lead, row, _ = s[out].op.axis
        group, within = s[out].split(row, factor=rows, tail="shift")
        tile, each = s[out].split(within, factor=self.lanes)
        length, ndim = constant_size(out.shape[-1:]), len(out.shape)
        s[out].tensorize(each, pack_rows(self.lanes, length, ndim, str(out.dtype)))
        work = constant_size(out.shape) * element_cost(self.stages)
        return parallel_outer(s, out, [*lead, group], work, self.target)[-1], tile

    def _transpose_back(self, s: te.Schedule, out: te.Tensor, group: te.IterVar, turned: te.Tensor) -> None:
        """Turn the results of a group of rows back, into a buffer."""
        position, length = len(turned.shape) - 2, constant_size(out.shape[-1:])
        readers = [op for op in operations_behind([out]) if turned in op.input_tensors]
        back, _, _ = transpose_in_registers(s, turned, readers, position, self._lanes_along(length)[0])
        s[back].compute_at(s[out], group)

    def _turn(
        self, s: te.Schedule, out: te.Tensor, group: te.IterVar, turned: te.Tensor
    ) -> dict[te.Tensor, tuple[te.Tensor, te.IterVar, int]]:
        """Turn what is read of a group of rows.

        Returns for each input its turned copy, the loop over blocks of columns and how many columns a block has.
        """
        position, copies = len(turned.shape) - 2, dict[te.Tensor, tuple[te.Tensor, te.IterVar, int]]()
        before = operations_behind([turned])
        whole = [t for op in before for t in op.outputs if tuple(t.shape) == tuple(out.shape)]
        for tensor in [t for t in whole if isinstance(t.op, te.PlaceholderOp)]:
            now = operations_behind([s.current(turned)])
            readers = [op for op in now if tensor in op.input_tensors]
            copy, blocks, _ = transpose_in_registers(s, tensor, readers, position, self.lanes)
            s[copy].compute_at(s[out], group)
            copies[tensor] = copy, blocks, block_of(self.lanes, tensor.dtype)
        return copies

    def _compute(self, s: te.Schedule, tensor: te.Tensor, out: te.Tensor, group: te.IterVar) -> te.IterVar | None:
        """Compute a stage for a group of rows, column by column. Returns the loop over columns where it has them."""
        if s[tensor].op.reduce_axis:
            for stage in add_up_in_registers(s, tensor, self.lanes):
                s[stage].compute_at(s[out], group)
            return None
        s[tensor].set_scope("local")
        s[tensor].compute_at(s[out], group)
        *_, column, row = (None, *s[tensor].op.axis)
        blocks: te.IterVar | None = None
        if column is not None and len(s[tensor].op.axis) == len(out.shape):
            blocks, each = s[tensor].split(column, factor=_CHAINS)
            s[tensor].unroll(each)
        vectors, lane = s[tensor].split(row, factor=self.lanes)
        s[tensor].unroll(vectors)
        s[tensor].vectorize(lane)
        return blocks


def _turned(op: te.ComputeOp, rank: int, made: dict[te.Tensor, te.Tensor]) -> te.Tensor:
    """The operation with the dimension along rows before the one that tells them apart; it reads those `made` so."""

    def read(load: ProducerLoad) -> PrimExpr:
        turned, index = made.get(load.producer), load.indices
        if turned is None:
            return load
        return turned(*index[:-2], index[-1], index[-2]) if len(index) == rank else turned(*index)

    axes = list(op.axis)
    if len(axes) == rank:
        axes[-2:] = reversed(axes[-2:])
    return te.ComputeOp(op.name, op.tag, op.attrs, axes, [map_reads(e, read) for e in op.body]).output(0)
