"""Decomposed softmax, log softmax and log-sum-exp: rules of `RecognizePatterns`."""

from __future__ import annotations

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.nn.norm import LogSoftmax, Softmax
from relayc.relay.op.reduce import Max
from relayc.relay.pattern import Found, PatternRule, is_op, wildcard
from relayc.relay.transform.builders import reshaped
from relayc.relay.transform.decomposed_parts import number, reduced_axes
from relayc.relay.type import dims_equal
from relayc.te.ir.decisions import Refused

__all__ = ["SOFTMAX_RULES"]


class DecomposedSoftmax(PatternRule):
    """exp(x) / sum(exp(x)) = softmax(x), along one dimension

    TensorFlow and old torch models subtract max(x) from x first; `UnshiftedSoftmax` removes that. Without it, softmax
    has the same value as long as no exponential and no sum overflows, and stays finite beyond. (Views move behind
    exponentials.)
    """

    x = wildcard()
    raised = is_op("exp")(x)
    weight = raised | is_op("reshape")(raised)
    total = is_op("sum")(weight).has_attr({"keepdims": True})
    pattern = is_op("divide")(weight, total) | is_op("multiply")(weight, is_op("divide")(number(1.0, 0.0), total))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        total = found.call(self.total)
        axes = reduced_axes(total)
        if len(axes) != 1 or found[self.weight].ty is not call.ty or found.shared(total):
            return Refused("the sum is over several dimensions, or used elsewhere as well, or broadcasts exponentials")
        return make_call("nn.softmax", (reshaped(found[self.x], call.shape),), call.span, axis=axes[0])


class DecomposedLogSoftmax(PatternRule):
    """x - log(sum(exp(x))) = x - log_sum_exp(x) = log_softmax(x), along one dimension"""

    x = wildcard()
    total = is_op("sum")(is_op("exp")(x)).has_attr({"keepdims": True})
    known = is_op("log_sum_exp")(x).has_attr({"keepdims": True})
    pattern = is_op("subtract")(x, is_op("log")(total) | known)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        reduction = found.call(self.total if self.total in found else self.known)
        axes = reduced_axes(reduction)
        if len(axes) != 1 or found[self.x].ty is not call.ty or found.shared(reduction):
            return Refused("the sum is over several dimensions, or used elsewhere as well, or broadcasts x")
        return make_call("nn.log_softmax", (found[self.x],), call.span, axis=axes[0])


class DecomposedLogSumExp(PatternRule):
    """max(x) + log(sum(exp(x - max(x)))) = log_sum_exp(x)"""

    x = wildcard()
    largest = is_op("max")(x).has_attr({"keepdims": True})
    total = is_op("sum")(is_op("exp")(is_op("subtract")(x, largest))).has_attr({"keepdims": True})
    pattern = is_op("add")(largest, is_op("log")(total))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        axes = reduced_axes(found.call(self.total))
        if axes != reduced_axes(found.call(self.largest)) or found.shared(found[self.total]):
            return Refused("maximum and sum are over different dimensions, or the sum is used elsewhere as well")
        return make_call("log_sum_exp", (found[self.x],), call.span, axis=axes, keepdims=True)


class UnshiftedSoftmax(PatternRule):
    """softmax(x - max(x)) = softmax(x), if the maximum is constant along the softmax's dimension

    The rule also applies to log softmax; both operators subtract the maximum themselves.
    """

    x = wildcard()
    largest = is_op(Max)(x)
    pattern = is_op(Softmax, LogSoftmax)(is_op("subtract")(x, largest))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, largest = found[self.x], found.call(self.largest)
        axis = expect_op(call, Softmax, LogSoftmax).axis % len(call.shape)
        kept = found.op(self.largest).keepdims or not largest.shape
        if not kept or axis not in reduced_axes(largest) or x.ty is not call.ty:
            return Refused("the subtracted maximum varies along the dimension of the softmax, or broadcasts x")
        return make_call(call.operator, (x,), call.span)


class SoftmaxOfRows(PatternRule):
    """reshape(softmax(reshape(x))) = softmax(reshape(x)) along last dimensions of one size

    Exporters whose softmax takes matrices only (Caffe, MXNet) collapse all other dimensions into one.
    """

    x = wildcard()
    softmax = is_op(Softmax, LogSoftmax)(is_op("reshape")(x))
    pattern = is_op("reshape")(softmax)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        softmax, rank = found.call(self.softmax), len(call.shape)
        last = found.op(self.softmax).axis % len(softmax.shape) == len(softmax.shape) - 1
        if not last or not rank or not dims_equal(call.shape[-1], softmax.shape[-1]) or found.shared(softmax):
            return None
        moved = found.op(self.softmax).replace(axis=rank - 1)
        return make_call(moved, (reshaped(found[self.x], call.shape),), softmax.span)


SOFTMAX_RULES: tuple[type[PatternRule], ...] = (
    DecomposedSoftmax,
    DecomposedLogSoftmax,
    DecomposedLogSumExp,
    UnshiftedSoftmax,
    SoftmaxOfRows,
)
