"""Work partition of several independent loops among threads."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.te.tir import PrimExpr, maximum, minimum

__all__ = ["partition"]

Number = int | PrimExpr


def partition(
    loops: Sequence[tuple[Number, Number]], task: PrimExpr, tasks: PrimExpr, threads: PrimExpr
) -> list[tuple[PrimExpr, PrimExpr]]:
    """The iterations [first, last) of each loop that task `task` of `tasks` on `threads` threads runs.

    `loops` are (iterations, cycles of one iteration), longest first. A thread gets the number of iterations of each
    loop nearest to an even partition, and of the last one what balances the total. This is cut into its tasks loop by
    loop, so that a thread reads the weights of one layer after those of the other.
    """
    of_thread = tasks // threads
    thread = task // of_thread
    piece = task - thread * of_thread
    lows, highs = [_cuts(loops, t, threads) for t in (thread, thread + 1)]
    lengths = [high - low for low, high in zip(lows, highs, strict=True)]
    cycles = [length * each for length, (_, each) in zip(lengths, loops, strict=True)]
    total = sum(cycles[1:], cycles[0])
    left = [p * total // of_thread for p in (piece, piece + 1)]
    ranges: list[tuple[PrimExpr, PrimExpr]] = []
    for (_, each), low, length, own in zip(loops, lows, lengths, cycles, strict=True):
        first, last = [low + maximum(minimum((cut + each // 2) // each, length), 0) for cut in left]
        ranges.append((first, last))
        left = [cut - own for cut in left]
    return ranges


def _cuts(loops: Sequence[tuple[Number, Number]], thread: PrimExpr, threads: PrimExpr) -> list[PrimExpr]:
    """For each loop, the number of iterations assigned to the threads before `thread`."""
    *others, (extent, cycles) = loops
    cuts = [(2 * thread * n + threads) // (2 * threads) for n, _ in others]
    ahead = sum([(cut * threads - thread * n) * each for cut, (n, each) in zip(cuts, others, strict=True)])
    most = extent * cycles // 2  # a larger correction would take iterations from the previous thread
    rest = thread * (extent * cycles) - maximum(minimum(ahead, most), -most) + threads * cycles // 2
    return [*cuts, rest // (threads * cycles)]
