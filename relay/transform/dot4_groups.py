"""Int8 weight packing in panels for 4-way dot products, in steps of four or eight values; see `topi.nn.dot4`.

Four steps of a reduction, a 4-byte word, are four bytes of each of a panel's outputs. Products of unsigned bytes by
these are added in 16 bits, which hold 255 times 128: for weights of one sign whose sum is at most 128. The excess of
two adjacent weights is split off into additional words.

Eight values share their 16-bit sums if the sums of two words together stay within that bound. Such words are paired, in
any order, and a table says which data a step reads. The excess of words without a partner is split off too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.relay.transform.panels import PanelPacker

__all__ = ["pack_dot4_groups"]

Array = np.ndarray[Any, Any]
_LARGEST_SUM = 128
"""Maximum sum of the weights of one sign that are multiplied and added in 16 bits: 255 times it does not overflow."""
_ATTEMPTS, _REACH, _STRIDE = 80, 3, 11
"""Parameters of the pairing: the maximum number of rounds in which unpaired words are compared; and their distance, up
to a third of the words of a panel, which grows from round to round by the stride."""
_FEWEST_PAIRED, _MOST_FRUITLESS = 0.01, 3
"""Minimum fraction of the unpaired words that a fruitful round pairs, and the number of consecutive fruitless rounds
after which the pairing ends."""
_COST_OF_TWO_WORDS, _COST_OF_16_BIT_PAIRS = 1.75, 1.33
"""Cost of a step of two words, and of a word in pairs of 16 bits, relative to a step of one word (AVX2)."""
_STEPS_MULTIPLE, _ROUNDING = 4, 32
"""Numbers of steps are rounded up to multiples of the first, so that loops can be split for prefetching, and by up to
one part in the second, so that layers of one shape share a kernel."""


def pack_dot4_groups(panels: PanelPacker, weight: Array, width: int) -> tuple[Array, Array] | None:
    """Signed bytes (N, ..., K), contiguous, packed in panels (P, S, G, width) of int32, P = ceil(N / width).

    A step consists of G = 1 or 2 words, whichever is faster; a table (P, S, G) says which data they are multiplied by.
    None if so much has to be split off that pairs of 16 bits are faster.
    """
    plan = _plan(weight, width)
    return None if plan is None else (panels.gathered(plan.rows, plan.others, plan.index), plan.table)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Panels of rows ``rows[index]``, or of `others`, whose numbers follow, with their table."""

    rows: Array
    others: Array
    index: Array
    table: Array


@dataclass(frozen=True, slots=True)
class _Dot4:
    """Words `rows` (n, width) of a panel at `places`: the panel's number times its number of words, plus the word's."""

    places: Array
    rows: Array


