"""Winograd convolutions on CPUs: both transforms and the products in one kernel, block after block of tiles.

A block's transformed input stays in the L2 cache while the panels of the weights pass over it. For each panel the
products of all positions, (A, A, tiles, NR), are still in L1 or L2 when the output transform, which keeps its
intermediate results in registers, reads them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import GT, LE, PrimExpr, convert
from relayc.topi.cpu.common import panel_width, parallel, vectorize_panel
from relayc.topi.cpu.convolution.winograd_plan import (
    WinogradPlan,
    WinogradShape,
    best_tile,
    cycles_by,
    largest_small_image,
    plan_for_images_up_to,
    plan_winograd,
    transform_lanes,
)
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.panel_prefetch import PrefetchSchedule
from relayc.topi.cpu.products.store_order import StoreOrder, transpose_line
from relayc.topi.cpu.tiling import LINE_ELEMENTS, SET_ELEMENTS, at_precision_of, vector_lanes
from relayc.topi.groups import constant_size, extent_of, factor_of, inline_injective, least_extent
from relayc.topi.nn.winograd import conv_winograd, shared_place
from relayc.topi.registry import operations_behind, register_schedule
from relayc.topi.utils import ceil_div, num_elements, ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_conv_winograd"]


@register_schedule(["conv2d_nhwc_winograd", "conv3d_ndhwc_winograd"], "cpu")
def schedule_conv_winograd(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule the stages of `topi.nn.conv_winograd` as `plan_winograd` says.

    Where the number of tiles is dynamic, a block may have fewer of them; where results are transposed, images of
    dynamic sides with fewer tiles than a block have a version of their own, which goes tile by tile. Where an image of
    dynamic sides is small, or images of known ones are few, versions may use smaller tiles, whose weights are some of
    the larger ones' (`winograd_matrices`): reading all of those would take longer than the multiplications.
    """
    target, order = at_precision_of(target, anchor.output(0).dtype), StoreOrder.of(outs[0])
    if _sides_are_known(order):
        return _of_any_batch(outs, anchor, target, order)
    if _may_be_partial(anchor, order):
        return _of_any_sides(outs, anchor, target, order)
    plan = _plan(target, anchor, order)
    s = _arranged(outs, anchor, target, plan)
    if plan.block > 1:
        s.specialize_small(_arranged(outs, anchor, target, replace(plan, block=1, rows=1, weights_once=True)))
    return s


def _of_any_batch(outs: list[te.Tensor], anchor: te.Operation, target: Target, order: StoreOrder) -> te.Schedule:
    """A schedule for images of known sides; where their number is dynamic with versions for two and for several."""
    batch, plan = order.result.shape[0], _plan(target, anchor, order)
    s = _arranged(outs, anchor, target, plan)
    if isinstance(batch, int):
        return s
    versions: list[tuple[int, WinogradPlan]] = []  # the fewest images that a plan serves, and the plan
    for images in [n for n in _NUMBERS_OF_IMAGES if n > 1]:
        more = _plan(target, anchor, order, images)
        shapes = {n: _shape(anchor, order, n) for n in range(len(versions) + 2, images + 1)}
        gains = {n: cycles_by(target, shape, more) / cycles_by(target, shape, plan) for n, shape in shapes.items()}
        if gains[images] < _NOTABLY:
            versions.append((next(n for n, gain in gains.items() if gain < 1), more))
            plan = more
    for number, (least, plan) in enumerate(versions, 1):
        serves_two = number < len(versions) and versions[number][0] == least + 1
        version = _arranged(outs, anchor, target, plan, not serves_two and _may_be_partial(anchor, order))
        version.specialize_small(s, unless=convert(batch) >= least)
        s = version
    return s


_NUMBERS_OF_IMAGES, _NOTABLY = {1: "", 2: " for two images", 8: " for several images"}, 0.95
"""Numbers of images that versions are planned for, with what is added to the names of plans, and the part of the cycles
of the version for fewer that one takes at most."""


