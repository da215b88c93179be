"""Tiling of convolutions with narrow groups: vectors of neighbouring channels, whatever groups these belong to.

A panel of weights is one vector of outputs. It is multiplied with a vector that has an input of each output's group:
one that is broadcast, where all are of one group; two and a mask, where they are of two; or an aligned vector of the
data, permuted, where the vector has several whole groups. Taps along a line share it. A register tile is some pixels of
a line by one or two vectors. The cycles of a step, all taps along a line of one input, are counted as in
`topi.cpu.tiling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.topi.cpu.tiling import RegisterTile, best_tile, group_columns, vector_lanes
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayc.backend.target import Target

__all__ = ["GroupTile", "GroupedWindows", "plan_group_tile", "vectorizes_across_groups"]

MOST_SHARED_TAPS = 7
"""Most taps along a line that are unrolled to share their loads."""
MOST_UNROLLED_STEPS = 4
_PORTS, _LATENCY, _LOAD_CYCLES = 2, 4, 0.6
_PERMUTATION_CYCLES = 0.3
"""Cycles of the multiply ports that a permutation takes."""
_NOT_HIDDEN = 0.15
"""Part of the shorter of loading and multiplying that isn't hidden. Measured on Zen 5: 84 % of the peak with as many
cycles of both, 52 % where loads take nearly twice as long."""
_LOOP_CYCLES, _ENTERING_CYCLES = 0.25, 60
"""Cycles of a step's loop, and of clearing and storing a tile."""
_SHIFTED = 1.1
"""Cost factor of a last tile that is shifted to end with the line, at a dynamic position: measured up to 1.9."""
_COLUMNS_OF_ANY_WIDTH = 7
"""Most columns of a tile where the width is known at run time only: maps of 7, 14, 28 and 56 columns have whole tiles.
"""
_ON_ANY_LINES = 1.35
"""Cost factor of separate products then: a tile holds an address for each of its pixels. Measured 1.25 to 1.8."""
_NOTABLY = 0.95
"""Groups are crossed below this part of the cycles of separate products for each group."""