def _plan(weight: Array, width: int) -> _Plan | None:
    limited, excess = _split_excess(weight, width)
    count, steps = -(-len(weight) // width), limited.size // (4 * len(weight))
    more = np.bincount(excess.places // steps, minlength=1).max()
    if count * steps + len(excess.places) > _COST_OF_16_BIT_PAIRS * count * steps:
        return None
    rows = _by_steps(limited, width)
    paired = _paired(rows, excess, steps, (steps + more) / _COST_OF_TWO_WORDS)
    if paired is not None:
        return paired
    if steps + more > _COST_OF_16_BIT_PAIRS * steps:
        return None
    return _arranged(rows, excess, [np.arange(len(rows) + len(excess.places))], steps)


def _by_steps(weight: Array, width: int) -> Array:
    """(N, ..., K) as rows of words (P * words, width), padded with zeros."""
    words = weight.reshape(len(weight), -1).view("<i4")
    missing = -len(words) % width
    if missing:
        words = np.concatenate([words, np.zeros((missing, words.shape[1]), words.dtype)])
    panels = words.reshape(-1, width, words.shape[1])
    return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(-1, width)


def _paired(rows: Array, excess: _Dot4, steps: int, most: float) -> _Plan | None:
    """Words `rows` in steps of two; None if a panel would have more than `most` steps."""
    first, second, unpaired = _pair_up(_loads(rows), steps)
    panels = len(rows) // steps
    if len(first) + (1.5 * len(unpaired) + len(excess.places)) / 2 > most * panels:  # half of them are split
        return None
    left, right, last = _adjacent(unpaired // steps)
    left, right, last = unpaired[left], unpaired[right], unpaired[last]
    smaller, more = _split_excess_of_pairs(rows, left, right)
    places = np.concatenate([excess.places, more.places, last])
    order = np.argsort(places, kind="stable")
    parts = _Dot4(places[order], np.concatenate([excess.rows, more.rows, rows[last]])[order])
    one, other, single = _pair_adjacent(_loads(parts.rows), parts.places // steps)
    begin = len(rows) + len(left)
    others = _Dot4(np.concatenate([left, parts.places]), np.concatenate([smaller, parts.rows]))
    groups = [
        np.concatenate([first, len(rows) + np.arange(len(left)), begin + one, begin + single]),
        np.concatenate([second, right, begin + other, np.full(len(single), begin + len(parts.places))]),
    ]
    plan = _arranged(rows, others, groups, steps)
    return plan if plan.index.shape[1] <= max(most, 1) else None


def _arranged(rows: Array, others: _Dot4, groups: Sequence[Array], steps: int) -> _Plan:
    """The steps by panel: members of each group are numbers of `rows`, then of `others`, or one more for padding."""
    place = np.concatenate([np.arange(len(rows)), others.places, [0]])
    panel = place[groups[0]] // steps
    order = np.argsort(panel, kind="stable")
    panel = panel[order]
    counts = np.bincount(panel)
    rank = np.arange(len(panel)) - (np.cumsum(counts) - counts)[panel]
    longest = int(counts.max())
    if longest >= _STEPS_MULTIPLE * _STEPS_MULTIPLE:
        every = max(_STEPS_MULTIPLE, 1 << max(longest // _ROUNDING, 1).bit_length() - 1)
        longest = -(-longest // every) * every
    index = np.full((len(counts), longest, len(groups)), len(place) - 1)
    for i, members in enumerate(groups):
        index[panel, rank, i] = members[order]
    padded = np.concatenate([others.rows, np.zeros_like(rows[:1])])
    return _Plan(rows, padded, index, (place % steps).astype(np.int32)[index])


def _split_excess(weight: Array, width: int) -> tuple[Array, _Dot4]:
    """The weights without the excess of adjacent ones, and the excess, in the order of its places."""
    pairs = weight.reshape(-1, 2)
    total = np.add(pairs[:, 0], pairs[:, 1], dtype=np.int16)  # the sum of two of different signs is no larger than one
    total += _LARGEST_SUM
    large = np.flatnonzero(total.view(np.uint16) > 2 * _LARGEST_SUM)
    steps = weight.size // (4 * len(weight))
    rows, pair = np.divmod(large, 2 * steps)
    places, which = np.unique(rows // width * steps + pair // 2, return_inverse=True)
    rest = np.zeros((len(places), width, 4), np.int8)
    if not large.size:
        return weight, _Dot4(places, rest.view("<i4")[..., 0])
    limited = weight.copy()
    flat = limited.reshape(-1)
    values = pairs[large].astype(np.int16)
    total = values.sum(1)
    surplus = (total - np.sign(total) * _LARGEST_SUM).astype(np.int8)
    at = 2 * large + np.abs(values).argmax(1)
    flat[at] -= surplus
    rest[which, rows % width, at % 4] = surplus
    return limited, _Dot4(places, rest.view("<i4")[..., 0])


def _loads(rows: Array) -> Array:
    """Half of the sums of the positive, then of the negative, of two adjacent weights, rounded up.

    For (n, width) words a byte for each two of 4 * width weights, combined to larger words where possible.
    """
    width = rows.shape[1]
    int8_weights, loads = rows.view(np.int8), np.empty((len(rows), 4 * width), np.uint8)
    for part, limited in ((loads[:, : 2 * width], np.maximum), (loads[:, 2 * width :], np.minimum)):
        values = limited(int8_weights, 0)
        np.abs(values, out=values)  # -(-128) wraps to -128, which is 128 if unsigned
        sums = values.view("<u2")
        sums *= 257  # the upper byte becomes the sum of both
        sums += 256
        sums >>= 9
        part[:] = sums
    return loads.view(np.uint64 if width % 2 == 0 else np.uint32)


def _fit(loads: Array, one: Array, other: Array) -> Array:
    """A mask of the words that can be paired without overflow."""
    repeated = loads.dtype.type(0x0101010101010101 & np.iinfo(loads.dtype).max)
    sums = np.take(loads, one, 0)
    sums += np.take(loads, other, 0)
    sums += repeated * loads.dtype.type(127 - _LARGEST_SUM // 2)  # the highest bit of a byte marks an overflow
    while sums.shape[1] > 1:
        half = -(-sums.shape[1] // 2)
        sums = sums[:, :half] | sums[:, -half:]
    return (sums[:, 0] & (repeated * loads.dtype.type(128))) == 0


def _pair_up(loads: Array, steps: int) -> tuple[Array, Array, Array]:
    """Pairs of words of one panel that fit together, first and second members, and the unpaired ones."""
    unpaired, fruitless = np.arange(len(loads)), 0
    found: list[tuple[Array, Array]] = []
    for attempt in range(_ATTEMPTS):
        distance = 1 + attempt * _STRIDE % max(1, len(unpaired) * steps // (_REACH * len(loads)))
        whole = len(unpaired) // (2 * distance) * (2 * distance)
        one, other = unpaired[:whole].reshape(-1, 2, distance).swapaxes(0, 1).reshape(2, -1)
        fits = one // steps == other // steps
        fits[fits] = _fit(loads, one[fits], other[fits])
        found.append((one[fits], other[fits]))
        stays = np.ones(len(unpaired), bool)
        stays[:whole] = ~fits.reshape(-1, 1, distance).repeat(2, 1).ravel()
        fruitless = fruitless + 1 if 2 * len(found[-1][0]) <= _FEWEST_PAIRED * len(unpaired) else 0
        unpaired = unpaired[stays]
        if fruitless == _MOST_FRUITLESS:
            break
    firsts, seconds = (np.concatenate(part) for part in zip(*found, strict=True))
    return firsts, seconds, unpaired


def _adjacent(panel: Array) -> tuple[Array, Array, Array]:
    """Positions by twos within each panel, first and second members, and the last positions of panels of odd size.

    `panel` ascends.
    """
    counts = np.bincount(panel, minlength=1)
    rank = np.arange(len(panel)) - (np.cumsum(counts) - counts)[panel]
    first, last = rank % 2 == 0, rank + 1 == counts[panel]
    left = np.flatnonzero(first & ~last)
    return left, left + 1, np.flatnonzero(first & last)


def _split_excess_of_pairs(rows: Array, one: Array, other: Array) -> tuple[Array, _Dot4]:
    """The words `one` without their excess over the room that the others leave, and the excess."""
    width = rows.shape[1]
    values = rows[one].view(np.int8).reshape(len(one), 2 * width, 2).astype(np.int16)
    partners = rows[other].view(np.int8).reshape(len(one), 2 * width, 2).astype(np.int16)
    removed = np.zeros_like(values)
    for sign in (1, -1):
        mine, theirs = np.maximum(sign * values, 0), np.maximum(sign * partners, 0)
        paired = mine[..., 0] + mine[..., 1] + theirs[..., 0] + theirs[..., 1]
        surplus = np.maximum(paired - np.int16(_LARGEST_SUM), 0)
        of_first = np.minimum(surplus, mine[..., 0])
        removed[..., 0] += sign * of_first
        removed[..., 1] += sign * (surplus - of_first)
    smaller, more = [v.astype(np.int8).reshape(-1, 4 * width).view("<i4") for v in (values - removed, removed)]
    some = np.any(more, axis=1)
    return smaller, _Dot4(one[some], more[some])


def _pair_adjacent(loads: Array, panel: Array) -> tuple[Array, Array, Array]:
    """Adjacent words of a panel that can be paired, first and second members, and the unpaired ones."""
    left, right, last = _adjacent(panel)
    fits = _fit(loads, left, right)
    return left[fits], right[fits], np.concatenate([left[~fits], right[~fits], last])
