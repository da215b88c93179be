"""Unroll factors of loops of multiply-adds, of floats or of 4-way dot products of 8-bit integers.

On Intel's processors the two ports that execute vector multiply-adds also do integer arithmetic, so that address and
counter updates contend with them. A loop of few multiply-adds loses a tenth to its overhead; AMD has separate ports.
"""

from __future__ import annotations

from relayc.te.tir import (
    Broadcast,
    BufferStore,
    Call,
    Evaluate,
    For,
    ForKind,
    IntImm,
    LetStmt,
    Mul,
    PrimExpr,
    SeqStmt,
    Stmt,
)
from relayc.te.tir.analysis import accumulated_value, is_loaded_by

__all__ = ["broadcast_factor", "unroll_factor"]

_MIN_TILE, _MAX_TILE, _MAX_UNROLLED = 8, 32, 128
"""Multiply-adds per iteration of a register tile, at least and at most (more exceed the registers, so the body is
several steps already), and per unrolled iteration at most."""
_MAX_STEPS = 8
_FEW_STEPS = 4
"""A divisor of the trip count is preferred, from this on, to a larger factor with a remainder loop."""


_ADDED_PRODUCTS = ("add_product", "add_dot4", "add_dot2_bfloat16")
"""Intrinsics that add a product to their first operand."""


def unroll_factor(loop: For, vector_bits: int) -> int:
    """The unroll factor of a loop: 1 if it is no loop of register accumulations.

    An iteration that prefetches and then runs several steps counts as that many.
    """
    if loop.kind is not ForKind.SERIAL or not isinstance(loop.extent, IntImm):
        return 1
    (updates, steps), extent = _step(loop.body), loop.extent.value
    count = sum(-(-each.value.dtype.bits * each.value.dtype.lanes // vector_bits) for each in updates)
    if not _MIN_TILE <= count <= _MAX_TILE or extent < 2:
        return 1
    most = max(min(_MAX_STEPS, _MAX_UNROLLED // count) // steps, 1)
    most = min(most, extent)
    divisor = max(n for n in range(1, most + 1) if extent % n == 0)
    return divisor if divisor * steps >= min(_FEW_STEPS, most * steps) else most


def _step(body: Stmt) -> tuple[list[BufferStore], int]:
    """The accumulations of one step, and the number of steps of a body; no accumulations for any other body."""
    if isinstance(body, LetStmt):
        return _step(body.body)
    if isinstance(body, SeqStmt):
        stmts = [each for each in body.stmts if not _is_prefetch(each)]
        if len(stmts) == 1:
            return _step(stmts[0])
        parts = [_step(each) for each in stmts]
        return [each for found, _ in parts for each in found] if all(n == 1 and found for found, n in parts) else [], 1
    if isinstance(body, For) and isinstance(body.extent, IntImm):
        updates, steps = _step(body.body)
        if body.kind is ForKind.SERIAL:
            return updates, steps * body.extent.value
        return (updates * body.extent.value, steps) if body.kind is ForKind.UNROLLED and steps == 1 else ([], 1)
    return [body] if isinstance(body, BufferStore) and broadcast_factor(body) is not None else [], 1


def _is_prefetch(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.op == "prefetch"


def broadcast_factor(store: BufferStore) -> PrimExpr | None:
    """The broadcast factor of a product that a store accumulates; None for other stores."""
    return next((factor for factor in _factors(store) if isinstance(factor, Broadcast)), None)


def _factors(store: BufferStore) -> tuple[PrimExpr, ...]:
    """The factors of a product of floats, or of a dot product of 8-bit integers or bfloat16, that a store adds to its
    elements in place; () otherwise."""
    value = store.value
    if isinstance(value, Call) and value.op in _ADDED_PRODUCTS:
        return value.args[1:] if is_loaded_by(value.args[0], store) else ()
    product = accumulated_value(store)
    return (product.a, product.b) if isinstance(product, Mul) and product.dtype.is_float else ()
