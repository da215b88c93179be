"""Class probabilities from pairwise probabilities (pairwise coupling)."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Stmt, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.loops import loop_nest

__all__ = ["pairwise_coupling"]


def pairwise_coupling(pairs: Tensor, classes: int) -> Tensor:
    """Probabilities p (N, classes) from those of pairs (N, pairs i < j in order): how likely i is, out of i and j.

    The second method of Wu, Lin and Weng (2004), which minimises a quadratic form, as libsvm iterates it: at most 100
    (or `classes`) sweeps, until the conditions of the minimum hold within 0.005 / classes.
    """
    kind = pairs.dtype

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with ib.for_range(0, pairs.shape[0], "n", kind="parallel") as n:
            q = ib.allocate(kind, (classes, classes), "q", scope="global")
            p = ib.allocate(kind, classes, "p", scope="global")
            slope = ib.allocate(kind, classes, "slope", scope="global")
            with ib.for_range(0, classes, "i") as i:
                p[i] = te.const(1.0 / classes, kind)
                q[i, i] = te.const(0, kind)
            with loop_nest(ib, (classes, classes), "c") as (i, j), ib.if_scope(i < j):
                win = ib.let("win", source[n, i * (2 * classes - i - 1) // 2 + j - i - 1])
                loss = ib.let("loss", te.const(1, kind) - win)
                q[j, j] = q[j, j] + win * win
                q[i, i] = q[i, i] + loss * loss
                q[i, j] = -win * loss
                q[j, i] = -win * loss
            open_ = ib.allocate("int32", 1, "open")
            open_[0] = te.const(1, "int32")
            with ib.for_range(0, max(100, classes), "sweep"), ib.if_scope(open_[0] > 0):
                _sweep(ib, q, p, slope, open_, classes)
            with ib.for_range(0, classes, "i") as i:
                out[n, i] = p[i]
        return ib.get()

    return te.extern((pairs.shape[0], classes), [pairs], fill, name="pairwise_coupling", dtype=kind, tag="default")


def _sweep(ib: IRBuilder, q: BufferView, p: BufferView, slope: BufferView, open_: BufferView, classes: int) -> None:
    """One step along each coordinate, unless p is the minimum already; `slope` holds q p and `level` p q p."""
    kind = q.buffer.dtype
    one = te.const(1, kind)
    level, error = ib.allocate(kind, 1, "level"), ib.allocate(kind, 1, "error")
    level[0], error[0] = te.const(0, kind), te.const(0, kind)
    with ib.for_range(0, classes, "i") as i:
        slope[i] = te.const(0, kind)
        with ib.for_range(0, classes, "j") as j:
            slope[i] = slope[i] + q[i, j] * p[j]
        level[0] = level[0] + p[i] * slope[i]
    with ib.for_range(0, classes, "i") as i:
        error[0] = te.max(error[0], te.abs(slope[i] - level[0]))
    with ib.if_scope(error[0] < te.const(0.005 / classes, kind)):
        open_[0] = te.const(0, "int32")
    with ib.if_scope(open_[0] > 0), ib.for_range(0, classes, "i") as i:
        step = ib.let("step", (level[0] - slope[i]) / q[i, i])
        scale = ib.let("scale", one / (one + step))
        p[i] = p[i] + step
        level[0] = (level[0] + step * (step * q[i, i] + te.const(2, kind) * slope[i])) * scale * scale
        with ib.for_range(0, classes, "j") as j:
            slope[j] = (slope[j] + step * q[i, j]) * scale
            p[j] = p[j] * scale