def _of_any_sides(outs: list[te.Tensor], anchor: te.Operation, target: Target, order: StoreOrder) -> te.Schedule:
    """A schedule for images of dynamic sides, with a version in smaller tiles for small ones that gain from it."""
    tile, panel, weights = anchor.attrs["tile"], panel_width(anchor), anchor.input_tensors[1]
    shape, small = _shape(anchor, order, 1), None
    if constant_size(weights.shape) * weights.dtype.nbytes > target.cache_bytes.l2:
        small = largest_small_image(target, shape, tile, panel)
    if small is not None:  # the others are larger
        lines, columns = [max(side, small.lines + tile) for side in (shape.lines, shape.columns)]
        shape = replace(shape, lines=lines, columns=columns)
    s = _arranged(outs, anchor, target, plan_winograd(target, shape, tile, panel), is_partial=True)
    if small is not None:
        side = best_tile(target, small, tile, panel)
        few = plan_for_images_up_to(target, small, side, panel, "Winograd plan for small images")
        larger = GT(convert(anchor.output(0).shape[-2]), te.const(small.tiles(tile)))
        s.specialize_small(_arranged(outs, anchor, target, few, is_partial=True), unless=larger)
    return s


def _arranged(
    outs: list[te.Tensor], anchor: te.Operation, target: Target, plan: WinogradPlan, is_partial: bool = False
) -> te.Schedule:
    """The schedule of a plan, whose blocks may have fewer tiles, a number computed at run time, if `is_partial`."""
    s = te.create_schedule([out.op for out in outs])
    whole = 1
    if is_partial and plan.weights_once:
        whole = min(plan.rows, plan.block)
        plan = replace(plan, rows=whole, block=ceil_div(plan.block, whole) * whole)
    if (plan.tile, whole) != (anchor.attrs["tile"], 1):
        outs, anchor = _recomputed_in_tiles(s, outs, anchor, plan.tile, whole)
    out, order = outs[0], StoreOrder.of(outs[0])
    stages = {op.tag: op.output(0) for op in operations_behind(outs) if op.tag.startswith("winograd")}
    spectrum = stages["winograd_input"]
    tiles = spectrum.shape[2]
    inline_injective(s, outs, keep=[anchor, *order.kept])
    lanes = vector_lanes(target)
    dilation, width = anchor.attrs["dilation"], math.gcd(lanes, plan.panel)
    if order.is_transposed:
        t_outer, panel, vector, line = _transpose_output(s, out, order.source, plan, width, target)
    else:
        t_outer, panel, vector, line = _tile_output(s, out, plan, width, dilation, is_partial)
    result = order.source if order.is_transposed else out
    for half, across, place in ((stages["winograd_rows"], 0, vector), (stages["winograd_output"], 1, line)):
        _transform(s, half, across)
        s[half].compute_at(s[result], place)
    product_tiles = _schedule_product(s, anchor.output(0), plan, lanes, target, is_partial)
    s[anchor].compute_at(s[out], panel)
    chunk = _schedule_input(s, spectrum, lanes)
    if is_partial:
        t = s[spectrum].op.axis[2]
        block = te.floormod(t_outer.var, ceil_div(tiles, plan.block)) if plan.weights_once else t_outer.var
        register_tiles = te.floordiv(tiles - block * plan.block + (plan.rows - 1), plan.rows)
        s[anchor].limit(product_tiles, register_tiles, of=math.ceil(plan.block / plan.rows))
        if not plan.weights_once:
            s[spectrum].overrun(t, zeros=True)
            s[spectrum].limit(t, register_tiles * plan.rows, of=plan.block)
    column = _transform(s, stages["winograd_columns"], 0)
    s[stages["winograd_columns"]].compute_at(s[spectrum], chunk)
    patch = stages["winograd_patch"]
    across = _transform(s, patch, 0)  # each element is read once, and tested for the border once
    s[patch].compute_at(s[stages["winograd_columns"]], column)
    _stream_tiles(s, patch, across, plan.tile * dilation, target)
    work = 2.0 * constant_size(anchor.output(0).shape) * constant_size([extent_of(axis) for axis in anchor.reduce_axis])
    if plan.weights_once:
        t = s[spectrum].leaf_iter_vars[0]
        parallel(s, spectrum, t, work, lanes)
    else:
        s[spectrum].compute_at(s[out], t_outer)
    parallel(s, out, s[out].leaf_iter_vars[0], work, lanes)
    return s


