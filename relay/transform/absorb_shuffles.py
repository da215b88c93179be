"""AbsorbShuffles: a channel shuffle is absorbed by the convolution that reads it, whose weights are permuted.

A shuffle splits the channels into parts, and takes the first of each, then the second of each, and so on. Operators
that treat each channel independently (activations, biases, depthwise convolutions) work in any order of channels, with
their constants permuted. So does a convolution over all channels. A grouped 1 x 1 convolution whose channels come
evenly from all parts reads from each pixel as many runs of adjacent channels as there are parts: it is a convolution
over a view of the image in which the parts of a pixel are adjacent pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.op.transform import Transpose
from relayc.relay.transform.builders import array_of, is_call_of, reshaped
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext
from relayc.topi.layout import Layout

__all__ = ["AbsorbShuffles"]

Array = np.ndarray[Any, Any]


class AbsorbShuffles(FunctionPass):
    """conv(shuffle(x), w) = conv(x, w'), for images with the channels last; see the module's docstring."""

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _absorbed)


@dataclass(frozen=True)
class _Shuffle:
    """Channel j * parts + p of its result is channel p * (channels / parts) + j of `image`."""

    image: Expr
    parts: int

    def unshuffled(self, numbers: Array, axis: int) -> Array:
        """Per-channel constants of the result, along an axis, in the channel order of the image."""
        count = numbers.shape[axis]
        places = np.arange(count).reshape(count // self.parts, self.parts).T.reshape(-1)
        return np.take(numbers, places, axis)


def _absorbed(call: Call, shared: Sharing) -> Expr:
    """The convolution `call` without the shuffle of its input; `call` itself if there is none."""
    if not _is_convolution(call) or _is_depthwise(call):
        return call
    chain: list[Call] = []
    at = call.args[0]
    while not shared(at) and isinstance(at, Call) and _keeps_channels(at):
        chain.append(at)
        at = at.args[_image_of(at)]
    shuffle = _shuffle(at, shared)
    if shuffle is None:
        return call
    x = shuffle.image
    for step in reversed(chain):
        args = [x if i == _image_of(step) else _reordered(step, i, shuffle) for i in range(len(step.args))]
        x = make_call(step.operator, args, step.span)
    return _of_all(call, x, shuffle) or _of_runs(call, x, shuffle) or call


def _of_all(call: Call, x: Expr, shuffle: _Shuffle) -> Expr | None:
    """A convolution over all channels, with weights in the channel order of `x`."""
    op, weight = call.op, call.args[1]
    assert isinstance(op, Conv2D)
    if op.groups > 1:
        return None
    weights = shuffle.unshuffled(array_of(weight), Layout(op.kernel_layout).index("I"))
    return make_call(op, (x, Constant(weights, span=weight.span)), call.span)


def _of_runs(call: Call, x: Expr, shuffle: _Shuffle) -> Expr | None:
    """A grouped 1 x 1 convolution that reads runs of channels: the parts of a pixel become columns of the image."""
    op, weight = call.op, call.args[1]
    assert isinstance(op, Conv2D)
    layout = Layout(op.kernel_layout)
    sizes = layout.axis_sizes(weight.shape)
    (n, h, w, channels), parts = x.shape, shuffle.parts
    known = isinstance(w, int) and isinstance(channels, int) and isinstance(sizes["I"], int)
    if not known or (sizes["H"], sizes["W"]) != (1, 1) or any(op.padding) or sizes["I"] % parts:
        return None
    oihw = array_of(weight).transpose([layout.index(axis) for axis in "OIHW"])
    outputs, inputs = oihw.shape[:2]
    runs = oihw.reshape(outputs, inputs // parts, 1, parts).transpose(["OIHW".index(axis) for axis in layout.axes])
    view = reshaped(x, (n, h, w * parts, channels // parts))
    strided = op.replace(strides=(op.strides[0], op.strides[1] * parts))
    return make_call(strided, (view, Constant(np.ascontiguousarray(runs), span=weight.span)), call.span)


def _is_convolution(e: Call) -> bool:
    """Is it a convolution of an image with the channels last, with constant weights?"""
    return isinstance(e.op, Conv2D) and e.op.data_layout == "NHWC" and isinstance(e.args[1], Constant)


def _is_depthwise(e: Call) -> bool:
    return isinstance(e.op, Conv2D) and 1 < e.op.groups == e.args[0].shape[-1] == e.shape[-1]


def _image_of(e: Call) -> int:
    """The position of the operand that is not constant."""
    return next((i for i, a in enumerate(e.args) if not isinstance(a, Constant)), 0)


def _keeps_channels(e: Call) -> bool:
    """Does it treat each channel of one image independently, with constants as its other operands?"""
    if not isinstance(e.op, OpDef) or len(e.shape) != 4 or sum(not isinstance(a, Constant) for a in e.args) != 1:
        return False
    if _is_convolution(e):
        return _is_depthwise(e)
    return e.op.follows_elements() and tuple(e.args[_image_of(e)].shape) == tuple(e.shape)


def _reordered(e: Call, position: int, shuffle: _Shuffle) -> Expr:
    """A constant operand of a channelwise operator, in the channel order of the image."""
    constant = e.args[position]
    axis = Layout(e.op.kernel_layout).index("O") if isinstance(e.op, Conv2D) else len(constant.shape) - 1
    if axis < 0 or constant.shape[axis] == 1:
        return constant
    return Constant(shuffle.unshuffled(array_of(constant), axis), span=constant.span)


def _shuffle(e: Expr, shared: Sharing) -> _Shuffle | None:
    """The shuffle that `e` is: reshape(transpose(reshape(x, (.., parts, channels / parts))))."""
    steps: list[Call] = []
    for name in ("reshape", "transpose", "reshape"):
        if shared(e) or not isinstance(e, Call) or not is_call_of(e, name):
            return None
        steps.append(e)
        e = e.args[0]
    merged, permuted, cut = steps
    assert isinstance(permuted.op, Transpose)
    *pixels, parts, each = cut.shape if len(cut.shape) == 5 else (0, 0)
    if not isinstance(parts, int) or not isinstance(each, int) or parts * each != e.shape[-1]:
        return None
    if permuted.op.axes != (0, 1, 2, 4, 3) or not tuple(pixels) == e.shape[:-1] == merged.shape[:-1]:
        return None
    return _Shuffle(e, parts)
