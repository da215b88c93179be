"""Activations decomposed into small operators: rules of `RecognizePatterns`."""

from __future__ import annotations

import math
from typing import ClassVar

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.activation import HardSigmoid
from relayc.relay.pattern import Found, Pattern, PatternRule, is_constant, is_op, is_product, wildcard
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.decomposed_parts import number
from relayc.te.ir.decisions import Refused

__all__ = ["ACTIVATION_RULES"]


def _is_a_sixth(value: float, dtype: str) -> bool:
    """Is it 1/6, as rounded by exporters to `dtype`? The rounding would show in float64."""
    return math.isclose(value, 1 / 6, rel_tol=1e-15 if dtype == "float64" else 1e-4)


_SIXTH = is_constant(lambda c: c.data.size == 1 and _is_a_sixth(float(c.data.item()), str(c.dtype)))


def _has_slope_of_a_sixth(e: Expr) -> bool:
    op = e.op if isinstance(e, Call) else None
    return isinstance(op, HardSigmoid) and _is_a_sixth(op.alpha, str(e.dtype)) and op.beta == 0.5


def _between(x: Pattern, most: float) -> Pattern:
    """x clipped to [0, most]."""
    zero, limit = number(0.0, 0.0), number(most, 0.0)
    return (
        is_op("clip")(x).has_attr({"a_min": 0.0, "a_max": most})
        | is_op("minimum")(is_op("maximum")(x, zero) | is_op("nn.relu")(x), limit)
        | is_op("maximum")(is_op("minimum")(x, limit), zero)
        | is_op("nn.relu")(is_op("minimum")(x, limit))
    )


def _times_half_of_one_and(x: Pattern, f: Pattern) -> Pattern:
    """x * (1 + f) / 2"""
    half, gate = number(0.5, 0.0), is_op("add")(f, number(1.0, 0.0))
    return is_product(half, gate, x) | is_op("multiply")(x, is_op("add")(is_product(half, f), half))


_COSTLY = ("erf", "exp", "log", "log1p", "sigmoid", "tanh")
"""Operators that are not computed a second time if their values are used elsewhere as well."""


class _DecomposedUnary(PatternRule):
    """Base of rules for a function of `x` that is computed by the operator `name` with `attributes`."""

    x = wildcard()
    name = ""
    attributes: ClassVar[dict[str, bool]] = {}

    def replace(self, call: Call, found: Found) -> Expr | Refused:
        x = found[self.x]
        costly = [e for e in found.values() if isinstance(e, Call) and e is not x and is_call_of(e, *_COSTLY)]
        shared = next((e for e in costly if found.shared(e)), None)
        if shared is not None:
            return Refused(f"the result of {shared.operator.name} is used elsewhere as well")
        made = make_call(self.name, (x,), call.span, **self.attributes)
        return made if made.ty is call.ty else Refused("a constant broadcasts x, or is of another type")


class DecomposedGelu(_DecomposedUnary):
    """x * (1 + erf(x / sqrt(2))) * 0.5 = x * (0.5 + 0.5 * erf(x / sqrt(2))) = gelu(x)"""

    x = wildcard()
    name = "nn.gelu"
    pattern = _times_half_of_one_and(x, is_op("erf")(is_product(number(0.5**0.5), x)))


class DecomposedTanhGelu(_DecomposedUnary):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) * 0.5 = gelu(x), approximate

    sqrt(2 / pi) * x * (1 + 0.044715 * x * x) is `gelu_fast` of Hugging Face's transformers.
    """

    x = wildcard()
    name = "nn.gelu"
    attributes: ClassVar[dict[str, bool]] = {"approximate": True}
    root, third = number((2 / math.pi) ** 0.5), number(0.044715)
    square, cube = is_op("power")(x, number(2.0, 0.0)), is_op("power")(x, number(3.0, 0.0))
    scaled_square = is_product(third, x, x) | is_product(third, square)
    scaled_cube = is_product(third, cube) | is_product(third, x, x, x) | is_product(third, square, x)
    growth = is_op("add")(scaled_square, number(1.0, 0.0))
    inner = is_product(root, is_op("add")(x, scaled_cube)) | is_product(root, growth, x)
    pattern = _times_half_of_one_and(x, is_op("tanh")(inner))


def _one_and_exp_of_negative(x: Pattern) -> Pattern:
    negated = is_op("negative")(x) | is_op("multiply")(x, number(-1.0, 0.0))
    return is_op("add")(is_op("exp")(negated), number(1.0, 0.0))


class DecomposedSigmoid(_DecomposedUnary):
    """1 / (1 + exp(-x)) = sigmoid(x)"""

    x = wildcard()
    name = "sigmoid"
    pattern = is_op("divide")(number(1.0, 0.0), _one_and_exp_of_negative(x))


class DecomposedSilu(_DecomposedUnary):
    """x * sigmoid(x) = x / (1 + exp(-x)) = silu(x)"""

    x = wildcard()
    name = "nn.silu"
    pattern = is_op("multiply")(x, is_op("sigmoid")(x)) | is_op("divide")(x, _one_and_exp_of_negative(x))


class DecomposedMish(_DecomposedUnary):
    """x * tanh(softplus(x)) = x * tanh(log(1 + exp(x))) = mish(x)"""

    x = wildcard()
    name = "nn.mish"
    raised = is_op("exp")(x)
    softplus = is_op("nn.softplus")(x) | is_op("log")(is_op("add")(raised, number(1.0, 0.0))) | is_op("log1p")(raised)
    pattern = is_op("multiply")(x, is_op("tanh")(softplus))


class DecomposedHardSwish(_DecomposedUnary):
    """x * clip(x + 3, 0, 6) / 6 = x * clip(x / 6 + 1 / 2, 0, 1) = hard_swish(x), in the orders that exporters write"""

    x = wildcard()
    name = "nn.hard_swish"
    limited = _between(is_op("add")(x, number(3.0, 0.0)), 6.0)
    shifted = is_op("add")(is_product(_SIXTH, x), number(0.5, 0.0))
    gate = _between(shifted, 1.0) | is_op("nn.hard_sigmoid")(x).where(_has_slope_of_a_sixth)
    pattern = is_product(_SIXTH, limited, x) | is_op("multiply")(x, gate)


ACTIVATION_RULES: tuple[type[PatternRule], ...] = (
    DecomposedGelu,
    DecomposedTanhGelu,
    DecomposedSigmoid,
    DecomposedSilu,
    DecomposedMish,
    DecomposedHardSwish,
)
