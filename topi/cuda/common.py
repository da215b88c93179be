"""What the CUDA schedules share: loops on thread axes."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te

__all__ = ["bind_tiles", "block_axis", "launch", "thread_axis"]


MOST_BLOCKS_Y = 65535
"""Blocks of a grid along y and z, on every architecture; there are 2^31 - 1 along x."""


def block_axis(dimension: str = "x") -> te.IterVar:
    """The blocks of the grid along a dimension, as many as the loop that is bound has iterations."""
    return te.thread_axis(f"blockIdx.{dimension}")


def thread_axis(threads: int, dimension: str = "x") -> te.IterVar:
    """`threads` threads of a block along a dimension."""
    return te.thread_axis((0, threads), f"threadIdx.{dimension}")


def bind_tiles(stage: te.Stage, batch: te.IterVar, rows: te.IterVar, columns: te.IterVar, row_tiles: te.Dim) -> None:
    """A block for each tile of each matrix; tiles of one row of tiles run together, as far as grids are that long."""
    long = isinstance(row_tiles, int) and row_tiles > MOST_BLOCKS_Y
    stage.bind(batch, block_axis("z"))
    stage.bind(rows, block_axis("x" if long else "y"))
    stage.bind(columns, block_axis("y" if long else "x"))


def launch(
    s: te.Schedule, tensor: te.Tensor, axes: Sequence[te.IterVar], threads: int, items: int = 1
) -> te.IterVar:
    """Share the iterations of adjacent loops between threads, `items` each; gives the loop over the items.

    Neighbouring threads run neighbouring iterations; the items of a thread lie a block apart.
    """
    stage = s[tensor]
    block, inside = stage.split(stage.fuse(*axes), factor=threads * items)
    item, thread = stage.split(inside, factor=threads)
    stage.reorder(block, thread, item)
    stage.bind(block, block_axis())
    stage.bind(thread, thread_axis(threads))
    stage.unroll(item)
    return item
