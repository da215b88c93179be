"""Loops whose iterations multiply and add, floats or quads of bytes: how many of them are written out in a row.

On Intel's processors the two ports that multiply vectors also do arithmetic of addresses and counters, so each of these
takes a multiply-add's place. A loop over few multiply-adds loses a tenth to its own counting; AMD's have ports apart.
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
from relayc.te.tir.analysis import accumulated_value

__all__ = ["is_sum", "repeated_factor", "unroll_factor"]

_LEAST, _LARGEST, _MOST = 8, 32, 224
"""Multiply-adds of an iteration that make a register tile, no more than there are registers (else it is several steps
already), and of all that are written out in a row."""
_MOST_STEPS = 8
_FEW_STEPS = 4
"""A divisor of the iterations from this on is better than more steps, of which some are left over."""


def unroll_factor(loop: For, vector_bits: int) -> int:
    """How many iterations of a loop are written out in a row: 1 where it is no sum of products in registers.

    Those of a loop that asks for memory, then takes a few steps, count as so many.
    """
    if loop.kind is not ForKind.SERIAL or not isinstance(loop.extent, IntImm):
        return 1
    (sums, steps), extent = _step(loop.body), loop.extent.value
    count = sum(-(-each.value.dtype.bits * each.value.dtype.lanes // vector_bits) for each in sums)
    if not _LEAST <= count <= _LARGEST or extent < 2:
        return 1
    most = max(min(_MOST_STEPS, _MOST // count) // steps, 1)
    most = min(most, extent)
    divisor = max(n for n in range(1, most + 1) if extent % n == 0)
    return divisor if divisor * steps >= min(_FEW_STEPS, most * steps) else most


def _step(body: Stmt) -> tuple[list[BufferStore], int]:
    """What a step does, products added to elements of buffers, and how many steps a body takes; none for any other."""
    if isinstance(body, LetStmt):
        return _step(body.body)
    if isinstance(body, SeqStmt):
        stmts = [each for each in body.stmts if not _is_prefetch(each)]
        if len(stmts) == 1:
            return _step(stmts[0])
        parts = [_step(each) for each in stmts]
        return [each for sums, _ in parts for each in sums] if all(n == 1 and sums for sums, n in parts) else [], 1
    if isinstance(body, For) and isinstance(body.extent, IntImm):
        sums, steps = _step(body.body)
        if body.kind is ForKind.SERIAL:
            return sums, steps * body.extent.value
        return (sums * body.extent.value, steps) if body.kind is ForKind.UNROLLED and steps == 1 else ([], 1)
    return [body] if isinstance(body, BufferStore) and is_sum(body) else [], 1


def _is_prefetch(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.op == "prefetch"


def is_sum(store: BufferStore) -> bool:
    """Does it add a product, one of its factors the same for a whole vector, to the elements that it stores to?"""
    return any(isinstance(factor, Broadcast) for factor in _factors(accumulated_value(store)))


def repeated_factor(store: BufferStore) -> PrimExpr:
    """The number that a sum's vector is multiplied by."""
    return next(factor for factor in _factors(accumulated_value(store)) if isinstance(factor, Broadcast))


def _factors(product: PrimExpr | None) -> tuple[PrimExpr, ...]:
    """Of a product of floats, or of quads of bytes; none of anything else."""
    if isinstance(product, Mul) and product.dtype.is_float:
        return product.a, product.b
    if isinstance(product, Call) and product.op == "dot4":
        return product.args
    return ()
