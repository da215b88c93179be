"""Selects the fastest of several alternatives on a noisy machine.

Alternatives are timed in turns, so that a disturbance affects adjacent samples alike. A first pass ranks them by
medians; the best is then compared with the default in pairs, and wins only if nearly all pairs agree and the median of
the pairs' ratios is below one by a margin. Noise that affects both cancels; other noise makes the alternative lose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Timer", "is_clearly_faster", "select"]

Timer = Callable[[], float]
"""Runs something once and gives the seconds it took."""

MARGIN = 0.03
"""Minimum relative gain over the default."""
_WINS = 0.85
"""Minimum fraction of pairs in which the alternative is faster."""


@dataclass(frozen=True)
class Choice:
    """The selected alternative, 0 being the default, with its median seconds and those of the default."""

    index: int
    seconds: float
    default_seconds: float

    @property
    def ratio(self) -> float:
        """The time of the selected alternative divided by that of the default."""
        return self.seconds / self.default_seconds if self.default_seconds else 1.0


def is_clearly_faster(default: Sequence[float], other: Sequence[float], margin: float = MARGIN) -> bool:
    """Do these times, taken in turns, show that `other` is faster than `default`?"""
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
