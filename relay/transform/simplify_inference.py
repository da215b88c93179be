"""SimplifyInference: simplifies operators whose training behaviour inference does not need."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import make_call
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
    axis, epsilon = call.op.axis % len(data.shape), call.op.epsilon  # type: ignore[union-attr]
    span = call.span
    scale, shift = _constant_affine(gamma, beta, mean, variance, epsilon) or _general_affine(
        gamma, beta, mean, variance, epsilon, span
    )
    channels = [d if a == axis else 1 for a, d in enumerate(data.shape)][axis:]
    scaled = make_call("multiply", (data, reshaped(scale, channels)), span)
    return make_call("add", (scaled, reshaped(shift, channels)), span)


def _constant_affine(*parameters: object) -> tuple[Expr, Expr] | None:
    """Scale and shift of constant parameters, in float64 and rounded once."""
    *tensors, epsilon = parameters
    if not all(isinstance(p, Constant) for p in tensors):
        return None
    gamma, beta, mean, variance = [p.data.astype(np.float64) for p in tensors]  # type: ignore[union-attr]
    scale = gamma / np.sqrt(variance + epsilon)
    kind = tensors[0].data.dtype  # type: ignore[union-attr]
    return Constant(scale.astype(kind)), Constant((beta - mean * scale).astype(kind))


def _general_affine(
    gamma: Expr, beta: Expr, mean: Expr, variance: Expr, epsilon: float, span: Span | None
) -> tuple[Expr, Expr]:
    small = Constant(np.asarray(epsilon).astype(np.float64))
    small = make_call("cast", (small,), span, dtype=str(variance.dtype))
    scale = make_call("multiply", (gamma, make_call("rsqrt", (make_call("add", (variance, small), span),), span)), span)
    return scale, make_call("subtract", (beta, make_call("multiply", (mean, scale), span)), span)
