"""The tiling of a product with packed weights, and the order in which its register tiles pass over the operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.index import largest_extent
from relayc.te.ir.decisions import Refused, first_of, is_recording, note
from relayc.topi.cpu.common import has_wide_groups, operands, panel_width, tile_columns
from relayc.topi.cpu.prefetch import LINE_BYTES
from relayc.topi.cpu.products.narrow import widened_weights
from relayc.topi.cpu.tiling import (
    LINE_ELEMENTS,
    cache_share,
    has_few_registers,
    has_high_latency_llc,
    largest_partition,
    partitions_evenly,
    product_cycles,
    spare_registers,
    tile_rows,
    vector_lanes,
    weights_stay,
)
from relayc.topi.groups import constant_size, extent_of, factor_of, has_gaps, is_static, likely_rows
from relayc.topi.tuning import choose
from relayc.topi.utils import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = [
    "TILES_OF_DYNAMIC_ROWS", "TILES_OF_HALF", "ProductPlan", "fewer_rows", "has_few_channels", "has_narrow_last",
    "plan_product",
]  # fmt: skip

_NOTABLY = 0.9
"""A core's share of the panels is shared if it is at most this part of its share of the rows."""
_BLOCKS_OF_A_CORE = 8
"""Fewest blocks of rows for each core where threads share these."""
_MUCH_LARGER = 4
"""Least ratio of the left operand's size to the weights' for cores to share its rows, not the panels."""
_LARGE_WEIGHTS, _FEWEST_OF_A_CORE = 20, 2
"""With a high-latency LLC: largest ratio of the weights' size to that of a core's rows if rows are shared, and the
fewest tiles that a core has then. (Two cores of a Xeon of the Sapphire Rapids family: 20 models took 2 to 3 % less
time, some mobile ones 5 to 8 %.)"""
_FEWEST_STEPS = 128
"""Fewest steps of the reduction in a K-block."""
_FEWEST_TILES = 8
"""Fewest tiles that a panel passes over while it is in the L1 cache."""
_WASTE = 0.01
"""Most tiles that are computed twice, as a part of all."""
TILES_OF_DYNAMIC_ROWS, _STEPS_BETWEEN_LINES = 4, 2
"""Fewest tiles that prefetch the next panel where the number of rows is dynamic, and fewest steps of each between two
lines, for which there are more tiles: a few more still leave time for them."""
_TILES_OF_AN_IMAGE = 8
"""Most tiles that do so because each of a dynamic number of images has as many."""
TILES_OF_HALF = 2
"""Most tiles of half the height, or less, for fewer rows than a tile has."""
_ROWS_OF_A_K_BLOCK = 112
"""Fewest rows of a block (or all) for K-blocking: they pay for reading the panels."""
_TILES_OF_A_K_BLOCK = 4
"""Fewest row tiles of a block: fewer read a panel from memory as fast as anything else."""
_ROWS_OF_ANY_LENGTH = 8
"""Most rows of a tile where they lie a dynamic distance apart: the address of each takes a register. (14 rows, whose
addresses spill, take 1.05 of the time of a text detector on an Emerald Rapids Xeon, 8 rows 0.97.)"""
_MASKED_ROWS = 1024
"""Most rows of a product whose last panel may end within a vector, masked, and be in one loop with the others. With
more rows blocks are long enough that a loop over panels inside of them costs nothing, while masks do with short
sums."""
_MOST_OF_PANELS, _MOST_OF_ROWS = 0.95, 0.6
"""Parts of the L2 cache: the most that two panels take without K-blocking, and that they and rows take together where
rows are read anew for each panel with a high-latency LLC (512 x 3072 x 768: 148 GFLOP/s in it, 159 in two blocks)."""
_BESIDE_WEIGHTS = 0.75
"""Part of the L2 cache that all weights and a block of rows take where the number of rows is dynamic."""
_FEW_CHANNELS, _REGISTERS_OF_PIXELS = 3, 2


@dataclass(frozen=True, slots=True)
class _KBlockSizes:
    """The parts of the L2 cache that a block may take with K-blocking."""

    block: float
    """a K-block of the rows, of two panels, and the sums"""
    panel: float
    """a K-block of a panel"""
    panels_per_step: int
    """panels, at most, that a block is multiplied with by K-blocks"""
    fewer: bool
    """or fewer, if cores then have equal shares"""


