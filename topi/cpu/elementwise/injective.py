"""Injective (elementwise, broadcasting, index-mapping) groups on CPUs: one vectorised parallel pass per output."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, Serves, first_of, note, serves_if
from relayc.te.tir import Call, FloatImm, FloorMod, IntImm, ProducerLoad, Select, as_int
from relayc.topi.candidates import apply_plan
from relayc.topi.cpu.accesses import conditions, depend_on_data, reads
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import VECTORS, element_cost, elements_per_step, vectorize_elements, vectors_per_step
from relayc.topi.cpu.elementwise.line_reads import prefetch_lines_read
from relayc.topi.cpu.elementwise.packed_lines import PackedLines
from relayc.topi.cpu.elementwise.packed_rows import PackedRows
from relayc.topi.cpu.elementwise.shared_lines import buffer_line, shared_line
from relayc.topi.cpu.elementwise.short_lines import ShortLines
from relayc.topi.cpu.prefetch import LINE_BYTES, prefetch_elements
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.cpu.transposes.facts import TransposeFacts
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
    return {load.producer for load in loads if load.indices and all(depend_on_data([i]) for i in load.indices)}


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
        if op.axis[-1].var in post_order((condition,)) and not depend_on_data([condition]):
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


@dataclass(frozen=True, eq=False)
class OutputFacts:
    """An output of a group, `outs`, with the costs of its elements and the memory layouts of its inputs and itself.

    `line`: the stage whose lines are buffered for several results. `tiled`: dynamic axes are assumed to be as long as
    tiles that are transposed in registers.
    """

    outs: list[te.Tensor]
    out: te.Tensor
    line: te.Tensor | None
    target: Target
    tiled: bool

    @cached_property
    def ops(self) -> list[te.Operation]:
        """The injective operations of the group."""
        return [op for op in operations_behind(self.outs) if is_injective(op)]

    @property
    def is_alone(self) -> bool:
        """Whether there is no other output."""
        return len(self.outs) == 1

    @cached_property
    def is_flat(self) -> bool:
        """Whether elements depend on their own place only, so that shapes don't matter."""
        return self.line is None and _is_flat(self.outs)

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        nbytes = [t.dtype.nbytes for t in self.out.op.outputs]
        return vector_lanes(self.target, max([_least_bytes(self.out, self.ops), *nbytes]))

    @cached_property
    def vectors(self) -> int:
        """Vectors that are computed together."""
        vectors = vectors_per_step(self.ops)
        if self.is_flat and _may_be_non_temporal(self.out, self.target):
            return max(vectors, LINE_BYTES // (self.lanes * self.out.dtype.nbytes))
        return vectors

    @cached_property
    def work(self) -> float:
        """Operations, roughly."""
        cost = element_cost(self.ops)
        return constant_size(self.out.shape) * (cost if self.strided is None else max(cost, _STRIDED_COST))

    @cached_property
    def strided(self) -> int | None:
        """The axis along which a large input is contiguous, if that is not the last one."""
        return strided_axis(self.out) if self.out.ndim > 1 else None

    @cached_property
    def transpose(self) -> TransposeFacts | Refused:
        """How tiles of that axis and the last one are transposed in registers."""
        if not self.tiled:
            return Refused("another schedule covers short axes")
        return transpose_facts(self.out, self.strided, self.vectors * self.lanes, self.target)

    @cached_property
    def moves_data(self) -> Serves | Refused:
        """Whether elements change places, and take little arithmetic."""
        moves = self.is_alone and not self.is_flat and self.vectors == VECTORS
        return serves_if(moves, "elements are computed, or keep their places, or there are several results")

    @cached_property
    def rows(self) -> PackedRows | Refused:
        """Rows of an input in another order."""
        return PackedRows.of(self.out, self.target) if self.moves_data else self.moves_data

    @property
    def is_short(self) -> bool:
        """Whether the last axis has few elements, and the one before it, along which inputs are contiguous, more.

        Vectors may span both axes then.
        """
        if self.strided is None or self.strided != self.out.ndim - 2:
            return False
        rows, columns = self.out.shape[-2:]
        most = _INTERLEAVED if self.transpose else _GATHERED
        return isinstance(rows, int) and isinstance(columns, int) and columns <= most <= rows

    @property
    def has_borders(self) -> bool:
        """Whether the only conditions on the index along the last axis are those of padding."""
        choosing = _choosing_lanes(self.out)
        return bool(choosing) and all(op.tag == PAD for op in choosing)

    def axes(self, s: te.Schedule) -> tuple[list[te.IterVar], te.Dim]:
        """The axes, fused where shapes don't matter, and the length of the last."""
        axes, first = list(s[self.out].op.axis), _first_without_gaps(self.outs)
        if self.is_flat:
            return [*axes[:first], s[self.out].fuse(*axes[first:])], iterations(axes[first:])
        return axes, axes[-1].extent if len(axes) > 1 else constant_size(self.out.shape)


class OutputLoops(NamedTuple):
    """The loops of a stage, the output or one that stores it, outside of its vectors, outermost first.

    The outer ones will be parallel; `unrolled` is unrolled unless it is among them. A `line` is computed for each
    iteration of the innermost. Where tiles are dynamic, axes are assumed to be as long. Plain loops, without special
    iterations at borders, `may_divide` into parts.
    """

    stage: te.Tensor
    outside: list[te.IterVar]
    unrolled: te.IterVar | None = None
    line: te.Tensor | None = None
    has_dynamic_tiles: bool = False
    may_divide: bool = False


@register_schedule(["elemwise", "broadcast", "injective", "pad"], "cpu", rank=Rank.ELEMENTWISE)
def schedule_injective(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Inline everything into the outputs, each of which is written in one vectorised pass."""
    s, has_dynamic_tiles = _elements(outs, target)
    if has_dynamic_tiles:
        s.specialize_small(_elements(outs, target, tiled=False)[0])
    return s


def _elements(outs: list[te.Tensor], target: Target, *, tiled: bool = True) -> tuple[te.Schedule, bool]:
    """Return the schedule, and whether it has in-register transposes along dynamic axes."""
    s, line = te.create_schedule([out.op for out in outs]), shared_line(outs[0]) if len(outs) == 1 else None
    inline_injective(s, outs, keep=[] if line is None else [line.op])
    outputs = [out for out in {id(o.op): o for o in outs}.values() if s[out].op.axis]
    dynamic = [_schedule_output(s, OutputFacts(outs, out, line, target, tiled)) for out in outputs]
    return s, any(dynamic)


def _schedule_output(s: te.Schedule, facts: OutputFacts) -> bool:
    """Choose the loops of an output; returns whether there are in-register transposes along dynamic axes."""
    loops = first_of("elementwise", [(name, partial(candidate, s, facts)) for name, candidate in _CANDIDATES])
    _, *inside = parallel = parallel_outer(
        s, loops.stage, loops.outside, facts.work, facts.target, divides=loops.may_divide
    )
    if loops.line is not None:
        buffer_line(s, loops.line, loops.stage, parallel[-1], facts.target)
    for loop in inside:
        if loop is loops.unrolled:
            s[loops.stage].unroll(loop)
    return loops.has_dynamic_tiles


def _permuted_tiles(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    """Pieces, if vectors of the output would otherwise be gathered from elements or pairs."""
    if not facts.moves_data:
        return facts.moves_data
    if facts.transpose:
        return Refused("matrices are transposed in registers")
    out, shape = facts.out, facts.out.shape
    whole = facts.is_short and constant_size(shape[-2:-1]) % facts.lanes == 0
    pairs = constant_size(shape[-1:]) * out.dtype.nbytes <= _PAIR_BYTES
    if (facts.strided is None or whole) if not facts.rows else not pairs:
        return Refused("vectors of the output are contiguous in the input, or interleaved")
    tiles = PermutedTiles.of(out, facts.target)
    if not tiles:
        return tiles
    if facts.rows and not tiles.is_read_in_order:
        return Refused("pieces are not read in order, but rows are")
    return OutputLoops(out, apply_plan(s, "pieces", tiles))


def _several_lines(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    repeats, by_one = all(is_broadcast(op.tag) for op in facts.ops), all(o.op is facts.out.op for o in facts.outs)
    if facts.strided is not None or facts.rows or facts.is_flat or not (repeats or (by_one and facts.line is None)):
        return Refused("elements are flat, strided, in another order or buffered, or there are several results")
    lines = ShortLines.of(facts.out, facts.target, joins=not repeats)
    return OutputLoops(facts.out, apply_plan(s, "lines", lines)) if lines else lines


def _interleaved(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if not facts.is_short:
        return Refused("no large input is contiguous along the dimension before the last, or the last one is long")
    if facts.rows and facts.rows.axes_of_row > 1:
        return Refused("rows of several dimensions are packed")
    out, (*outer, rows, columns) = facts.out, s[facts.out].op.axis
    extent, lanes = constant_size(out.shape[-2:]), facts.lanes * constant_size(out.shape[-1:])
    return OutputLoops(out, [*outer, vectorize_elements(s, out, s[out].fuse(rows, columns), extent, lanes)])


def _packed_rows(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if facts.rows and facts.strided is None and facts.line is not None:
        return Refused("lines are buffered")
    return OutputLoops(facts.out, apply_plan(s, "chunks", facts.rows)) if facts.rows else facts.rows


def _transposed(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if not facts.transpose:
        return facts.transpose
    loops = tile_transposed(s, facts.transpose)
    return OutputLoops(facts.out, loops, has_dynamic_tiles=not facts.transpose.is_static)


def _buffered_line(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if facts.line is None:
        return Refused("no line of an input serves several results")
    return OutputLoops(facts.out, _vectorize_between_borders(s, facts.out, facts.lanes)[:-1], line=facts.line)


def _tiles_of_lines(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if facts.strided is None:
        return Refused("large inputs are contiguous along the last dimension")
    loops = tile_by_lines(s, facts.out, facts.strided, VECTORS * facts.lanes, facts.target)
    return loops if isinstance(loops, Refused) else OutputLoops(facts.out, loops)


def _in_order(s: te.Schedule, facts: OutputFacts) -> OutputLoops:
    """Vectorise the last axis, of rows that are packed first where they are not whole cache lines."""
    axes, extent = facts.axes(s)
    bordered = facts.strided is None and constant_size([extent]) >= 4 * facts.lanes and facts.has_borders
    packs = facts.is_alone and facts.strided is None and (bordered or facts.moves_data)
    packed = PackedLines.of(facts.out, facts.target) if packs else Refused("elements are computed, flat or strided")
    how, why = "packed lines" if packed else "flat" if facts.is_flat else "by lines", "" if packed else packed.reason
    note("vectors", how, lanes=facts.lanes, vectors=facts.vectors, borders=bordered, not_packed=why)
    if not packed:
        bounded = bordered and _vectorize_between_borders(s, facts.out, facts.lanes)
        return OutputLoops(facts.out, bounded) if bounded else _vectorize(s, facts, facts.out, axes, extent)
    out, chunks, lines = apply_plan(s, "chunks", packed)
    if bordered:
        _vectorize_between_borders(s, lines, facts.lanes)
    elif (unrolled := _vectorize(s, facts, lines, s[lines].op.axis, extent).unrolled) is not None:
        s[lines].unroll(unrolled)
    return OutputLoops(out, chunks)


_CANDIDATES: tuple[tuple[str, Callable[[te.Schedule, OutputFacts], OutputLoops | Refused]], ...] = (
    ("permuted tiles", _permuted_tiles), ("several lines in a vector", _several_lines), ("interleaved", _interleaved),
    ("packed rows", _packed_rows), ("transposed in registers", _transposed), ("buffered line", _buffered_line),
    ("tiles of cache lines", _tiles_of_lines), ("in order", _in_order),
)  # fmt: skip


def _vectorize(
    s: te.Schedule, facts: OutputFacts, tensor: te.Tensor, axes: Sequence[te.IterVar], extent: te.Dim
) -> OutputLoops:
    """Vectorise the output, or its lines before they are packed, along the last of its `axes`."""
    *outer, last = axes
    period = _period(facts.out, facts.lanes) if facts.strided is None else None
    if period is not None:
        repeat, last = s[tensor].split(last, factor=period)
        outer, extent = [*outer, repeat], period
    vectors = vectorize_elements(s, tensor, last, extent, facts.lanes, facts.vectors)
    if facts.strided is not None:
        return OutputLoops(tensor, tile_strided(s, tensor, facts.strided, vectors))
    unrolls = isinstance(extent, int) and extent <= _MOST_UNROLLED * facts.lanes and _choosing_lanes(facts.out)
    each = elements_per_step(extent, facts.lanes, facts.vectors)
    if facts.is_flat and facts.out.op is facts.outs[0].op:
        prefetch_elements(s, tensor, vectors, each, facts.target)
    if not facts.is_flat and facts.is_alone and tensor is facts.out and period is None:
        several_vectors = constant_size([extent]) >= 4 * facts.lanes
        prefetch_lines_read(s, tensor, vectors, each, facts.target, several_vectors=several_vectors)
    return OutputLoops(tensor, [*outer, vectors], vectors if unrolls else None, may_divide=True)
