"""Elementwise, broadcasting and index-mapping groups on CPUs: one pass over the output, vectorised, in parallel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import te
from backend.vector_math import EXPANSIONS
from te.ir import post_order
from te.tir import Call, FloatImm, FloorMod, IntImm, PrimExpr, ProducerLoad, Select, Var, as_int
from topi.cpu.accesses import conditions, reads
from topi.cpu.common import parallel_outer
from topi.cpu.line_buffer import buffer_line, shared_line
from topi.cpu.line_reads import ask_for_lines
from topi.cpu.packed_lines import PackedLines
from topi.cpu.packed_rows import PackedRows
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.register_transpose import block_of, vectors_turned
from topi.cpu.tiling import vector_lanes
from topi.cpu.transpose import strided_axis, tile_strided, tile_turned, turnable
from topi.cpu.turn import Turn
from topi.groups import constant_size, extent_of, inline_injective, is_injective
from topi.registry import Rank, operations_behind, register_schedule
from topi.tag import PAD, is_broadcast

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["element_cost", "elements_at_once", "functions_behind", "schedule_injective", "vectorize_elements"]

_CALL_COST = 16
"""Operations that a transcendental function is counted as."""
_FEWEST, _SHORT = 4, 8
"""Elements of a last axis across memory that are interleaved, rather than turned, and rather than put together one by
one."""
_MOST_LINES = 16
"""Cache lines of a vector that reaches over several lines of the output."""
_ACROSS_COST = 5
"""Operations that an element counts as, at least, which is read across memory."""
_COMPUTED_BYTES = 4
"""Of elements that are computed, at least: narrower ones are converted for it."""
_VECTORS, _VECTORS_OF_CHAINS = 2, 4
"""Vectors that are computed step by step, and of mathematical functions: what waits for the steps before fills the
scheduler of the processor. Four took 5 to 20 % less time than two for most functions, one took more."""


def element_cost(ops: Sequence[te.Operation]) -> float:
    """Scalar operations for one output element of injective operations computed together, roughly."""
    cost = 0.0
    for op in ops:
        if isinstance(op, te.ComputeOp):
            nodes = list(post_order(op.body))
            cost += sum(_CALL_COST if isinstance(e, Call) else 1 for e in nodes)
    return cost


def _is_flat(outs: Sequence[te.Tensor]) -> bool:
    """Does element i of the outputs depend on element i of every input only, so that shapes don't matter?"""
    shape = tuple(outs[0].shape)
    ops = operations_behind(outs)
    tensors = [t for op in ops for t in op.outputs]
    tables = _tables(ops)
    same_shape = all(tuple(t.shape) == shape or constant_size(t.shape) == 1 for t in tensors if t not in tables)
    return same_shape and all(op.tag in ("elemwise", "broadcast", "") for op in ops)


def _tables(ops: Sequence[te.Operation]) -> set[te.Tensor]:
    """What is read at places that memory says, wherever an element lies."""
    nodes = [e for op in ops if isinstance(op, te.ComputeOp) for e in post_order(op.body)]
    loads = [e for e in nodes if isinstance(e, ProducerLoad)]
    return {load.producer for load in loads if load.indices and all(map(_is_read, load.indices))}


def _is_read(index: PrimExpr) -> bool:
    return any(isinstance(e, ProducerLoad) for e in post_order((index,)))


def _least_bytes(out: te.Tensor, ops: Sequence[te.Operation]) -> int:
    """Of an element, what vectors are chosen for, at least: 1 where bytes are looked up or moved, not computed."""
    assert isinstance(out.op, te.ComputeOp)
    looked_up = isinstance(out.op.body[0], ProducerLoad) and _tables([out.op])
    return 1 if looked_up or all(map(_only_moves, ops)) else _COMPUTED_BYTES


