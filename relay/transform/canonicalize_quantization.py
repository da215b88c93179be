"""CanonicalizeQuantization: lowers conversions between floats and quantised values to elementwise operators."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op import broadcast
from relayc.relay.op.qnn import Dequantize, Quantize, dequantized, quantized
from relayc.relay.transform.builders import reshaped
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["CanonicalizeQuantization"]


class CanonicalizeQuantization(RewritePass):
    """`qnn.quantize` and `qnn.dequantize` become arithmetic, which passes simplify and fuse as any other.

    (TVM: `relay.qnn.transform.CanonicalizeOps`.)
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        if not isinstance(call.op, Quantize | Dequantize) or all(isinstance(a, Constant) for a in call.args):
            return call  # a constant gives a constant, computed as a whole
        scale, zero = (_along(e, call.op.axis, len(call.shape)) for e in call.args[1:])
        if isinstance(call.op, Dequantize):
            return dequantized(call.args[0], scale, zero)
        return quantized(broadcast.divide(call.args[0], scale), zero, call.op.out_dtype)


def _along(e: Expr, axis: int, rank: int) -> Expr:
    """A scalar, or a vector laid along `axis`, in a shape that broadcasts with the data."""
    return reshaped(e, [e.shape[0] if i == axis % rank else 1 for i in range(rank)]) if e.shape else e
