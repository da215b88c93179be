"""Injective (elementwise, broadcasting, index-mapping) groups on CPUs: one vectorised parallel pass per output."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, first_of, note
from relayc.te.tir import (
    Binary,
    Call,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    PrimExpr,
    ProducerLoad,
    Select,
    as_int,
)
from relayc.topi.candidates import apply_plan
from relayc.topi.cpu.accesses import conditions, reads
from relayc.topi.cpu.common import attach, fuses_inner, parallel_outer
from relayc.topi.cpu.elements import VECTORS, element_cost, elements_per_step, vectorize_elements, vectors_per_step
from relayc.topi.cpu.elementwise.line_reads import prefetch_lines_read, prefetch_where_masked
from relayc.topi.cpu.elementwise.packed_lines import PackedLines
from relayc.topi.cpu.elementwise.packed_rows import PackedRows
from relayc.topi.cpu.prefetch import LINE_BYTES, prefetch_elements, rows_of_whole_lines
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.cpu.transposes.permuted_tiles import PermutedTiles
from relayc.topi.cpu.transposes.transpose import (
    strided_axis,
    tile_by_lines,
    tile_strided,
    tile_transposed,
    transpose_facts,
)  # fmt: skip
from relayc.topi.groups import constant_size, extent_of, inline_injective, is_injective, iterations
from relayc.topi.registry import Rank, operations_behind, register_schedule
from relayc.topi.tag import PAD, is_broadcast
from relayc.topi.utils import same_dim

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_injective"]

_INTERLEAVED, _GATHERED = 4, 8
"""Longest last axis, in elements, that is interleaved from strided inputs rather than transposed in registers, and
rather than loaded element by element."""
_PAIR_BYTES = 8
"""Most bytes of a last axis for which tiles in the input's order are preferred to packed rows."""
_STRIDED_COST = 5
"""Least cost, in operations, of an element that is read along a strided axis."""
_MOST_UNROLLED = 8
"""Most vectors of a line that are unrolled where conditions on lanes become static by that."""
_COMPUTED_BYTES = 4
"""Least bytes of computed elements: smaller ones are converted to float32."""
_MOST_LINES_OF_VECTOR = 16
"""Most cache lines of a vector that spans several rows of the output."""
_FEWEST_LINES = 4
"""Fewest cache lines of such a vector where inputs are joined, whose reads are not whole cache lines."""
_MOST_LINE_BYTES = 1 << 14
"""Most bytes of a buffered line: at most half of L1."""
_LEAST_OPERATIONS = 2
"""Fewest arithmetic operations per element that make a line worth buffering."""


def _is_flat(outs: Sequence[te.Tensor]) -> bool:
    """True if element i of each output depends on element i of each input only, so that shapes don't matter."""
    shape = tuple(outs[0].shape)
    ops = operations_behind(outs)
    tensors = [t for op in ops for t in op.outputs]
    tables = _tables(ops)
    same_shape = all(tuple(t.shape) == shape or constant_size(t.shape) == 1 for t in tensors if t not in tables)
    return same_shape and all(op.tag in ("elemwise", "broadcast", "") for op in ops)


def _tables(ops: Sequence[te.Operation]) -> set[te.Tensor]:
    """Return the tensors that are gathered from, at indices that are loaded themselves."""
    nodes = [e for op in ops if isinstance(op, te.ComputeOp) for e in post_order(op.body)]
    loads = [e for e in nodes if isinstance(e, ProducerLoad)]
    return {load.producer for load in loads if load.indices and all(_reads_data([i]) for i in load.indices)}


def _reads_data(expressions: Iterable[PrimExpr]) -> bool:
    """True if an expression depends on data."""
    return any(isinstance(e, ProducerLoad) for e in post_order(tuple(expressions)))


def _least_bytes(out: te.Tensor, ops: Sequence[te.Operation]) -> int:
    """Return the least element size, in bytes, to choose vector lengths for: 1 for lookups and pure data movement."""
    assert isinstance(out.op, te.ComputeOp)
    looked_up = isinstance(out.op.body[0], ProducerLoad) and _tables([out.op])
    return 1 if looked_up or all(map(_only_moves_data, ops)) else _COMPUTED_BYTES


def _first_without_gaps(outs: Sequence[te.Tensor]) -> int:
    """Return the first dimension from which on all tensors are compact, so that loops over them may be fused."""
    first = 0
    for op in operations_behind(outs):
        for number, strides in op.attrs.get("memory_strides", {}).items():
            shape = op.output(number).shape
            inside = [i for i, d in enumerate(shape) if d != 1]
            gaps = [a for a, b in itertools.pairwise(inside) if strides[a] != strides[b] * shape[b]]
            first = max([first, *[i + 1 for i in gaps]])
    return first


