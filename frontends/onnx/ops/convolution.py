"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered, counted, zeros
from relayc.frontends.onnx.ops.window import Window, reaches, read_window
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import add_sizes, floor_divide, larger, product, quotient
from relayc.relay.type import dims_match, shape_text, shapes_match
from relayc.te.tir import Dim

__all__ = ["biased_convolution", "causally_convolved", "convolve", "convolve_transposed"]

Convolution = Callable[..., Expr]

_CONV: dict[int, Convolution] = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
_CONV_TRANSPOSE: dict[int, Convolution] = {
    1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose,
}  # fmt: skip


@converter("Conv")
def conv(node: OnnxNode) -> Expr:
    return biased_convolution(node)


def biased_convolution(node: OnnxNode) -> Expr:
    """Convolution of X [N, C, spatial..] by W [M, C / group, kernel..] with optional bias [M]."""
    return _with_bias(node, convolve(node, node[0], node[1]))


def convolve(node: OnnxNode, x: Expr, w: Expr) -> Expr:
    """The convolution of `x` by `w` under the node's attributes."""
    data, weight = _operands(node, x, w)
    group = node.attr_int("group", 1)
    outputs = quotient((weight[0],), (group,)) if group >= 1 else None
    if outputs is None or not dims_match(data[1], product((weight[1], group))):
        raise node.error(
            f"{data[1]} input channels, weights for {weight[1]} in each of {group} groups of {weight[0]} outputs",
            expected="C = W's dimension 1 times group, and W's dimension 0 a multiple of group",
        )
    window = read_window(node, _kernel(node, weight), data[2:])
    x = window.bordered(x, 0.0)
    _check_fits(node, window, x.shape[2:])
    return _by_rank(node, _CONV, window.rank)(x, w, **_attributes(window), groups=group)


