"""Helpers of the CUDA schedules to bind loops to thread axes."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te

__all__ = ["bind_tiles", "block_axis", "launch", "thread_axis"]


MAX_BLOCKS_Y = 65535
"""Maximum blocks of a grid along y and z, on every architecture; the limit along x is 2^31 - 1."""


def block_axis(dimension: str = "x") -> te.IterVar:
    """A block axis of the grid whose extent is that of the loop bound to it."""
    return te.thread_axis(f"blockIdx.{dimension}")


def thread_axis(threads: int, dimension: str = "x") -> te.IterVar:
    """A thread axis of a block with `threads` threads."""
    return te.thread_axis((0, threads), f"threadIdx.{dimension}")


def bind_tiles(stage: te.Stage, batch: te.IterVar, rows: te.IterVar, columns: te.IterVar, row_tiles: te.Dim) -> None:
    """Bind a block to each tile of each matrix; tiles in one row of tiles run together, as far as grid limits allow."""
    long = isinstance(row_tiles, int) and row_tiles > MAX_BLOCKS_Y
    stage.bind(batch, block_axis("z"))
    stage.bind(rows, block_axis("x" if long else "y"))
    stage.bind(columns, block_axis("y" if long else "x"))


def launch(
    s: te.Schedule, tensor: te.Tensor, axes: Sequence[te.IterVar], threads: int, items: int = 1
) -> te.IterVar:
    """Partition the iterations of adjacent loops among threads, `items` each; returns the loop over the items.

    Adjacent threads run adjacent iterations; the items of a thread are a block apart.
    """
    stage = s[tensor]
    block, inside = stage.split(stage.fuse(*axes), factor=threads * items)
    item, thread = stage.split(inside, factor=threads)
    stage.reorder(block, thread, item)
    stage.bind(block, block_axis())
    stage.bind(thread, thread_axis(threads))
    stage.unroll(item)
    return item
