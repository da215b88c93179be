"""FoldPad: folds padding into the convolution or pooling that reads it (TVM: FoldExplicitPadding)."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Expr, Function
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.elementwise import Clip
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.pad import Pad
from relayc.relay.op.nn.pool import AvgPool, MaxPool
from relayc.relay.pattern import Found, PatternRule, is_op, rewrite, wildcard
from relayc.relay.sizes import is_at_least
from relayc.relay.transform.builders import MOST_STEPS, is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.dtype import DType
from relayc.te.ir import PassContext

__all__ = ["FoldPad"]


class FoldPad(FunctionPass):
    """conv(pad(x)) = conv(x) with more padding, if only spatial dimensions are padded, with 0.

    Average pooling absorbs padding with zeros if it counts padded elements or has no padding of its own, max pooling
    padding with the lowest value, or with zeros around non-negative data.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


class PadBeforeConvolution(PatternRule):
    """conv(pad(x), w) = conv(x, w) with the padding added to its own"""

    x = wildcard()
    pad = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op(Conv1D, Conv2D, Conv3D)(pad, wildcard())

    def replace(self, call: Call, found: Found) -> Expr | None:
        op = expect_op(call, Conv1D, Conv2D, Conv3D)
        more = _spatial_widths(found.call(self.pad), op.data_layout)
        if more is None:
            return None
        padding = tuple([a + b for a, b in zip(op.padding, more, strict=True)])
        return make_call(op.replace(padding=padding), (found[self.x], call.args[1]), call.span)


class PadBeforeAveragePooling(PatternRule):
    """avg_pool(pad(x)) = avg_pool(x) with that padding, counted"""

    x = wildcard()
    pad = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op(AvgPool)(pad)

    def replace(self, call: Call, found: Found) -> Expr | None:
        op = expect_op(call, AvgPool)
        more = _spatial_widths(found.call(self.pad), op.layout)
        uncounted = any(op.padding) and not op.count_include_pad
        if more is None or uncounted or op.ceil_mode:
            return None
        padding = tuple([a + b for a, b in zip(op.padding, more, strict=True)])
        counted = op.replace(padding=padding, count_include_pad=True)
        return make_call(counted, (found[self.x],), call.span)


class PadBeforeMaxPooling(PatternRule):
    """max_pool(pad(x)) = max_pool(x) with that padding, if it has the lowest value

    Or zeros if x is not negative, and every window contains an element of x.
    """

    x = wildcard()
    pad = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op(MaxPool)(pad)

    def replace(self, call: Call, found: Found) -> Expr | None:
        op, x, pad = expect_op(call, MaxPool), found[self.x], found.call(self.pad)
        value = expect_op(pad, Pad).pad_value
        more = _spatial_widths(pad, op.layout, value)
        if more is None:
            return None
        padded = op.replace(padding=tuple([a + b for a, b in zip(op.padding, more, strict=True)]))
        never_wins = value == _least(x.dtype) or (value == 0 and _is_not_negative(x) and _meets_all(padded, x))
        pooled = make_call(padded, (x,), call.span) if never_wins else None
        return pooled if pooled is not None and pooled.ty is call.ty else None  # rounded up, there may be fewer windows


def _least(dtype: DType) -> float:
    """The lowest value of a type."""
    return float("-inf") if dtype.is_float else dtype.min_value()


def _meets_all(op: MaxPool, x: Expr) -> bool:
    """Does every window contain an element of `x`, and not only padding?"""
    windows = op.spec(len(x.shape))
    return all(
        max(windows.begin[k], windows.end[k]) < windows.reach(k) and is_at_least(x.shape[a], windows.dilation[k])
        for k, a in enumerate(windows.axes)
    )


_NOT_NEGATIVE = ("nn.relu", "sigmoid", "nn.hard_sigmoid", "abs", "exp", "sqrt", "nn.softmax", "nn.softplus")
_AS_ITS_OPERANDS = ("nn.max_pool", "nn.avg_pool", "concatenate", "reshape", "transpose", "strided_slice", "add")
"""Operators whose results are not negative where their operands are not."""


def _is_not_negative(e: Expr, steps: int = MOST_STEPS) -> bool:
    """Is every element of `e` at least 0?"""
    if e.dtype.is_uint:
        return True
    if not isinstance(e, Call) or not e.dtype.is_float or not steps:
        return False
    if isinstance(e.op, Clip):
        return e.op.a_min is not None and e.op.a_min >= 0
    if is_call_of(e, "maximum", *_AS_ITS_OPERANDS):
        holds = any if is_call_of(e, "maximum") else all
        return holds(_is_not_negative(a, steps - 1) for a in e.args)
    return is_call_of(e, *_NOT_NEGATIVE)


def _spatial_widths(pad: Call, layout: str, value: float = 0.0) -> tuple[int, ...] | None:
    """(begin..., end...) of the spatial axes; None if the pad has another value, crops, or pads N or C."""
    op = expect_op(pad, Pad)
    widths = op.pad_width
    if op.pad_value != value or any(w < 0 for pair in widths for w in pair):
        return None
    if any(widths[layout.index(axis)] != (0, 0) for axis in "NC"):
        return None
    spatial = [pair for axis, pair in zip(layout, widths, strict=True) if axis not in "NC"]
    return (*[before for before, _ in spatial], *[after for _, after in spatial])


RULES: tuple[type[PatternRule], ...] = (PadBeforeConvolution, PadBeforeAveragePooling, PadBeforeMaxPooling)
