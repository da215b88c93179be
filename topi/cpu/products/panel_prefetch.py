"""Software prefetch for products: the next panels, and residuals, are fetched while register tiles compute."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.index import largest_extent
from relayc.te.stage import Split
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.plan import TILES_OF_HALF
from relayc.topi.cpu.tiling import has_few_registers, has_high_latency_llc, vector_lanes
from relayc.topi.groups import constant_size, extent_of, factor_of, is_static, least_extent, likely_rows
from relayc.topi.registry import operations_after
from relayc.topi.tuning import choose
from relayc.topi.utils import ceil_div, num_elements, ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import Dim
    from relayc.topi.cpu.products.plan import ProductPlan

__all__ = [
    "FEWEST_UNROLLED", "LEAST_PIECE", "PIECES", "UNROLLED_STEPS", "PrefetchSchedule", "stream_panels", "stream_results",
    "stream_unpacked", "stream_widened",
]  # fmt: skip

_MOST_STEPS_APART, _FEWEST_OF_WIDENED = 64, 4
"""Most steps of the reduction between prefetches, and fewest where what is prefetched is converted."""
_FEWEST_STEPS_PER_LINE = 4
"""Fewest steps for each line of a step, where as many tiles read a panel: otherwise the reduction has no good
divisor."""
UNROLLED_STEPS = 8
"""Steps that the code generator unrolls: prefetches of several pieces of a panel are interleaved in them."""
FEWEST_UNROLLED = 8
"""Fewest multiply-adds of a step of which the code generator unrolls several."""
PIECES = (4, 2)
"""Pieces of a panel that are prefetched in turn."""
LEAST_PIECE = 4096
"""Bytes of a piece: a page, at whose end hardware prefetchers stop."""
_MOST_REPEATED = 2
"""Panels whose lines tiles may prefetch: those beyond the next panel are of the following ones. More are clamped."""
_LEAST_MULTIPLY_ADDS_A_LINE = 8
"""Fewest vectors that are multiplied and added for each prefetched line: with fewer the hardware prefetcher is
faster."""
_LEAST_OF_FEW_ROWS, _LEAST_OF_FEW_ROWS_HIGH_LATENCY_LLC = 12, 2
"""Fewest vectors for each line in tiles of a few of a dynamic number of rows, which share a panel with one other at
most; and with a high-latency LLC. (Emerald Rapids, 103 MB of float32 weights, two rows: 1.35 times as long as one row
with the hardware prefetcher alone, else 1.0. Zen 5, 56 MB: tiles of four rows take 1.3 times as long with prefetches,
two of six 0.7.)"""
_STEPS_BETWEEN_RESULTS = (8, 7, 6, 5, 4)
"""Steps of the reduction between prefetches of the lines that a tile's sums are added to: the first that divides it."""
_LONG_SUM = 512
_PART_OF_L2 = 4
"""Tensors up to this fraction (1 / n) of the L2 cache may still be there, from the kernel before."""
_DISTANCE_BYTES, _LONG_DISTANCE_BYTES, _PART_OF_L1 = 3072, 8192, 6
"""Prefetch distance in bytes for a panel that one tile reads, and the distance where it is at most 1 / `_PART_OF_L1` of
the L1 cache: in smaller ones (32 KiB) the longer distance is no faster, and evicts what is in use."""
_LEAST_OF_ONE_TILE = 4
"""Fewest multiply-adds for each line (see `_LEAST_MULTIPLY_ADDS_A_LINE`) with the longer prefetch distance, which beats
the hardware prefetcher."""


