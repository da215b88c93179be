"""Operators with data-dependent result sizes: results are padded to a bound and returned with a count."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Stmt, ir_builder

__all__ = ["nonzero"]


def nonzero(x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the elements of a vector that are not zero, in order, and how many there are.

    The positions fill the front of a vector as long as `x`; zeros follow.
    """
    (n,) = x.shape

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, positions, count = ib.buffer(ins[0]), ib.buffer(outs[0]), ib.buffer(outs[1])
        found = ib.allocate("int32", 1, "found")
        found[0] = 0
        with ib.for_range(0, n, "i") as i:
            positions[i] = te.const(0, "int64")
        with ib.for_range(0, n, "i") as i, ib.if_scope(source[i] != te.const(0, x.dtype)):
            positions[found[0]] = te.cast("int64", i)
            found[0] = found[0] + 1
        count[0] = te.cast("int64", found[0])
        return ib.get()

    positions, count = te.extern([(n,), (1,)], [x], fill, name="nonzero", dtype=["int64", "int64"], tag="scan")
    return positions, count
