"""Injective (elementwise, broadcasting, index-mapping) groups on CPUs: one vectorised parallel pass per output."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, Serves, first_of, serves_if
from relayc.te.tir import Call, FloatImm, IntImm, ProducerLoad, Select
from relayc.topi.candidates import Plan, apply_plan
from relayc.topi.cpu.accesses import depend_on_data
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import VECTORS, element_cost, elements_per_step, vectorize_elements, vectors_per_step
from relayc.topi.cpu.elementwise.line_stores import are_unaligned, split_at_lines
from relayc.topi.cpu.elementwise.lines import Lines, LineVectors
from relayc.topi.cpu.elementwise.packed_rows import PackedRows
from relayc.topi.cpu.elementwise.shared_lines import shared_line
from relayc.topi.cpu.prefetch import LINE_BYTES, prefetch_elements
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.permuted_tiles import PermutedTiles
from relayc.topi.cpu.transposes.transpose import strided_axis, tile_transposed, transpose_facts
from relayc.topi.groups import constant_size, inline_injective, is_injective, iterations
from relayc.topi.registry import Rank, operations_behind, register_schedule
from relayc.topi.tag import is_broadcast

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
_TILE, _LINES = 16, 8
"""Elements of a strided axis in a tile, a cache line of float32, and cache lines of each of a few rows that are stored
together: one more is computed than that."""
_COMPUTED_BYTES = 4
"""Least bytes of computed elements: smaller ones are converted to float32."""


def _tables(ops: Sequence[te.Operation]) -> set[te.Tensor]:
    """Return the tensors that are gathered from, at indices that are loaded themselves."""
    nodes = [e for op in ops if isinstance(op, te.ComputeOp) for e in post_order(op.body)]
    loads = [e for e in nodes if isinstance(e, ProducerLoad)]
    return {load.producer for load in loads if load.indices and all(depend_on_data([i]) for i in load.indices)}


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
        """Whether element i of each output depends on element i of each input only, so that shapes don't matter."""
        shape, ops = tuple(self.outs[0].shape), operations_behind(self.outs)
        tables = _tables(ops)
        tensors = [t for op in ops for t in op.outputs if t not in tables]
        same_shape = all(tuple(t.shape) == shape or constant_size(t.shape) == 1 for t in tensors)
        return self.line is None and same_shape and all(op.tag in ("elemwise", "broadcast", "") for op in ops)

    @cached_property
    def lines(self) -> Lines:
        """Its lines, where they matter."""
        return Lines(self.out, self.lanes, self.vectors, self.target)

    @property
    def has_dynamic_tiles(self) -> bool:
        """Whether tiles are transposed in registers along dynamic axes, which are assumed to be as long."""
        return bool(self.transpose) and not self.transpose.is_static

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector: of any size for lookups and pure data movement, else of the size they are computed in.
        """
        op, nbytes = self.out.op, [t.dtype.nbytes for t in self.out.op.outputs]
        assert isinstance(op, te.ComputeOp)
        looked_up = isinstance(op.body[0], ProducerLoad) and _tables([op])
        moved = looked_up or all(map(_only_moves_data, self.ops))
        return vector_lanes(self.target, max(nbytes if moved else [_COMPUTED_BYTES, *nbytes]))

    @cached_property
    def vectors(self) -> int:
        """Vectors that are computed together: whole cache lines where the backend may use non-temporal stores."""
        vectors, l3 = vectors_per_step(self.ops), self.target.cache_bytes.l3
        if self.is_flat and 0 < l3 <= 2 * constant_size(self.out.shape) * self.out.dtype.nbytes:
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
        """Whether elements of the only output, where it is not flat, change places, and take little arithmetic."""
        moves = self.is_alone and self.vectors == VECTORS
        return serves_if(moves, "elements are computed, or there are several results")

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


class OutputLoops(NamedTuple):
    """The loops of an output outside of its vectors, outermost first, of which the outer ones will be parallel.

    The innermost is `unrolled` unless it is among them. Plain loops, without special iterations at borders,
    `may_divide` into parts.
    """

    outside: list[te.IterVar]
    unrolled: bool = False
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
    outputs = [OutputFacts(outs, out, line, target, tiled) for out in {id(o.op): o for o in outs}.values()]
    scheduled = [facts for facts in outputs if s[facts.out].op.axis]
    for facts in scheduled:  # the loops of an output are chosen, and those that are parallel
        loops = first_of("elementwise", [(name, partial(candidate, s, facts)) for name, candidate in _CANDIDATES])
        _, *inside = parallel_outer(s, facts.out, loops.outside, facts.work, facts.target, divides=loops.may_divide)
        if loops.unrolled and inside:
            s[facts.out].unroll(inside[-1])
    return s, any(facts.has_dynamic_tiles for facts in scheduled)


def _apply(s: te.Schedule, subject: str, plan: Plan[list[te.IterVar]] | Refused) -> OutputLoops | Refused:
    """The loops of a plan; or why there is none."""
    return plan if isinstance(plan, Refused) else OutputLoops(apply_plan(s, subject, plan))


def _flat(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    """Vectors along all dimensions as one, but for those with gaps."""
    if not facts.is_flat:
        return Refused("elements depend on others than those of their own place")
    out, first = facts.out, _first_without_gaps(facts.outs)
    axes = s[out].op.axis
    extent, (lanes, vectors) = iterations(axes[first:]), (facts.lanes, facts.vectors)
    loop = vectorize_elements(s, out, s[out].fuse(*axes[first:]), extent, lanes, vectors)
    if out.op is facts.outs[0].op:
        prefetch_elements(s, out, loop, elements_per_step(extent, lanes, vectors), facts.target)
    return OutputLoops([*axes[:first], loop], may_divide=True)


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
    if facts.rows and tiles and not tiles.parts.are_in_order:
        return Refused("pieces are not read in order, but rows are")
    return _apply(s, "pieces", tiles)


def _several_lines(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    repeats, by_one = all(is_broadcast(op.tag) for op in facts.ops), all(o.op is facts.out.op for o in facts.outs)
    if facts.strided is not None or facts.rows or not (repeats or (by_one and facts.line is None)):
        return Refused("elements are strided, in another order or buffered, or there are several results")
    return _apply(s, "lines", LineVectors.of_several(facts.lines, joins=not repeats))


def _interleaved(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if not facts.is_short:
        return Refused("no large input is contiguous along the dimension before the last, or the last one is long")
    if facts.rows and facts.rows.axes_of_row > 1:
        return Refused("rows of several dimensions are packed")
    return _apply(s, "lines", LineVectors.interleaved(facts.lines))


def _packed_rows(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if facts.rows and facts.strided is None and facts.line is not None:
        return Refused("lines are buffered")
    return _apply(s, "chunks", facts.rows)


def _transposed(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    return OutputLoops(tile_transposed(s, facts.transpose)) if facts.transpose else facts.transpose


def _strided_tiles(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    """Tiles of the strided axis, whose loop runs just outside the vectors of the last axis.

    A few unaligned rows, such as an image's planes, are split at cache lines, for non-temporal stores.
    """
    out, number, line = facts.out, facts.strided, LINE_BYTES // facts.out.dtype.nbytes
    if number is None:
        return Refused("large inputs are contiguous along the last dimension")
    axes, extent, columns = list(s[out].op.axis), out.shape[number], constant_size(out.shape[-1:])
    few = constant_size([extent]) <= _TILE and line <= VECTORS * facts.lanes
    if few and are_unaligned(out, columns, 2 * _LINES, facts.target):
        vectors, *inside = split_at_lines(s, out, _LINES * line)
    else:
        vectors, inside = vectorize_elements(s, out, axes[-1], out.shape[-1], facts.lanes, facts.vectors), []
    size, tail = (max(min(extent, _TILE), 1), "shift") if isinstance(extent, int) else (_TILE, "guard")
    outer, rows = s[out].split(axes[number], factor=size, tail=tail)
    outside = [*axes[:number], *axes[number + 1 : -1], outer, vectors]
    s[out].reorder(*outside, rows, *inside)
    return OutputLoops(outside)


def _buffered_line(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if facts.line is None:
        return Refused("no line of an input serves several results")
    return _apply(s, "lines", LineVectors.between_borders(facts.lines, facts.line))


def _packed_lines(s: te.Schedule, facts: OutputFacts) -> OutputLoops | Refused:
    if not facts.is_alone or not (facts.lines.has_borders or facts.moves_data):
        return Refused("elements are computed, or there are several results")
    return _apply(s, "lines", LineVectors.packed(facts.lines))


def _lines(s: te.Schedule, facts: OutputFacts) -> OutputLoops:
    plan = LineVectors.in_order(facts.lines, alone=facts.is_alone)
    return OutputLoops(apply_plan(s, "lines", plan), plan.unrolled, may_divide=not plan.partitioned)


_CANDIDATES: tuple[tuple[str, Callable[[te.Schedule, OutputFacts], OutputLoops | Refused]], ...] = (
    ("flat", _flat), ("permuted tiles", _permuted_tiles), ("several lines in a vector", _several_lines),
    ("interleaved", _interleaved), ("packed rows", _packed_rows), ("transposed in registers", _transposed),
    ("buffered line", _buffered_line), ("tiles of a strided axis", _strided_tiles), ("packed lines", _packed_lines),
    ("lines", _lines),
)  # fmt: skip
