"""RecognizePatterns: normalisations and activations spelled out in small operators become the operators they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relay.expr import Call, Constant, Expr, Function, numpy_dtype
from relay.op.base import OpDef, make_call
from relay.pattern import Found, Pattern, PatternRule, is_constant, is_op, rewrite, wildcard
from relay.transform.builders import array_of, reshaped
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext

__all__ = ["RecognizePatterns"]


@dataclass(frozen=True)
class RecognizePatterns(FunctionPass):
    """Spelled-out layer norm, RMS norm, GELU and SiLU become one operator each, so that each is one kernel."""

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


def _number(value: float, tolerance: float = 1e-3) -> Pattern:
    """A constant of one element, close to `value`."""
    return is_constant(lambda c: c.data.size == 1 and abs(float(c.data.item()) - value) <= tolerance * abs(value))


def _one_number() -> Pattern:
    return is_constant(lambda c: c.data.size == 1)


def _mean_of(x: Pattern) -> Pattern:
    return is_op("mean")(x).has_attr({"keepdims": True})


def _square_of(x: Pattern) -> Pattern:
    return is_op("power")(x, _number(2.0, 0.0)) | is_op("multiply")(x, x)


def _over_root(x: Pattern, square_mean: Pattern, epsilon: Pattern) -> Pattern:
    """x / sqrt(square_mean + epsilon), in any spelling."""
    total = is_op("add")(square_mean, epsilon)
    return is_op("divide")(x, is_op("sqrt")(total)) | is_op("multiply")(x, is_op("rsqrt")(total))


def _last_axes(mean: Call) -> int | None:
    """The first of the trailing dimensions that `mean` goes over; None when it goes over others."""
    rank = len(mean.args[0].shape)
    axes: tuple[int, ...] | None = mean.op.axis  # type: ignore[union-attr]
    found = sorted(range(rank) if axes is None else [a % rank for a in axes])
    return found[0] if found == list(range(rank - len(found), rank)) else None


def _parameter(e: Expr, shape: tuple[Any, ...]) -> Expr | None:
    """A constant as a parameter of exactly `shape`; None when it has no such form."""
    assert isinstance(e, Constant)
    if e.data.size == 1:
        return Constant(np.full([int(d) for d in shape], e.data.item(), e.data.dtype))
    squeezed = e.data.shape[max(e.data.ndim - len(shape), 0) :]
    leading = e.data.shape[: max(e.data.ndim - len(shape), 0)]
    return reshaped(e, shape) if squeezed == tuple(shape) and all(d == 1 for d in leading) else None


class SpelledRMSNorm(PatternRule):
    """x / sqrt(mean(x**2) + epsilon) * gamma = rms_norm(x, gamma)"""

    x, epsilon, gamma = wildcard(), _one_number(), is_constant()
    mean = _mean_of(_square_of(x))
    pattern = is_op("multiply")(_over_root(x, mean, epsilon), gamma)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x = found[self.x]
        axis = _last_axes(found.call(self.mean))
        gamma = None if axis is None else _parameter(found[self.gamma], x.shape[axis:])
        if gamma is None or x.ty is not call.ty:
            return None
        epsilon = float(array_of(found[self.epsilon]).item())
        return make_call("nn.rms_norm", (x, gamma), call.span, axis=axis, epsilon=epsilon)


class CentredRMSNorm(PatternRule):
    """rms_norm(x - mean(x), gamma) = layer_norm(x, gamma, 0)"""

    x, gamma = wildcard(), wildcard()
    mean = _mean_of(x)
    pattern = is_op("nn.rms_norm")(is_op("subtract")(x, mean), gamma)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, gamma = found[self.x], found[self.gamma]
        rms = call.op
        assert isinstance(rms, OpDef)
        axis: int = rms.axis % len(x.shape)  # type: ignore[attr-defined]
        if _last_axes(found.call(self.mean)) != axis or x.ty is not call.ty or not gamma.tensor_type.is_static:
            return None
        beta = Constant(np.zeros(gamma.tensor_type.static_shape, numpy_dtype(gamma.dtype)))
        epsilon = rms.epsilon  # type: ignore[attr-defined]
        return make_call("nn.layer_norm", (x, gamma, beta), call.span, axis=axis, epsilon=epsilon)


class ShiftedLayerNorm(PatternRule):
    """layer_norm(x, gamma, 0) + beta = layer_norm(x, gamma, beta)"""

    zero, beta = is_constant(lambda c: not c.data.any()), is_constant()
    norm = is_op("nn.layer_norm")(wildcard(), wildcard(), zero)
    pattern = is_op("add")(norm, beta)

    def replace(self, call: Call, found: Found) -> Expr | None:
        norm = found.call(self.norm)
        beta = _parameter(found[self.beta], found[self.zero].shape)
        if beta is None or norm.ty is not call.ty or found.shared(norm):
            return None
        return make_call(norm.op, (*norm.args[:2], beta), call.span)  # type: ignore[arg-type]


class SpelledGelu(PatternRule):
    """x * (1 + erf(x / sqrt(2))) * 0.5 = gelu(x), in the orders that exporters write"""

    x = wildcard()
    scaled = is_op("divide")(x, _number(2**0.5)) | is_op("multiply")(x, _number(0.5**0.5))
    gate = is_op("add")(is_op("erf")(scaled), _number(1.0, 0.0))
    half = _number(0.5, 0.0)
    pattern = (
        is_op("multiply")(is_op("multiply")(x, gate), half)
        | is_op("multiply")(is_op("multiply")(x, half), gate)
        | is_op("multiply")(is_op("multiply")(gate, half), x)
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        gelu = make_call("nn.gelu", (found[self.x],), call.span)
        return gelu if gelu.ty is call.ty else None


class SpelledTanhGelu(PatternRule):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) * 0.5 = gelu(x), approximate"""

    x = wildcard()
    cube = is_op("power")(x, _number(3.0, 0.0)) | is_op("multiply")(is_op("multiply")(x, x), x)
    inner = is_op("add")(x, is_op("multiply")(cube, _number(0.044715)))
    gate = is_op("add")(is_op("tanh")(is_op("multiply")(inner, _number((2 / math.pi) ** 0.5))), _number(1.0, 0.0))
    half = _number(0.5, 0.0)
    pattern = (
        is_op("multiply")(is_op("multiply")(x, half), gate)
        | is_op("multiply")(is_op("multiply")(x, gate), half)
        | is_op("multiply")(is_op("multiply")(gate, half), x)
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        gelu = make_call("nn.gelu", (found[self.x],), call.span, approximate=True)
        return gelu if gelu.ty is call.ty else None


class SpelledSilu(PatternRule):
    """x * sigmoid(x) = silu(x)"""

    x = wildcard()
    pattern = is_op("multiply")(x, is_op("sigmoid")(x))

    def replace(self, call: Call, found: Found) -> Expr | None:
        return make_call("nn.silu", (found[self.x],), call.span)


RULES: tuple[type[PatternRule], ...] = (
    SpelledRMSNorm,
    CentredRMSNorm,
    ShiftedLayerNorm,
    SpelledGelu,
    SpelledTanhGelu,
    SpelledSilu,
)
