"""Attention on CPUs: a block of queries against all keys, head by head, in the memory of one thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, first_of
from relayc.topi.cpu.common import parallel, vectorize_panel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.lane_sums import sum_rows
from relayc.topi.cpu.prefetch import elements_ahead, is_streamed
from relayc.topi.cpu.reductions.reduction import vectorize_reduction
from relayc.topi.cpu.register_transpose import block_of, transpose_in_registers, transposed_vectors
from relayc.topi.cpu.tiling import largest_partition, tile_rows, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.nn.blocked_attention import AttentionForm
from relayc.topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["schedule_blocked_attention"]

_PREFIX = "blocked_attention_"

_OF_A_BLOCK = ("queries", "score", "largest", "weight", "total", "share")
"""Stages that are computed for a block of queries, or for a single one."""

_PACKING_COST = 4.0
"""Operations that copying an element into a panel is counted as."""

_NOTABLE_PACKING = 1 / 16
"""Packing is parallel from this part of a core's share of the rest on, even if it were too little to wake threads for:
the threads of the rest would wait for it otherwise."""

_MOST_SINGLE_ROWS = 7
"""Most rows that are computed one by one where they can't be batched: fewer than packing is worth it for."""

_VECTORS = 8
"""Most vector accumulators of a row's result."""

_MOST_IMBALANCE = 1.05
"""Most that the busiest thread may take for whole heads, relative to blocks: packing in their threads is worth it."""


