"""Convolutions of com.microsoft: channels last, fused, with computed pads."""

from __future__ import annotations

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, require_rank, transposed
from relayc.frontends.onnx.ops.convolution import biased_convolution, convolve_transposed
from relayc.frontends.onnx.ops.elementwise_microsoft import activated
from relayc.frontends.onnx.ops.quantization import q_linear_conv
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import add_sizes, product


def fused_conv(node: OnnxNode) -> Expr:
    """Conv, optional addition of Z, activation."""
    result = biased_convolution(node)
    if node.get(3) is not None:
        result = op.add(result, node[3])
    return activated(node, result, node.attrs.get_floats("activation_params") or ())


convert_with(fused_conv, "FusedConv", domain=MICROSOFT)


@converter("NhwcConv", domain=MICROSOFT)
def nhwc_conv(node: OnnxNode) -> Expr:
    """Conv in channels-last layout, usually of the weights too."""
    return _channels_last(biased_convolution(_weights_first(_channels_first(node))))


@converter("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(node: OnnxNode) -> Expr:
    """FusedConv in channels-last layout, usually of the weights too."""
    return _channels_last(fused_conv(_weights_first(_channels_first(node, 3))))


@converter("QLinearConv", domain=MICROSOFT)
def microsoft_q_linear_conv(node: OnnxNode) -> Expr:
    """QLinearConv, optionally channels last."""
    if not node.attr_bool("channels_last", False):
        return q_linear_conv(node)
    return _channels_last(q_linear_conv(_channels_first(node)))


@converter("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_with_dynamic_pads(node: OnnxNode) -> Expr:
    """ConvTranspose with pads as input 2 and the bias as input 3."""
    result = convolve_transposed(node.with_inputs([node[0], node[1]]))
    rank = len(result.shape) - 2
    if node.get(2) is not None:
        pads = node.sizes(2, "the pads", 2 * rank)
        for i in range(rank):
            end = add_sizes(result.shape[2 + i], product((-1, pads[rank + i])))
            result = op.strided_slice(result, (pads[i],), (end,), axes=(2 + i,))
    return result if node.get(3) is None else op.nn.bias_add(result, node[3], axis=1)


def _channels_first(node: OnnxNode, *others: int) -> OnnxNode:
    """The node with input 0, and those of `others` that are present, in channels-first layout."""
    require_rank(node, 0, 3)
    order = (0, node.rank(0) - 1, *range(1, node.rank(0) - 1))
    moved = [i for i in (0, *others) if node.get(i) is not None]
    inputs = [transposed(node[i], order) if i in moved else node.get(i) for i in range(len(node))]
    return node.with_inputs(inputs)


def _weights_first(node: OnnxNode) -> OnnxNode:
    """The node with weights [M, C / group, kernel..].

    onnxruntime documents this layout, but its optimizer writes [M, kernel.., C / group].
    """
    weight, rank = node.shape(1), node.rank(0)
    channels, group = node.type(0).shape[1], node.attr_int("group", 1)
    if len(weight) != rank:
        raise node.error(f"weights of rank {len(weight)} for data of rank {rank}")
    kernel = node.attrs.get_ints("kernel_shape")
    front, back = (
        (not isinstance(channels, int) or depth * group == channels) and kernel in (None, spatial)
        for depth, spatial in ((weight[1], weight[2:]), (weight[-1], weight[1:-1]))
    )
    if front == back:
        problem = "either order" if front else "neither order"
        raise node.unsupported(f"weights {list(weight)}, which fit {problem}",
                               expected="[M, C / group, kernel..] or [M, kernel.., C / group]")  # fmt: skip
    if front:
        return node
    moved = transposed(node[1], (0, rank - 1, *range(1, rank - 1)))
    return node.with_inputs([node[0], moved, *[node.get(i) for i in range(2, len(node))]])


def _channels_last(x: Expr) -> Expr:
    return transposed(x, (0, *range(2, len(x.shape)), 1))
