"""The cost model of Winograd convolutions on CPUs: whether they pay, at which tile size, in which blocks.

It counts cycles of one core: both transforms, by vectors of channels; the products, by the register tiles of
`topi.cpu.tiling`; and the transformed weights, which are up to four times as many bytes as the plain ones. They come
from memory once in every run, prefetched during the products, and where a block of tiles leaves no room for them in the
L2 cache, from L3 for each further block. Like that model it is a ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayc.te.ir.decisions import note
from relayc.topi.cpu.tiling import (
    CACHE_BYTES_PER_CYCLE,
    CORES_OF_MEMORY,
    LINE_ELEMENTS,
    MEMORY_BYTES_PER_CYCLE,
    RegisterTile,
    direct_cycles,
    has_high_latency_llc,
    tile_cycles,
    vector_lanes,
)
from relayc.topi.nn.winograd import WINOGRAD_FILTERS
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["WinogradPlan", "WinogradShape", "best_tile", "convolution_cycles", "copy_cycles", "cycles_by",
           "image_to_plan_for", "largest_small_image", "plan_for_images_up_to", "plan_winograd", "transform_lanes",
           "winograd_pays", "winograd_transposes"]  # fmt: skip

_TRANSFORM_CYCLES, _TRANSFORM_BYTES_PER_CYCLE = 4.0, 8.0
"""Cycles for each vector of a transformed tile, and most bytes per cycle: it is loaded, added a few times, stored, and
loaded again."""
_PASSED_BYTES_PER_CYCLE, _SPECTRUM_BYTES_PER_CYCLE = 64.0, 8.0
"""Bytes per cycle of the whole transformed input: read again for a panel of weights, which the products partly hide
unless it comes from memory; and written by one core to be read by all. Fitted, as the other figures, to some 400 plans
for 11 layers of 7 x 7 to 112 x 112 with vectors of 64 bytes, weights in memory."""
_SLOW_BYTES_PER_CYCLE = (4.5, 8.0)
"""Bytes per cycle that a core reads, beside its arithmetic, from memory and from a high-latency LLC."""
_NOT_HIDDEN = 0.25
"""Part of the shorter of computing and reading weights from memory that the longer does not hide. All of it with a
high-latency LLC and several blocks for each panel: the first of them is too short for all the panel's lines (14 x 14 x
256 in blocks of 25 tiles waits for 28 % of its time, in one of 49 for 5)."""
_BLOCK_SHARE = 0.75
"""Part of the L2 cache that a block's transformed input may take."""
_HELD_SHARE = 0.5
"""Part of the L2 cache that a block and the weights may take and still be there for the next block."""
_SLAB_PENALTY = 1.05
"""Slowdown of products whose operands at one position, data of a block and a panel of weights, exceed the L1 cache."""
_MOST_BLOCK = 128
_DIRECT = 0
"""The tile size that stands for the direct convolution, where one is chosen."""
_AS_GOOD = 1.03
"""Most cycles of a plan, as a part of the best one's, for the two to count as equally good."""
_LEAST_SIDE = 16
"""Lines and columns of the smallest image that a schedule for images of dynamic size is planned for."""
_GAIN = 0.92
"""Winograd is chosen below this part of the direct convolution's cycles."""
_MOST_LINES_OF_TILES, _FASTER = 8, 0.95
"""Lines of tiles of the largest image that may count as small, and the part of the cycles that it takes at most then.
"""
_NOTABLY = 0.8
"""Part of the cycles, of two numbers of images multiplied, for which weights may be more than twice as large."""


