"""Products of groups of rows with a packed matrix each, such as the weights of an expert, on CPUs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.matmul import tile_results, versions
from relayc.topi.cpu.products.panel_prefetch import FEWEST_UNROLLED, PrefetchSchedule
from relayc.topi.cpu.products.plan import ProductPlan, has_narrow_last
from relayc.topi.cpu.tiling import at_precision_of, tile_rows, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_routed_dense"]

_HEIGHTS = (8, 4, 1)
"""Heights of tiles for groups of a dynamic number of rows."""
_PANELS = (4, 2, 1)
"""Panels that tiles of few rows span, each a stream of its own from memory. (16 rows of 8 experts of 1024 x 1024, an
Emerald Rapids: single rows 3.3 ms, by four panels 2.8, groups of 4 1.0 and by two panels 0.9.)"""
_SHARE_OF_SUMS = 1 / 2
"""Most of the registers that hold their sums."""
_BLOCK = 4
"""Size of the rows of a block of groups, in L2 caches. Hardware prefetchers read rows anew for each panel in time;
blocks of half a cache read weights more often (1200 rows of 1024: 1.25 times as long)."""
_AHEAD = (4, 2)
"""Groups, with tiles of the largest height and with lower ones, that each prefetch a share of the panel which the group
as many further on reads: the last ones of an expert fetch the next expert's. (300 rows, 8 experts of 1024 x 1024: 9.4
-> 5.6 ms.)"""


@register_schedule("routed_dense", "cpu")
def schedule_routed_dense(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[t, m, n] = sum_k A[t, m, k] * P[chosen[t], n // NR, k, n % NR].

    A panel of each expert passes over all groups before the next panels: groups of an expert follow one another.
    """
    target, panel = at_precision_of(target, anchor.output(0).dtype), anchor.attrs["block"]
    length, steps = extent_of(anchor.axis[-2]), constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    height = tile_rows(target, constant_size([length]), panel, steps, apart=anchor.output(0).dtype.nbytes * steps)
    heights = [height] if isinstance(length, int) else [n for n in _HEIGHTS if n <= height]
    return versions([_of_height(outs, anchor, target, n) for n in heights])


def _of_height(outs: list[te.Tensor], anchor: te.Operation, target: Target, height: int) -> te.Schedule:
    s, out = te.create_schedule([o.op for o in outs]), outs[0]
    inline_injective(s, outs, keep=[anchor])
    steps = constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    accumulator = tile_results(s, out, anchor, target, _plan(out, anchor, target, height), steps, in_groups=True)
    if height > 1:
        _stream_experts(s, accumulator, anchor, target, height)
    return s


def _plan(out: te.Tensor, anchor: te.Operation, target: Target, height: int) -> ProductPlan:
    """Tiles of so many rows, of several panels where rows are few; and the groups of a block."""
    panel, columns = anchor.attrs["block"], constant_size(out.shape[-1:])
    steps, length = constant_size([extent_of(axis) for axis in anchor.reduce_axis]), extent_of(anchor.axis[-2])
    vectors, most = -(-panel // vector_lanes(target)), int(_SHARE_OF_SUMS * target.vector_registers)
    panels = -(-columns // panel)

    def suits(n: int) -> bool:
        shared = columns % (n * panel) == 0 and panels // n >= 2 * target.num_cores
        return n == 1 or (shared and n * vectors * height <= most)

    at_once = next(n for n in _PANELS if suits(n))
    narrow = at_once == 1 and has_narrow_last(target, 1, columns, panel)
    rows = length if isinstance(length, int) else height
    groups = _BLOCK * target.cache_bytes.l2 // (rows * steps * anchor.output(0).dtype.nbytes)
    width = panel * at_once
    plan = ProductPlan(
        height, width, width, narrow_last=narrow, panels_of_a_tile=at_once, groups_of_a_block=max(groups, 1)
    )
    note("tiles", "groups of rows", plan)
    return plan


def _stream_experts(
    s: te.Schedule, accumulator: te.Tensor, anchor: te.Operation, target: Target, height: int
) -> None:
    """Prefetch the panel of an expert while groups of the one before are multiplied with its own."""
    chosen, _, panels = sorted(anchor.input_tensors, key=lambda t: t.ndim)
    groups, (k,), panel = extent_of(anchor.axis[0]), s[accumulator].op.reduce_axis, anchor.attrs["block"]
    steps, line = extent_of(k), LINE_BYTES // panels.dtype.nbytes
    if not isinstance(steps, int) or not isinstance(panels.op, te.PlaceholderOp) or panel % line:
        return
    ahead = _AHEAD[height < _HEIGHTS[0]]
    unrolled = height * (panel // vector_lanes(target)) >= FEWEST_UNROLLED
    schedule = PrefetchSchedule.of(ahead, steps * panel // line, steps, steps, unrolled=unrolled)

    def place(number: int, *i: Any) -> Sequence[Any]:
        t, _, n, step = i
        expert = te.cast("int32", chosen(te.min(t + ahead, groups - 1)))
        return expert, n // panel, schedule.line(t % ahead, step, number) * line

    loop = schedule.split(s, accumulator, k)
    for number in range(schedule.at_once):
        wanted = te.Prefetch(order=partial(place, number), level=2, past_end=True)
        s[accumulator].prefetch(panels, loop, wanted)