def _recomputed_in_tiles(
    s: te.Schedule, outs: Sequence[te.Tensor], anchor: te.Operation, tile: int, whole: int
) -> tuple[list[te.Tensor], te.Operation]:
    """Compute the convolution of `s` in tiles as large as its weights' or smaller, of which there are a multiple of
    `whole`; returns the outputs and the anchor."""
    attrs, behind = anchor.attrs, operations_behind(outs)
    (patch,) = [op for op in behind if op.tag == "winograd_patch"]
    (image,) = [op.output(0) for op in behind if any(t.op.tag == "winograd_output" for t in op.input_tensors)]
    (data,) = patch.input_tensors
    if attrs["is_padded"]:
        (data,) = data.op.input_tensors
    names = ("kernel", "padding", "groups", "dilation", "likely_sides")
    by = conv_winograd(
        data, anchor.input_tensors[1], tile, **{name: attrs[name] for name in names}, channels=image.shape[-1],
        weight_tile=attrs["tile"], whole=whole,
    )  # fmt: skip
    s.recompute(image, by)
    outs = [s.current(out) for out in outs]
    return outs, next(op for op in operations_behind(outs) if op.tag == anchor.tag)


def _may_be_partial(anchor: te.Operation, order: StoreOrder) -> bool:
    """Whether blocks can have fewer tiles than planned, a number that is computed at run time."""
    return not (order.is_transposed or anchor.attrs["depth"])


def _sides_are_known(order: StoreOrder) -> bool:
    """Whether only the number of images may be dynamic: then any but none have a whole block, and the last begins
    earlier."""
    return all(isinstance(d, int) for d in order.result.shape[1:-1])


def _shape(anchor: te.Operation, order: StoreOrder, likely_images: int) -> WinogradShape:
    """The sizes of the convolution, with so many images where their number is dynamic."""
    attrs, (images, *planes, height, width, channels) = anchor.attrs, order.result.shape
    likely = attrs["likely_sides"] or (_LIKELY_SIDE, _LIKELY_SIDE)
    sides = zip((height, width), likely, strict=True)
    lines, columns = [d if isinstance(d, int) else max(side, 1) for d, side in sides]
    inputs, outputs = constant_size([anchor.input_tensors[1].shape[-2]]), constant_size([channels])
    images = images if isinstance(images, int) else likely_images
    filters = attrs["kernel"], attrs["groups"], attrs["dilation"]
    shape = WinogradShape(images, lines, columns, inputs, outputs, *filters)
    if planes:
        results, depth = constant_size(planes), attrs["depth"]
        shape = replace(shape, images=images * results, depth=depth.taps, planes=images * depth.planes(results))
    return shape


def _plan(target: Target, anchor: te.Operation, order: StoreOrder, likely_images: int = 1) -> WinogradPlan:
    """The plan for so many images where their number is dynamic, in tiles of the weights' or, of a few, smaller ones.
    """
    shape, tile, panel = _shape(anchor, order, likely_images), anchor.attrs["tile"], panel_width(anchor)
    if _sides_are_known(order) and not isinstance(order.result.shape[0], int):
        tile = best_tile(target, shape, tile, panel)
    name = f"Winograd plan{_NUMBERS_OF_IMAGES[likely_images]}"
    return plan_winograd(target, shape, tile, panel, by_lines=order.is_transposed, name=name)


_LIKELY_SIDE = 256
"""Lines and columns of the result, where they are dynamic and no likely size is specified."""


def _tile_output(
    s: te.Schedule, out: te.Tensor, plan: WinogradPlan, lanes: int, dilation: int, is_partial: bool
) -> tuple[te.IterVar, te.IterVar, te.IterVar, te.IterVar]:
    """Split the output: blocks, panels, tiles of a block, vectors of a panel, lines and pixels of a tile.

    Returns the loops over blocks, panels, vectors and lines. A guard at the store masks pixels past the end of a line,
    and where the last block `is_partial`, tiles past its end.
    """
    *images, y, x, c = s[out].op.axis
    firsts: list[te.IterVar] = []
    if dilation > 1:
        y, first_line = s[out].split(y, factor=dilation, tail="predicate")
        x, first_column = s[out].split(x, factor=dilation, tail="predicate")
        firsts = [first_line, first_column]
    y, y_inner = s[out].split(y, factor=plan.tile, tail="predicate")
    x, x_inner = s[out].split(x, factor=plan.tile, tail="predicate")
    s[out].reorder(*images, y, *firsts, x, c, y_inner, x_inner)
    tail = "predicate" if is_partial else "shift"
    block, t = s[out].split(s[out].fuse(*images, y, *firsts, x), factor=plan.block, tail=tail)
    panel, within = s[out].split(c, factor=plan.panel, tail="predicate")
    vector, lane = s[out].split(within, factor=lanes)
    if plan.weights_once:
        s[out].reorder(panel, block, t, vector, y_inner, x_inner, lane)
        block = panel = s[out].fuse(panel, block)
    else:
        s[out].reorder(block, panel, t, vector, y_inner, x_inner, lane)
    s[out].unroll(x_inner)
    s[out].vectorize(lane)
    return block, panel, vector, y_inner


