"""Checking the kernels of a function."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import Var
from relayc.te.tir.simt_checker.faults import ExternAccess
from relayc.te.tir.simt_checker.record import Context, Grid, WrittenTwice
from relayc.te.tir.simt_checker.steering import find_steering
from relayc.te.tir.simt_checker.walk import Walk
from relayc.te.tir.stmt import Stmt

__all__ = ["KernelChecker", "check_kernel", "sample_blocks"]


_BLOCKS, _KEPT_BLOCKS = 8, 64
"""Blocks of a kernel to run; the same for a kernel whose values a later kernel needs."""


def sample_blocks(grid: Grid, limit: int = _BLOCKS) -> list[Grid]:
    """All blocks of a small grid (x, y, z); else the first two, the middle and the last of each axis, up to `limit`."""
    if grid[0] * grid[1] * grid[2] <= limit:
        chosen = [range(n) for n in grid]
    else:
        chosen = [sorted({0, min(1, n - 1), n // 2, n - 1}) for n in grid]
    blocks = [(x, y, z) for z, y, x in itertools.product(*[list(c) for c in reversed(chosen)])]
    if len(blocks) <= limit:
        return blocks
    step = (len(blocks) - 1) / (limit - 2)
    picked = {0, 1, *[round(i * step) for i in range(1, limit - 1)]}
    return [blocks[i] for i in sorted(picked)]


class KernelChecker:
    """Checks the kernels of one function in order; one may read what an earlier one has written.

    `parameters` are the buffers of the function, `workspaces` those that live between its kernels, `sizes` the values
    of size variables and scalars by name, `arrays` the contents of parameters that determine addresses, by name (by
    default indices along their last axis). Memory counts as initialised when the kernel only reads it, or when its
    buffer's name is among `initialized`.
    """

    def __init__(
        self,
        parameters: Iterable[Buffer],
        workspaces: Iterable[Buffer] = (),
        *,
        sizes: Mapping[str, int] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        initialized: Collection[str] = (),
        externs: Mapping[str, Sequence[ExternAccess]] | None = None,
        max_iterations: int = 8,
    ) -> None:
        self.context = Context(
            tuple(parameters), tuple(workspaces), dict(sizes or {}), dict(arrays or {}), frozenset(initialized),
            dict(externs or {}), max_iterations,
        )  # fmt: skip

    def check(
        self, name: str, body: Stmt, blocks: Sequence[Grid] | None = None, followed_by: Iterable[Stmt] = ()
    ) -> None:
        """Runs the blocks (x, y, z) of a kernel; by default `sample_blocks`. Raises `SimtFault`.

        `followed_by` are the kernels still to come: values of this kernel that determine their addresses are kept.
        """
        allowed: set[int] = set()  # statements that write some element twice, with the same value
        needed = frozenset[Var]().union(*[find_steering(later).memory for later in followed_by])
        while True:
            walk = Walk(self.context, name, body, everything=False, allowed=allowed, needed=needed)
            kept = needed & walk.steering.written
            try:
                walk.run(sample_blocks(walk.grid, _KEPT_BLOCKS if kept else _BLOCKS) if blocks is None else blocks)
                break
            except WrittenTwice as twice:
                again = Walk(self.context, name, body, everything=True, allowed=allowed)
                again.run(twice.blocks)
                allowed.add(twice.statement)
        self.context.filled |= walk.steering.written
        for data in kept & walk.memories.keys():
            self.context.contents[data] = walk.memories[data].values


def check_kernel(
    name: str,
    body: Stmt,
    parameters: Iterable[Buffer],
    *,
    blocks: Sequence[Grid] | None = None,
    sizes: Mapping[str, int] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    initialized: Collection[str] = (),
    externs: Mapping[str, Sequence[ExternAccess]] | None = None,
    max_iterations: int = 8,
) -> None:
    """Checks one kernel: `body` with its "thread_extent" attributes, flat buffers, after the device's passes.

    Blocks are those of `sample_blocks` unless given; serial loops that hold a barrier run their first and last
    `max_iterations` / 2 iterations (the indices in between lie between, and buffers alternate with short periods).
    Raises `SimtFault`. See `KernelChecker` for the other arguments.
    """
    checker = KernelChecker(
        parameters, sizes=sizes, arrays=arrays, initialized=initialized, externs=externs, max_iterations=max_iterations
    )
    checker.check(name, body, blocks)