def _only_moves_data(op: te.Operation) -> bool:
    """True for pure data movement: results are elements of the inputs, or constants, selected by index."""
    if not isinstance(op, te.ComputeOp):
        return False
    pending = list(op.body)
    for e in pending:
        if isinstance(e, Select):
            pending += [e.true_value, e.false_value]
        elif isinstance(e, Call) and e.op == "if_then_else":
            pending += e.args[1:]
        elif not isinstance(e, ProducerLoad) and not isinstance(e, IntImm | FloatImm):
            return False
    return True


def _may_be_non_temporal(out: te.Tensor, target: Target) -> bool:
    """True if `backend.llvm.codegen.nontemporal` may use non-temporal stores, which need whole cache lines."""
    return 0 < target.cache_bytes.l3 <= 2 * constant_size(out.shape) * out.dtype.nbytes


def _period(out: te.Tensor, lanes: int) -> int | None:
    """Return the period of the last axis of `out` if all reads take it modulo that (as `tile` does), else None.

    The period must divide the axis, and not the vector, whose lanes are static then anyway.
    """
    op = out.op
    last, extent = op.axis[-1], extent_of(op.axis[-1])
    found = {
        as_int(e.b) for _, index in reads(op) for e in post_order(index) if isinstance(e, FloorMod) and e.a is last.var
    }
    period = found.pop() if len(found) == 1 else None
    if not period or not isinstance(extent, int) or lanes % period == 0:
        return None
    return period if extent > period and extent % period == 0 else None


def _choosing_lanes(out: te.Tensor) -> list[te.ComputeOp]:
    """Return the operations whose conditions depend on the index along the last axis and not on data."""
    op, found = out.op, list[te.ComputeOp]()
    for source, condition in conditions(op):
        if op.axis[-1].var in post_order((condition,)) and not _reads_data([condition]):
            found.append(source)
    return found


def _vectorize_between_borders(s: te.Schedule, out: te.Tensor, lanes: int) -> list[te.IterVar]:
    """Vectorise the last axis; loop partitioning splits off the vectors at borders, so that others need no tests."""
    *outer, last = s[out].op.axis
    tail = "guard" if isinstance(last.extent, int) else "shift"
    vectors, inner = s[out].split(last, factor=2 * lanes, tail=tail, least=4 * lanes)
    s[out].vectorize(inner)
    for axis in (*outer, vectors, inner):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]