@dataclass(frozen=True, slots=True)
class WinogradShape:
    """A convolution with stride 1 and square filters, by its output; `inputs` are those of one of the groups.

    Where the number of images is dynamic, `images` or `or_images` are as likely; it is 0 elsewhere. In three dimensions
    `depth` planes of the input are added up for each of the result, which count as `images`; `planes` are read in all,
    borders included.
    """

    images: int
    lines: int
    columns: int
    inputs: int
    outputs: int
    kernel: int = 3
    groups: int = 1
    dilation: int = 1
    depth: int = 1
    planes: int = 0
    or_images: int = 0

    def __str__(self) -> str:
        images = f"{self.images} or {self.or_images}" if self.or_images else self.images
        size = "x".join(map(str, (images, self.lines, self.columns, self.inputs, self.outputs)))
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        dilation = f", dilated by {self.dilation}" if self.dilation > 1 else ""
        depth = f", {self.depth} of {self.planes} planes" if self.planes else ""
        return f"{size}, {self.kernel}x{self.kernel}{groups}{dilation}{depth}"

    def of_each_batch(self) -> list[WinogradShape]:
        """The convolution with each of the likely numbers of images."""
        return [replace(self, images=images, or_images=0) for images in (self.images, self.or_images) if images]

    def tiles(self, tile: int) -> int:
        """Tiles of `tile` x `tile` outputs, of every `dilation`-th line and column."""
        return self.images * self._tiles_of_an_image(tile)

    def tiles_read(self, tile: int) -> int:
        """Tiles of the input."""
        return (self.planes or self.images) * self._tiles_of_an_image(tile)

    def _tiles_of_an_image(self, tile: int) -> int:
        side = tile * self.dilation
        return self.dilation**2 * math.ceil(self.lines / side) * math.ceil(self.columns / side)


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """`block` tiles are transformed and multiplied together, `rows` of them in a register tile of `panel` outputs.

    With `weights_once` the input is transformed as a whole before the products, and each panel of the weights is read
    once; otherwise block after block is transformed, and the panels pass over each.
    """

    tile: int
    panel: int
    block: int
    rows: int
    weights_once: bool
    cycles: float

    def __str__(self) -> str:
        return f"blocks of {self.block} in tiles of {self.rows}" + (", weights once" if self.weights_once else "")


_CONSIDERED = 12
"""Plans that tuning may try, the cheapest ones."""


def plan_winograd(
    target: Target, shape: WinogradShape, tile: int, panel: int | None = None, *, by_lines: bool = False,
    name: str = "Winograd plan",
) -> WinogradPlan:  # fmt: skip
    """The cheapest plan for F(tile, kernel); `panel` is fixed where the weights are packed already.

    Blocks are whole lines of tiles of an image if `by_lines`. Tuning knows the choice by its `name`.
    """
    blocks = list(_blocks_of_lines(shape, tile) if by_lines else _blocks(shape.tiles(tile)))
    plans = [plan for width in _panels(target, shape, panel) for plan in _plans(target, shape, tile, width, blocks)]
    return min(plans, key=_rank) if panel is None else _chosen(plans, name)


def plan_for_images_up_to(target: Target, largest: WinogradShape, tile: int, panel: int, name: str) -> WinogradPlan:
    """The plan with the least geometric mean of cycles of all square images of whole tiles up to `largest`.

    Their tiles are padded to whole register tiles; `cycles` is the geometric mean.
    """
    images = [replace(largest, lines=side, columns=side) for side in range(tile, largest.lines + 1, tile)]
    plans: list[WinogradPlan] = []
    for rows in _rows_of_register_tiles(target, panel):
        counts = [_round_up(image.tiles(tile), rows) for image in images]
        for block in dict.fromkeys(_round_up(block, rows) for block in _blocks(images[-1].tiles(tile))):
            of_images = [
                {p.weights_once: p for p in _plans(target, image, tile, panel, [min(block, count)], [rows])}
                for image, count in zip(images, counts, strict=True)
            ]
            for once in set.intersection(*map(set, of_images)):
                mean = _product_of_cycles([of_image[once] for of_image in of_images]) ** (1 / len(images))
                plans.append(WinogradPlan(tile, panel, block, rows, once, mean))
    return _chosen(plans, name)


def _chosen(plans: list[WinogradPlan], name: str) -> WinogradPlan:
    """The cheapest plan, or another of the cheapest that tuning chose."""
    plans = sorted(plans, key=_rank)
    found = choose(name, str(plans[0]), [str(plan) for plan in plans[:_CONSIDERED]])
    plan = next(plan for plan in plans if str(plan) == found)
    note("tiles", "Winograd", plan)
    return plan


def _rank(plan: WinogradPlan) -> tuple[float, int]:
    return plan.cycles, -plan.block


