"""Activations and other elementwise operators of the domain com.microsoft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import MICROSOFT, float_const
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Expr

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
    """gelu(x + bias) by tanh; the bias may be left out."""
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


# activations fused into other operators ---------------------------------------------------------------------------

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
"""By name: the function of x and its parameters, and what they are where they are not given."""


def activated(node: OnnxNode, x: Expr, params: Sequence[float | None]) -> Expr:
    """The activation that the attribute `activation` names, of `x`; none is the identity.

    Of `params`, those that are None or too few take their default, and those that it has no use for are left.
    """
    name = node.attr_str("activation", "")
    if name == "":
        return x
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"the fused activation {name!r}", expected="one of " + ", ".join(_ACTIVATIONS))
    function, defaults = _ACTIVATIONS[name]
    given = [*params, *[None] * len(defaults)]
    return function(x, [default if value is None else value for value, default in zip(given, defaults, strict=False)])
