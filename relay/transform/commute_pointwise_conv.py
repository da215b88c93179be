"""CommutePointwiseConv: 1 x 1 convolutions are moved to where images are small, and merged with linear layers before
them.

A 1 x 1 convolution mixes the channels of each pixel. Upsampling mixes the pixels of each channel: `take` along height
or width, weights for rows and columns, sums. The two commute, so the convolution may be computed before the image is
upsampled, at a fraction of the work. Over a concatenation of channels it distributes to a sum of convolutions, each of
which may commute in turn; and right after a dense layer it merges into the weights of that layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.op.nn.dense import Dense
from relayc.relay.pattern import Found, PatternRule, is_constant, is_op, rewrite, wildcard
from relayc.relay.sizes import dims_equal, likely
from relayc.relay.transform.builders import array_of, is_call_of, reshaped, transposed
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["CommutePointwiseConv"]

_LEAST_GAIN = 2
"""Minimum factor by which the work must shrink: partial sums and upsampling other channels have a cost as well."""

_MAX_REGION = 64
"""Maximum number of operators between an image and its upsampled version."""


class CommutePointwiseConv(FunctionPass):
    """Commutes 1 x 1 convolutions with upsampling and concatenation, and merges them with dense layers."""

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        moved = rewrite([PointwiseOfConcatenated(), PointwiseOfResized()], function)
        return rewrite([PointwiseOfDense()], moved)


def _is_pointwise(e: Expr) -> bool:
    """Is it a convolution of NCHW images that mixes the channels of each pixel, with constant weights (O, I, 1, 1)?"""
    if not isinstance(e, Call) or not isinstance(e.op, Conv2D) or not isinstance(e.args[1], Constant):
        return False
    op, weight = e.op, e.args[1]
    plain = op.groups == 1 and op.data_layout == "NCHW" and op.kernel_layout == "OIHW"
    unmoved = tuple(op.strides) == (1, 1) and not any(op.padding) and weight.shape[2:] == (1, 1)
    return plain and unmoved and isinstance(e.args[0].shape[1], int)


def _macs(x: Expr, outputs: int) -> int:
    """Multiply-adds of a 1 x 1 convolution of x to `outputs` channels, an estimate for symbolic sizes."""
    return math.prod(map(likely, x.shape)) * outputs


class PointwiseOfResized(PatternRule):
    """conv(upsample(x), w) = upsample(conv(x, w))"""

    x, weight = wildcard(), is_constant()
    pattern = is_op("nn.conv2d")(x, weight).where(_is_pointwise)

    def replace(self, call: Call, found: Found) -> Expr | None:
        e = found[self.x]
        image = _image(e, found.shared)
        if image is None or _macs(image, 1) * _LEAST_GAIN > _macs(e, 1):
            return None
        moved = make_call(cast(OpDef, call.op), (image, found[self.weight]), call.span)
        return _replayed(e, {id(image): moved})


class PointwiseOfConcatenated(PatternRule):
    """conv(concatenate(x, y), [v, w]) = conv(x, v) + conv(y, w), where an operand of the concatenation is upsampled"""

    x, weight = wildcard(), is_constant()
    concatenated = is_op("concatenate").has_attr({"axis": 1})
    pattern = is_op("nn.conv2d")(concatenated, weight).where(_is_pointwise)

    def replace(self, call: Call, found: Found) -> Expr | None:
        concatenated, weight = found.call(self.concatenated), array_of(found[self.weight])
        widths = [d for part in concatenated.args if isinstance(d := part.shape[1], int)]
        if found.shared(concatenated) or len(widths) < max(len(concatenated.args), 2):
            return None
        images = [_image(part, found.shared) or part for part in concatenated.args]
        if _LEAST_GAIN * sum(_macs(image, 1) for image in images) > _macs(concatenated, 1):
            return None
        total: Expr | None = None
        begin = 0
        for part, width in zip(concatenated.args, widths, strict=True):
            end = begin + width
            columns = Constant(np.ascontiguousarray(weight[:, begin:end]), span=found[self.weight].span)
            term = make_call(cast(OpDef, call.op), (part, columns), call.span)
            moved = PointwiseOfResized.pattern.match(term, found.shared)
            term = term if moved is None else PointwiseOfResized().replace(term, moved) or term
            total = term if total is None else make_call("add", (total, term), call.span)
            begin = end
        return total


class PointwiseOfDense(PatternRule):
    """conv(image(dense(x, v) + b), w) = image(dense(x, w v) + w b), where image moves columns before rows"""

    x, inner, outer, bias = wildcard(), is_constant(), is_constant(), is_constant()
    dense = is_op(Dense)(x, inner)
    layer = dense | is_op("add")(dense, bias)
    columns_first = is_op("transpose")(layer).has_attr({"axes": (0, 2, 1)})
    image = is_op("reshape")(columns_first)
    pattern = is_op("nn.conv2d")(image, outer).where(_is_pointwise)

    def replace(self, call: Call, found: Found) -> Expr | None:
        chain = (found[self.image], found[self.columns_first], found[self.layer], found[self.dense])
        dense = found.call(self.dense)
        if any(found.shared(e) for e in chain) or found.op(self.dense).out_dtype not in (None, str(call.dtype)):
            return None
        v, w = array_of(found[self.inner]), array_of(found[self.outer])[:, :, 0, 0]
        middle, rows = v.shape[0], math.prod(map(likely, dense.shape[:-1]))
        same_channels = found[self.columns_first].shape[1] == found[self.image].shape[1] == middle
        smaller = rows * w.shape[0] * v.shape[1] < rows * middle * (v.shape[1] + w.shape[0])
        bias = array_of(found[self.bias]) if self.bias in found else None
        if not same_channels or not smaller or (bias is not None and bias.shape not in ((middle,), (1, 1, middle))):
            return None
        merged = Constant((w.astype(np.float64) @ v.astype(np.float64)).astype(v.dtype), span=found[self.outer].span)
        made: Expr = make_call(cast(OpDef, dense.op), (found[self.x], merged), call.span)
        if bias is not None:
            moved = w.astype(np.float64) @ bias.reshape(-1).astype(np.float64)
            made = make_call("add", (made, Constant(moved.astype(v.dtype))), call.span)
        return reshaped(transposed(made, (0, 2, 1)), call.shape, call.span)


def _image(e: Expr, shared: Sharing) -> Expr | None:
    """The one image (N, C, h, w) that `e` is computed from by mixing pixels, independently of the channel; None if
    there is none.

    Nothing between the two may be used elsewhere; a value that is read twice in between, for adjacent pixels, may.
    """
    region: dict[int, Call] = {}
    leaves: dict[int, Expr] = {}
    stack = [e]
    while stack:
        at = stack.pop()
        if id(at) in region:
            continue
        inputs = _mixes_pixels(at)
        if inputs is None or len(region) >= _MAX_REGION:
            leaves[id(at)] = at
            continue
        region[id(at)] = cast(Call, at)
        stack.extend(inputs)
    if len(leaves) != 1 or id(e) not in region:
        return None
    (image,) = leaves.values()
    return None if shared(e) or image.shape[:2] != e.shape[:2] or image.dtype != e.dtype else image


def _mixes_pixels(e: Expr) -> list[Expr] | None:
    """The images whose pixels `e` selects, scales or adds, equally in all channels; None if it does something else."""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or len(e.shape) != 4:
        return None
    if isinstance(e.op, Take):
        x, indices = e.args
        along = e.op.axis % len(x.shape) if len(x.shape) == 4 else 0
        fits = along >= 2 and len(indices.shape) == 1 and e.op.batch_dims == 0
        return [x] if fits else None
    if is_call_of(e, "add") and all(a.shape == e.shape for a in e.args):
        return list(e.args)
    if is_call_of(e, "multiply"):
        for x, factor in (e.args, e.args[::-1]):
            alike = len(factor.shape) <= 4 and all(dims_equal(d, 1) for d in factor.shape[:-2])
            if alike and x.shape == e.shape:
                return [x]
    return None


def _replayed(e: Expr, done: Mapping[int, Expr]) -> Expr:
    """`e` recomputed with the expressions in `done` replaced, for their number of channels."""
    made = dict(done)
    stack = [e]
    while stack:
        at = stack[-1]
        inputs = [] if id(at) in made else _mixes_pixels(at) or []
        waiting = [x for x in inputs if id(x) not in made]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        if id(at) not in made:
            call = cast(Call, at)
            args = [made.get(id(a), a) for a in call.args]
            made[id(at)] = make_call(cast(OpDef, call.op), args, call.span)
    return made[id(e)]
