"""Weights of signed bytes in panels for products four steps at a time; see `topi.nn.quads`.

Where two neighbours are so large that products of theirs could add up to more than 16 bits, a part of the larger is
taken out, into a step of its own at the end of the panel. These are few: one in a hundred steps of a panel has such a
pair in trained or random weights that have one scale, some more with a scale for each output.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relay.transform.panels import PanelPacker

__all__ = ["pack_quads"]

Array = np.ndarray[Any, Any]
_LARGEST_PAIR = 128
"""The sum of two neighbours' magnitudes, if they have one sign, at most: 255 times it are within 16 bits."""
_MOST_MORE = 0.3
"""Steps for what is taken out, at most, as a part of the others: with more, pairs of 16 bits are faster. 196 x 256 x
1024 takes 0.67 ms times the steps; pairs take 0.93 (one thread, AVX2)."""
_EVERY = 8
"""Numbers of many steps are multiples of this, so that loops can be divided for fetching ahead."""


def pack_quads(panels: PanelPacker, weight: Array, width: int, exact: bool) -> tuple[Array, Array | None] | None:
    """Signed bytes (N, ..., K), one after another in memory, as panels (ceil(N / width), ..., K / 4, width) of int32.

    `exact` says that the processor has room for any sums. If it has not, and some are too large, the panels are
    (ceil(N / width), S, width), with a table (ceil(N / width), S) of the steps that theirs are parts of; None where
    these are too many.
    """
    if exact or not (large := _large_pairs(weight)).size:
        return panels.panels(weight.view("<i4"), width), None
    steps = math.prod(weight.shape[1:]) // 4
    count = -(-len(weight) // width)
    rows, pair = np.divmod(large, 2 * steps)
    places, which = np.unique(rows // width * steps + pair // 2, return_inverse=True)
    panel, step = np.divmod(places, steps)
    begins = np.searchsorted(panel, np.arange(count))
    behind = np.arange(len(places)) - begins[panel]
    every = _EVERY if steps >= _EVERY * _EVERY else 1
    more = -(-(int(behind.max()) + 1) // every) * every
    if more > _MOST_MORE * steps:
        return None
    limited, rest = _taken_out(weight, large)
    extra = np.zeros((count, more, width, 4), np.int8)
    extra[rows // width, behind[which], rows % width, rest[0] % 4] = rest[1]
    table = np.zeros((count, steps + more), np.int32)
    table[:, :steps] = np.arange(steps, dtype=np.int32)
    table[panel, steps + behind] = step
    words = limited.reshape(len(weight), -1).view("<i4")
    return panels.extended_panels(words, width, extra.view("<i4")[..., 0]), table


def _large_pairs(weight: Array) -> Array:
    """Which pairs of neighbours are too large: positions in the array by twos."""
    pairs = weight.reshape(-1, 2)
    total = np.add(pairs[:, 0], pairs[:, 1], dtype=np.int16)  # two of different signs are no larger than one
    total += _LARGEST_PAIR
    return np.flatnonzero(total.view(np.uint16) > 2 * _LARGEST_PAIR)


def _taken_out(weight: Array, large: Array) -> tuple[Array, tuple[Array, Array]]:
    """The weights without what is too much of these pairs, and that: positions in the array, values."""
    limited = weight.copy()
    flat = limited.reshape(-1)
    pairs = flat.reshape(-1, 2)[large].astype(np.int16)
    larger = np.abs(pairs).argmax(1)
    total = pairs.sum(1)
    rest = total - np.sign(total) * _LARGEST_PAIR
    places = 2 * large + larger
    flat[places] -= rest.astype(np.int8)
    return limited, (places, rest.astype(np.int8))