@register_schedule(["elemwise", "broadcast", "injective", "pad"], "cpu", rank=Rank.ELEMENTWISE)
def schedule_injective(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Inline everything into the outputs, each of which is written in one vectorised pass."""
    s, has_dynamic_tiles = _elements(outs, target)
    if has_dynamic_tiles:
        s.specialize_small(_elements(outs, target, tiled=False)[0])
    return s


def _elements(outs: list[te.Tensor], target: Target, *, tiled: bool = True) -> tuple[te.Schedule, bool]:
    """Return the schedule, and whether it has in-register transposes along dynamic axes."""
    s, line = te.create_schedule([out.op for out in outs]), _shared_line(outs[0]) if len(outs) == 1 else None
    inline_injective(s, outs, keep=[] if line is None else [line.op])
    outputs = [out for out in {id(o.op): o for o in outs}.values() if s[out].op.axis]
    dynamic = [_OutputSchedule(s, outs, out, line, target, tiled=tiled).schedule() for out in outputs]
    return s, any(dynamic)


class _OutputSchedule:
    """An output of a group, and the memory layouts of its inputs and itself, by which its loops are chosen.

    `flat`: shapes don't matter. `strided`: the axis along which a large input is contiguous, if that is not the last
    one; `transpose`: how tiles of both are transposed in registers. `rows`: rows of an input in another order. `line`:
    the stage whose lines are buffered for several results. `unrolled`: the unrolled loop over vectors. `written`: the
    output, or the stage that stores it; `is_buffered`, `is_transposed`: whether those schedules were chosen.
    """

    def __init__(
        self, s: te.Schedule, outs: list[te.Tensor], out: te.Tensor, line: te.Tensor | None, target: Target,
        *, tiled: bool,
    ) -> None:  # fmt: skip
        self.s, self.out, self.line, self.target = s, out, line, target
        self.alone, self.is_first = len(outs) == 1, out.op is outs[0].op
        self.by_one = all(other.op is out.op for other in outs)
        ops = [op for op in operations_behind(outs) if is_injective(op)]
        least, cost = _least_bytes(out, ops), element_cost(ops)
        self.lanes = vector_lanes(target, max([least, *[t.dtype.nbytes for t in out.op.outputs]]))
        self.vectors, self.repeats = vectors_per_step(ops), all(is_broadcast(op.tag) for op in ops)
        self.flat, self.first_without_gaps = line is None and _is_flat(outs), _first_without_gaps(outs)
        if self.flat and _may_be_non_temporal(out, target):
            self.vectors = max(self.vectors, LINE_BYTES // (self.lanes * out.dtype.nbytes))
        self.strided = strided_axis(out) if out.ndim > 1 else None
        self.transpose = Refused("another schedule covers short axes") if not tiled else transpose_facts(
            out, self.strided, self.vectors * self.lanes, target
        )
        computes = Refused("elements are computed, or depend on their own place only, or there are several results")
        self.moves_data = self.alone and not self.flat and self.vectors == VECTORS
        self.rows = PackedRows.of(out, target) if self.moves_data else computes
        self.tiles = self._permuted() if self.moves_data else computes
        self.unrolled: te.IterVar | None = None
        self.written, self.is_buffered, self.is_transposed = out, False, False
        self.work = constant_size(out.shape) * (cost if self.strided is None else max(cost, _STRIDED_COST))

    def schedule(self) -> bool:
        """Choose the loops; returns whether there are in-register transposes along dynamic axes."""
        s, out = self.s, self.out
        loops = first_of("elementwise", (
            ("permuted tiles", self._tiled), ("several lines in a vector", self._several_lines),
            ("interleaved", self._interleaved), ("packed rows", self._packed_rows),
            ("transposed in registers", self._transposed), ("buffered line", self._buffered_line),
            ("tiles of cache lines", self._tile_by_lines), ("in order", self._vectorize_lines),
        ))  # fmt: skip
        out, buffered = self.written, self.is_buffered
        _, *inside = parallel = parallel_outer(s, out, loops, self.work, self.target)
        if buffered and self.line is not None:
            _buffer_line(s, self.line, out, parallel[-1], self.target)
        for loop in inside:
            if loop is self.unrolled:
                s[out].unroll(loop)
        return self.is_transposed and bool(self.transpose) and not self.transpose.is_static

    def _tiled(self) -> list[te.IterVar] | Refused:
        return apply_plan(self.s, "pieces", self.tiles) if self.tiles else self.tiles

    def _several_lines(self) -> list[te.IterVar] | Refused:
        s, out = self.s, self.out
        in_place, lines_per_vector = self.strided is None and not self.rows and not self.flat, 0
        if in_place and self.repeats:
            lines_per_vector = _lines_of_vectors(out)
        elif in_place and self.by_one and self.line is None and _places_are_known(out):
            lines_per_vector = _lines_of_vectors(out, least=_FEWEST_LINES)
        if not lines_per_vector:
            return Refused("lines are long, or elements don't depend on their place in them")
        loops = _vectorize_whole_lines(s, out, lines_per_vector, self.target)
        prefetch_where_masked(s, out, loops[-1], lines_per_vector * constant_size(out.shape[-1:]), self.target)
        return loops

    def _interleaved(self) -> list[te.IterVar] | Refused:
        if not self._is_short():
            return Refused("no large input is contiguous along the dimension before the last, or the last one is long")
        if self.rows and self.rows.axes_of_row > 1:
            return Refused("rows of several dimensions are packed")
        return self._interleave()

    def _packed_rows(self) -> list[te.IterVar] | Refused:
        if self.rows and self.strided is None and self.line is not None:
            return Refused("lines are buffered")
        return apply_plan(self.s, "chunks", self.rows) if self.rows else self.rows

    def _transposed(self) -> list[te.IterVar] | Refused:
        if not self.transpose:
            return self.transpose
        self.is_transposed = True
        return tile_transposed(self.s, self.transpose)

    def _buffered_line(self) -> list[te.IterVar] | Refused:
        if self.line is None:
            return Refused("no line of an input serves several results")
        self.is_buffered = True
        return _vectorize_between_borders(self.s, self.out, self.lanes)[:-1]

    def _permuted(self) -> PermutedTiles | Refused:
        """Return permuted tiles, if vectors of the output would otherwise be gathered from elements or pairs."""
        out, shape = self.out, self.out.shape
        if self.transpose:
            return Refused("matrices are transposed in registers")
        whole = self._is_short() and constant_size(shape[-2:-1]) % self.lanes == 0
        pairs = constant_size(shape[-1:]) * out.dtype.nbytes <= _PAIR_BYTES
        if (self.strided is None or whole) if not self.rows else not pairs:
            return Refused("vectors of the output are contiguous in the input, or interleaved")
        found = PermutedTiles.of(out, self.target)
        scattered = found and self.rows and not found.is_read_in_order
        return Refused("pieces are not read in order, but rows are") if scattered else found

    def _is_short(self) -> bool:
        """True if the last axis has few elements, and the one before it, along which inputs are contiguous, more.

        Vectors may span both axes then.
        """
        if self.strided is None or self.strided != self.out.ndim - 2:
            return False
        rows, columns = self.out.shape[-2:]
        most = _INTERLEAVED if self.transpose else _GATHERED
        return isinstance(rows, int) and isinstance(columns, int) and columns <= most <= rows

    def _has_borders(self) -> bool:
        """True if the only conditions on the index along the last axis are those of padding."""
        choosing = _choosing_lanes(self.out)
        return bool(choosing) and all(op.tag == PAD for op in choosing)

    def _interleave(self) -> list[te.IterVar]:
        s, out = self.s, self.out
        *outer, rows, columns = s[out].op.axis
        extent, lanes = constant_size(out.shape[-2:]), self.lanes * constant_size(out.shape[-1:])
        return [*outer, vectorize_elements(s, out, s[out].fuse(rows, columns), extent, lanes)]

    def _tile_by_lines(self) -> list[te.IterVar] | Refused:
        if self.strided is None:
            return Refused("large inputs are contiguous along the last dimension")
        return tile_by_lines(self.s, self.out, self.strided, VECTORS * self.lanes, self.target)

    def _vectorize_lines(self) -> list[te.IterVar]:
        """Vectorise the last axis; returns the outer loops. What is `written` is a new stage if lines are packed first.
        """
        axes, extent = self._axes()
        bordered = self.strided is None and constant_size([extent]) >= 4 * self.lanes and self._has_borders()
        packs = self.alone and self.strided is None and (bordered or self.moves_data)
        packed = PackedLines.of(self.out, self.target) if packs else Refused("elements are computed, flat or strided")
        why = "" if packed else packed.reason
        how = "packed lines" if packed else "flat" if self.flat else "by lines"
        note("vectors", how, lanes=self.lanes, vectors=self.vectors, borders=bordered, not_packed=why)
        if not packed:
            bounded = bordered and _vectorize_between_borders(self.s, self.out, self.lanes)
            return bounded or self._vectorize(self.out, axes, extent)
        self.written, chunks, lines = apply_plan(self.s, "chunks", packed)
        if bordered:
            _vectorize_between_borders(self.s, lines, self.lanes)
        else:
            self._vectorize(lines, self.s[lines].op.axis, extent)
        if self.unrolled is not None:
            self.s[lines].unroll(self.unrolled)
        return chunks

    def _axes(self) -> tuple[list[te.IterVar], te.Dim]:
        """Return the axes, fused where shapes don't matter, and the length of the last."""
        s, out, first = self.s, self.out, self.first_without_gaps
        axes = list(s[out].op.axis)
        if self.flat:
            return [*axes[:first], s[out].fuse(*axes[first:])], iterations(axes[first:])
        return axes, axes[-1].extent if len(axes) > 1 else constant_size(out.shape)

    def _vectorize(self, tensor: te.Tensor, axes: Sequence[te.IterVar], extent: te.Dim) -> list[te.IterVar]:
        """Vectorise the output, or its lines before they are packed; returns the loops outside of vectors."""
        s, (*outer, last) = self.s, axes
        period = _period(self.out, self.lanes) if self.strided is None else None
        if period is not None:
            repeat, last = s[tensor].split(last, factor=period)
            outer, extent = [*outer, repeat], period
        vectors = vectorize_elements(s, tensor, last, extent, self.lanes, self.vectors)
        if self.strided is not None:
            return tile_strided(s, tensor, self.strided, vectors)
        if isinstance(extent, int) and extent <= _MOST_UNROLLED * self.lanes and _choosing_lanes(self.out):
            self.unrolled = vectors
        each = elements_per_step(extent, self.lanes, self.vectors)
        if self.flat and self.is_first:
            prefetch_elements(s, tensor, vectors, each, self.target)
        if not self.flat and self.alone and tensor is self.out and period is None:
            several_vectors = constant_size([extent]) >= 4 * self.lanes
            prefetch_lines_read(s, tensor, vectors, each, self.target, several_vectors=several_vectors)
        return [*outer, vectors]


def _lines_of_vectors(out: te.Tensor, *, least: int = 1) -> int:
    """Return how many rows shorter than a cache line make whole cache lines; 0 if the vector would be too long.

    `least`: fewest cache lines of such a vector.
    """
    if out.ndim < 2:
        return 0
    rows, columns = out.shape[-2:]
    line = LINE_BYTES // out.dtype.nbytes
    if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
        return 0
    count = rows_of_whole_lines(columns * out.dtype.nbytes)
    count *= -(-least * line // (columns * count))
    return count if count <= rows and columns * count <= _MOST_LINES_OF_VECTOR * line else 0


def _places_are_known(out: te.Tensor) -> bool:
    """True if the elements that a vector of whole rows reads have static distances from each other.

    Indices may depend in any way on the position in a row, but not on data, and must be affine in the row.
    """
    op = out.op
    if len(op.axis) < 2:
        return False
    decided = [condition for _, condition in conditions(op)]
    if _reads_data([*decided, *[i for _, index in reads(op) for i in index]]):
        return False
    uneven = [e for _, index in reads(op) for e in post_order(index) if isinstance(e, FloorDiv | FloorMod)]
    return not any(op.axis[-2].var in post_order((e,)) for e in [*decided, *uneven])


def _vectorize_whole_lines(s: te.Schedule, out: te.Tensor, count: int, target: Target) -> list[te.IterVar]:
    """Vectorise `count` rows at a time, so that the position of each lane within its row is static.

    The rows of a last vector that is not full are masked, by loop partitioning, or computed twice where the loop over
    vectors will be part of a fused parallel loop, which can't be partitioned: masks of hundreds of lanes in its body
    took LLVM minutes.
    """
    *outer, rows, columns = s[out].op.axis
    together = count * iterations([columns])
    is_fused = bool(outer) and fuses_inner(outer, target)
    tail = "shift" if is_fused else "guard"
    vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail=tail)
    s[out].vectorize(vector)
    for axis in (*outer, vectors):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]


