"""Transposes on CPUs: tiles of both axes where inputs are read along a strided axis, in registers if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, first_of, note, or_refused
from relayc.te.tir import IterVar, Var, as_int
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches
from relayc.topi.cpu.transposes.copied_runs import CopiedRuns
from relayc.topi.cpu.transposes.geometry import TransposeGeometry
from relayc.topi.cpu.transposes.ordered_tiles import OrderedTiles
from relayc.topi.cpu.transposes.packed_blocks import PackedBlocks
from relayc.topi.cpu.transposes.packed_matrices import PackedMatrices
from relayc.topi.cpu.transposes.packed_tiles import PackedTiles
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.registry import operations_behind
from relayc.topi.tag import PAD
from relayc.topi.transform import MOST_INTERLEAVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayc.backend.target import Target

__all__ = ["strided_axis", "tile_by_lines", "tile_strided", "tile_transposed", "transposable"]

_TILE = 16
"""Elements of the strided axis in a tile of scalars: a cache line of float32."""
_LINES = 8
"""Cache lines of each of a few output rows that are stored together: one more is computed than that."""
_ROWS = 256
"""Elements of an input row that tiles transposed in registers take, one after the other."""
_PLANES = 16
"""Elements of an input row where output rows lie planes apart, so that few streams are written together: a cache line
of float32, a part of one of narrower types, whose rest is then found in the L2 cache."""
_LONG_BYTES = 1024
"""Least bytes of an output row for tiles to follow it, not the input's rows, where memory is streamed."""
_SHARES = 4
"""Tiles for each core, at least, for load balance."""
_RUN_BYTES = 2048
"""Bytes of an output row that these tiles take before they move on along the input's rows."""
_ROWS_AHEAD = 64
"""Prefetch distance of these tiles in rows of the input."""


def strided_axis(out: te.Tensor) -> int | None:
    """The axis of `out` along which a large input is contiguous, when it is not the last one; None otherwise.

    All injective operations that feed `out` are assumed to be inlined.
    """
    op = out.op
    if not isinstance(op, te.ComputeOp) or len(op.axis) < 2 or op.reduce_axis:
        return None
    numbers = {axis.var: n for n, axis in enumerate(op.axis)}
    last = len(op.axis) - 1
    strided: set[int] = set()
    parts = max(2, min(constant_size(out.shape[-1:]), MOST_INTERLEAVED))  # each makes up one of them
    for tensor, index in reads(op):
        if constant_size(tensor.shape) * parts < constant_size(out.shape):
            continue
        variable = only_variable(index[-1]) if index else None
        number = None if variable is None else numbers.get(variable)
        if number is None or number == last:
            return None
        strided.add(number)
    return strided.pop() if len(strided) == 1 else None


def transposable(out: te.Tensor, number: int) -> tuple[te.Tensor, int] | None:
    """The input along axis `number` of `out`, and its dimension along the last axis, if it is transposable.

    Strided reads must be the same everywhere in the group, without padding or seams of a concatenation: tiles there
    would reach over what is read.
    """
    op = out.op
    assert isinstance(op, te.ComputeOp)
    if any(behind.tag == PAD for behind in operations_behind([out])):
        return None
    row, column = op.axis[number].var, op.axis[-1].var
    found: tuple[te.Tensor, int] | None = None
    for tensor, index in reads(op):
        across = bool(index) and only_variable(index[-1]) is row
        if not across or all(e is not column for e in post_order(index)):  # a bias of rows: constant along them
            continue
        along = [i for i, e in enumerate(index[:-1]) if only_variable(e) is column]
        others = [e for i, e in enumerate(index[:-1]) if i not in along]
        mixed = any(v in (row, column) for v in post_order(others) if isinstance(v, Var))
        if len(along) != 1 or mixed or found not in (None, (tensor, along[0])):
            return None
        ends = ((tensor.shape[along[0]], out.shape[-1]), (tensor.shape[-1], out.shape[number]))
        if any(isinstance(d, int) and isinstance(whole, int) and d < whole for d, whole in ends):
            return None
        found = (tensor, along[0])
    return found


