"""Which of several ways is faster, on a machine that is never quiet.

Ways are timed in turns, so that what disturbs one disturbs its neighbours too. A first pass ranks them by medians; the
best is then compared with the default in pairs, and wins only if nearly every pair says so and the median of the pairs'
ratios is below one by a margin. Noise that hits both alike cancels; noise that doesn't loses the comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Timer", "is_clearly_faster", "select"]

Timer = Callable[[], float]
"""Runs something once and gives the seconds it took."""

MARGIN = 0.03
"""How much faster than the default a way must be to replace it."""
_WINS = 0.85
"""Pairs that must say so."""


@dataclass(frozen=True)
class Choice:
    """The way that won, 0 being the default, with the median seconds of it and of the default."""

    index: int
    seconds: float
    default_seconds: float

    @property
    def ratio(self) -> float:
        """Its time as a share of the default's."""
        return self.seconds / self.default_seconds if self.default_seconds else 1.0


def is_clearly_faster(default: Sequence[float], other: Sequence[float], margin: float = MARGIN) -> bool:
    """Do these times, taken in turns, say that `other` is faster than `default`?"""
    ratios = [b / a for a, b in zip(default, other, strict=True)]
    wins = sum(ratio < 1 for ratio in ratios)
    return statistics.median(ratios) < 1 - margin and wins >= _WINS * len(ratios)


def select(timers: Sequence[Timer], rounds: int = 5, pairs: int = 21, margin: float = MARGIN) -> Choice:
    """The fastest of `timers`, the first of which is the default: another only if it is clearly faster."""
    times: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, kept in zip(timers, times, strict=True):
            kept.append(timer())
    medians = [statistics.median(kept) for kept in times]
    best = min(range(len(timers)), key=medians.__getitem__)
    if best == 0 or medians[best] >= medians[0] * (1 - margin):
        return Choice(0, medians[0], medians[0])
    default: list[float] = []
    other: list[float] = []
    for number in range(pairs):
        order = ((timers[0], default), (timers[best], other))
        for timer, kept in order if number % 2 else reversed(order):
            kept.append(timer())
    seconds, default_seconds = statistics.median(other), statistics.median(default)
    if is_clearly_faster(default, other, margin):
        return Choice(best, seconds, default_seconds)
    return Choice(0, default_seconds, default_seconds)
