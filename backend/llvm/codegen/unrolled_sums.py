"""Loops whose iterations multiply and add: how many of them are written out in a row.

On Intel's processors the two ports that multiply vectors also do arithmetic of addresses and counters, so each of these
takes a multiply-add's place. A loop over few multiply-adds loses a tenth to its own counting; AMD's have ports apart.
"""

from __future__ import annotations

from te.ir.structural import structural_equal
from te.tir import Add, Broadcast, BufferLoad, BufferStore, For, ForKind, IntImm, LetStmt, Mul, SeqStmt, Stmt

__all__ = ["steps_at_once"]

_LEAST, _MOST = 8, 224
"""Multiply-adds of an iteration that make a register tile, and of all that are written out in a row."""
_MOST_STEPS = 8
_FEW_STEPS = 4
"""A divisor of the iterations from this on is better than more steps, of which some are left over."""


def steps_at_once(loop: For, vector_bits: int) -> int:
    """How many iterations of a loop are written out in a row: 1 where it is no sum of products in registers."""
    if loop.kind is not ForKind.SERIAL or not isinstance(loop.extent, IntImm):
        return 1
    count, extent = _multiply_adds(loop.body, vector_bits), loop.extent.value
    if count < _LEAST or extent < 2:
        return 1
    most = max(min(_MOST_STEPS, _MOST // count, extent), 1)
    divisor = max(n for n in range(1, most + 1) if extent % n == 0)
    return divisor if divisor >= min(_FEW_STEPS, most) else most


def _multiply_adds(body: Stmt, vector_bits: int) -> int:
    """Instructions that add products to a buffer's elements in a body that is a straight line; 0 for any other."""
    if isinstance(body, LetStmt):
        return _multiply_adds(body.body, vector_bits)
    if isinstance(body, SeqStmt):
        counts = [_multiply_adds(each, vector_bits) for each in body.stmts]
        return sum(counts) if all(counts) else 0
    if isinstance(body, For) and body.kind is ForKind.UNROLLED and isinstance(body.extent, IntImm):
        return body.extent.value * _multiply_adds(body.body, vector_bits)
    if not isinstance(body, BufferStore) or not body.value.dtype.is_float or body.value.dtype.lanes == 1:
        return 0
    return -(-body.value.dtype.bits * body.value.dtype.lanes // vector_bits) if _is_sum(body) else 0


def _is_sum(store: BufferStore) -> bool:
    """Does it add a product, one of its factors the same for a whole vector, to the elements that it stores to?"""
    value = store.value
    if not isinstance(value, Add) or not isinstance(value.b, Mul) or not isinstance(value.a, BufferLoad):
        return False
    if not isinstance(value.b.a, Broadcast) and not isinstance(value.b.b, Broadcast):
        return False
    return value.a.buffer is store.buffer and structural_equal(value.a.indices, store.indices)