def _transpose_output(
    s: te.Schedule, out: te.Tensor, source: te.Tensor, plan: WinogradPlan, width: int, target: Target
) -> tuple[te.IterVar, te.IterVar, te.IterVar, te.IterVar]:
    """The loops of `_tile_output` for `out` (N, O, H, W) that transposes `source` (N, H, W, O); blocks are whole lines.

    A line of tiles of `width` channels is transformed back at a time, and transposed from the L1 cache.
    """
    source = s[source].op.output(0)
    n, c, y, x = s[out].op.axis
    columns = math.ceil(constant_size([extent_of(x)]) / plan.tile)
    panel, c = s[out].split(c, factor=plan.panel)
    vector, c = s[out].split(c, factor=width)
    y, y_inner = s[out].split(y, factor=plan.tile, tail="predicate")
    block, line = s[out].split(y, factor=plan.block // columns, tail="shift")
    outside = [n, block, panel]
    if plan.weights_once:  # a dynamic number of images outermost: transposed tiles have no tests for the ends of axes
        outside = [panel, n, block] if isinstance(out.shape[0], int) else [n, panel, block]
    s[out].reorder(*outside, line, vector, y_inner, c, x)
    if plan.weights_once:
        block = panel = s[out].fuse(outside[0], s[out].fuse(*outside[1:]))
    else:
        block = s[out].fuse(n, block)
    transpose_line(s, out, source, vector, c, x, target)

    n, y, x, c = s[source].op.axis
    tile, x_inner = s[source].split(x, factor=plan.tile, tail="predicate")
    s[source].reorder(n, tile, y, x_inner, c)
    s[source].unroll(x_inner)
    s[source].vectorize(c)
    return block, panel, tile, y


def _transform(s: te.Schedule, half: te.Tensor, across: int) -> te.IterVar:
    """One half of a transform of a tile, for a vector of channels: axis `across` is unrolled, the other is a loop.

    Unrolled along both axes it would be several times the code: longer to compile and, as its values don't fit in the
    registers, slower. Returns the loop.
    """
    s[half].set_scope("local")
    *places, t, channel = s[half].op.axis
    s[half].reorder(t, places[1 - across], places[across], channel)
    s[half].unroll(places[across])
    s[half].vectorize(channel)
    return places[1 - across]


def _stream_tiles(s: te.Schedule, patch: te.Tensor, across: te.IterVar, apart: int, target: Target) -> None:
    """Prefetch, while a column of a tile is transformed, that of the next tile, `apart` pixels further on.

    Only where the image is in no cache of the core's own: tiles are short pieces of many lines, which no hardware
    prefetcher follows.
    """
    (padded,) = s[patch].op.input_tensors
    for data in (padded, *padded.op.input_tensors):
        known = all(isinstance(d, int) for d in data.shape)
        large = constant_size(data.shape) * data.dtype.nbytes > target.cache_bytes.l2
        if isinstance(data.op, te.PlaceholderOp) and known and large:
            s[patch].prefetch(data, across, te.Prefetch(apart * data.shape[-1]))


def _schedule_product(
    s: te.Schedule, product: te.Tensor, plan: WinogradPlan, lanes: int, target: Target, is_partial: bool
) -> te.IterVar:
    """A matrix product at each position of the transformed tiles, tiles by outputs, in register tiles.

    Returns the loop over register tiles, whose last one runs past the end of a block that `is_partial`.
    """
    accumulator = s.cache_write(product, "local")
    _, _, t, channel = s[product].op.axis
    t_outer, t_inner = s[product].split(t, factor=plan.rows, tail="shift")
    s[product].unroll(t_inner)
    vectorize_panel(s, product, channel, plan.panel, lanes)
    s[accumulator].compute_at(s[product], t_outer)
    *_, row, column = s[accumulator].op.axis
    *planes, depth = s[accumulator].op.reduce_axis
    depth, step = s[accumulator].split(depth, factor=_depth_steps(accumulator))
    s[accumulator].reorder(*planes, depth, step, row, column)
    _stream_weights(s, accumulator, product.op.input_tensors[1], step, plan, is_partial)
    leaves = s[accumulator].leaf_iter_vars
    for loop in leaves[leaves.index(depth) + 1 : leaves.index(column)]:
        s[accumulator].unroll(loop)
    vectorize_panel(s, accumulator, column, plan.panel, lanes)
    if is_partial:
        s[product].overrun(t_inner)
        s[accumulator].overrun(row)
    return t_outer


def _stream_weights(
    s: te.Schedule, accumulator: te.Tensor, weights: te.Tensor, step: te.IterVar, plan: WinogradPlan, is_partial: bool
) -> None:
    """Prefetch the weights of the next position while the tiles of this one are multiplied, a part in each.

    They come from memory, or from a shared cache, and the first tiles would wait for them. Blocks that may have fewer
    tiles prefetch in the first half of them. In small images, which smaller tiles are for, it is the first two at
    least, of which one prefetches all where it is the only one, and the others go on with the position after, if that
    lies behind in memory.
    """
    panels, places, _, *_, width = [constant_size([d]) for d in weights.shape]
    size = constant_size(accumulator.shape[:1])
    along = [extent_of(axis) for axis in accumulator.op.reduce_axis]
    steps, position = constant_size(along), num_elements(along) * width
    tiles, line = math.ceil(plan.block / plan.rows), LINE_BYTES // weights.dtype.nbytes
    is_small = is_partial and size < places
    first = max(-(-tiles // 2), min(tiles, 2) if is_small else 1) if is_partial else tiles
    schedule = PrefetchSchedule.of(
        first, -(-steps * width // line), steps, _depth_steps(accumulator), more=is_small
    )  # fmt: skip

    def place(number: int, further: PrimExpr | int = 0) -> Callable[..., Sequence[Any]]:
        def in_next(i: Any, j: Any, t: Any, c: Any, *k: Any) -> Sequence[Any]:
            tile = t // plan.rows % tiles + further
            passed = schedule.line(tile, ravel_index(k, along), number) * line
            following = ravel_index((c // width, i, j), (panels, size, size)) + 1
            if size < places:  # some of the positions of larger tiles
                panel, *at = unravel_index(following, (panels, size, size))
                at = [shared_place(k, size, places) for k in at]
                following = ravel_index((panel, *at), (panels, places, places))
            return [following * position + passed]

        return in_next

    parts: list[PrimExpr | int] = [0]
    if is_small:  # where there is one tile, the parts of the others; else the same once more
        is_only = LE(convert(accumulator.shape[2]), te.const(plan.rows))
        parts += [te.if_then_else(is_only, te.const(part), te.const(0)) for part in range(1, first)]
    loop = schedule.split(s, accumulator, step)
    for part in parts:
        for number in range(schedule.at_once):
            s[accumulator].prefetch(weights, loop, te.Prefetch(order=place(number, part), past_end=True))


def _depth_steps(accumulator: te.Tensor) -> int:
    """Unroll factor of the reduction: it is short, and branch predictors learn the end of loops with few iterations."""
    *_, depth = [extent_of(axis) for axis in accumulator.op.reduce_axis]
    return math.gcd(factor_of(depth), 4)


def _schedule_input(s: te.Schedule, spectrum: te.Tensor, lanes: int) -> te.IterVar:
    """Transform the input tile by tile, by vectors of channels; returns the loop over those vectors."""
    i, j, t, channel = s[spectrum].op.axis
    inputs = max(least_extent(spectrum.shape[3]), 1)
    chunk, lane = s[spectrum].split(channel, factor=transform_lanes(lanes, inputs), tail="shift")
    s[spectrum].storage_align(j, SET_ELEMENTS, LINE_ELEMENTS)  # avoids set conflicts of a tile's stores
    s[spectrum].reorder(t, chunk, i, j, lane)
    s[spectrum].unroll(j)
    s[spectrum].vectorize(lane)
    return chunk
