"""Loop helpers for the bodies of `te.extern`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from relayc.te.tir import Dim, Var, as_int
from relayc.te.tir.ir_builder import IRBuilder

__all__ = ["blocks_of", "loop_nest"]


@contextmanager
def loop_nest(
    ib: IRBuilder, extents: Sequence[Dim], name: str = "i", *, independent: bool = False
) -> Generator[tuple[Var, ...], None, None]:
    """Loops over every index of a tensor of shape `extents`, in row-major order. Gives the index.

    `independent`: no iteration reads or writes what another one writes.
    """
    with ExitStack() as loops:
        ranges = [ib.for_range(0, d, f"{name}{k}", independent=independent) for k, d in enumerate(extents)]
        yield tuple([loops.enter_context(r) for r in ranges])


def blocks_of(columns: Dim, width: int) -> Iterator[tuple[int, Dim, int]]:
    """(first column, number of blocks, their width) over all columns: `width`, a power of two, then narrower blocks.

    A dynamic number of columns gives blocks of one.
    """
    known, begin = as_int(columns), 0
    if known is None:
        yield 0, columns, 1
        return
    while begin < known:
        count = (known - begin) // width
        if count:
            yield begin, count, width
        begin, width = begin + count * width, width // 2