@dataclass(frozen=True, slots=True)
class GroupedWindows:
    """A grouped convolution: `lines` x `columns` results, by windows of `taps` x `line_taps`.

    `lines` counts all but the last spatial dimension.
    """

    lines: int
    columns: int
    taps: int
    line_taps: int
    stride: int
    dilation: int
    groups: int
    inputs: int
    outputs: int
    has_border: bool
    """the data is copied, into lines of whole vectors"""
    any_width: bool = False
    """the number of columns is known at run time only, and `columns` a guess"""

    @property
    def shares_taps(self) -> bool:
        """Whether taps along a line share their loads."""
        return self.line_taps <= MOST_SHARED_TAPS

    @property
    def is_unrolled(self) -> bool:
        """Whether all steps of the reduction of a pixel are few enough to be unrolled, with its vector loaded once."""
        return self.taps * self.line_taps * self.inputs <= MOST_UNROLLED_STEPS

    def groups_of_a_vector(self, lanes: int) -> int:
        """Most groups that a vector of outputs belongs to."""
        channels = self.groups * self.outputs
        begins = range(0, channels, lanes)
        return max(min(b + lanes, channels) - 1 - b // self.outputs * self.outputs for b in begins) // self.outputs + 1

    def is_permuted(self, lanes: int) -> bool:
        """Whether a vector of outputs is multiplied with a permuted, aligned vector of the data."""
        whole = self.inputs == self.outputs < lanes and lanes % self.outputs == 0
        return whole and (self.has_border or self.groups * self.outputs % lanes == 0)


@dataclass(frozen=True, slots=True)
class GroupTile:
    """A register tile of `columns` pixels of a line by `vectors` of outputs."""

    columns: int
    vectors: int


def vectorizes_across_groups(target: Target, windows: GroupedWindows) -> bool:
    """Whether vectors of neighbouring outputs, of different groups, beat a separate product for each group."""
    if not _has_permutations(target, windows) and not _has_masks(target, windows):
        return False
    together = _cycles(target, windows, plan_group_tile(target, windows))
    return choose("groups together", together < _NOTABLY * _cycles_apart(target, windows), (True, False))


def plan_group_tile(target: Target, windows: GroupedWindows) -> GroupTile:
    """The cheapest register tile."""
    tiles = list(_tiles(target, windows))
    best = min(tiles, key=lambda tile: (_cycles(target, windows, tile), tile.vectors))
    found = choose("tile", str((best.columns, best.vectors)), [str((t.columns, t.vectors)) for t in tiles])
    return next(tile for tile in tiles if str((tile.columns, tile.vectors)) == found)


def _has_masks(target: Target, windows: GroupedWindows) -> bool:
    """Whether two broadcasts are merged at no cost, with registers enough for steps of several taps.

    AVX2's 16 registers hold tiles of ten pixels, which came to 60 to 80 % of the peak: no more than separate groups.
    Of lines of dynamic length only one group is broadcast: that both of two lie inside the data can't be proved, and
    would be tested for each.
    """
    most = 1 if windows.any_width else 2
    return "avx512f" in target.features and windows.groups_of_a_vector(vector_lanes(target)) <= most


def _has_permutations(target: Target, windows: GroupedWindows) -> bool:
    """Whether the processor has an instruction that permutes a vector by a computed index."""
    lanes = vector_lanes(target)
    return windows.is_permuted(lanes) and {8: "avx2", 16: "avx512f"}.get(lanes) in target.features


def _tiles(target: Target, windows: GroupedWindows) -> Iterator[GroupTile]:
    """Tiles whose sums, a step's weights and the operands they are multiplied with fit in the registers."""
    weights = windows.line_taps if windows.shares_taps else 1
    if windows.is_unrolled:
        weights = windows.taps * windows.line_taps * windows.inputs
    panels = -(-windows.groups * windows.outputs // vector_lanes(target))
    for vectors in (1, 2) if panels % 2 == 0 else (1,):
        spare = target.vector_registers - vectors * weights - 2
        most = min(windows.columns, _COLUMNS_OF_ANY_WIDTH if windows.any_width else windows.columns)
        for columns in range(1, min(spare // vectors, most) + 1):
            yield GroupTile(columns, vectors)
    if weights + 2 >= target.vector_registers:
        yield GroupTile(1, 1)


def _cycles(target: Target, windows: GroupedWindows, tile: GroupTile) -> float:
    """Cycles of all tiles."""
    lanes = vector_lanes(target)
    of_a_step = windows.line_taps if windows.shares_taps else 1
    reach = {x * windows.stride + k * windows.dilation for x in range(tile.columns) for k in range(of_a_step)}
    values = len(reach) * tile.vectors
    permuted = windows.is_permuted(lanes)
    of_a_value = 2 if windows.groups_of_a_vector(lanes) == 2 and not permuted else 1
    computing = tile.columns * tile.vectors * of_a_step / _PORTS + (_PERMUTATION_CYCLES * values if permuted else 0)
    computing = max(computing, of_a_step * _LATENCY)
    loading = (values * of_a_value + of_a_step * tile.vectors) * _LOAD_CYCLES
    step = max(computing, loading) + _NOT_HIDDEN * min(computing, loading) + _LOOP_CYCLES
    steps = windows.taps * windows.line_taps // of_a_step * windows.inputs
    panels = -(-windows.groups * windows.outputs // lanes)
    tiles = windows.lines * math.ceil(windows.columns / tile.columns) * math.ceil(panels / tile.vectors)
    shifted = _SHIFTED if windows.any_width or windows.columns % tile.columns else 1.0
    return shifted * tiles * (steps * step + _ENTERING_CYCLES)


def _cycles_apart(target: Target, windows: GroupedWindows) -> float:
    """Cycles of separate products for each group."""
    lanes, rows = vector_lanes(target), windows.lines * windows.columns
    steps = windows.taps * windows.line_taps * windows.inputs
    columns = group_columns(target, rows, windows.outputs, steps)
    tile: RegisterTile = best_tile(target, rows, columns, steps, vectors=-(-columns // lanes))
    tiles = math.ceil(rows / tile.rows) * math.ceil(windows.outputs / columns) * windows.groups
    cycles = tiles * (steps * tile.cycles_per_step() + _ENTERING_CYCLES)
    return cycles * (_ON_ANY_LINES if windows.any_width else 1.0)