def tile_transposed(s: te.Schedule, geometry: TransposeGeometry, target: Target, at_once: int) -> list[te.IterVar]:
    """Tiles of the output's two axes that are transposed in registers.

    The axes take up at least a vector and a block; where their extents are dynamic, another schedule covers shorter
    ones. `at_once` is the number of output elements that are best computed together. Returns the loops outside of a
    tile, outermost first.
    """
    out, tensor, number, lanes, caches = (
        geometry.out, geometry.tensor, geometry.number, geometry.lanes, target.cache_bytes
    )  # fmt: skip
    columns, size, largest = geometry.columns, constant_size(out.shape), max(caches.l2, caches.l3)
    streamed = size * (tensor.dtype.nbytes + out.dtype.nbytes) > largest
    known = isinstance(columns, int) and isinstance(geometry.rows, int)
    along_output = streamed and known and constant_size([columns]) * out.dtype.nbytes >= _LONG_BYTES
    if known and size * max(tensor.dtype.nbytes, out.dtype.nbytes) >= largest:  # otherwise the caches hold nearly both
        packed = _packed(geometry, target)
        if packed is not None:
            return packed.apply(s, at_once)
    lines_first = along_output and caches.l2 // geometry.stride_alignment < 2 * _ROWS_AHEAD  # rows conflict
    order = "along the output" if along_output else "along the input"
    note("tiles", order, lanes=lanes, streamed=streamed, lines_first=lines_first)
    source, copy, _, vectors = geometry.copied(s, lines_first=lines_first)
    s[copy].unroll(vectors)
    widths = (max(geometry.line, lanes), 2 * lanes, lanes)
    width = next(w for w in widths if not isinstance(columns, int) or w <= columns)
    if along_output:
        planes = number < len(out.shape) - 2
        row_tile = max(min(geometry.line_of_input, _PLANES) if planes else geometry.line_of_input, geometry.block)
        tiles, along, group, row, column = _along_the_output(s, out, number, row_tile, width, geometry.block)
        if lines_first:  # otherwise they are evicted before they are used up
            s[source].compute_at(s[out], along)
            s[source].prefetch_ahead(
                tensor, s[source].op.axis[geometry.position], _ROWS_AHEAD * geometry.row_stride, to_l1=geometry.to_l1
            )
        else:
            s[copy].prefetch_ahead(tensor, vectors, _ROWS_AHEAD * geometry.row_stride, to_l1=geometry.to_l1)
        s[out].prefetch_ahead(out, along, width)
    else:
        tiles, group, row, column = _along_the_input(
            s, out, number, geometry.line_of_input, width, geometry.block, target.num_cores
        )
    s[out].unroll(row)
    s[out].vectorize(column)
    s[copy].compute_at(s[out], group)
    return tiles


Packed = PackedBlocks | OrderedTiles | PackedMatrices | CopiedRuns | PackedTiles


def _packed(geometry: TransposeGeometry, target: Target) -> Packed | None:
    """The tiles of a matrix that caches don't hold, the first kind that serves; None if none does."""

    def tried(kind: type[Packed], reason: str) -> Callable[[], Packed | Refused | None]:
        return lambda: or_refused(kind.of(geometry, target), reason)

    return first_of("transposed tiles", (
        ("packed blocks", tried(PackedBlocks, "matrices are no whole cache lines, or small, or blocks too large")),
        ("ordered tiles", tried(OrderedTiles, "input rows are short, or not even pieces of them fit into L2")),
        ("packed matrices", tried(PackedMatrices, "matrices aren't the input's own, or caches don't hold a group")),
        ("copied runs", tried(CopiedRuns, "rows don't conflict in cache sets, or make no whole cache lines")),
        ("packed tiles", tried(PackedTiles, "neither the output nor its rows are whole cache lines, nor long")),
        ("not packed", lambda: None),
    ))  # fmt: skip


