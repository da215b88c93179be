"""Times of calls: the mean over a while, and of several in turns, so that a slower machine slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["Clock", "in_turns", "seconds_of"]

Clock = Callable[[], float]


def seconds_of(run: Callable[[], object], seconds: float, now: Clock) -> float:
    """Seconds of one run by the clock `now`, the mean over runs that take about `seconds` in all; at least one."""
    begin, count = now(), 0
    while now() - begin < seconds or not count:
        run()
        count += 1
    return (now() - begin) / count


def in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, seconds: float, now: Clock
) -> dict[str, list[float]]:
    """The `seconds_of` each of the runs in each of the rounds, in which they alternate."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds_of(run, seconds, now))
    return times