def image_to_plan_for(target: Target, shape: WinogradShape, plan: WinogradPlan) -> WinogradShape:
    """The smallest square image whose plan is about as good as `plan`, the best one, for the larger image of `shape`.

    Small blocks cost images with many of them next to nothing, large ones cost small images much: where the size of
    the image is dynamic they are the safer choice, and layers of likely sizes that differ get one schedule.
    """
    side = _LEAST_SIDE
    while side**2 < shape.lines * shape.columns:
        image = replace(shape, lines=side, columns=side)
        small = _best_plan(target, image, plan.tile, plan.panel)
        if cycles_by(target, shape, small) <= _AS_GOOD * plan.cycles:
            return image
        side *= 2
    return shape


def best_tile(target: Target, shape: WinogradShape, weight_tile: int, panel: int) -> int:
    """The side of the tiles that take the fewest cycles by weights for tiles of `weight_tile`, or by a part of them."""
    return _best_within(target, shape, weight_tile, panel).tile


def largest_small_image(target: Target, shape: WinogradShape, weight_tile: int, panel: int) -> WinogradShape | None:
    """The largest square image that, as all smaller ones, is notably faster in smaller tiles than the weights', if any.

    Those read a part of the weights, which takes most of the time where they are in no cache of the core's own.
    """
    found = None
    for lines in range(1, _MOST_LINES_OF_TILES + 1):
        image = replace(shape, images=1, lines=lines * weight_tile, columns=lines * weight_tile)
        few, many = _best_within(target, image, weight_tile, panel), _best_plan(target, image, weight_tile, panel)
        if few.cycles > _FASTER * many.cycles:
            break
        found = image
    return found


def _best_within(target: Target, shape: WinogradShape, weight_tile: int, panel: int) -> WinogradPlan:
    """The best plan by weights for tiles of `weight_tile`, which hold those of smaller tiles; of equals the largest."""
    within = sorted((m for m in WINOGRAD_FILTERS[shape.kernel] if m <= weight_tile), reverse=True)
    return min([_best_plan(target, shape, tile, panel) for tile in within], key=lambda plan: plan.cycles)


def _best_plan(target: Target, shape: WinogradShape, tile: int, panel: int) -> WinogradPlan:
    """The best plan for F(tile, kernel) in panels of so many outputs, in any blocks."""
    return min(_plans(target, shape, tile, panel, [*_blocks(shape.tiles(tile))]), key=_rank)


def cycles_by(target: Target, shape: WinogradShape, plan: WinogradPlan) -> float:
    """The cycles of a convolution by the plan for another number or size of images; infinite if it can't serve them.
    """
    blocks = [min(plan.block, shape.tiles(plan.tile))]
    plans = _plans(target, shape, plan.tile, plan.panel, blocks)
    return min([p.cycles for p in plans if p.weights_once == plan.weights_once], default=math.inf)