def _first_without_gaps(outs: Sequence[te.Tensor]) -> int:
    """The first dimension from which on all tensors are compact, so that the loops over them may become one."""
    first = 0
    for op in operations_behind(outs):
        for number, strides in op.attrs.get("memory_strides", {}).items():
            shape = op.output(number).shape
            inside = [i for i, d in enumerate(shape) if d != 1]
            gaps = [a for a, b in itertools.pairwise(inside) if strides[a] != strides[b] * shape[b]]
            first = max([first, *[i + 1 for i in gaps]])
    return first


def _only_moves(op: te.Operation) -> bool:
    """Are the results elements of what it reads, or constants, chosen by where they lie?"""
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


def _has_chains(ops: Sequence[te.Operation]) -> bool:
    """Is a mathematical function computed, which is a chain of many operations, but no power, which has too many?"""
    bodies = [op.body for op in ops if isinstance(op, te.ComputeOp)]
    called = {e.op for body in bodies for e in post_order(body) if isinstance(e, Call)}
    return "pow" not in called and not called.isdisjoint(EXPANSIONS)


def functions_behind(out: te.Tensor, anchor: te.Operation) -> set[str]:
    """The mathematical functions that are computed of the result of `anchor`, on the way to `out`."""
    before = {id(op) for op in operations_behind([anchor.output(0)])}
    bodies = [op.body for op in operations_behind([out]) if id(op) not in before and isinstance(op, te.ComputeOp)]
    return {e.op for body in bodies for e in post_order(body) if isinstance(e, Call) and e.op in EXPANSIONS}


def elements_at_once(extent: int, lanes: int, vectors: int = _VECTORS) -> int:
    """Elements of an axis, of a vector at least, that `vectorize_elements` takes together."""
    if extent >= 8 * vectors * lanes or extent % (vectors * lanes) == 0:
        return vectors * lanes
    return 2 * lanes if extent >= 4 * lanes else lanes


def vectorize_elements(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, extent: te.Dim, lanes: int, vectors: int = _VECTORS
) -> te.IterVar:
    """Vectorise `axis` of `tensor`, some vectors at a time where it is long enough; returns what is left of it outside.

    A last partial group of a long axis is shifted inwards: it computes a few elements twice instead of testing each.
    """
    if not isinstance(extent, int):
        outer, inner = s[tensor].split(axis, factor=lanes)
    elif extent >= lanes:
        outer, inner = s[tensor].split(axis, factor=_together(extent, lanes, vectors), tail="shift")
    else:
        outer, inner = s[tensor].split(axis, nparts=1)
    s[tensor].vectorize(inner)
    return outer


def _together(extent: te.Dim, lanes: int, vectors: int) -> int:
    """How many elements of an axis are computed step by step: of short ones fewer than so many vectors."""
    if not isinstance(extent, int) or extent < 4 * lanes:
        return lanes
    many = extent >= 8 * vectors * lanes or extent % (vectors * lanes) == 0
    return (vectors if many else 2) * lanes


def _is_long(out: te.Tensor, extent: te.Dim, lanes: int, target: Target) -> bool:
    """Do the caches not hold the output, whose lines have several vectors?"""
    beyond = 0 < target.cache_bytes.l3 < constant_size(out.shape) * out.dtype.nbytes
    return beyond and constant_size([extent]) >= 4 * lanes


def _turn(out: te.Tensor, strided: int, target: Target) -> Turn | None:
    """See `turnable`: into the longest vectors that the axes hold a tile of; None where none fits.

    Axes whose lengths are known at run time are taken to be long enough. Of lengths that are expressions of sizes it
    can't always be shown that tiles shifted inwards need no guards, which these do not have.
    """
    found, rows, columns = turnable(out, strided), out.shape[strided], out.shape[-1]
    if found is None or not all(isinstance(d, int | Var) for d in (rows, columns)):
        return None
    if any(isinstance(d, int) and d == 0 for d in out.shape):
        return None

    def fits(lanes: int) -> bool:
        needed = ((rows, block_of(lanes, found[0].dtype)), (columns, lanes))
        return all(length <= d for d, length in needed if isinstance(d, int))

    fitting = [lanes for lanes in vectors_turned(target, found[0].dtype) if fits(lanes)]
    return Turn(out, strided, *found, fitting[0]) if fitting else None


