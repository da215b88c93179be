"""Activations and other elementwise operators of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, reshape_to
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import product, quotient

__all__ = ["activated"]


@converter("Gelu", domain=MICROSOFT)
def gelu(node: OnnxNode) -> Expr:
    return op.nn.gelu(node[0])


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: OnnxNode) -> Expr:
    """gelu(x + bias)."""
    return op.nn.gelu(_biased(node))


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(node: OnnxNode) -> Expr:
    """tanh-approximated gelu(x + bias)."""
    return op.nn.gelu(node[0] if node.get(1) is None else _biased(node), approximate=True)


def _biased(node: OnnxNode) -> Expr:
    """Input 0 plus a vector along its last axis."""
    if node.rank(1) != 1:
        raise node.error(f"a bias of rank {node.rank(1)}", expected="a vector as long as the last axis")
    return op.add(node[0], node[1])


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: OnnxNode) -> Expr:
    """x * sigmoid(alpha * x)."""
    x, alpha = node[0], node.attr_float("alpha", 1.702)
    return op.nn.silu(x) if alpha == 1.0 else op.multiply(x, op.sigmoid(op.multiply(float_const(alpha, x), x)))


@converter("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(node: OnnxNode) -> Expr:
    """silu(scale * x)."""
    x, scale = node[0], node.get(1)
    alpha = node.attr_float("alpha", 1.0)
    if scale is None:
        return op.nn.silu(op.multiply(x, float_const(alpha, x)))
    return op.nn.silu(op.cast(op.multiply(op.cast(x, scale.dtype), reshape_to(scale, ())), x.dtype))


# sums -----------------------------------------------------------------------------------------------------------------


@converter("BiasAdd", domain=MICROSOFT)
def bias_add(node: OnnxNode) -> Expr:
    """x + bias + skip."""
    return op.add(_biased(node), node[2])


@converter("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(node: OnnxNode) -> Expr:
    """GEGLU: the first half of the channels of x + bias times the gelu of the second."""
    total = _biased(node)
    width, last = total.shape[-1], len(total.shape) - 1
    half = quotient((width,), (2,))
    if half is None:
        raise node.error(f"{width} channels", expected="an even number")
    left = op.strided_slice(total, (0,), (half,), axes=(last,))
    return op.multiply(left, op.nn.gelu(op.strided_slice(total, (half,), (width,), axes=(last,))))


@converter("BiasDropout", domain=MICROSOFT)
def bias_dropout(node: OnnxNode) -> list[Expr]:
    """Inference: x + bias + residual; the mask is all true."""
    node.attrs.ignore("seed")
    training = node.constant_or_none(4, "the training mode")
    if training is not None and bool(training.reshape(-1)[0]):
        raise node.unsupported("training_mode", expected="false")
    total = op.add(node[0], node[1])
    total = total if node.get(2) is None else op.add(total, node[2])
    return [total, op.ones(total.shape, "bool")]


@converter("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(node: OnnxNode) -> Expr:
    """softmax(x + bias) over the flattened axes from `axis` on; the bias broadcasts."""
    x, bias, rank = node[0], node[1], node.rank(0)
    axis = node.axis(node.attr_int("axis", 1), rank)
    if not node.attr_bool("is_inner_broadcast", True) and len(bias.shape) < rank:
        bias = op.expand_dims(bias, 0, rank - len(bias.shape))
    total = op.add(x, bias)
    lead, inner = product(total.shape[:axis]), product(total.shape[axis:])
    return reshape_to(op.nn.softmax(reshape_to(total, (lead, inner)), axis=1), total.shape)


@converter("GatedAdd", domain=MICROSOFT)
def gated_add(node: OnnxNode) -> Expr:
    """x + y * gate."""
    return op.add(node[0], op.multiply(node[1], node[2]))


@converter("MulInteger", domain=MICROSOFT)
def mul_integer(node: OnnxNode) -> Expr:
    """(A - a_zero_point) * (B - b_zero_point) in int32."""
    factors: list[Expr] = []
    for index in (0, 2):
        x, zero = op.cast(node[index], "int32"), node.get(index + 1)
        factors.append(x if zero is None else op.subtract(x, reshape_to(op.cast(zero, "int32"), ())))
    return op.multiply(*factors)


@converter("IsAllFinite", domain=MICROSOFT)
def is_all_finite(node: OnnxNode) -> Expr:
    """Are all elements of all inputs finite? Attributes restrict the test to NaN or infinity."""
    only_nan, only_inf = node.attr_bool("isnan_only", False), node.attr_bool("isinf_only", False)
    if only_nan and only_inf:
        raise node.error("isnan_only and isinf_only", expected="one of them, or none")
    strange = op.isnan if only_nan else op.isinf if only_inf else lambda x: op.logical_not(op.isfinite(x))
    found = [op.any(strange(x), axis=None, keepdims=False) for x in node.all_inputs()]
    return op.logical_not(reduce(op.logical_or, found))


# activations fused into other operators -------------------------------------------------------------------------------

Activation = Callable[[Expr, Sequence[float]], Expr]

_ACTIVATIONS: dict[str, tuple[Activation, tuple[float, ...]]] = {
    "Clip": (lambda x, p: op.clip(x, p[0], p[1]), (-3.4028234663852886e38, 3.4028234663852886e38)),
    "Elu": (lambda x, p: op.nn.elu(x, p[0]), (1.0,)),
    "HardSigmoid": (lambda x, p: op.nn.hard_sigmoid(x, p[0], p[1]), (0.2, 0.5)),
    "HardSwish": (lambda x, p: op.nn.hard_swish(x), ()),
    "LeakyRelu": (lambda x, p: op.nn.leaky_relu(x, p[0]), (0.01,)),
    "Relu": (lambda x, p: op.nn.relu(x), ()),
    "Selu": (lambda x, p: op.nn.selu(x, p[0], p[1]), (1.6732632423543772, 1.0507009873554805)),
    "Sigmoid": (lambda x, p: op.sigmoid(x), ()),
    "Softplus": (lambda x, p: op.nn.softplus(x), ()),
    "Softsign": (lambda x, p: op.nn.softsign(x), ()),
    "Tanh": (lambda x, p: op.tanh(x), ()),
    "ThresholdedRelu": (lambda x, p: op.nn.thresholded_relu(x, p[0]), (1.0,)),
}
"""Activation name -> (function of x and its parameters, their defaults)."""


def activated(node: OnnxNode, x: Expr, params: Sequence[float | None]) -> Expr:
    """Apply the activation named by the attribute `activation` to `x`; without one, the identity.

    `params` that are None or missing take their default; superfluous ones are ignored.
    """
    name = node.attr_str("activation", "")
    if name == "":
        return x
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"the fused activation {name!r}", expected="one of " + ", ".join(_ACTIVATIONS))
    function, defaults = _ACTIVATIONS[name]
    passed = [*params, *[None] * len(defaults)]
    return function(x, [default if value is None else value for value, default in zip(passed, defaults, strict=False)])