@register_schedule("blocked_attention", "cpu")
def schedule_blocked_attention(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Blocks of rows; for a dynamic number of rows also blocks of one register tile, and those of a position.

    The rows of a head of keys are the queries of all heads that share it.
    """
    form = anchor.attrs["form"]
    assert isinstance(form, AttentionForm)
    stages = _stages(outs)
    rows, depth = stages["queries"].shape[2:]
    if isinstance(rows, int):
        schedule = _schedule_of(rows, depth, target)
        return schedule(outs, anchor, form, target)
    s = _in_blocks(outs, anchor, form, target)
    steps, of_a_position = constant_size([depth]), _heads_of_a_group(outs[0], stages["score"])
    height = tile_rows(target, form.queries, form.panel, steps, apart=4 * steps)
    few = _in_blocks(outs, anchor, replace(form, queries=height), target) if 1 < height < form.queries else s
    if few is not s:
        s.specialize_small(few)
    fewest = _batched_rows if _schedule_of(of_a_position, depth, target) is _batched_rows else _one_by_one
    few.specialize_small(fewest(outs, anchor, replace(form, queries=of_a_position), target))
    return s


def _schedule_of(rows: int, depth: te.Dim, target: Target) -> Callable[..., te.Schedule]:
    """The schedule for so many rows: keys and values are packed where each is used often enough."""
    lanes, most = vector_lanes(target), target.vector_registers // 2

    def batched() -> Callable[..., te.Schedule] | Refused:
        if not isinstance(depth, int) or depth % lanes:
            return Refused(f"a row of queries has {depth} elements, not whole vectors of {lanes}")
        return _batched_rows if rows <= most else Refused(f"{rows} rows exceed {most} registers, half of them")

    def one_by_one() -> Callable[..., te.Schedule] | Refused:
        few = rows <= _MOST_SINGLE_ROWS
        return _one_by_one if few else Refused(f"{rows} rows use keys and values often enough to pack them")

    return first_of("attention", (
        ("batched rows", batched), ("one row at a time", one_by_one), ("blocks of rows", lambda: _in_blocks)
    ))  # fmt: skip


def _heads_of_a_group(out: te.Tensor, score: te.Tensor) -> int:
    """Heads of queries that share one head of keys and values."""
    return constant_size(out.shape[2:3]) // constant_size(score.shape[1:2])


@dataclass(frozen=True, slots=True)
class _SeenKeys:
    """How many keys the rows of a block attend to, at most: those of causal attention leave the others out."""

    keys: PrimExpr
    panel: int

    @staticmethod
    def of(out: te.Tensor, score: te.Tensor, block: te.IterVar, form: AttentionForm) -> _SeenKeys | None:
        """The keys that block number `block` attends to; None where all see all."""
        if not form.causal:
            return None
        last = ((block.var + 1) * form.queries - 1) // _heads_of_a_group(out, score)  # or beyond the last position
        keys = score.op.attrs["keys"]
        return _SeenKeys(last + 1 + (keys - out.shape[1]), form.panel)

    def limit(self, s: te.Schedule, tensor: te.Tensor, loop: te.IterVar, width: int) -> None:
        """Let a loop over steps of `width` keys, which divides a panel, end with the last panel that is seen."""
        panels = (self.keys + self.panel - 1) // self.panel
        s[tensor].limit(loop, panels * (self.panel // width))


def _stages(outs: list[te.Tensor]) -> dict[str, te.Tensor]:
    """The intermediate tensors of attention, by the names that `topi.nn.blocked_attention` gives them."""
    found = [op for op in operations_behind(outs) if op.tag.startswith(_PREFIX)]
    return {op.tag.removeprefix(_PREFIX): op.output(0) for op in found}


def _in_blocks(outs: list[te.Tensor], anchor: te.Operation, form: AttentionForm, target: Target) -> te.Schedule:
    """Threads share the heads where these divide evenly, otherwise blocks of queries as well.

    Keys and values are packed by the thread that has their head, or by all threads before the rest.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    inline_injective(s, outs, keep=[anchor])
    stage, lanes = _stages(outs), vector_lanes(target)

    *_, column = s[out].op.axis
    *_, keys = stage["score"].shape
    *_, depth = stage["queries"].shape
    work = 2.0 * constant_size([*stage["score"].shape, constant_size([depth, column.extent]) // depth + depth])
    heads, block, row = _blocks_of_rows(s, out, stage["score"], form.queries)
    seen, mixed = _SeenKeys.of(out, stage["score"], block, form), anchor.output(0)
    panels = [stage["key_panels"], stage["value_panels"]]
    _pack_keys(s, stage["key_rows"], stage["key_panels"], form.panel, target)
    _pack_values(s, stage["value_panels"])
    if _heads_partition_evenly(stage["score"], form, target):
        parallel(s, out, heads, work, lanes)
        for tensor in panels:
            s[tensor].compute_at(s[out], heads)
    else:
        block = s[out].fuse(heads, block)
        parallel(s, out, block, work, lanes)
        for tensor in panels:
            shared = s[tensor].fuse(*s[tensor].leaf_iter_vars[:3])
            packing = constant_size(tensor.shape) * _PACKING_COST
            notable = packing * target.num_cores >= _NOTABLE_PACKING * work
            parallel(s, tensor, shared, packing, lanes, kernel=work if notable else 0.0)
    _tile(s, out, mixed, row, column, form, constant_size([keys]), target)

    score = stage["score"]
    *_, row, column = s[score].op.axis
    panel = _tile(s, score, stage["product"], row, column, form, constant_size([depth]), target)
    if seen is not None:
        seen.limit(s, score, panel, form.panel)
        s[mixed].limit(s[mixed].op.reduce_axis[0], seen.keys)
    _softmax_at(s, stage, out, block, form, lanes, seen)
    return s


def _blocks_of_rows(
    s: te.Schedule, out: te.Tensor, score: te.Tensor, rows: int
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """The loops of `out` over heads of keys, blocks of the rows of a head, and rows; columns are inside of them."""
    batch, position, head, column = s[out].op.axis
    per_group = _heads_of_a_group(out, score)
    if per_group > 1:
        head, each = s[out].split(head, factor=per_group)
        s[out].reorder(batch, head, position, each, column)
        if rows == per_group:
            return s[out].fuse(batch, head), position, each
        position = s[out].fuse(position, each)
    block, row = s[out].split(position, factor=rows, tail="shift")
    s[out].reorder(batch, head, block, row, column)
    return s[out].fuse(batch, head), block, row


def _batched_rows(outs: list[te.Tensor], anchor: te.Operation, form: AttentionForm, target: Target) -> te.Schedule:
    """A batch of few rows; keys and values are read in place: once for all rows, in memory order."""
    s = te.create_schedule([out.op for out in outs])
    out, mixed = outs[0], anchor.output(0)
    inline_injective(s, outs, keep=[anchor])
    stage, lanes = _stages(outs), vector_lanes(target)
    for name in ("key_rows", "key_panels", "value_panels"):
        s[stage[name]].compute_inline()

    score, *_, column = stage["score"], *s[out].op.axis
    heads, block, row = _blocks_of_rows(s, out, score, form.queries)
    seen = _SeenKeys.of(out, score, block, form)
    block = s[out].fuse(heads, block)
    parallel(s, out, block, 4.0 * constant_size(score.shape) * constant_size([extent_of(column)]), lanes)
    wide = replace(form, panel=_vectors_of_rows(form.queries, extent_of(column), target) * lanes)
    _tile(s, out, mixed, row, column, wide, constant_size(score.shape[-1:]), target)
    _prefetch_arguments(s, mixed, stage["value_panels"], target)
    sums = _sums_of_products(s, score, stage["product"], target, seen)
    _prefetch_arguments(s, sums, stage["key_rows"], target)
    if seen is not None:
        s[mixed].limit(s[mixed].op.reduce_axis[0], seen.keys)
    _softmax_at(s, stage, out, block, form, lanes, seen)
    return s


def _vectors_of_rows(rows: int, columns: te.Dim, target: Target) -> int:
    """Vector accumulators of each of so many rows: long pieces of values are read as a whole."""
    fitting = [v for v in range(_VECTORS, 0, -1) if rows * v + v + 1 <= target.vector_registers] or [1]
    even = (v for v in fitting if isinstance(columns, int) and columns % (v * vector_lanes(target)) == 0)
    return next(even, fitting[0])


def _softmax_at(
    s: te.Schedule, stage: dict[str, te.Tensor], out: te.Tensor, block: te.IterVar, form: AttentionForm, lanes: int,
    seen: _SeenKeys | None,
) -> None:  # fmt: skip
    """Attach the stages before the second product to each `block` of `out`; vectorise all but the scores."""
    for name in _OF_A_BLOCK:
        s[stage[name]].compute_at(s[out], block)
    queries, weight, share = stage["queries"], stage["weight"], stage["share"]
    vectorize_elements(s, queries, s[queries].op.axis[-1], extent_of(s[queries].op.axis[-1]), lanes)
    vectorize_elements(s, share, s[share].op.axis[-1], form.queries, lanes)
    last = s[weight].op.axis[-1]
    if seen is None:
        vectorize_elements(s, weight, last, extent_of(last), lanes)
    else:
        panel, last = s[weight].split(last, factor=form.panel)
        s[weight].vectorize(last)
        seen.limit(s, weight, panel, form.panel)
    for name in ("largest", "total"):
        _reduce_row(s, stage[name], form.panel, lanes, seen)


def _sums_of_products(
    s: te.Schedule, score: te.Tensor, product: te.Tensor, target: Target, seen: _SeenKeys | None
) -> te.Tensor:
    """Scores of few rows: a vector accumulator for each row and key, those of a key in registers.

    The lanes of as many keys as a vector has are reduced together. Returns the stage that reads the keys: one after the
    other, without a loop inside of a key, since hardware prefetchers follow constant strides.
    """
    lanes = vector_lanes(target)
    *_, row, column = s[score].op.axis
    group, each = s[score].split(column, factor=lanes)
    s[score].reorder(group, row, each)
    s[score].unroll(row)
    s[score].vectorize(each)
    s[score].pragma(group, "loop_partition_hint")  # the last keys may be fewer
    if seen is not None:
        seen.limit(s, score, group, lanes)

    _, lane = s[product].split(s[product].op.reduce_axis[0], factor=lanes)
    lanes_apart = s.rfactor(product, lane, factor_axis=-1)
    assert isinstance(lanes_apart, te.Tensor)
    s[product].set_scope("local")
    s[product].compute_at(s[score], row)
    s[product].tensorize(s[product].op.axis[-1], sum_rows(lanes, lanes, 4, str(product.dtype)))

    sums = s.cache_write(lanes_apart, "local")
    s[lanes_apart].compute_at(s[score], group)
    *_, row, key, lane = s[lanes_apart].op.axis
    s[lanes_apart].reorder(key, row, lane)
    s[lanes_apart].unroll(row)
    s[lanes_apart].vectorize(lane)
    s[sums].compute_at(s[lanes_apart], key)
    *_, row, key, lane = s[sums].op.axis
    (step,) = s[sums].op.reduce_axis
    s[sums].reorder(step, row, key, lane)
    for axis in (step, row):
        s[sums].unroll(axis)
    s[sums].vectorize(lane)
    return sums


def _prefetch_arguments(s: te.Schedule, reader: te.Tensor, copied: te.Tensor, target: Target) -> None:
    """Prefetch what the arguments hold further on, in each step of `reader`, where `copied` would be large."""
    length = constant_size(copied.shape[-1:])
    for op in operations_behind([copied]):
        tensor = op.output(0)
        if isinstance(op, te.PlaceholderOp) and is_streamed(tensor, length, target):
            ahead = elements_ahead(tensor.dtype.nbytes, target)
            s[reader].prefetch(tensor, s[reader].op.reduce_axis[-1], te.Prefetch(ahead))


def _one_by_one(outs: list[te.Tensor], anchor: te.Operation, form: AttentionForm, target: Target) -> te.Schedule:
    """A query of a head at a time, keys and values read in place: copies would not be used often enough."""
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    inline_injective(s, outs, keep=[anchor])
    stage, lanes = _stages(outs), vector_lanes(target)
    for name in ("key_rows", "key_panels", "value_panels"):
        s[stage[name]].compute_inline()

    *_, column = s[out].op.axis
    heads, block, row = _blocks_of_rows(s, out, stage["score"], 1)
    row = s[out].fuse(s[out].fuse(heads, block), row)
    parallel(s, out, row, 4.0 * constant_size(stage["score"].shape) * constant_size([extent_of(column)]), lanes)
    together = min(_VECTORS * lanes, constant_size([extent_of(column)]))
    columns, within = s[out].split(column, factor=together, tail="shift")
    vectorize_elements(s, out, within, together, lanes)

    product, mixed = stage["product"], anchor.output(0)
    for name in ("product", *_OF_A_BLOCK):
        s[stage[name]].compute_at(s[out], row)
    for tensor in (stage["queries"], stage["score"], stage["weight"]):
        last = s[tensor].op.axis[-1]
        vectorize_elements(s, tensor, last, extent_of(last), lanes)
    for tensor in (stage["largest"], stage["total"]):
        _reduce_row(s, tensor, form.panel, lanes)
    vectorize_reduction(s, product, lanes, (product, s[product].op.axis[-1]))

    s[mixed].set_scope("local")
    s[mixed].compute_at(s[out], columns)
    *_, e = s[mixed].op.axis
    each, lane = s[mixed].split(e, factor=lanes)
    s[mixed].reorder(*s[mixed].op.reduce_axis, each, lane)
    s[mixed].unroll(each)
    s[mixed].vectorize(lane)
    return s


def _tile(
    s: te.Schedule, out: te.Tensor, product: te.Tensor, row: te.IterVar, column: te.IterVar, form: AttentionForm,
    steps: int, target: Target,
) -> te.IterVar:  # fmt: skip
    """Compute `product` in register tiles of rows x a panel, written to `row` and `column` of `out`, panel by panel.

    Returns the loop over panels.
    """
    lanes = vector_lanes(target)
    height = tile_rows(target, form.queries, form.panel, steps, apart=4 * steps)
    row_outer, row_inner = s[out].split(row, factor=height, tail="shift")
    extent = extent_of(column)
    partial = isinstance(extent, int) and extent % form.panel != 0  # vectors are guarded, unused ones skipped
    column_outer, column_inner = s[out].split(column, factor=form.panel)
    s[out].reorder(column_outer, row_outer, row_inner, column_inner)
    s[out].unroll(row_inner)
    vectorize_panel(s, out, column_inner, form.panel, lanes)

    s[product].set_scope("local")
    s[product].compute_at(s[out], row_outer)
    *_, m, n = s[product].op.axis
    s[product].reorder(*s[product].op.reduce_axis, m, n)
    s[product].unroll(m)
    vectorize_panel(s, product, n, form.panel, lanes, apart=partial)
    return column_outer


def _heads_partition_evenly(score: te.Tensor, form: AttentionForm, target: Target) -> bool:
    """Whether threads can have whole heads, with keys and values of their own, without notable load imbalance."""
    batch, heads, length, _ = score.shape
    count = constant_size([batch, heads], default=1)
    blocks = -(-constant_size([length], default=4 * form.queries) // form.queries)
    by_heads, by_blocks = [largest_partition(n, target.num_cores) for n in (count, count * blocks)]
    return by_heads <= _MOST_IMBALANCE * by_blocks


def _pack_keys(s: te.Schedule, rows: te.Tensor, panels: te.Tensor, panel: int, target: Target) -> None:
    """Schedule the packing of keys into panels: those of a panel row by row, then transposed in registers.

    Gathering a panel's vectors from as many keys would take an instruction for each element.
    """
    *outer, step, lane = s[panels].op.axis
    depth, lanes = extent_of(step), vector_lanes(target)
    s[panels].pragma(outer[-1], "loop_partition_hint")  # the last panel may be partial
    transposable = lanes in transposed_vectors(target, panels.dtype) and panel % lanes == 0
    block = block_of(lanes, panels.dtype)
    if not transposable or not isinstance(rows.shape[2], int) or not isinstance(depth, int) or depth < block:
        s[rows].compute_inline()
        s[panels].vectorize(lane)
        return
    group, within = s[panels].split(step, factor=block, tail="shift")
    vectorize_panel(s, panels, lane, panel, lanes)
    s[panels].unroll(within)
    transposed, _, vectors = transpose_in_registers(s, rows, [panels.op], 2, lanes)
    s[transposed].unroll(vectors)
    s[transposed].compute_at(s[panels], group)
    vectorize_elements(s, rows, s[rows].op.axis[-1], depth, lanes)
    s[rows].compute_at(s[panels], outer[-1])


def _pack_values(s: te.Schedule, panels: te.Tensor) -> None:
    """Schedule the packing of values into panels, row by row."""
    *_, p, step, lane = s[panels].op.axis
    s[panels].reorder(step, p)
    s[panels].pragma(p, "loop_partition_hint")  # the last panel may be partial
    s[panels].vectorize(lane)


def _reduce_row(s: te.Schedule, tensor: te.Tensor, panel: int, lanes: int, seen: _SeenKeys | None = None) -> None:
    """Reduce each row of panels to several vectors of partial results, these to one, and that to a scalar by halves."""
    (axis,) = s[tensor].op.reduce_axis
    extent = extent_of(axis)
    fitting = (n * panel for n in (4, 2, 1) if isinstance(extent, int) and extent % (n * panel) == 0)
    together = panel if seen is not None else next(fitting, lanes if isinstance(extent, int) else panel)
    halves = [lanes >> n for n in range(lanes.bit_length() - 1)]
    for width in dict.fromkeys((together, *halves)):
        (axis,) = s[tensor].op.reduce_axis
        _, lane = s[tensor].split(axis, factor=width)
        partial = s.rfactor(tensor, lane)
        assert isinstance(partial, te.Tensor)
        s[partial].set_scope("local")
        s[partial].compute_at(s[tensor], s[tensor].op.axis[-1])
        first, *rows = s[partial].op.axis
        s[partial].reorder(*rows, *s[partial].op.reduce_axis, first)
        s[partial].vectorize(first)
        if width < together:
            s[partial].unroll(s[partial].op.reduce_axis[0])
        elif seen is not None:
            seen.limit(s, partial, s[partial].op.reduce_axis[0], panel)
    s[tensor].unroll(s[tensor].op.reduce_axis[0])
