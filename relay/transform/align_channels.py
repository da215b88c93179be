"""AlignChannels: images of three channels are padded to four, so that tensor cores are fed by whole words.

The first convolution of a network for images reads red, green and blue. In two bytes each, a pixel is 6 bytes: it is
copied element by element, by instructions that take many times as long as the products. Four channels are 8 bytes, one
asynchronous copy; the additional products with zeros are cheap.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.pad import Pad
from relayc.relay.transform.builders import NARROW
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["AlignChannels"]

_UNIT = 4
"""Channels are padded to a multiple of this, 8 bytes."""


class AlignChannels(RewritePass):
    """conv(x, w) = conv(x padded with channels of zeros, w padded likewise), for floats of two bytes, channels last.

    For ungrouped convolutions of at least three channels with constant weights.
    """

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, Conv1D | Conv2D | Conv3D):
            return call
        data, weight = call.args
        if not isinstance(weight, Constant):
            return call
        channels = data.shape[-1]
        if op.groups > 1 or not op.data_layout.endswith("C") or str(data.dtype) not in NARROW:
            return call
        if not isinstance(channels, int) or channels < _UNIT - 1 or channels % _UNIT == 0:
            return call
        more = -channels % _UNIT
        wide = Pad(pad_width=_behind(len(data.shape), len(data.shape) - 1, more))
        widths = _behind(weight.data.ndim, op.kernel_layout.index("I"), more)
        return Call(op, (make_call(wide, (data,)), Constant(np.pad(weight.data, widths))), span=call.span)


def _behind(rank: int, dimension: int, more: int) -> tuple[tuple[int, int], ...]:
    """Padding widths that append to one of `rank` dimensions."""
    return tuple([(0, more if i == dimension else 0) for i in range(rank)])