def _along_the_output(
    s: te.Schedule, out: te.Tensor, number: int, line: int, width: int, block: int
) -> tuple[list[te.IterVar], te.IterVar, te.IterVar, te.IterVar, te.IterVar]:
    """Tiles of `line` elements (a cache line or a part of one) of the input's rows that follow the output's rows.

    Returns the loops outside of them, the loop over tiles, and the loops of one: groups of `block` rows, rows, columns.
    """
    axes = list(s[out].op.axis)
    rows, columns = extent_of(axes[number]), extent_of(axes[-1])
    assert isinstance(rows, int) and isinstance(columns, int)
    row_tile, row_inner = s[out].split(axes[number], factor=line if rows >= line else block, tail="shift")
    group, row = s[out].split(row_inner, factor=block)
    run = min(_RUN_BYTES // out.dtype.nbytes, columns)
    part, within = s[out].split(axes[-1], factor=run, tail="shift")
    along, column = s[out].split(within, factor=width, tail="shift")
    tiles = [*axes[:number], *axes[number + 1 : -1], part, row_tile]
    s[out].reorder(*tiles, along, group, row, column)
    return tiles, along, group, row, column


def _along_the_input(
    s: te.Schedule, out: te.Tensor, number: int, line: int, width: int, block: int, cores: int
) -> tuple[list[te.IterVar], te.IterVar, te.IterVar, te.IterVar]:
    """Tiles of a cache line of the output's rows that follow the input's rows by whole cache lines (`line` elements).

    There are enough for an even share to each of `cores`. Returns the loops outside of tiles, and those over them:
    groups of `block` rows, rows, columns.
    """
    axes = list(s[out].op.axis)
    rows = extent_of(axes[number])
    row_outer: list[te.IterVar] = []
    row_inner = axes[number]
    most = _ROWS if number == len(axes) - 2 else max(_PLANES, line)
    others = constant_size([*out.shape[:number], *out.shape[number + 1 : -1]])
    others *= -(-constant_size(out.shape[-1:]) // width)
    parts = 1
    if isinstance(rows, int):
        parts = max(-(-rows // most), min(-(-_SHARES * cores // others), rows // block))
    if isinstance(rows, int) and parts > 1:
        part, row_inner = s[out].split(row_inner, factor=-(-rows // parts // block) * block, tail="shift")
        row_outer = [part]
    group, row = s[out].split(row_inner, factor=block, tail="shift")
    column_outer, column = s[out].split(axes[-1], factor=width, tail="shift")
    tiles = [*axes[:number], *axes[number + 1 : -1], *row_outer, column_outer]
    s[out].reorder(*tiles, group, row, column)
    return tiles, group, row, column


def tile_strided(s: te.Schedule, out: te.Tensor, number: int, last_outer: IterVar) -> list[IterVar]:
    """Split axis `number` into tiles, whose loop runs just outside the vectors of the last axis.

    `last_outer` counts those vectors. Returns the loops outside of a tile, outermost first.
    """
    axes = list(s[out].op.axis)
    extent = as_int(out.shape[number])
    if extent is None:
        outer, inner = s[out].split(axes[number], factor=_TILE)
    elif extent >= _TILE:
        outer, inner = s[out].split(axes[number], factor=_TILE, tail="shift")
    else:
        outer, inner = s[out].split(axes[number], nparts=1)
    tiles = [*axes[:number], *axes[number + 1 : -1], outer, last_outer]
    s[out].reorder(*tiles, inner)
    return tiles


def tile_by_lines(
    s: te.Schedule, out: te.Tensor, number: int, at_once: int, target: Target
) -> list[IterVar] | None:
    """Split a few unaligned rows of `out` along axis `number`, such as an image's planes, at cache-line boundaries.

    So they are written with non-temporal stores. Returns the loops outside of a tile, outermost first; None where the
    caches hold the output, or its rows are whole cache lines, or short, or too many, or a cache line is more than
    `at_once` elements, which are best computed together.
    """
    line, known = LINE_BYTES // out.dtype.nbytes, all(isinstance(d, int) for d in out.shape)
    columns, rows = constant_size(out.shape[-1:]), constant_size([out.shape[number]])
    if not known or not is_beyond_caches(out, target) or "memory_strides" in out.op.attrs:
        return None
    if columns % line == 0 or columns < 2 * _LINES * line or rows > _TILE or line > at_once:
        return None
    axes = list(s[out].op.axis)
    tile, each, column = s[out].split_lines(_LINES * line, line)
    outside = [*axes[:number], *axes[number + 1 : -1], tile]
    s[out].reorder(*outside, axes[number], each, column)
    s[out].unroll(each)
    s[out].vectorize(column)
    return outside
