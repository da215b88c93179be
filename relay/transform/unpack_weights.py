"""UnpackWeights: dequantises weights of 4 and 8 bits, for targets whose products take floats only."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.dense_bits import DenseBits
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["UnpackWeights"]


class UnpackWeights(RewritePass):
    """`nn.dense_bits` with constant weights becomes `nn.dense`, for tensor cores, which take matrices of floats."""

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        if not isinstance(call.op, DenseBits) or not all(isinstance(a, Constant) for a in call.args[1:]):
            return call
        data, *packed = call.args
        weights = call.op.floats(*[a.data for a in packed if isinstance(a, Constant)])
        return make_call("nn.dense", (data, Constant(weights.astype(str(data.dtype)))), call.span)
