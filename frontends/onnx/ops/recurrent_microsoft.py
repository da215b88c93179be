"""Stateful layers of com.microsoft: linear attention, causal convolution, and related operators."""

from __future__ import annotations

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.convolution import causally_convolved
from relayc.frontends.onnx.ops.linear_attention import linear_attention
from relayc.frontends.onnx.registry import Result, converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import product
from relayc.relay.type import shapes_match


def _require_last_state_only(node: OnnxNode) -> None:
    if node.attr_int("state_window", 0):
        raise node.unsupported("the states after each of the last positions (state_window)", expected="0")


@converter("LinearAttention", domain=MICROSOFT)
def microsoft_linear_attention(node: OnnxNode) -> Result:
    """ONNX's LinearAttention, with queries and keys that several heads of values may share."""
    _require_last_state_only(node)
    return linear_attention(node, shares_queries=True)


@converter("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(node: OnnxNode) -> list[Expr | None]:
    """decay_scale * softplus(a + dt_bias) in float32, and optionally sigmoid(b)."""
    require_rank(node, 0, 3, 3)
    for index in (1, 2):
        require_rank(node, index, 1, 1)
        if not shapes_match(node[index].shape, node[0].shape[2:]):
            raise node.error(f"input {index} is {node[index].ty}", expected="a value for each head")
    decay = op.multiply(node[2], op.nn.softplus(op.add(op.cast(node[0], "float32"), node[1])))
    rate = node.get(3)
    return [op.cast(decay, str(node.dtype(0))), None if rate is None else op.sigmoid(rate)]


@converter("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(node: OnnxNode) -> list[Expr]:
    """ONNX's CausalConvWithState with a dilation, optionally channels last."""
    if node.attr_int("ndim", 1) != 1:
        raise node.unsupported("convolutions of two and three dimensions (ndim)", expected="1")
    _require_last_state_only(node)
    dilation = node.attr_int("dilation", 1)
    if dilation < 1:
        raise node.error(f"a dilation of {dilation}", expected="1 or more")
    if not node.attr_bool("channels_last", False):
        return causally_convolved(node, dilation)
    require_rank(node, 0, 3)
    channels = node.type(0).shape[2:]
    moved = [None if x is None else transposed(reshape_to(x, (*x.shape[:2], product(channels))), (0, 2, 1))
             for x in (node[0], node.get(3))]  # fmt: skip
    results = causally_convolved(node.with_inputs([moved[0], node[1], node.get(2), moved[1]]), dilation)
    back = [transposed(y, (0, 2, 1)) for y in results]
    return [reshape_to(y, (*y.shape[:2], *channels)) for y in back]


@converter("BranchwiseRMSNorm", domain=MICROSOFT)
def branchwise_rms_norm(node: OnnxNode) -> Expr:
    """RMS normalisation of each branch of [.., branches, H] or, with `num_branches`, [.., branches * H]."""
    count, x = node.attr_int("num_branches", 0), op.cast(node[0], "float32")
    shape = x.shape
    if count:
        width = node.extent(x, -1, "the channels")
        if width % count:
            raise node.error(f"{width} channels in {count} branches")
        x = reshape_to(x, (*shape[:-1], count, width // count))
    require_rank(node, 0, 1 if count else 2)
    square = op.mean(op.multiply(x, x), axis=(-1,), keepdims=True)
    y = op.multiply(x, op.rsqrt(op.add(square, float_const(node.attr_float("epsilon", 1e-5), x))))
    scale = node.get(1)
    if scale is not None:
        own = scale.shape == x.shape[-1:] or len(scale.shape) == 2
        scale = op.cast(scale if own else reshape_to(scale, x.shape[-2:]), "float32")
        y = op.multiply(y, scale)
    return op.cast(reshape_to(y, shape), str(node.dtype(0)))