@converter("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Expr:
    return convolve_transposed(node)


def convolve_transposed(node: OnnxNode) -> Expr:
    """Transposed convolution of X [N, C, spatial..] by W [C, M / group, kernel..] with optional bias [M]."""
    data, weight = _operands(node, node[0], node[1])
    group = node.attr_int("group", 1)
    inputs = quotient((weight[0],), (group,)) if group >= 1 else None
    if inputs is None or not dims_match(data[1], weight[0]):
        raise node.error(f"{data[1]} input channels, weights for {weight[0]} in {group} groups")
    kernel = _kernel(node, weight)
    rank = len(kernel)
    extra = node.attr_ints("output_padding", (0,) * rank)
    if len(extra) != rank or min(extra, default=0) < 0:
        raise node.error(f"output_padding is {list(extra)}", expected=f"{rank} numbers of 0 or more")
    window, extra, cut = _transposed_window(node, kernel, data[2:], extra)
    function = _by_rank(node, _CONV_TRANSPOSE, rank)
    result = function(node[0], node[1], **_attributes(window), groups=group, output_padding=extra)
    for axis, (before, size) in enumerate(cut, start=2):
        result = op.strided_slice(result, (before,), (add_sizes(before, size),), axes=(axis,))
        result = bordered(result, axis, 0, add_sizes(size, product((-1, result.shape[axis]))))
    return _with_bias(node, result)


def _transposed_window(
    node: OnnxNode, kernel: Sequence[Dim], spatial: Sequence[Dim], extra: tuple[int, ...]
) -> tuple[Window, tuple[int, ...], Sequence[tuple[Dim, Dim]]]:
    """The window whose padding and output padding give `output_shape`, or the SAME shape.

    Negative padding becomes output padding. Where padding depends on symbolic sizes it is 0, and the third result has
    the (begin, size) along each axis of the slice to take of the result.
    """
    rank = len(kernel)
    auto = node.attr_choice("auto_pad", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "NOTSET")
    strides = node.attr_ints("strides", (1,) * rank)
    dilations = node.attr_ints("dilations", (1,) * rank)
    pads = node.attr_ints("pads", (0,) * (2 * rank))
    if any(len(v) != n for v, n in ((strides, rank), (dilations, rank), (pads, 2 * rank))):
        raise node.error("strides, dilations or pads do not fit the kernel's rank", expected=f"rank {rank}")
    if min(*strides, *dilations, 1) < 1 or min(pads, default=0) < 0:
        raise node.error("strides and dilations must be 1 or more, pads 0 or more")
    target: Sequence[Dim] | None = node.attrs.get_ints("output_shape")
    if target is not None:
        target = target[-rank:]
        if len(target) != rank:
            raise node.error(f"output_shape is {list(target)}", expected=f"{rank} numbers")
    elif auto.startswith("SAME"):
        target = [product((extent, stride)) for extent, stride in zip(spatial, strides, strict=True)]
    if target is None:
        padding = (0,) * (2 * rank) if auto == "VALID" else pads
        return Window(tuple(kernel), strides, dilations, padding), extra, ()
    reach = reaches(kernel, dilations)
    totals = [add_sizes(product((strides[i], spatial[i])), reach[i], extra[i] - strides[i], product((-1, target[i])))
              for i in range(rank)]  # fmt: skip
    known = tuple([total for total in totals if isinstance(total, int)])
    if len(known) != rank:
        cut = [larger(total, 0) for total in totals]
        cut = [floor_divide(n if auto == "SAME_UPPER" else add_sizes(n, 1), 2) for n in cut]
        return Window(tuple(kernel), strides, dilations, (0,) * (2 * rank)), extra, list(zip(cut, target, strict=True))
    before, after, more = [0] * rank, [0] * rank, list(extra)
    for i, total in enumerate(known):
        if total < 0:
            more[i] -= total
            total = 0
        small = total // 2
        before[i], after[i] = (total - small, small) if auto != "SAME_UPPER" else (small, total - small)
    return Window(tuple(kernel), strides, dilations, (*before, *after)), tuple(more), ()


def _operands(node: OnnxNode, x: Expr, w: Expr) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The shapes of data and weights."""
    data, weight = x.shape, w.shape
    if len(data) < 3 or len(weight) != len(data):
        raise node.error(f"data of rank {len(data)}, weights of rank {len(weight)}", expected="one rank, 3 or more")
    return data, weight


def _kernel(node: OnnxNode, weight: Sequence[Dim]) -> tuple[Dim, ...]:
    sizes = tuple(weight[2:])
    kernel = node.attrs.get_ints("kernel_shape")
    if kernel is None:
        return sizes
    if not shapes_match(kernel, sizes):
        raise node.error(f"kernel_shape {list(kernel)}", expected=f"{list(sizes)}, the shape of the weights")
    return kernel


def _check_fits(node: OnnxNode, window: Window, spatial: Sequence[Dim]) -> None:
    for axis, (extent, reach) in enumerate(zip(spatial, reaches(window.kernel, window.dilations), strict=True)):
        if not isinstance(extent, int) or not isinstance(reach, int):
            continue
        padded = extent + window.padding[axis] + window.padding[axis + window.rank]
        if padded < reach:
            raise node.error(f"a kernel reaching over {reach} of {padded} padded elements of spatial axis {axis}")


def _attributes(window: Window) -> dict[str, Any]:
    return {"strides": window.strides, "padding": window.padding, "dilation": window.dilations}


def _by_rank(node: OnnxNode, table: dict[int, Convolution], rank: int) -> Convolution:
    found = table.get(rank)
    if found is None:
        raise node.unsupported(f"{rank} spatial axes", expected="1, 2 or 3")
    return found


@converter("CausalConvWithState", since=27)
def causal_conv_with_state(node: OnnxNode) -> list[Expr]:
    """Causal depthwise convolution with a state.

    Inputs: X [N, C, L], W [C, 1, K], optional bias [C] and past [N, C, K - 1]. The second result is the new past. A
    symbolic number of channels can't be the groups of a convolution: windows are gathered and reduced.
    """
    return causally_convolved(node)


def causally_convolved(node: OnnxNode, dilation: int = 1) -> list[Expr]:
    """CausalConvWithState with a dilation."""
    x, w = node[0], node[1]
    data, weight = _operands(node, x, w)
    if len(data) != 3 or not shapes_match(weight[:2], (data[1], 1)):
        raise node.error(f"data {x.ty} and weights {w.ty}", expected="[N, C, L] and [C, 1, K]")
    batch, channels, length = data
    taps = weight[2]
    before = product((add_sizes(taps, -1), dilation))
    past = node.get(3)
    if past is not None and not shapes_match(past.shape, (batch, channels, before)):
        raise node.error(f"a past {past.ty}", expected=f"{shape_text((batch, channels, before))}")
    lead = zeros((batch, channels, before), str(x.dtype)) if past is None else past
    whole = op.concatenate([lead, x], axis=2)
    if isinstance(channels, int):
        result: Expr = op.nn.conv1d(whole, w, dilation=dilation, groups=channels)
    else:
        steps = op.multiply(counted(taps), const(dilation, "int64"))
        at = op.add(op.expand_dims(counted(length), 1), steps)
        result = op.sum(op.multiply(op.take(whole, at, axis=2, mode="fast"), w), axis=3)
    result = _with_bias(node, result)
    if node.attr_choice("activation", ("none", "silu", "swish"), "none") != "none":
        result = op.multiply(result, op.sigmoid(result))
    return [result, op.strided_slice(whole, (length,), (add_sizes(length, before),), axes=(2,))]


def _with_bias(node: OnnxNode, result: Expr) -> Expr:
    bias = node.get(2)
    if bias is None:
        return result
    if not shapes_match(bias.shape, result.shape[1:2]):
        raise node.error(f"a bias of shape {shape_text(bias.shape)}", expected=f"[{result.shape[1]}]")
    return op.nn.bias_add(result, bias, axis=1)
