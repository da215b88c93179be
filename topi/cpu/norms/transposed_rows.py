"""Softmax and normalisations of short rows on CPUs: adjacent rows are transposed in registers, and results back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.rewrite import map_reads
from relayc.te.tir import PrimExpr, ProducerLoad
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import attach, parallel_outer
from relayc.topi.cpu.norms.facts import inline_all_but
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed
from relayc.topi.cpu.reductions.lines import add_up_in_registers
from relayc.topi.cpu.reductions.short_rows import prefetch_rows_read
from relayc.topi.cpu.register_transpose import (
    block_of,
    can_pack,
    pack_rows,
    transpose_in_registers,
    transposed_vectors,
)  # fmt: skip
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, has_gaps, uses_reduction
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.topi.cpu.norms.facts import RowFacts

__all__ = ["TransposedRows"]

_CHAINS = 2
"""Columns computed as independent dependency chains at a time, to hide latency."""
_MOST_VECTORS, _SHARE_OF_L1 = 4, 4
"""Most vectors of rows that are computed together, to hide the latency of additions, and the divisor of the L1 size
that their buffers may take."""
_KEPT = 3
"""Buffers of rows: transposed inputs, computed values, results transposed back."""
_SHORT = {"softmax": 64, "layer_norm": 48}
"""Rows of fewer elements are transposed, for vectors of any length: a horizontal reduction takes about as long as so
many elements, for the sum and maximum of a softmax or the two sums of a layer norm. The tail of a softmax row takes as
many exponentials as a whole vector. Rows of whole pairs of vectors are not transposed."""
_SHORT_OF_ONE_SUM = 16
"""Norms with one sum transpose rows shorter than a vector and so many elements."""


@dataclass(frozen=True)
class TransposedRows:
    """Rows along the last dimension, computed with `lanes` adjacent rows as a vector."""

    rows: RowFacts
    lanes: int

    @staticmethod
    def of(rows: RowFacts) -> TransposedRows | Refused:
        """Match a kernel of short rows; refused where rows are long or few, or stages not elementwise or row-wise."""
        lanes = vector_lanes(rows.target)
        if not rows.are_last or not rows.has_one_result or rows.result.ndim < 2:
            return Refused("rows are not the last dimension alone, or there is a single one, or several results")
        found, target, (count, length) = TransposedRows(rows, lanes), rows.target, rows.result.shape[-2:]
        if not isinstance(count, int) or not isinstance(length, int) or count < lanes:
            return Refused(f"a dynamic shape, or fewer adjacent rows than the {lanes} lanes of a vector")
        most = _SHORT.get(rows.anchor.tag, _SHORT_OF_ONE_SUM + lanes)
        if length >= most:
            return Refused(f"rows of {length} elements; a horizontal reduction costs less from {most} on")
        if length % (2 * lanes) == 0:
            return Refused(f"rows of {length} elements are whole pairs of vectors")
        types = {rows.result.dtype, *[t.dtype for t in found._read_whole(operations_behind([rows.result]))]}
        back = transposed_vectors(target, rows.result.dtype, (lanes, length))
        if not back or not all(lanes in transposed_vectors(target, each, (length, count)) for each in types):
            return Refused(f"no block of {lanes} rows of {length} elements can be transposed, of each type read")
        return found if found._are_independent() else Refused("a stage reads elements of other rows or columns")

    def _read_whole(self, stages: Sequence[te.Operation]) -> list[te.Tensor]:
        """The inputs of the kernel that stages read and that have the shape of the result."""
        whole = [t for op in stages for t in op.outputs if tuple(t.shape) == tuple(self.rows.result.shape)]
        return [t for t in whole if isinstance(t.op, te.PlaceholderOp)]

    def _are_independent(self) -> bool:
        """True if stages read either the row's own elements at their own index, or what all rows share.

        Stages behind the anchor must be elementwise.
        """
        shape, anchor = tuple(self.rows.result.shape), self.anchor
        before, behind = self.rows.around
        for op in [*filter(uses_reduction, before), anchor]:
            own = [axis.var for axis in (*op.axis, *op.reduce_axis)]
            row = own[len(shape) - 2]
            loads = [(t, index) for t, index in reads(op) if not isinstance(t.op, te.ComputeOp)]
            if any(index != own if tuple(t.shape) == shape else row in post_order(tuple(index)) for t, index in loads):
                return False
        tensors = [t for op in behind for t in (op.output(0), *(op.input_tensors if op is not anchor else ()))]
        return all(tuple(t.shape) == shape for t in tensors)

    @property
    def anchor(self) -> te.ComputeOp:
        """The norm."""
        assert isinstance(self.rows.anchor, te.ComputeOp)
        return self.rows.anchor

    def schedule(self) -> te.Schedule:
        """Per iteration transpose a few vectors of rows, run all stages, transpose back and store in memory order."""
        s, result, before = self.rows.create_schedule(), self.rows.result, self.rows.around[0]
        rewritten: dict[te.Tensor, te.Tensor] = {}
        for op in (*before, self.anchor):
            rewritten[op.output(0)] = _transposed(op, len(result.shape), rewritten)
        transposed = rewritten[result]
        plain = te.compute(result.shape, lambda *i: transposed(*i[:-2], i[-1], i[-2]), name=self.anchor.name)
        s.recompute(result, plain)
        computed = [rewritten[op.output(0)].op for op in (*self.rows.of_rows, self.anchor)]
        out = s.outputs[0].output(0)
        inline_all_but(s, out, computed)
        rows = self._rows_per_iteration()
        group, tile = self._loops(s, out, rows)
        if tile is None:  # the results of a group are transposed back into a buffer
            readers = [op for op in operations_behind([out]) if transposed in op.input_tensors]
            shape = rows, constant_size(out.shape[-1:])
            lanes = transposed_vectors(self.rows.target, result.dtype, shape)[0]
            back, _, _ = transpose_in_registers(s, transposed, readers, transposed.ndim - 2, lanes)
            s[back].compute_at(s[out], group)
        copies = self._transpose_inputs(s, out, group, transposed)
        for stage in (*self.rows.of_rows, self.anchor):
            tensor = rewritten[stage.output(0)]
            columns = self._compute(s, tensor, out, tile if tile is not None and tensor is transposed else group)
            if columns is not None and tensor is not transposed:  # memory is idle during most of the arithmetic
                copies = dict.fromkeys(copies, (tensor, columns, _CHAINS))
        for read, busy in copies.items():
            if is_streamed(read, rows * constant_size(out.shape[-1:]), self.rows.target):
                prefetch_rows_read(s, read, *busy, rows, self.rows.target)
        return s

    def _is_packed(self, out: te.Tensor) -> bool:
        """True if `out` is only the transpose back, and is packed in registers into contiguous rows.

        Rows may have no more elements than there are vector registers.
        """
        if self.anchor is not self.rows.out.op or has_gaps(self.rows.out):
            return False
        length = constant_size(out.shape[-1:])
        return length < self.rows.target.vector_registers and can_pack(self.rows.target, self.lanes, out.dtype)

    def _rows_per_iteration(self) -> int:
        """Return the rows per iteration: a few vectors that divide the rows, or else one vector."""
        out = self.rows.out
        rows, length = [constant_size([d]) for d in out.shape[-2:]]
        room = self.rows.target.cache_bytes.l1 // _SHARE_OF_L1 // (_KEPT * length * max(out.dtype.nbytes, 4))
        whole = [n * self.lanes for n in (2, _MOST_VECTORS) if rows % (n * self.lanes) == 0]
        return max([n for n in whole if n <= room], default=self.lanes)

    def _loops(self, s: te.Schedule, out: te.Tensor, rows: int) -> tuple[te.IterVar, te.IterVar | None]:
        """Split `out` into groups of rows; returns the loop over groups, and over packed vectors of rows in a group.

        A group is stored as one contiguous line, or transposed back and stored a vector of rows at a time.
        """
        *lead, row, column = s[out].op.axis
        group, within = s[out].split(row, factor=rows, tail="shift")
        tile: te.IterVar | None = None
        if self._is_packed(out):
            tile, each = s[out].split(within, factor=self.lanes)
            s[out].tensorize(each, pack_rows(self.lanes, constant_size(out.shape[-1:]), out.ndim, str(out.dtype)))
        else:
            line = max(self.lanes, LINE_BYTES // out.dtype.nbytes)
            _, vector = s[out].split(s[out].fuse(within, column), factor=line, tail="shift")
            s[out].vectorize(vector)
        return parallel_outer(s, out, [*lead, group], self.rows.work, self.rows.target)[-1], tile

    def _transpose_inputs(
        self, s: te.Schedule, out: te.Tensor, group: te.IterVar, transposed: te.Tensor
    ) -> dict[te.Tensor, tuple[te.Tensor, te.IterVar, int]]:
        """Transpose the inputs of a group of rows.

        Returns for each input its transposed copy, the loop over blocks of columns and the columns of a block.
        """
        position, copies = len(transposed.shape) - 2, dict[te.Tensor, tuple[te.Tensor, te.IterVar, int]]()
        for tensor in self._read_whole(operations_behind([transposed])):
            now = operations_behind([s.current(transposed)])
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
        attach(s, tensor, out, group)
        *_, column, row = (None, *s[tensor].op.axis)
        blocks: te.IterVar | None = None
        if column is not None and len(s[tensor].op.axis) == len(out.shape):
            blocks, each = s[tensor].split(column, factor=_CHAINS)
            s[tensor].unroll(each)
        vectors, lane = s[tensor].split(row, factor=self.lanes)
        s[tensor].unroll(vectors)
        s[tensor].vectorize(lane)
        return blocks


def _transposed(op: te.ComputeOp, rank: int, rewritten: dict[te.Tensor, te.Tensor]) -> te.Tensor:
    """Return the operation with its last two dimensions swapped, reading the operations `rewritten` in the same way."""

    def read(load: ProducerLoad) -> PrimExpr:
        transposed, index = rewritten.get(load.producer), load.indices
        if transposed is None:
            return load
        return transposed(*index[:-2], index[-1], index[-2]) if len(index) == rank else transposed(*index)

    axes = list(op.axis)
    if len(axes) == rank:
        axes[-2:] = reversed(axes[-2:])
    return te.ComputeOp(op.name, op.tag, op.attrs, axes, [map_reads(e, read) for e in op.body]).output(0)