def _is_short(out: te.Tensor, most: int) -> bool:
    """Has the last axis `most` elements, and the one before it more, so that vectors may reach over places of both?"""
    rows, columns = out.shape[-2:]
    return isinstance(rows, int) and isinstance(columns, int) and columns <= most <= rows


def _lines_of_vectors(out: te.Tensor) -> int:
    """How many lines, each shorter than a cache line, are whole ones together; 0 where that makes too long vectors."""
    if out.ndim < 2:
        return 0
    rows, columns = out.shape[-2:]
    line = LINE_BYTES // out.dtype.nbytes
    if not isinstance(rows, int) or not isinstance(columns, int) or not 1 < columns < line:
        return 0
    count = line // math.gcd(line, columns)
    return count if count <= rows and columns * count <= _MOST_LINES * line else 0


def _vectorize_lines(s: te.Schedule, out: te.Tensor, count: int) -> list[te.IterVar]:
    """Vectors of so many lines: where in a line, and in which, their elements are is the same for all of them."""
    *outer, rows, columns = s[out].op.axis
    together = count * constant_size([columns.extent])
    vectors, vector = s[out].split(s[out].fuse(rows, columns), factor=together, tail="guard")
    s[out].vectorize(vector)
    for axis in (*outer, vectors):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]


def _period(out: te.Tensor) -> int | None:
    """What the last axis of `out` is taken modulo wherever it is read by, if that divides it: see `tile`."""
    op = out.op
    assert isinstance(op, te.ComputeOp)
    last, extent = op.axis[-1], extent_of(op.axis[-1])
    found = {
        as_int(e.b) for _, index in reads(op) for e in post_order(index) if isinstance(e, FloorMod) and e.a is last.var
    }
    period = found.pop() if len(found) == 1 else None
    return period if period and isinstance(extent, int) and extent > period and extent % period == 0 else None


def _has_borders(out: te.Tensor) -> bool:
    """Are there borders along the last axis, and nothing else that is decided by where an element lies along it?"""
    op = out.op
    assert isinstance(op, te.ComputeOp)
    last, deciding = op.axis[-1].var, []
    for source, condition in conditions(op):
        nodes = list(post_order((condition,)))
        if last in nodes and not any(isinstance(e, ProducerLoad) for e in nodes):
            deciding.append(source.tag == PAD)
    return bool(deciding) and all(deciding)


def _vectorize_between_borders(s: te.Schedule, out: te.Tensor, lanes: int) -> list[te.IterVar]:
    """Vectors of the last axis; loop partitioning cuts off those at borders, so that the others need no tests."""
    *outer, last = s[out].op.axis
    tail = "guard" if isinstance(last.extent, int) else "shift"
    vectors, inner = s[out].split(last, factor=2 * lanes, tail=tail, least=4 * lanes)
    s[out].vectorize(inner)
    for axis in (*outer, vectors, inner):
        s[out].pragma(axis, "loop_partition_hint")
    return [*outer, vectors]


def _moved_rows(outs: Sequence[te.Tensor], target: Target) -> PackedRows | None:
    return PackedRows.of(outs[0], target) if len(outs) == 1 else None


def _packed_lines(
    s: te.Schedule, out: te.Tensor, target: Target, *, wanted: bool
) -> tuple[te.Tensor, list[te.IterVar], te.Tensor]:
    """The output, the loop over chunks of its lines, and the lines: see `PackedLines`. Else no loop, and twice it."""
    packed = PackedLines.of(out, target) if wanted else None
    return (out, [], out) if packed is None else packed.apply(s)


