"""Memory that is asked for ahead of its use, while there is arithmetic to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import te
from te.stage import Split
from te.tir.substitute import substitute
from topi.cpu.tiling import is_last_cache_far, vector_lanes
from topi.groups import constant_size, extent_of
from topi.registry import operations_after, operations_behind
from topi.tag import is_broadcast
from topi.tuning import choose
from topi.utils import ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backend.target import Target
    from te.tir import PrimExpr
    from topi.cpu.products.plan import ProductPlan

__all__ = [
    "AHEAD_BYTES", "LINE_BYTES", "inputs_of", "is_beyond_caches", "is_streamed", "prefetch_next", "prefetch_rows",
    "read_later", "rows_ahead", "stream_panels", "stream_results",
    "stream_widened",
]  # fmt: skip

LINE_BYTES = 64
"""A cache line."""
AHEAD_BYTES = 8192
"""What a core reads from memory in the time that one line takes (Zen 5: 40 GB/s, 200 ns); a quarter of the smallest
first-level cache."""
_ROWS_OF_L2 = 4
"""Rows that the second-level cache holds where the next is asked for: that, this one, what is kept of it, and room."""
_LEAST_BYTES = 512
"""Of rows for which memory is asked while the one before is stored: shorter ones the processor sees coming itself."""
_SHARE_OF_L2, _SHARE_OF_LAST = 2, 8
"""Rows up to such a part of a cache are still there, or nearer, when they are wanted: what doesn't come from memory has
to be in the second-level cache then."""
_FEWEST_STEPS_APART, _MOST_STEPS_APART = 4, 64
"""Steps of the reduction between lines that are fetched ahead. Fewer, where so few tiles read a panel, are not worth a
loop: there each step asks, for a line several times."""
_LEAST_MULTIPLY_ADDS_A_LINE = 8
"""Vectors that are multiplied and added for each line that is fetched ahead: with fewer the processor's own way of
fetching what lies in a row is faster."""
_STEPS_BETWEEN_RESULTS = (8, 7, 6, 5, 4)
"""Steps of the reduction after which lines are asked for that a tile's sums are added to: the first that divides it."""
_PART_OF_L2 = 4
"""Tensors up to such a part of the second-level cache may still be there, from the kernel before."""
_LARGE_L1_BYTES = 48 << 10
_NEAR_BYTES, _FURTHER_BYTES = 3072, 8192
"""How far ahead a panel is fetched that one tile reads, and how far into a first-level cache of `_LARGE_L1_BYTES`:
further is no sooner, and drives out what is at hand. Processors with a large one are those from which memory is most
cycles away."""
_LEAST_OF_ONE_TILE = 4
"""As `_LEAST_MULTIPLY_ADDS_A_LINE`, where so much is asked for early enough that it is quicker than the processor."""


def is_beyond_caches(tensor: te.Tensor, target: Target) -> bool:
    """Is it known that no cache holds it? Results that are so large are stored past the caches."""
    return 0 < target.cache_bytes.l3 < constant_size(tensor.shape) * tensor.dtype.nbytes


def is_streamed(tensor: te.Tensor, length: int, target: Target) -> bool:
    """Is it worth asking ahead for rows of `length` elements of it?

    Small tensors stay in the cache, long rows would drive each other out of it.
    """
    size, row = constant_size(tensor.shape) * tensor.dtype.nbytes, length * tensor.dtype.nbytes
    return size > target.cache_bytes.l2 >= _ROWS_OF_L2 * row


