"""Means and variances decomposed into smaller operators: rules of `RecognizePatterns`."""

from __future__ import annotations

import math

import numpy as np

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.reduce import Mean, Sum
from relayc.relay.pattern import Found, PatternRule, is_op, wildcard
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.decomposed_parts import count_reduced, number, one_number, reduced_axes, square_of, value_of
from relayc.relay.type import shapes_equal
from relayc.te.ir.decisions import Refused

__all__ = ["MOMENT_RULES"]


class KeptDimensions(PatternRule):
    """reshape(sum(x)) = sum(x) with its dimensions kept, if the view restores them; also for other reductions"""

    reduction = is_op("sum", "mean", "max", "variance", "log_sum_exp")
    pattern = is_op("reshape")(reduction.has_attr({"keepdims": False}))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        reduction = found.call(self.reduction)
        (x,), axes = reduction.args, reduced_axes(reduction)
        kept = tuple([1 if a in axes else d for a, d in enumerate(x.shape)])
        if not shapes_equal(kept, call.shape) or found.shared(reduction):
            return None
        return make_call(reduction.operator.replace(keepdims=True), (x,), reduction.span)


class DecomposedMean(PatternRule):
    """sum(x) / n = mean(x), for the number n of elements in each sum"""

    total, count = is_op(Sum), one_number()
    pattern = is_op("multiply", "divide")(total, count)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        total, count = found.call(self.total), value_of(found[self.count])
        elements = count_reduced(total)
        if not elements or not count or not call.dtype.is_float or total.ty is not call.ty or found.shared(total):
            return None
        ratio = count * elements if is_call_of(call, "multiply") else count / elements
        rounding = 0.0 if call.dtype == "float64" else float(np.finfo(np.float32).eps)
        if not math.isclose(ratio, 1.0, rel_tol=max(rounding, 1e-15)):
            return None
        op = found.op(self.total)
        return make_call("mean", total.args, call.span, axis=op.axis, keepdims=op.keepdims)


class DecomposedVariance(PatternRule):
    """mean((x - mean(x))**2) = variance(x)"""

    x = wildcard()
    middle = is_op("mean")(x).has_attr({"keepdims": True})
    square = square_of(is_op("subtract")(x, middle))
    pattern = is_op("mean")(square)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, axes = found[self.x], reduced_axes(call)
        if axes != reduced_axes(found.call(self.middle)) or not x.dtype.is_float or found[self.square].ty is not x.ty:
            return Refused("the two means are over different dimensions, of integers, or the inner one broadcasts x")
        return _variance(x, call)


class VarianceOfMoments(PatternRule):
    """mean(x**2) - mean(x)**2 = variance(x)

    The fast variance of flax. The operator does not cancel if both are large, and is never negative.
    """

    x = wildcard()
    squares, middle = is_op("mean")(square_of(x)), is_op("mean")(x)
    pattern = is_op("subtract")(squares, square_of(middle))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        squares, middle = found.call(self.squares), found.call(self.middle)
        same = reduced_axes(squares) == reduced_axes(middle) and squares.ty is middle.ty is call.ty
        if not same or not call.dtype.is_float:
            return Refused("the means are over different dimensions, or of integers")
        return _variance(found[self.x], squares)


def _variance(x: Expr, mean: Call) -> Expr:
    """The variance of `x` over the dimensions of `mean`."""
    keepdims = expect_op(mean, Mean).keepdims
    return make_call("variance", (x,), mean.span, axis=reduced_axes(mean), keepdims=keepdims)


class LimitedVariance(PatternRule):
    """max(variance(x), 0) = variance(x)"""

    variance = is_op("variance")
    pattern = is_op("maximum")(variance, number(0.0, 0.0)) | is_op("nn.relu")(variance)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        return found[self.variance] if found[self.variance].ty is call.ty else None


MOMENT_RULES: tuple[type[PatternRule], ...] = (
    KeptDimensions,
    DecomposedMean,
    DecomposedVariance,
    VarianceOfMoments,
    LimitedVariance,
)
