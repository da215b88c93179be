"""ReadOperandsInPlace: products of computed matrices take these as they lie in memory."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.dense import BatchMatmul, Dense
from relayc.relay.sizes import product
from relayc.relay.transform.builders import before_transposition, reshaped
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["ReadOperandsInPlace"]


class ReadOperandsInPlace(RewritePass):
    """Transpositions of right operands become attributes of their products, and a matrix by a column one by a row.

    `nn.dense` with weights that are computed becomes `nn.batch_matmul`, of which both are known. A x = (x' A')' reads A
    once, along memory, whichever way it lies; packing x, which may be constant, would fill a vector up for each of its
    numbers.
    """

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        match call.op:
            case Dense() if not isinstance(call.args[1], Constant) or _is_column(call):
                data, weight = call.args
                matrix = data if len(data.shape) > 1 else reshaped(data, (1, *data.shape))
                made = make_call(BatchMatmul(out_dtype=call.op.out_dtype), (matrix, weight), call.span)
            case BatchMatmul():
                made = call
            case _:
                return call
        made = _by_row(_without_transposition(made))
        return call if made is call else reshaped(made, call.shape, call.span)


def _is_column(call: Call) -> bool:
    """Has the product `call` of floats a single column?"""
    return call.dtype.is_float and call.shape[-1] == 1


def _without_transposition(call: Call) -> Call:
    """The product `call` with its right operand as it was before it was transposed."""
    op, (a, b) = call.op, call.args
    assert isinstance(op, BatchMatmul)
    stored = before_transposition(b)
    if stored is None:
        return call
    return make_call(op.replace(transpose_b=not op.transpose_b), (a, stored), call.span)


def _by_row(call: Call) -> Call:
    """The product `call`; where it has a single column, that as a row times the left operand: the same elements."""
    op, (a, b) = call.op, call.args
    assert isinstance(op, BatchMatmul)
    *_, rows, columns = call.shape
    if columns != 1 or rows == 1:
        return call
    row = reshaped(b, (*b.shape[:-2], 1, a.shape[-2 if op.transpose_a else -1]))
    if not op.transpose_a and all(d == 1 for d in b.shape[:-2]):
        a, row = reshaped(a, (product(a.shape[:-1]), a.shape[-1])), reshaped(row, (1, a.shape[-1]))
    made = make_call(op.replace(transpose_a=False, transpose_b=not op.transpose_a), (row, a), call.span)
    return _without_transposition(made)
