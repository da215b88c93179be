"""FoldPad: a border of zeros becomes the padding of the convolution or pooling behind it (TVM: FoldExplicitPadding)."""

from __future__ import annotations

from typing import ClassVar

from relay.expr import Call, Expr, Function
from relay.op.base import OpDef, make_call
from relay.pattern import Found, PatternRule, is_op, rewrite, wildcard
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext

__all__ = ["FoldPad"]


class FoldPad(FunctionPass):
    """conv(pad(x)) = conv(x) with more padding, when only spatial dimensions are padded, and with 0.

    Average pooling takes the border in when it counts padded elements and has no padding of its own.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([PadBeforeConvolution(), PadBeforeAveragePooling()], function)


class PadBeforeConvolution(PatternRule):
    """conv(pad(x), w) = conv(x, w) with the pad added to its padding"""

    x = wildcard()
    pad = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op("nn.conv1d", "nn.conv2d", "nn.conv3d")(pad, wildcard())

    def replace(self, call: Call, found: Found) -> Expr | None:
        op = call.op
        assert isinstance(op, OpDef)
        more = _spatial_widths(found.call(self.pad), op.data_layout)  # type: ignore[attr-defined]
        if more is None:
            return None
        padding = tuple([a + b for a, b in zip(op.padding, more, strict=True)])  # type: ignore[attr-defined]
        return make_call(op.replace(padding=padding), (found[self.x], call.args[1]), call.span)  # type: ignore[call-arg]


class PadBeforeAveragePooling(PatternRule):
    """avg_pool(pad(x)) = avg_pool(x) with that padding, counted"""

    x = wildcard()
    pad = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op("nn.avg_pool")(pad)

    def replace(self, call: Call, found: Found) -> Expr | None:
        op = call.op
        assert isinstance(op, OpDef)
        more = _spatial_widths(found.call(self.pad), op.layout)  # type: ignore[attr-defined]
        if more is None or any(op.padding) or op.ceil_mode:  # type: ignore[attr-defined]
            return None
        counted = op.replace(padding=more, count_include_pad=True)  # type: ignore[call-arg]
        return make_call(counted, (found[self.x],), call.span)


def _spatial_widths(pad: Call, layout: str) -> tuple[int, ...] | None:
    """(begin..., end...) of the spatial axes; None when a pad has another value, cuts off or touches N or C."""
    widths: tuple[tuple[int, int], ...] = pad.op.pad_width  # type: ignore[union-attr]
    if pad.op.pad_value != 0 or any(w < 0 for pair in widths for w in pair):  # type: ignore[union-attr]
        return None
    if any(widths[layout.index(axis)] != (0, 0) for axis in "NC"):
        return None
    spatial = [pair for axis, pair in zip(layout, widths, strict=True) if axis not in "NC"]
    return (*[before for before, _ in spatial], *[after for _, after in spatial])