_K_BLOCKS = _KBlockSizes(0.95, 1 / 8, 2, fewer=False)
_K_BLOCKS_HIGH_LATENCY_LLC = _KBlockSizes(0.4, 1 / 16, 8, fewer=True)
"""The sizes with a high-latency LLC: blocks of few rows, as an L2 cache of 2 MiB doesn't keep much more than half of
them, but of more panels, as rows are read anew for each group of panels."""


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """Register tiles of `height` rows x `width` columns of panels of `panel`, and the loops around them."""

    height: int
    width: int
    panel: int
    panels_first: bool = False
    """a partial last panel: panels are the outermost loop, so that each is read once, and what threads share"""
    tiles_per_step: int = 0
    """row tiles that all panels pass over before the next ones; 0: all"""
    separate_panels: bool = False
    """panels are the outermost loop on their own even if all are whole: something is computed once for each"""
    tiles_of_a_panel: int = 0
    """consecutive row tiles that read the same panel, while the next one may be prefetched; 0 where others come
    between; where the number of rows is dynamic the first of them"""
    depth: int = 0
    """steps of the reduction in a K-block (`topi.cpu.products.split_k`); 0: all"""
    panels_per_step: int = 1
    """panels that a block is multiplied with alternately then"""
    narrow_last: bool = False
    """the last panel is partial, but in one loop with the others: its tiles have only as many vectors as it needs"""
    masked_last: bool = False
    """stores are masked for a partial last panel, in place of tiles of its own: half of the code"""
    panels_of_a_tile: int = 1
    """panels, as weights are stored, that a tile of `width` columns spans: its vectors are then apart"""
    streams_few_rows: bool = False
    """tiles of half the height prefetch the next panel, where the number of rows is dynamic"""
    groups_of_a_block: int = 0
    """groups of rows, each with a matrix of its own, that a panel's columns are computed for before the next ones;
    0: one"""
    tiles_of_a_block: int = 0
    """most row tiles, of a dynamic number, that all panels pass over before the next ones; 0: all"""

    shared_blocks: int = 0
    """threads that share blocks of row tiles, all panels of a block, for which something is computed once; 0: none"""
    least_of_a_block: int = 1
    """row tiles, of a dynamic number, that threads leave together: each block reads all weights"""

    def tiles_of_even_blocks(self, rows: te.Dim) -> te.Dim:
        """Row tiles of a block where there are `rows`: blocks are as even as their number allows."""
        tiles = ceil_div(rows, self.height)
        if not self.tiles_of_a_block:
            return tiles
        if not self.shared_blocks:
            return ceil_div(tiles, ceil_div(tiles, self.tiles_of_a_block))
        blocks = (tiles // (self.tiles_of_a_block * self.shared_blocks) + 1) * self.shared_blocks
        if self.least_of_a_block > 1:
            blocks = te.max(te.min(blocks, tiles // self.least_of_a_block), 1)
        return ceil_div(tiles, blocks)


def plan_product(out: te.Tensor, anchor: te.Operation, target: Target) -> ProductPlan:
    """The plan for the product, or convolution, that `anchor` computes, with its elementwise tail up to `out`."""
    p = _Product(out, anchor, target)
    width = tile_columns(target, anchor, p.rows, p.steps)
    narrow = widened_weights(anchor)
    pairs = any(weights.attrs.get("pairs") for weights in narrow)
    form = "dot2" if pairs else anchor.attrs.get("form", "fma")
    temporaries = spare_registers(target, form) + _shared_pixels(anchor, target)
    panels = -(-p.columns // width)
    height = tile_rows(
        target, p.likely_rows, width, p.steps, panels, p.line, temporaries, p.row_stride, widened=bool(narrow)
    )
    if not is_static([extent_of(axis) for axis in anchor.reduce_axis]) and not has_gaps(p.left):
        height = min(height, _ROWS_OF_ANY_LENGTH)
    tiles = -(-p.rows // height)
    plan = first_of("reduction of the product", (
        ("split in K-blocks", lambda: _split_k_plan(p, height, tiles) if not narrow and width == p.panel else Refused(
            "weights are converted a panel at a time, or tiles are narrower than panels")),
        ("whole", lambda: _plan_whole(p, height, width, tiles, narrow=bool(narrow))),
    ))  # fmt: skip
    if is_recording():
        cycles = product_cycles(target, p.rows, p.columns, p.steps, p.line, p.row_stride) * p.groups
        note("tiles", "registers", plan, cycles=cycles, rows=p.rows, columns=p.columns, steps=p.steps)
    return plan


def _plan_whole(p: _Product, height: int, width: int, tiles: int, *, narrow: bool) -> ProductPlan:
    """The plan whose tiles sum over the whole reduction."""
    if narrow and tiles > 1:
        panels_first, at_once, apart = True, 0, True
    else:
        panels_first, apart = p.exceeds_caches or p.streams_weights or p.shares_panels_better(tiles), False
        at_once = _tiles_per_step(p, tiles, panels_first)
    consecutive = (at_once or tiles) if width == p.panel and (p.in_one_loop or panels_first) else 0
    if p.left_bytes is None:
        fewest = -(-p.likely_rows[0] // height) if len(p.likely_rows) > 1 else 0  # tiles of the only image
        few = max(TILES_OF_DYNAMIC_ROWS, _STEPS_BETWEEN_LINES * p.lines_of_a_step)
        consecutive = min(consecutive, max(few, min(fewest, _TILES_OF_AN_IMAGE)))
    block = 0 if at_once else _tiles_beside_panels(p, height) if panels_first else _tiles_beside_weights(p, height)
    return ProductPlan(
        height, width, p.panel, panels_first, at_once, apart, consecutive, narrow_last=p.narrow_last and not apart,
        masked_last=p.masks_last,
        streams_few_rows=p.streams_weights, tiles_of_a_block=block,
    )


def _shared_pixels(anchor: te.Operation, target: Target) -> int:
    """Registers for pixels that neighbouring windows share, where taps of few channels are unrolled.

    A tile that took all registers but three had its sums spilled: 224 x 224 x 3 to 32, 3 x 3 by 2, took 1.7 times as
    long, 5 x 5 windows of one channel 2.3 times. With few registers there is no room for any.
    """
    windows = len(anchor.reduce_axis) > 1 and not has_few_registers(target)
    return _REGISTERS_OF_PIXELS if windows and has_few_channels(anchor) else 0


def has_few_channels(anchor: te.Operation) -> bool:
    """Whether there are so few channels, as in an image, that loops over them and a line's taps are unrolled."""
    channels = extent_of(anchor.reduce_axis[-1])
    return isinstance(channels, int) and channels <= _FEW_CHANNELS


def fewer_rows(plan: ProductPlan, heights: Sequence[int] = (1,)) -> list[ProductPlan]:
    """Plans for fewer rows than two tiles of `plan` have: two thirds of a tile, half of one, then `heights`; cores
    share the panels.

    A tile of few rows is bound by the latency of its sums: half of one costs as much as a single row. One or two of
    the tiles, but those of single rows, pass over each panel.
    """
    most, half = 2 * plan.height // 3, plan.height // 2
    lower = [h for h in heights if h <= half]
    fewer = [h for h in dict.fromkeys((most, half, *lower, heights[-1])) if 0 < h < plan.height]
    return [
        ProductPlan(h, plan.width, plan.panel, panels_first=True, masked_last=plan.masked_last,
                    tiles_of_a_panel=TILES_OF_HALF if plan.streams_few_rows and h > 1 else 0) for h in fewer
    ]  # fmt: skip


def has_narrow_last(target: Target, rows: int, columns: int, panel: int) -> bool:
    """Whether the last of several panels is partial, of whole vectors or of one that is masked at next to no cost."""
    masks = "avx512f" in target.features and rows <= _MASKED_ROWS
    return columns > panel and columns % panel > 0 and (masks or columns % vector_lanes(target) == 0)


class _Product:
    """The sizes of a product that determine its plan."""

    def __init__(self, out: te.Tensor, anchor: te.Operation, target: Target) -> None:
        self.target, self.groups = target, anchor.attrs["groups"]
        self.left, weights = operands(anchor)
        self.element = anchor.output(0).dtype.nbytes
        """bytes of an element of the operands; smaller ones are converted first"""
        self.weight_element = weights.dtype.nbytes
        self.weight_bytes = constant_size(weights.shape) * self.weight_element
        self.has_wide_groups = has_wide_groups(anchor)
        in_panels = self.groups == 1 or self.has_wide_groups
        self.panel = panel_width(anchor) if in_panels else anchor.attrs["outputs"]
        *row_dims, columns = out.shape
        self.rows, self.columns, self.column_dim = constant_size(row_dims), constant_size([columns]), columns
        self.likely_rows = likely_rows(row_dims, self.rows)
        extents = [extent_of(axis) for axis in anchor.reduce_axis]
        self.steps = constant_size(extents)
        one_by_one = len(extents) == 1 and anchor.attrs.get("form") != "dot8"
        self.is_matrix = one_by_one and all(isinstance(d, int) for d in (*out.shape, *extents))
        """whether it is a product of matrices, one element of each in a step, with static sizes"""
        along = max([n for n, d in enumerate(row_dims) if d != 1], default=len(row_dims) - 1)
        self.line = constant_size([row_dims[along]]) if constant_size(extents[:-1]) > 1 else 0
        """results on a line of an image, or in it if it is a column; 0 where no window moves along it"""
        strides = (*[1] * len(row_dims), *anchor.attrs.get("strides", (1,)))
        stride = strides[along - len(row_dims)] * constant_size(self.left.shape[along - len(row_dims) :])
        self.input_bytes = self.left.dtype.nbytes * stride
        """bytes of the inputs of one result that the one before does not read"""
        self.row_stride = stride * self.left.dtype.nbytes if self.groups == 1 else 0
        """bytes between the inputs of neighbouring results; grouped products read copies without set conflicts"""

    @property
    def exceeds_caches(self) -> bool:
        """Whether the weights exceed all caches."""
        return self.weight_bytes > max(self.target.cache_bytes)

    @property
    def lines_of_a_step(self) -> int:
        """Cache lines of a panel that a step reads."""
        return -(-self.panel * self.weight_element // LINE_BYTES)

    @property
    def streams_weights(self) -> bool:
        """Whether a dynamic number of rows would read weights anew for each tile, from behind the L2 cache."""
        return self.left_bytes is None and self.weight_bytes > self.target.cache_bytes.l2 // 2

    @property
    def has_whole_panels(self) -> bool:
        return factor_of(self.column_dim) % self.panel == 0

    @property
    def narrow_last(self) -> bool:
        """Whether a partial last panel is one of `has_narrow_last`, of weights that caches hold."""
        known = isinstance(self.column_dim, int) and not self.exceeds_caches
        return known and has_narrow_last(self.target, self.rows, self.columns, self.panel)

    @property
    def in_one_loop(self) -> bool:
        """Whether all panels, and the row tiles that pass over each, are one loop."""
        return self.has_whole_panels or self.narrow_last

    @property
    def masks_last(self) -> bool:
        """Whether stores of a partial last panel are masked. Panels that come first are one loop with the rows then."""
        return self.left_bytes is None and "avx512f" in self.target.features

    @property
    def has_dynamic_blocks(self) -> bool:
        """Whether several panels pass over a dynamic number of rows."""
        return self.left_bytes is None and self.columns > self.panel and self.groups == 1

    @cached_property
    def left_bytes(self) -> int | None:
        """Bytes of the left operand; None where its number of rows is dynamic."""
        *rows, length = self.left.shape
        known = is_static(rows) and largest_extent(length) is not None
        return constant_size(self.left.shape) * self.left.dtype.nbytes if known else None

    @property
    def left_is_resident(self) -> bool:
        """Whether the left operand stays, beside two panels, in a cache fast enough to be read again for each panel.

        True for a dynamic number of rows: then nothing can be planned.
        """
        room = cache_share(self.target)
        if has_high_latency_llc(self.target):
            room = int(_MOST_OF_ROWS * self.target.cache_bytes.l2) - self.element * 2 * self.panel * self.steps
        return (self.left_bytes or 0) <= room

    @property
    def weights_are_resident(self) -> bool:
        """Whether all panels are multiplied with a row tile before the next: see `weights_stay`.

        Of a dynamic number of images the most that are likely have to be large enough for that: fewer lose nothing.
        """
        if self.left_bytes is None and len(self.likely_rows) == 1:
            return False
        rows = self.likely_rows[-1]
        left = self.input_bytes * rows if self.left_bytes is None else self.left_bytes
        return weights_stay(self.target, self.weight_bytes, left + self.element * rows * self.columns)

    def shares_panels_better(self, tiles: int) -> bool:
        """Whether panels partition notably more evenly over the cores than row tiles."""
        cores = self.target.num_cores
        return largest_partition(-(-self.columns // self.panel), cores) < _NOTABLY * largest_partition(tiles, cores)


def _tiles_beside_weights(p: _Product, height: int) -> int:
    """Row tiles, of a dynamic number, whose inputs stay in the L2 cache with all weights; 0 for all of them.

    Whatever their number, rows are read once, and weights again from the L2 cache. Weights that leave no room for a
    few tiles are read once instead.
    """
    room = int(_BESIDE_WEIGHTS * p.target.cache_bytes.l2) - p.weight_bytes
    tiles = room // max(height * p.input_bytes, 1)
    return tiles if p.has_dynamic_blocks and p.in_one_loop and tiles >= _FEWEST_TILES else 0


def _tiles_beside_panels(p: _Product, height: int) -> int:
    """Row tiles, of a dynamic number, whose inputs take half of the L2 cache, beside the panels that pass; 0 for all.

    All, too, where a block would have too few rows to pay for reading the panels.
    """
    tiles = p.target.cache_bytes.l2 // 2 // max(height * p.input_bytes, 1)
    blocks = p.has_dynamic_blocks and (p.in_one_loop or p.masks_last) and p.streams_weights and not p.exceeds_caches
    return tiles if blocks and tiles * height >= _ROWS_OF_A_K_BLOCK else 0


def _tiles_per_step(p: _Product, tiles: int, panels_first: bool) -> int:
    """Row tiles, of `tiles`, that all panels pass over before the next ones; 0 for all.

    One for narrow groups whose weights stay in the caches: neighbours read the same cache lines.
    """
    if p.groups > 1 and not p.has_wide_groups and p.weight_bytes <= p.target.cache_bytes.l2:
        return choose("tiles at once", 1, [1, *_block_sizes(tiles)])
    in_blocks = not p.exceeds_caches and (p.in_one_loop or not panels_first)
    at_once = _tiles_in_cache(p, tiles) if in_blocks else 0
    if not p.in_one_loop or p.columns <= p.panel:
        return at_once
    at_once = 1 if p.weights_are_resident else at_once or _tiles_of_a_core(p, tiles)
    return choose("tiles at once", at_once, [*_block_sizes(tiles), 1])


def _split_k_plan(p: _Product, height: int, tiles: int) -> ProductPlan | Refused:
    """The plan with K-blocking; refused where two panels, and enough rows, fit into the cache whole.

    A K-block has as many steps as leave room for enough rows, the blocks are as even as their number allows.
    """
    cores, cache = p.target.num_cores, p.target.cache_bytes.l2
    sizes = _K_BLOCKS_HIGH_LATENCY_LLC if has_high_latency_llc(p.target) else _K_BLOCKS
    large = p.element * 2 * p.panel * p.steps > _MOST_OF_PANELS * cache or not p.left_is_resident
    if not large:
        return Refused(f"L2, {cache} bytes, holds two panels of {p.panel} columns by {p.steps} steps, and the rows")
    if not p.is_matrix or p.groups > 1 or not p.has_whole_panels:
        return Refused("no product of two matrices of static sizes, in whole panels")
    if tiles < _TILES_OF_A_K_BLOCK:
        return Refused(f"{tiles} row tiles are fewer than the {_TILES_OF_A_K_BLOCK} of a K-block")
    panels, most = p.columns // p.panel, int(sizes.panel * cache) // (p.element * p.panel)
    groups = [n for n in range(sizes.panels_per_step, 0, -1) if panels % n == 0]

    def block(depth: int, together: int) -> int:
        """Row tiles of a block: the cache holds their rows, two panels' K-blocks and the sums."""
        rows = (int(sizes.block * cache) // p.element - 2 * p.panel * depth) // (depth + together * p.panel)
        return max(rows // height, 1) if rows >= min(_ROWS_OF_A_K_BLOCK, p.rows) else 0

    for depth in [p.steps // n for n in range(1, p.steps // _FEWEST_STEPS + 1) if p.steps % n == 0]:
        if most < depth < p.steps or not block(depth, groups[0]):
            continue
        if depth == p.steps or not choose("parts", True, (True, False)):
            return Refused("a block of the whole reduction fits, or tuning found it faster")
        for together in groups if sizes.fewer else groups[:1]:
            blocks = -(-tiles // block(depth, together))
            share = largest_partition(blocks * panels // together, cores) * _NOTABLY
            if share <= largest_partition(tiles * panels, cores):
                at_once = -(-tiles // blocks) if blocks > 1 else 0
                return ProductPlan(
                    height, p.panel, p.panel, tiles_per_step=at_once, depth=depth, panels_per_step=together
                )
        return Refused("cores would have notably uneven shares of the blocks")
    return Refused("no K-block fits into L2 beside enough rows")


def _tiles_in_cache(p: _Product, tiles: int) -> int:
    """Row tiles whose input takes half of the L2 cache; 0 for no blocks.

    0 where one panel is all, as rows are read once then anyway, or where the number of rows is dynamic. With panels in
    one loop also where the left operand is read fast enough from where it is, or blocks would have too few rows, unless
    there are groups, of which each reads a part of the rows. But where panels share cache lines of the results, these
    should stay in the cache until the next panel, if panels do so until the next block. With a separate partial panel
    there are blocks enough for the cores.
    """
    if p.left_bytes is None or p.columns <= p.panel:
        return 0
    share = p.target.cache_bytes.l2 // 2
    blocks = -(-p.left_bytes // share)
    if not p.in_one_loop:
        blocks = max(blocks, _BLOCKS_OF_A_CORE * p.target.num_cores)
    elif p.groups == 1 and (
        p.left_is_resident or (has_high_latency_llc(p.target) and p.rows // blocks < _ROWS_OF_A_K_BLOCK)
    ):
        written = p.element * p.rows * p.columns
        blocks = -(-written // share)
        if p.columns % LINE_ELEMENTS == 0 or blocks == 1 or p.weight_bytes > share:
            return 0
    return 0 if blocks >= tiles else -(-tiles // blocks)


def _tiles_of_a_core(p: _Product, tiles: int) -> int:
    """Row tiles of each core's blocks, all panels passing over each, where that costs next to no more tiles.

    A core then reads its part of the left operand only, and what it wrote before is in its own caches. 0 where the
    weights are not much smaller: there cores share the panels, and each reads a part of them. With a high-latency LLC
    what another core wrote is further than weights: blocks may be a little uneven, and weights larger.
    """
    cores, most = p.target.num_cores, -(-tiles // p.target.num_cores)
    if p.left_bytes is None or cores == 1:
        return 0
    balanced = most >= _FEWEST_OF_A_CORE and partitions_evenly(tiles, cores)
    small = p.weight_bytes <= _LARGE_WEIGHTS * p.left_bytes / cores
    if has_high_latency_llc(p.target) and p.groups == 1 and balanced and small:
        return most
    if p.left_bytes < _MUCH_LARGER * p.weight_bytes:
        return 0

    def waste(at_once: int) -> float:
        return -(-tiles // at_once) * at_once / tiles - 1

    sizes = [n for n in range(most, max(most // 2, _FEWEST_TILES) - 1, -1) if waste(n) <= _WASTE]
    return max(sizes, default=0)


def _block_sizes(tiles: int) -> list[int]:
    """Candidates for the number of row tiles that all panels pass over before the next ones; 0 for all tiles."""
    return [0, *dict.fromkeys(-(-tiles // parts) for parts in (2, 4, 8, 16, 32) if tiles >= _FEWEST_TILES * parts)]