def rows_ahead(nbytes: int) -> int:
    """How many rows of so many bytes ahead is asked for one: what memory sends while a core waits for it, at least."""
    return -(-AHEAD_BYTES // nbytes)


def prefetch_rows(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, elements: int, length: int, target: Target
) -> None:
    """Ask in each iteration of `loop` for what it reads of inputs of so many elements, rows of `length` further on.

    Those that it reads through elementwise operations, which are inlined, too.
    """
    for tensor in inputs_of(s[stage].op):
        if constant_size(tensor.shape) == elements and is_streamed(tensor, length, target):
            s[stage].prefetch_ahead(tensor, loop, rows_ahead(length * tensor.dtype.nbytes) * length)


def prefetch_next(s: te.Schedule, out: te.Tensor, vectors: te.IterVar, length: int, each: int, target: Target) -> bool:
    """Ask for the next row, of `length` elements, `each` of them in an iteration of `vectors`, which stores as many.

    Memory answers while results are stored, and what the first-level cache has no room for goes to the next. False
    where nothing is asked for: rows are short, or would drive each other out.
    """
    row, shape, caches = length * out.dtype.nbytes, tuple(out.shape), target.cache_bytes
    if not all(isinstance(d, int) for d in shape) or row < _LEAST_BYTES:
        return False
    far = constant_size(shape) * out.dtype.nbytes > max(caches)
    if row > (caches.l3 // _SHARE_OF_LAST if far else caches.l2 // _SHARE_OF_L2):
        return False
    ahead, lines = length * rows_ahead(row), -(-each * out.dtype.nbytes // LINE_BYTES)

    def place(*i: Any) -> Sequence[Any]:
        return [ravel_index(i, shape) + ahead]

    read = [op.output(0) for op in operations_behind([out]) if isinstance(op, te.PlaceholderOp)]
    alike = [t for t in read if tuple(t.shape) == shape and is_streamed(t, 1, target)]
    for tensor in alike:
        s[out].prefetch_line(tensor, vectors, place, lines=lines)
    return bool(alike)


def read_later(
    axes: Sequence[te.IterVar], index: Sequence[PrimExpr], number: int, steps: int
) -> Callable[..., list[PrimExpr]]:
    """Where a tensor that is read at `index`, by `axes`, is read so many steps along one of them later, or at its end.

    For `Stage.prefetch_line`, by the values of the axes.
    """
    last = constant_size([extent_of(axes[number])]) - 1

    def place(*first: PrimExpr) -> list[PrimExpr]:
        values = [te.min(e + steps, last) if n == number else e for n, e in enumerate(first)]
        return [substitute(i, {axis.var: e for axis, e in zip(axes, values, strict=True)}) for i in index]

    return place


def inputs_of(op: te.Operation) -> list[te.Tensor]:
    """The inputs that an operation reads itself, and those of its shape that elementwise ones in front read for it."""
    found = [t for t in op.input_tensors if isinstance(t.op, te.PlaceholderOp)]
    pending = [t for t in op.input_tensors if tuple(t.shape) == tuple(op.output(0).shape) and is_broadcast(t.op.tag)]
    for tensor in pending:
        alike = [t for t in tensor.op.input_tensors if tuple(t.shape) == tuple(tensor.shape)]
        found += [t for t in alike if isinstance(t.op, te.PlaceholderOp)]
        pending += [t for t in alike if is_broadcast(t.op.tag)]
    return list(dict.fromkeys(found))


def _steps_apart(tiles: int, depth: int) -> tuple[int, int]:
    """Of an innermost reduction over `depth`: the steps after which to ask for a line, and those in which it is read.

    (0, 0) where `depth` has no divisor that would do.
    """
    if tiles < _FEWEST_STEPS_APART:
        return 1, tiles
    every = max(d for d in range(1, min(tiles, _MOST_STEPS_APART) + 1) if depth % d == 0)
    return (every, every) if every >= _FEWEST_STEPS_APART else (0, 0)


def _is_worthwhile(weights: te.Tensor, target: Target) -> bool:
    """Are these weights in memory, of so many panels that each core goes from one to the next?"""
    panels = constant_size(weights.shape[:1])
    return isinstance(weights.op, te.PlaceholderOp) and panels >= 2 * target.num_cores


def _position_in_panel(
    s: te.Schedule, accumulator: te.Tensor, plan: ProductPlan
) -> Callable[[Sequence[Any]], tuple[Any, Any, Any]]:
    """What tells the indices of a multiplication apart: its row tile of the panel's, its column, and its step."""
    shape = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]
    along = [extent_of(axis) for axis in s[accumulator].op.reduce_axis]
    known = all(isinstance(d, int) for d in shape)  # else tiles behind those that fetch ask for the last line again

    def position(indices: Sequence[Any]) -> tuple[Any, Any, Any]:
        row, n, steps = indices[: len(shape)], indices[len(shape)], indices[len(shape) + 1 :]
        tile = (ravel_index(row, shape) + plan.height - 1) // plan.height
        return tile % plan.tiles_of_a_panel if known else tile, n, ravel_index(steps, along)

    return position


def stream_widened(
    s: te.Schedule, accumulator: te.Tensor, widened: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Fetch narrow weights ahead, which are widened a panel at a time: the next panel while this one is multiplied.

    Of weights that are made of several tensors this is the first, their codes.
    """
    source = widened.op.input_tensors[0]
    *_, k = s[accumulator].op.reduce_axis
    depth, tiles = extent_of(k), plan.tiles_of_a_panel
    if not isinstance(depth, int) or not _is_worthwhile(source, target):
        return
    inner = [constant_size([d]) for d in source.shape[1:]]
    width, line = inner[-1], LINE_BYTES // source.dtype.nbytes
    steps, lines = constant_size(widened.shape[1:-1]), -(-constant_size(inner) // line)
    fitting = [d for d in range(_FEWEST_STEPS_APART, _MOST_STEPS_APART + 1) if depth % d == 0]
    every = max((d for d in fitting if tiles * (steps // d) >= lines), default=0)
    if not every or not choose("stream panels", True, (True, False)):
        return
    position = _position_in_panel(s, accumulator, plan)

    def in_next(*indices: Any) -> Sequence[Any]:
        tile, n, step = position(indices)
        ahead = te.min(tile * (steps // every) + step // every, lines - 1)
        return (n // width + 1, *unravel_index(ahead * line, inner))

    s[accumulator].prefetch_line(source, s[accumulator].split(k, factor=every)[0], in_next)


def stream_panels(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Fetch constant weights ahead: the next panel while the row tiles pass over this one, a part in each tile.

    Weights come from memory, which the tile that reads a panel first would wait for: as long as several others take.
    Where one tile is all that reads a panel, what lies a little further on is fetched.
    """
    *_, k = s[accumulator].op.reduce_axis
    depth, tiles = extent_of(k), plan.tiles_of_a_panel
    if not isinstance(depth, int) or not _is_worthwhile(weights, target):
        return
    if not choose("stream panels", True, (True, False)):
        return
    panels, *inner = [constant_size([d]) for d in weights.shape]
    count = len(s[accumulator].op.reduce_axis)
    inner, of_step = inner[:count], inner[count:]
    line, width = LINE_BYTES // weights.dtype.nbytes, constant_size(of_step)
    every, apart = _steps_apart(tiles, depth)
    steps, step_bytes = constant_size(inner), weights.dtype.nbytes * width
    further = target.cache_bytes.l1 >= _LARGE_L1_BYTES and steps * step_bytes > _FURTHER_BYTES
    near = (_FURTHER_BYTES if further else _NEAR_BYTES) // step_bytes
    least = _LEAST_OF_ONE_TILE if further and tiles == 1 else _LEAST_MULTIPLY_ADDS_A_LINE
    vectors = -(-line // vector_lanes(target, weights.dtype.nbytes))
    if apart * plan.height * vectors < least:
        return
    if tiles == 1 and (steps <= near or panels * steps * width * weights.dtype.nbytes <= max(target.cache_bytes)):
        return
    outer = s[accumulator].split(k, factor=every)[0] if every > 1 else k
    position = _position_in_panel(s, accumulator, plan)

    def place(element: int) -> Callable[..., Sequence[Any]]:
        at = unravel_index(element, of_step)

        def in_next(*indices: Any) -> Sequence[Any]:
            tile, n, step = position(indices)
            ahead = te.min(tile * steps // apart + step // apart, steps - 1)
            return (n // plan.panel + 1, *unravel_index(ahead, inner), *at)

        def nearby(*indices: Any) -> Sequence[Any]:
            _, n, step = position(indices)
            ahead = step + near
            over = ahead >= steps
            rest, panel = te.select(over, ahead - steps, ahead), n // plan.panel
            return (te.select(over, panel + 1, panel), *unravel_index(rest, inner), *at)

        return in_next if tiles > 1 else nearby

    for element in range(0, width, line):
        s[accumulator].prefetch_line(weights, outer, place(element))


def stream_results(
    s: te.Schedule, accumulator: te.Tensor, out: te.Tensor, anchor: te.Operation, plan: ProductPlan, target: Target
) -> None:
    """Fetch what the sums of a tile are added to (a residual) while they are summed up, some lines every few steps.

    Where the last cache is far: the processor doesn't guess a tile's lines, of as many rows, and all of them at once
    are more than it waits for at a time. The reduction's innermost loop may be split already.
    """
    residuals = [t for t in _read_behind(out, anchor) if tuple(t.shape) == tuple(out.shape)]
    far = [t for t in residuals if constant_size(t.shape) * t.dtype.nbytes > target.cache_bytes.l2 // _PART_OF_L2]
    axes = s[accumulator].op.reduce_axis
    along = [extent_of(axis) for axis in axes]
    rows = out.shape[:-1]
    if not far or not is_last_cache_far(target) or not all(isinstance(d, int) for d in (*along, *out.shape)):
        return
    outer, every = _innermost_parts(s, accumulator, axes[-1])
    if not every:
        return
    shape = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]
    at_once = -(-plan.height // (constant_size(along) // every))

    def place(number: int, element: int) -> Callable[..., Sequence[Any]]:
        def in_tile(*indices: Any) -> Sequence[Any]:
            row, column, steps = indices[: len(shape)], indices[len(shape)], indices[len(shape) + 1 :]
            passed = te.min(ravel_index(steps, along) // every * at_once + number, plan.height - 1)
            last = constant_size(rows) - 1
            return (*unravel_index(te.min(ravel_index(row, shape) + passed, last), rows), column + element)

        return in_tile

    for tensor in far:
        for number in range(at_once):
            for element in range(0, plan.width, LINE_BYTES // tensor.dtype.nbytes):
                s[accumulator].prefetch_line(tensor, outer, place(number, element))


def _read_behind(out: te.Tensor, anchor: te.Operation) -> list[te.Tensor]:
    """The arguments of a function that are read of what `anchor` computed, on the way to `out`."""
    return [op.output(0) for op in operations_after(anchor, [out]) if isinstance(op, te.PlaceholderOp)]


def _innermost_parts(s: te.Schedule, stage: te.Tensor, axis: te.IterVar) -> tuple[te.IterVar, int]:
    """The loop over parts of a reduction's innermost axis, and the steps of a part; (axis, 0) where it has none."""
    for relation in s[stage].relations:
        if isinstance(relation, Split) and relation.parent is axis:
            assert isinstance(relation.factor, int)
            return relation.outer, relation.factor
    every = next((n for n in _STEPS_BETWEEN_RESULTS if constant_size([extent_of(axis)]) % n == 0), 0)
    return (s[stage].split(axis, factor=every)[0] if every else axis), every
