"""CanonicalizeQuantization: lowers conversions between floats and quantised values to elementwise operators."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op import broadcast, elementwise
from relayc.relay.op.qnn import (
    Dequantize,
    DequantizeBlocks,
    Quantize,
    dequantized,
    quantized,
    spread_blocks,
)
from relayc.relay.transform.builders import reshaped
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["CanonicalizeQuantization"]


class CanonicalizeQuantization(RewritePass):
    """`qnn.quantize`, `qnn.dequantize` and `qnn.dequantize_blocks` become arithmetic.

    Passes simplify and fuse it as any other.

    (TVM: `relay.qnn.transform.CanonicalizeOps`.)
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        if all(isinstance(a, Constant) for a in call.args):
            return call  # a constant gives a constant, computed as a whole
        if isinstance(call.op, DequantizeBlocks):
            return _dequantized_blocks(call, call.op)
        if not isinstance(call.op, Quantize | Dequantize):
            return call
        scale, zero = (_along(e, call.op.axis, len(call.shape)) for e in call.args[1:])
        if isinstance(call.op, Dequantize):
            return dequantized(call.args[0], scale, zero)
        return quantized(broadcast.divide(call.args[0], scale), zero, call.op.out_dtype)


def _dequantized_blocks(call: Call, op: DequantizeBlocks) -> Expr:
    data, scale, zero = call.args
    spread = [spread_blocks(e, op.axis, op.block, data.shape[op.axis]) for e in (scale, zero)]
    real = dequantized(data, elementwise.cast(spread[0], "float32"), spread[1])
    return real if call.dtype == "float32" else elementwise.cast(real, str(call.dtype))


def _along(e: Expr, axis: int, rank: int) -> Expr:
    """A scalar, or a vector laid along `axis`, in a shape that broadcasts with the data."""
    return reshaped(e, [e.shape[0] if i == axis % rank else 1 for i in range(rank)]) if e.shape else e
