"""ReadOperandsInPlace: products of computed matrices read their operands without packing or transposing them."""

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
    """Transposes of right operands become attributes of their products, and a matrix by a column a row by a matrix.

    `nn.dense` with computed weights becomes `nn.batch_matmul`, which has both attributes. A x = (x' A')' reads A once,
    contiguously, in either layout; packing x, which may be constant, would pad each of its elements to a vector.
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
    """Is `call` a product of floats with a single column?"""
    return call.dtype.is_float and call.shape[-1] == 1


def _without_transposition(call: Call) -> Call:
    """The product `call` with its right operand before its transposition."""
    op, (a, b) = call.op, call.args
    assert isinstance(op, BatchMatmul)
    stored = before_transposition(b)
    if stored is None:
        return call
    return make_call(op.replace(transpose_b=not op.transpose_b), (a, stored), call.span)


def _by_row(call: Call) -> Call:
    """The product `call`; with a single column it becomes a row times the left operand: the same elements."""
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