@dataclass(frozen=True, slots=True)
class PrefetchSchedule:
    """Register tiles prefetch `lines` evenly, each `prefetches` times, every few steps `at_once` lines.

    Bursts keep other reads waiting. A core has fewer line-fill buffers than it should have lines in flight, but its
    hardware prefetcher follows each of several `pieces` that are interleaved (Xeon of the Sapphire Rapids family,
    products of 49 rows with weights in memory, as a share of the multiply-adds' peak: 70 % in bursts, 79 evenly, 87 in
    two pieces, 89 in four; Zen 4, Winograd's weights: 182 and 195 % as if direct).
    """

    lines: Dim
    every: int
    at_once: int
    prefetches: Dim
    interleave: int
    """Consecutive prefetches that go to different pieces."""
    pieces: int
    clamps: bool
    """Whether tiles after the last prefetch repeat the last line; otherwise they prefetch what lies behind it."""

    @staticmethod
    def of(
        tiles: int, lines: Dim, steps: Dim, depth: Dim, *, more: bool = False, unrolled: bool = True
    ) -> PrefetchSchedule:
        """Fetch all lines in `steps` of each tile, or of the first ones where a dynamic number of `more` follow.

        Lines and steps may be dynamic, and grow together; the schedule is that for the fewest. The innermost loop is
        over `depth`; a few of its steps may be `unrolled`. More of them are a loop, which should be as long as
        possible: what a step reads is prefetched together.
        """
        least, fewest = least_extent(lines), least_extent(steps)
        wanted, divisor = -(-least // tiles), factor_of(depth)
        most = max(fewest // wanted, 1)
        most = min(most, UNROLLED_STEPS) if unrolled else min(most * max(least // fewest, 1), _MOST_STEPS_APART)
        every = max(d for d in range(1, most + 1) if divisor % d == 0)
        at_once = -(-wanted // (fewest // every))
        interleave = _interleave(least, every, at_once, divisor) if unrolled else 0
        clamps = more or tiles * (fewest // every) * at_once > _MOST_REPEATED * least
        return PrefetchSchedule(
            lines, every, at_once, steps // every, max(interleave, 1), interleave * at_once or 1, clamps
        )

    def split(self, s: te.Schedule, stage: te.Tensor, k: te.IterVar) -> te.IterVar:
        """Split the loop over the reduction's innermost axis; returns the loop whose iterations prefetch."""
        if self.interleave > 1:
            _, k = s[stage].split(k, factor=self.every * self.interleave)
        return s[stage].split(k, factor=self.every)[0] if self.every > 1 else k

    def line(self, tile: Any, step: Any, number: int = 0) -> Any:
        """The line that a step of a tile prefetches; `number` counts those of the step."""
        prefetch, size = step // self.every, self.lines // self.pieces
        piece = (prefetch % self.interleave * self.at_once + number) if self.pieces > 1 else 0
        passed = tile * (self.prefetches // self.interleave) + prefetch // self.interleave
        if self.pieces == 1:
            passed = passed * self.at_once + number
        return piece * size + (te.min(passed, size - 1) if self.clamps else passed)


def _interleave(lines: int, every: int, at_once: int, depth: int) -> int:
    """Consecutive prefetches that go to different pieces; 0 where there is one piece."""
    for pieces in PIECES:
        interleave = pieces // at_once
        whole = interleave and pieces % at_once == 0 and depth % (every * interleave) == 0 and lines % pieces == 0
        if whole and every * interleave <= UNROLLED_STEPS and lines * LINE_BYTES >= pieces * LEAST_PIECE:
            return interleave
    return 0


def _is_worthwhile(weights: te.Tensor, target: Target) -> bool:
    """Whether these weights are in memory, of so many panels that each core goes from one to the next."""
    panels = constant_size(weights.shape[:1])
    return isinstance(weights.op, te.PlaceholderOp) and panels >= 2 * target.num_cores


def _position_in_panel(
    s: te.Schedule, accumulator: te.Tensor, plan: ProductPlan
) -> Callable[[Sequence[Any]], tuple[Any, Any, Any]]:
    """A function from the indices of a multiply-add to its row tile among the panel's, its column, and its step."""
    shape = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]
    along = [extent_of(axis) for axis in s[accumulator].op.reduce_axis]
    known = all(isinstance(d, int) for d in shape)  # otherwise later tiles prefetch later panels
    every = plan.tiles_of_a_panel if known else plan.tiles_of_even_blocks(num_elements(shape))

    def position(indices: Sequence[Any]) -> tuple[Any, Any, Any]:
        row, n, steps = indices[: len(shape)], indices[len(shape)], indices[len(shape) + 1 :]
        tile = (ravel_index(row, shape) + plan.height - 1) // plan.height
        return tile % every if known or plan.tiles_of_a_block else tile, n, ravel_index(steps, along)

    return position


def stream_widened(
    s: te.Schedule, accumulator: te.Tensor, widened: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Prefetch 8- or 16-bit weights, which are converted a panel at a time: the next panel while this one is
    multiplied.

    Where weights are made of several tensors the quantised values are the first.
    """
    source = widened.op.input_tensors[0]
    *_, k = s[accumulator].op.reduce_axis
    depth = extent_of(k)
    if not isinstance(depth, int) or not _is_worthwhile(source, target):
        return
    schedule = PrefetchSchedule.of(
        plan.tiles_of_a_panel, _lines_of(source), constant_size(widened.shape[1:-1]), depth
    )
    if schedule.every < _FEWEST_OF_WIDENED or schedule.at_once > 1 or not choose("stream panels", True, (True, False)):
        return
    _prefetch_next(s, accumulator, source, plan, schedule, constant_size(source.shape[-1:]))


def stream_unpacked(s: te.Schedule, accumulator: te.Tensor, codes: te.Tensor, plan: ProductPlan) -> None:
    """Prefetch codes (panels, words, width) to L2: those of the next tile's panels, which are unpacked once for all
    rows, while these are multiplied, a part with each block of each tile."""
    (block,) = [extent_of(axis) for axis in s[accumulator].op.reduce_axis]
    schedule = PrefetchSchedule.of(
        plan.tiles_of_a_panel, _lines_of(codes, plan.panels_of_a_tile), block, block,
        more=not _has_static_tiles(s, accumulator),
    )  # fmt: skip
    _prefetch_next(s, accumulator, codes, plan, schedule, plan.panel // plan.panels_of_a_tile, level=2)


def _lines_of(weights: te.Tensor, panels: int = 1) -> int:
    """Cache lines of so many panels."""
    return -(-panels * constant_size(weights.shape[1:]) * weights.dtype.nbytes // LINE_BYTES)


def _prefetch_next(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, schedule: PrefetchSchedule,
    panel: int, *, level: int = 1, shares: Sequence[Any] = (0,),
) -> None:  # fmt: skip
    """Prefetch the panels, of `panel` columns, that the next tile spans: a tile its share, and those so many further.
    """
    position, line = _position_in_panel(s, accumulator, plan), LINE_BYTES // weights.dtype.nbytes

    def place(number: int, further: Any) -> Callable[..., Sequence[Any]]:
        def in_next(*indices: Any) -> Sequence[Any]:
            tile, n, step = position(indices)
            return n // panel + plan.panels_of_a_tile, schedule.line(tile + further, step, number) * line

        return in_next

    loop = schedule.split(s, accumulator, s[accumulator].op.reduce_axis[-1])
    for number, further in itertools.product(range(schedule.at_once), shares):
        s[accumulator].prefetch(weights, loop, te.Prefetch(level=level, order=place(number, further), past_end=True))


def stream_panels(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Prefetch constant weights: the next panel while the row tiles pass over this one, a part in each tile.

    Otherwise the tile that reads a panel first would wait for memory as long as several others take. Where one tile is
    all that reads a panel, a short distance ahead is prefetched; but with a high-latency LLC, if there is enough
    arithmetic, the next panel, in pieces (13 x 50257 x 768: 1.6 times as fast).
    """
    *_, k = s[accumulator].op.reduce_axis
    unrolled = s[accumulator].attrs_of(k).kind is not None
    if unrolled or not _has_known_steps(s, accumulator) or not _is_worthwhile(weights, target):
        return
    if _reads_lines_anywhere(s, accumulator):
        return
    if not choose("stream panels", True, (True, False)):
        return
    if plan.tiles_of_a_panel == 1 and not _has_time_for_pieces(s, accumulator, weights, plan, target):
        _stream_ahead(s, accumulator, weights, plan, target)
    else:
        _stream_next_panel(s, accumulator, weights, plan, target)


def _has_known_steps(s: te.Schedule, accumulator: te.Tensor) -> bool:
    """Whether the numbers of steps are constants; or that of the only loop is bounded, and the tiles are static."""
    *others, depth = [extent_of(axis) for axis in s[accumulator].op.reduce_axis]
    bounded = largest_extent(depth) is not None and least_extent(depth) > 0 and constant_size(others) == 1
    return isinstance(depth, int) or (bounded and _has_static_tiles(s, accumulator))


def _reads_lines_anywhere(s: te.Schedule, accumulator: te.Tensor) -> bool:
    """Whether a tile holds an address for each of its pixels, which may lie on any lines: of windows that are not
    copied, on lines of dynamic length.

    With the addresses of prefetches beside them registers are spilled in each step (Zen 5, 3 x 3 windows by 2, 48 to
    192 channels: 3.1 times as long as without; 512 to 512 along one dimension: 1.6 times).
    """
    return len(s[accumulator].op.reduce_axis) > 1 and not _has_static_tiles(s, accumulator)


def _has_static_tiles(s: te.Schedule, accumulator: te.Tensor) -> bool:
    """Whether the number of results is a constant."""
    return is_static([extent_of(axis) for axis in s[accumulator].op.axis])


def _has_time_for_pieces(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> bool:
    """Whether there are enough multiply-adds for a panel's lines, and room for two panels, with a high-latency LLC."""
    steps, width = _steps_and_width(s, accumulator, weights)
    nbytes, lines = weights.dtype.nbytes * width, -(-weights.dtype.nbytes * width // LINE_BYTES)
    busy = plan.height * -(-width // vector_lanes(target, weights.dtype.nbytes)) >= _LEAST_MULTIPLY_ADDS_A_LINE * lines
    return busy and has_high_latency_llc(target) and 2 * steps * nbytes <= target.cache_bytes.l2 // 2


def _stream_next_panel(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Prefetch the next panel, in equal shares by all tiles that pass over this one.

    Where the number of rows is dynamic these are the first ones. Where there are fewer, they take the others' shares.
    """
    *_, k = s[accumulator].op.reduce_axis
    steps, width = _steps_and_width(s, accumulator, weights)
    line = LINE_BYTES // weights.dtype.nbytes
    known, tiles = _has_static_tiles(s, accumulator), plan.tiles_of_a_panel
    vectors = -(-width // vector_lanes(target, weights.dtype.nbytes))
    unrolled = plan.height * vectors >= FEWEST_UNROLLED
    depth = extent_of(k)
    along = steps if isinstance(depth, int) else depth
    schedule = PrefetchSchedule.of(
        tiles, ceil_div(along * width, line), along, depth, more=not known, unrolled=unrolled
    )
    halves = tiles == TILES_OF_HALF and not known
    few = _LEAST_OF_FEW_ROWS_HIGH_LATENCY_LLC if has_high_latency_llc(target) else _LEAST_OF_FEW_ROWS
    least = few if halves else _LEAST_MULTIPLY_ADDS_A_LINE
    if schedule.every * plan.height * vectors < least * schedule.at_once:
        return
    if tiles >= _FEWEST_STEPS_PER_LINE and schedule.every * width < _FEWEST_STEPS_PER_LINE * line * schedule.at_once:
        return
    shares: list[Any] = [0]
    extents = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]
    if not known and math.prod(map(least_extent, extents)) <= (tiles - 1) * plan.height:
        passes = (math.prod(extents) + plan.height - 1) // plan.height
        shares += [tiles - passes] if halves else [passes * n for n in range(1, -(-tiles // 2))]
    _prefetch_next(s, accumulator, weights, plan, schedule, plan.panel, shares=shares)


def _stream_ahead(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, plan: ProductPlan, target: Target
) -> None:
    """Prefetch in each step what lies a short distance ahead, in this panel or the next."""
    steps, width = _steps_and_width(s, accumulator, weights)
    line, step_bytes = LINE_BYTES // weights.dtype.nbytes, width * weights.dtype.nbytes
    fits = target.cache_bytes.l1 >= _PART_OF_L1 * _LONG_DISTANCE_BYTES
    further = fits and steps * step_bytes > _LONG_DISTANCE_BYTES
    distance = (_LONG_DISTANCE_BYTES if further else _DISTANCE_BYTES) // step_bytes
    least = _LEAST_OF_ONE_TILE if further else _LEAST_MULTIPLY_ADDS_A_LINE
    vectors = -(-line // vector_lanes(target, weights.dtype.nbytes))
    in_caches = constant_size(weights.shape) * weights.dtype.nbytes <= max(target.cache_bytes)
    if plan.height * vectors < least or steps <= distance or in_caches:
        return
    position = _position_in_panel(s, accumulator, plan)

    def read(*indices: Any) -> Sequence[Any]:
        _, n, step = position(indices)
        return n // plan.panel, step * width

    for element in range(0, width, line):
        wanted = te.Prefetch(distance * width + element, order=read, past_end=True)
        s[accumulator].prefetch(weights, s[accumulator].op.reduce_axis[-1], wanted)


def _steps_and_width(s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor) -> tuple[int, int]:
    """Steps of the reduction over a panel, and elements of it that each reads."""
    count = len(s[accumulator].op.reduce_axis)
    _, *inner = [constant_size([d]) for d in weights.shape]
    return constant_size(inner[:count]), constant_size(inner[count:])


def stream_results(
    s: te.Schedule, accumulator: te.Tensor, out: te.Tensor, anchor: te.Operation, plan: ProductPlan, target: Target
) -> None:
    """Prefetch what the sums of a tile are added to (a residual), and where they go, during the reduction.

    Some lines every few steps: a tile's rows are too many streams for the hardware prefetcher, and all of them together
    exceed the line-fill buffers: neither loads of the next tile nor stores could go on. The reduction's innermost loop
    may be split already. A dynamic number of rows counts as many, one of images of a static size as the most that are
    likely: fewer lose nothing. Images of dynamic sizes are mostly small enough for the caches, where prefetches cost up
    to a tenth.
    """
    residuals = [t for t in _read_behind(out, anchor) if tuple(t.shape) == tuple(out.shape)]
    size = target.cache_bytes.l2 // _PART_OF_L2
    axes = s[accumulator].op.reduce_axis
    along = [extent_of(axis) for axis in axes]
    *rows, columns = out.shape
    likely = likely_rows(rows, constant_size(rows))
    large = [t for t in (*residuals, out) if likely[-1] * constant_size([columns]) * t.dtype.nbytes > size]
    known = (*along, columns) if anchor.tag == "dense_packed" or len(likely) > 1 else (*along, *out.shape)
    if not large or not all(isinstance(d, int) for d in known) or _is_crowded(along, target):
        return
    outer, every = _innermost_parts(s, accumulator, axes[-1])
    if not every:
        return
    shape = [extent_of(axis) for axis in s[accumulator].op.axis[:-1]]
    at_once = -(-plan.height // (constant_size(along) // every))

    def place(number: int) -> Callable[..., Sequence[Any]]:
        def in_tile(*indices: Any) -> Sequence[Any]:
            row, column, steps = indices[: len(shape)], indices[len(shape)], indices[len(shape) + 1 :]
            passed = te.min(ravel_index(steps, along) // every * at_once + number, plan.height - 1)
            position = te.min(ravel_index(row, shape) + passed, math.prod(rows) - 1)
            if all(isinstance(d, int) for d in rows):
                return (*unravel_index(position, rows), column)
            return (position * columns + column,)  # dynamic sizes are not divided by

        return in_tile

    for tensor in large:
        for number in range(at_once):
            for element in range(0, plan.width, LINE_BYTES // tensor.dtype.nbytes):
                wanted = te.Prefetch(element, order=place(number), written=tensor is out)
                s[accumulator].prefetch(tensor, outer, wanted)


def _is_crowded(along: Sequence[te.Dim], target: Target) -> bool:
    """Whether the addresses of prefetched lines would spill accumulators.

    On AArch64 they do. With few registers convolution windows have no room for them, and with sums of many steps the
    small spilled part costs more than there is to gain.
    """
    few = has_few_registers(target)
    return "neon" in target.features or (few and (len(along) > 1 or constant_size(along) > _LONG_SUM))


def _read_behind(out: te.Tensor, anchor: te.Operation) -> list[te.Tensor]:
    """The placeholders that the elementwise tail of `anchor` reads, on the way to `out`."""
    return [op.output(0) for op in operations_after(anchor, [out]) if isinstance(op, te.PlaceholderOp)]


def _innermost_parts(s: te.Schedule, stage: te.Tensor, axis: te.IterVar) -> tuple[te.IterVar, int]:
    """The loop over parts of a reduction's innermost axis, and the steps of a part; (axis, 0) where it has none.

    Where that axis is unrolled, as an image's few channels are, the innermost loop that is not.
    """
    for relation in s[stage].relations:
        if isinstance(relation, Split) and relation.parent is axis:
            assert isinstance(relation.factor, int)
            return relation.outer, relation.factor
    unrolled = 1
    for loop in reversed(s[stage].op.reduce_axis):
        if s[stage].attrs_of(loop).kind is None:
            break
        unrolled *= constant_size([extent_of(loop)])
    else:
        return axis, 0
    if unrolled > 1:
        return loop, unrolled
    every = next((n for n in _STEPS_BETWEEN_RESULTS if constant_size([extent_of(axis)]) % n == 0), 0)
    return (s[stage].split(axis, factor=every)[0] if every else axis), every