def _shared_line(out: te.Tensor) -> te.Tensor | None:
    """Return the computed tensor of which each line of `out` reads the same line at other indices; None if not unique.

    Lines of dynamic length are assumed to be short, and injective stages that `out` reads to be inlined.
    """
    found: list[te.Tensor] = []
    if isinstance(out.op, te.ComputeOp) and is_injective(out.op) and out.ndim > 1:
        _collect(out.op, found, set())
    line = found[0] if found and all(t is found[0] for t in found) else None
    if line is None or same_dim(line.shape[-1], 1) or not _is_worth_buffering(line):
        return None
    length = line.shape[-1]
    return line if not isinstance(length, int) or length * line.dtype.nbytes <= _MOST_LINE_BYTES else None


def _collect(
    op: te.ComputeOp, found: list[te.Tensor], seen: set[tuple[te.Operation, bool]], moved: bool = False
) -> None:
    """Collect computed tensors that `op` reads in its own line, directly or through data movement within lines.

    Stages read at the element's own index are looked through, each once, unless `op` is read at others (`moved`).
    """
    if (op, moved) in seen:
        return
    seen.add((op, moved))
    for load in [e for e in post_order(op.body) if isinstance(e, ProducerLoad)]:
        producer, index = load.producer.op, load.indices
        if not isinstance(producer, te.ComputeOp) or not is_injective(producer) or len(index) != len(op.axis):
            continue
        places = zip(index, op.axis, strict=True)
        same = [i is axis.var or (extent_of(axis) == 1 and as_int(i) == 0) for i, axis in places]
        if not all(same[:-1]):
            continue
        elsewhere = moved or not same[-1]
        if elsewhere and _computes(producer):
            found.append(load.producer)
        else:
            _collect(producer, found, seen, elsewhere)


def _computes(op: te.ComputeOp) -> int:
    """Return the floating-point operations per element, without index arithmetic."""
    return sum(isinstance(e, Binary) and e.dtype.is_float for e in post_order(op.body))


def _is_worth_buffering(line: te.Tensor) -> bool:
    """True if an element takes enough arithmetic to be worth buffering."""
    behind = [op for op in operations_behind([line]) if isinstance(op, te.ComputeOp) and is_injective(op)]
    return sum(_computes(op) for op in behind if op.output(0).ndim == line.ndim) >= _LEAST_OPERATIONS


def _buffer_line(s: te.Schedule, line: te.Tensor, out: te.Tensor, at: te.IterVar, target: Target) -> None:
    """Compute the part of `line` that an iteration of loop `at` of `out` reads, by vectors."""
    attach(s, line, out, at)
    tail = "guard" if isinstance(line.shape[-1], int) else "shift"
    vectors, lane = s[line].split(s[line].op.axis[-1], factor=2 * vector_lanes(target), tail=tail)
    s[line].vectorize(lane)
    s[line].pragma(vectors, "loop_partition_hint")