def winograd_pays(
    target: Target, shape: WinogradShape, tiles: Sequence[int], direct_gain: float = 1.0
) -> WinogradPlan | None:
    """The best plan among the tile sizes, or None where the direct convolution is about as fast.

    Weights are transformed for one tile size and in panels of one width: where the number of images is dynamic, those
    with the least geometric mean of cycles. Weights of larger tiles, more than twice as large, are also taken where
    only some numbers of images gain from them, but notably; the others read a part of them. The plan is that for
    `shape.images`. `direct_gain` is the speedup of the direct convolution in integers over float32.
    """
    lanes = vector_lanes(target)
    if shape.groups > 1 and (shape.inputs % lanes or shape.outputs // shape.groups % lanes):
        return None  # panels are of one group, and so are vectors that are transformed
    pixels, steps = shape.lines * shape.columns, shape.kernel**2 * shape.depth * shape.inputs
    likely = shape.of_each_batch()
    direct = [convolution_cycles(target, s.images * pixels, s.outputs, steps) / direct_gain for s in likely]
    plans = {tile: _plans_for_all(target, likely, tile, _best_plan) for tile in tiles}
    best = min(plans, key=lambda tile: _product_of_cycles(plans[tile]))
    fewest, larger = _product_of_cycles(plans[best]), max(tiles)
    pays = fewest < math.prod([_GAIN * cycles for cycles in direct])
    if shape.or_images and larger > best:
        by_larger = _plans_for_all(target, likely, larger, _best_within)
        if _product_of_cycles(by_larger) < _NOTABLY * fewest:
            best, panel = larger, by_larger[0].panel
            plans[best] = [_best_plan(target, s, best, panel) for s in likely]
    chosen = choose(f"Winograd tile of {shape}", best if pays else _DIRECT, (_DIRECT, *tiles))
    return plans[chosen][0] if chosen in plans else None


def _plans_for_all(
    target: Target, shapes: Sequence[WinogradShape], tile: int,
    plan: Callable[[Target, WinogradShape, int, int], WinogradPlan],
) -> list[WinogradPlan]:  # fmt: skip
    """The plans of convolutions that have the same weights, for tiles of `tile`, and so one width of panels."""
    of_each_width = [
        [plan(target, shape, tile, panel) for shape in shapes] for panel in _panels(target, shapes[0], None)
    ]
    return min(of_each_width, key=_product_of_cycles)


def _product_of_cycles(plans: Sequence[WinogradPlan]) -> float:
    return math.prod([plan.cycles for plan in plans])


def convolution_cycles(target: Target, pixels: int, outputs: int, steps: int) -> float:
    """Cycles of a direct convolution of float32, on all cores, with its weights in memory."""
    cycles = direct_cycles(target, pixels, outputs, steps) / _share(pixels // 8, target.num_cores)
    return _with_weights(target, cycles, 4.0 * steps * outputs)


def copy_cycles(target: Target, nbytes: float) -> float:
    """Cycles of copying `nbytes` through the LLC, on all cores."""
    return nbytes / _read_speeds(target)[1] / target.num_cores


def winograd_transposes(target: Target, shape: WinogradShape, tile: int, panel: int) -> bool:
    """Whether the results are better transposed line by line than by a separate kernel.

    The kernel's cycles are those of copying each element twice, from a shared cache or, if larger than L2, half as
    fast. Whole lines of tiles may fit the cores and caches less well, by up to as many.
    """
    if shape.dilation > 1 or shape.columns < LINE_ELEMENTS or shape.outputs % panel:
        return False
    free, by_lines = [plan_winograd(target, shape, tile, panel, by_lines=lines).cycles for lines in (False, True)]
    nbytes = 4.0 * shape.images * shape.lines * shape.columns * shape.outputs
    apart = copy_cycles(target, 2 * nbytes) * (2 if nbytes > target.cache_bytes.l2 else 1)
    return by_lines - free <= apart


def _panels(target: Target, shape: WinogradShape, panel: int | None) -> list[int]:
    if panel is not None:
        return [panel]
    lanes = vector_lanes(target)
    vectors = math.ceil(shape.outputs // shape.groups / lanes)
    return [v * lanes for v in range(1, 5) if vectors % v == 0]


def transform_lanes(lanes: int, channels: int) -> int:
    """Lanes of the vectors that `channels` are transformed in, of which the last may overlap the one before."""
    return min(lanes, 1 << (max(channels, 1).bit_length() - 1))


def _share(tasks: int, cores: int) -> float:
    """The average number of cores that work when `tasks` equal pieces are shared between `cores`."""
    return tasks / math.ceil(tasks / cores) if tasks else 1.0


def _read_speeds(target: Target) -> tuple[float, float]:
    """Bytes per cycle that a core reads weights at, beside its arithmetic: from memory, and from the LLC."""
    return _SLOW_BYTES_PER_CYCLE if has_high_latency_llc(target) else (MEMORY_BYTES_PER_CYCLE, CACHE_BYTES_PER_CYCLE)


def _with_weights(
    target: Target, cycles: float, nbytes: float, again: float = 0.0, not_hidden: float = _NOT_HIDDEN
) -> float:
    """Cycles of computing together with prefetching weights from memory, and `again` as many bytes from a cache."""
    memory, cache = _read_speeds(target)
    reading = nbytes / memory + again / cache
    return max(cycles, reading) + not_hidden * min(cycles, reading)


def _round_up(count: int, multiple: int) -> int:
    return math.ceil(count / multiple) * multiple


def _blocks(tiles: int) -> Iterator[int]:
    """Sizes of blocks: the tiles in 1, 2, 3... even parts, up to `_MOST_BLOCK` tiles in one."""
    last = 0
    for parts in range(max(1, tiles // _MOST_BLOCK), tiles + 1):
        block = math.ceil(tiles / parts)
        if block != last:
            yield block
        if block <= 6:
            return
        last = block


def _blocks_of_lines(shape: WinogradShape, tile: int) -> Iterator[int]:
    """Sizes of blocks that are whole lines of tiles of an image, one line at least."""
    lines, columns = math.ceil(shape.lines / tile), math.ceil(shape.columns / tile)
    sizes = dict.fromkeys(math.ceil(lines / parts) for parts in range(1, lines + 1))
    return (n * columns for n in sizes if n == 1 or n * columns <= _MOST_BLOCK)


def _rows_of_register_tiles(target: Target, panel: int) -> range:
    """The numbers of rows that register tiles may have."""
    vectors = panel // math.gcd(vector_lanes(target), panel)
    most = max(1, (target.vector_registers - 1 - vectors) // vectors)
    return range(max(1, most // 2), most + 1)


def _plans(
    target: Target, shape: WinogradShape, tile: int, panel: int, blocks: Sequence[int],
    rows_of_tiles: Sequence[int] | None = None,
) -> Iterator[WinogradPlan]:  # fmt: skip
    lanes = math.gcd(vector_lanes(target), panel)
    vectors = panel // lanes
    size, tiles, panels = (tile + shape.kernel - 1) ** 2, shape.tiles(tile), math.ceil(shape.outputs / panel)
    inputs, depth = shape.inputs * shape.groups, shape.inputs * shape.depth
    cores = target.num_cores
    outputs = panels * panel
    weights = 4.0 * size * depth * outputs
    vector_cycles = max(_TRANSFORM_CYCLES, 4.0 * lanes / _TRANSFORM_BYTES_PER_CYCLE)
    entering = size * vector_cycles * math.ceil(inputs / transform_lanes(vector_lanes(target), inputs))
    leaving = (size + tile * tile) / 2 * vector_cycles * outputs / lanes
    entered, held = shape.tiles_read(tile), _HELD_SHARE * target.cache_bytes.l2
    spectrum = 4.0 * size * entered * inputs
    in_memory = spectrum > max(target.cache_bytes.l3, target.cache_bytes.l2)
    passed_speed = _read_speeds(target)[0] if in_memory else _PASSED_BYTES_PER_CYCLE
    register_tiles = {rows: tile_cycles(RegisterTile(rows, vectors, lanes), depth)
                      for rows in rows_of_tiles or _rows_of_register_tiles(target, panel)}  # fmt: skip
    for block in blocks:
        count = math.ceil(tiles / block)
        steps = {rows: math.ceil(block / rows) * cycles for rows, cycles in register_tiles.items()}
        rows = min(steps, key=lambda r: (steps[r], -r))
        slab = 4 * depth * (block + panel)
        product = size * steps[rows] * (_SLAB_PENALTY if slab > 1.5 * target.cache_bytes.l1 else 1.0)
        data = 4.0 * size * block * inputs
        share = _share(panels * count, cores)
        again = weights * (count - 1) if weights / panels + data > held else 0.0
        passing = shape.depth * data * count / passed_speed if data * count > held else 0.0
        apart = (panels * (count * product + passing) + leaving * tiles) / share
        hurried = count > 1 and has_high_latency_llc(target)
        from_memory = weights / min(share, CORES_OF_MEMORY)
        apart = _with_weights(target, apart, from_memory, again / share, 1.0 if hurried else _NOT_HIDDEN)
        apart += (2 * spectrum / _SPECTRUM_BYTES_PER_CYCLE + entering * entered) / _share(entered, cores)
        yield WinogradPlan(tile, panel, block, rows, True, apart)
        if data <= _BLOCK_SHARE * target.cache_bytes.l2 and shape.depth == 1:
            share = _share(count, cores)
            again = weights * (count - 1) if weights + data > held else 0.0
            within = count * (panels * product + block * (entering + leaving))
            cycles = _with_weights(target, within / share, weights, again / share)
            yield WinogradPlan(tile, panel, block, rows, False, cycles)