@register_schedule(["elemwise", "broadcast", "injective", "pad"], "cpu", rank=Rank.ELEMENTWISE)
def schedule_injective(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Everything inlined into the outputs, each written in one vectorised pass."""
    s, counted = _elements(outs, target)
    if counted:
        s.when_small(_elements(outs, target, squares=False)[0])
    return s


def _elements(outs: list[te.Tensor], target: Target, *, squares: bool = True) -> tuple[te.Schedule, bool]:
    """The schedule, and whether it has squares turned in registers along axes whose lengths are known at run time."""
    s, counted = te.create_schedule([out.op for out in outs]), False
    lines = {id(out.op): line for out in outs if len(outs) == 1 and (line := shared_line(out)) is not None}
    inline_injective(s, outs, keep=[line.op for line in lines.values()])
    injective = [op for op in operations_behind(outs) if is_injective(op)]
    cost, vectors = element_cost(injective), _VECTORS_OF_CHAINS if _has_chains(injective) else _VECTORS
    for out in {id(o.op): o for o in outs}.values():
        lanes = vector_lanes(target, max([_least_bytes(out, injective), *[t.dtype.nbytes for t in out.op.outputs]]))
        axes = list(s[out].op.axis)
        if not axes:
            continue
        work = constant_size(out.shape) * cost
        extent = axes[-1].extent if len(axes) > 1 else constant_size(out.shape)
        flat = not lines and _is_flat(outs)
        if flat:
            first = _first_without_gaps(outs)
            extent = constant_size([a.extent for a in axes[first:]])
            axes = [*axes[:first], s[out].fuse(*axes[first:])]
        strided = strided_axis(out) if len(axes) > 1 else None
        work *= 1 if strided is None else max(1, _ACROSS_COST / cost)
        turn = None if strided is None or not squares else _turn(out, strided, target)
        short = strided == len(axes) - 2 and _is_short(out, _FEWEST if turn is not None else _SHORT)
        rows = None if flat or vectors != _VECTORS else _moved_rows(outs, target)
        plain = not flat and strided is None and rows is None and all(is_broadcast(op.tag) for op in injective)
        together = _lines_of_vectors(out) if plain else 0
        if together:
            tiles = _vectorize_lines(s, out, together)
        elif short and (rows is None or rows.axes_of_row == 1):
            *outer, _, _ = axes
            joined = s[out].fuse(*axes[-2:])
            extent, width = constant_size(out.shape[-2:]), constant_size(out.shape[-1:])
            tiles = [*outer, vectorize_elements(s, out, joined, extent, lanes * width)]
        elif rows is not None and (strided is not None or not lines):
            tiles = rows.apply(s)
        elif strided is not None and turn is not None:
            counted = counted or not all(isinstance(out.shape[a], int) for a in (strided, -1))
            tiles = tile_turned(s, turn, target, vectors * lanes)
        elif id(out.op) in lines:
            tiles = _vectorize_between_borders(s, out, lanes)[:-1]
            *_, around = parallel_outer(s, out, tiles, work, target)
            buffer_line(s, lines[id(out.op)], out, around, target)
            continue
        elif strided is None and constant_size([extent]) >= 4 * lanes and _has_borders(out):
            out, chunks, whole = _packed_lines(s, out, target, wanted=len(outs) == 1)
            inside = _vectorize_between_borders(s, whole, lanes)
            tiles = chunks or inside
        else:
            period = _period(out) if strided is None else None
            wanted = not flat and strided is None and len(outs) == 1
            out, chunks, whole = _packed_lines(s, out, target, wanted=wanted and vectors == _VECTORS)
            *outer, last = s[whole].op.axis if chunks else axes
            if period is not None:
                repeat, last = s[whole].split(last, factor=period)
                outer, extent = [*outer, repeat], period
            last = vectorize_elements(s, whole, last, extent, lanes, vectors)
            if wanted and not chunks and period is None and _is_long(out, extent, lanes, target):
                ask_for_lines(s, out, last, _together(extent, lanes, vectors), target)
            tiles = chunks or ([*outer, last] if strided is None else tile_strided(s, out, strided, last))
        parallel_outer(s, out, tiles, work, target)
    return s, counted
