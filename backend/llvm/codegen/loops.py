"""Serial loops: counted, unrolled, written out."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.backend.llvm.codegen.accumulators import end_step
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.functions import call_range
from relayc.backend.llvm.codegen.index import add_index, index_of, index_operand, is_nonnegative, set_index
from relayc.backend.llvm.codegen.unroll_factor import unroll_factor
from relayc.backend.llvm.codegen.workspace import leave_after
from relayc.te.tir import Call, Evaluate, For, ForKind, IntImm, Stmt

__all__ = ["called_step", "emit_loop", "emit_serial", "is_written_out"]

_MAX_UNROLLED = 4096
"""Maximum number of statements after unrolling; a larger loop is not unrolled."""


def emit_serial(e: Emitter, loop: For, extent: Index) -> None:
    """Emit a loop whose iterations run one after the other."""
    low = index_of(e, loop.min)
    if extent.value is None and is_written_out(loop, extent.constant):
        for i in range(extent.constant):
            _run_iteration(e, loop, add_index(e, low, Index(None, i, 0)))
        return
    emit_loop(e, loop, low, add_index(e, low, extent))


def called_step(loop: For) -> Call | None:
    """The call of a kernel's step that makes up a loop's body, so that a range of iterations is one call; else None."""
    call = loop.body.value if isinstance(loop.body, Evaluate) else None
    is_all = isinstance(call, Call) and call.op == "call_step" and call.args[-1] is loop.loop_var
    return call if is_all else None  # type: ignore[return-value]


def is_written_out(loop: For, extent: int) -> bool:
    """Is a loop of so many iterations emitted as a sequence of them?"""
    return extent <= 1 or (loop.kind is ForKind.UNROLLED and extent * _count_statements(loop.body) <= _MAX_UNROLLED)


def _run_iteration(e: Emitter, loop: For, position: Index) -> None:
    """Emit the body once, at a given position."""
    set_index(e, loop.loop_var, position)
    if is_nonnegative(loop.min, e.nonnegative):
        e.nonnegative.add(loop.loop_var)
    e.emit(loop.body)


def emit_loop(e: Emitter, loop: For, low: Index, high: Index) -> None:
    """Emit the body for each position in [low, high)."""
    if (call := called_step(loop)) is not None:
        call_range(e, call, low, high)
        leave_after(e, call)
        return
    factor = unroll_factor(loop, e.machine.vector_bits)
    if factor > 1 and low.value is None and high.value is None:
        _unrolled_loop(e, loop, low.constant, high.constant, factor)
    else:
        _counted_loop(e, loop, low, high)


def _unrolled_loop(e: Emitter, loop: For, low: int, high: int, factor: int) -> None:
    """Emit a loop unrolled by `factor` with shared base addresses, and a remainder loop."""
    before, e.shares_base = e.shares_base, True
    rest = (high - low) % factor
    _counted_loop(e, loop, Index(None, low, 0), Index(None, high - rest, 0), factor)
    e.shares_base = before
    if rest:
        _counted_loop(e, loop, Index(None, high - rest, 0), Index(None, high, 0))


def _counted_loop(e: Emitter, loop: For, low: Index, high: Index, factor: int = 1) -> None:
    """Emit the loop itself, unrolled by `factor`, which must divide the number of iterations."""
    if low.value is None and high.value is None:
        e.ranges[loop.loop_var] = (low.constant, high.constant)
        if high.constant - low.constant <= factor:
            _iterations(e, loop, [Index(None, i, 0) for i in range(low.constant, high.constant)])
            return
    text, start, stop = e.text, index_operand(e, low), index_operand(e, high)
    body, done = text.label("for"), text.label("endfor")
    if low.value is not None or high.value is not None:
        ready = text.label("enter")
        text.branch(text.pure(f"icmp slt i64 {start}, {stop}"), ready, done)
        text.place(ready)
    before = text.block
    text.goto(body)
    text.place(body)
    following, latch = text.label("next"), text.label("latch")
    with text.region():
        position = text.value(f"phi i64 [ {start}, %{before} ], [ %{following}, %{latch} ]")
        _iterations(e, loop, [Index(position, i) for i in range(factor)])
        text.goto(latch)
        text.place(latch)
        text.effect(f"%{following} = add nsw i64 {position}, {factor}")
        again = text.value(f"icmp slt i64 %{following}, {stop}")
        text.branch(again, body, done)
    text.place(done)


def _iterations(e: Emitter, loop: For, positions: Sequence[Index]) -> None:
    """Emit consecutive iterations, with the accumulators of sums kept apart if there are several."""
    for i, position in enumerate(positions):
        if i:
            end_step(e)
        e.accumulators = []
        _run_iteration(e, loop, position)


def _count_statements(body: Stmt) -> int:
    """Stores and calls that `body` runs, counting each remaining loop's body once."""
    if isinstance(body, For) and body.kind is ForKind.UNROLLED and isinstance(body.extent, IntImm):
        return body.extent.value * _count_statements(body.body)
    return sum([_count_statements(s) for s in body.node_children() if isinstance(s, Stmt)]) or 1
