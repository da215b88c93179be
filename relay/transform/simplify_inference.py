"""SimplifyInference: simplifies operators whose training behaviour inference does not need."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.nn.norm import BatchNorm
from relayc.relay.transform.builders import is_call_of, reshaped
from relayc.relay.transform.function_pass import RewritePass
from relayc.te.ir import Span

__all__ = ["SimplifyInference"]


class SimplifyInference(RewritePass):
    """`nn.batch_norm` becomes one multiplication and one addition per channel, which then fold into weights.

    x * s + t with s = gamma / sqrt(variance + epsilon), t = beta - mean * s. Normalisations over the data itself
    (layer, instance, group norm) are kept: each is one kernel.
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        return _affine(call) if is_call_of(call, "nn.batch_norm") else call


def _affine(call: Call) -> Expr:
    data, gamma, beta, mean, variance = call.args
    op = expect_op(call, BatchNorm)
    axis, epsilon = op.axis % len(data.shape), op.epsilon
    span = call.span
    scale, shift = _constant_affine(gamma, beta, mean, variance, epsilon=epsilon) or _general_affine(
        gamma, beta, mean, variance, epsilon, span
    )
    channels = [d if a == axis else 1 for a, d in enumerate(data.shape)][axis:]
    scaled = make_call("multiply", (data, reshaped(scale, channels)), span)
    return make_call("add", (scaled, reshaped(shift, channels)), span)


def _constant_affine(*parameters: Expr, epsilon: float) -> tuple[Expr, Expr] | None:
    """Scale and shift of constant parameters, in float64 and rounded once."""
    constants = [p for p in parameters if isinstance(p, Constant)]
    if len(constants) < len(parameters):
        return None
    gamma, beta, mean, variance = [p.data.astype(np.float64) for p in constants]
    scale = gamma / np.sqrt(variance + epsilon)
    kind = constants[0].data.dtype
    return Constant(scale.astype(kind)), Constant((beta - mean * scale).astype(kind))


def _general_affine(
    gamma: Expr, beta: Expr, mean: Expr, variance: Expr, epsilon: float, span: Span | None
) -> tuple[Expr, Expr]:
    small = Constant(np.asarray(epsilon).astype(np.float64))
    small = make_call("cast", (small,), span, dtype=str(variance.dtype))
    scale = make_call("multiply", (gamma, make_call("rsqrt", (make_call("add", (variance, small), span),), span)), span)
    return scale, make_call("subtract", (beta, make_call("multiply", (mean, scale), span)), span)
