"""Loop nests written by hand, for the bodies of `te.extern`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from te.tir import Dim, Var
from te.tir.ir_builder import IRBuilder

__all__ = ["loop_nest"]


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
