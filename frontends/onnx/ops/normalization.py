"""Normalisation operators: batch, layer, RMS, instance, group, Lp and local response."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import float_const, in_float32, reshape_to, zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import dims_match, product, quotient
from relayc.relay.type import shapes_equal, shapes_match

__all__ = ["group_normalized", "layer_normalized", "rms_normalized"]


@converter("BatchNormalization", since=1)
def batch_normalization(node: OnnxNode) -> list[Expr | None]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias per channel. Training mode uses batch statistics."""
    epsilon, momentum = node.attr_float("epsilon", 1e-5), node.attr_float("momentum", 0.9)
    if not node.attr_bool("spatial", True):
        raise node.unsupported("statistics per position (spatial=0)")
    training = node.attr_bool("training_mode", False) if node.opset >= 14 else False
    if node.opset < 7 and not node.attr_bool("is_test", False) and any(node.wants(i) for i in range(1, 5)):
        raise node.unsupported("training outputs before opset 7")
    if training:
        return _batch_norm_training(node, epsilon, momentum)
    if any(node.wants(i) for i in range(1, 5)):
        raise node.unsupported("outputs of training mode", remedy="export the model for inference")
    channels = node.type(0).shape[1] if node.rank(0) > 1 else 1
    for index in range(1, 5):
        if not shapes_match(node.type(index).shape, (channels,)):
            raise node.error(f"input {index} is {node.type(index)}", expected=f"the shape ({channels},)")
    x, scale, bias, mean, variance = (_as(node[i], node[0]) for i in range(5))
    return [op.nn.batch_norm(x, scale, bias, mean, variance, axis=1, epsilon=epsilon)[0]]


def _batch_norm_training(node: OnnxNode, epsilon: float, momentum: float) -> list[Expr | None]:
    x = _wide(node[0])
    axes = tuple(i for i in range(node.rank(0)) if i != 1)
    mean = op.mean(x, axis=axes, keepdims=True)
    centred = op.subtract(x, mean)
    variance = op.mean(op.multiply(centred, centred), axis=axes, keepdims=True)
    shape = tuple(n if i == 1 else 1 for i, n in enumerate(node.type(0).shape))
    scaled = op.multiply(_normalised(centred, variance, epsilon), reshape_to(_as(node[1], x), shape))
    result = op.add(scaled, reshape_to(_as(node[2], x), shape))

    def running(old: Expr, new: Expr) -> Expr:
        kept = op.multiply(old, float_const(momentum, old))
        return op.add(kept, op.multiply(reshape_to(_as(new, old), old.shape), float_const(1.0 - momentum, old)))

    return [_as(result, node[0]), running(node[3], mean), running(node[4], variance)]


def _as(value: Expr, x: Expr) -> Expr:
    return value if value.dtype == x.dtype else op.cast(value, x.dtype)


def _normalised(centred: Expr, variance: Expr, epsilon: float) -> Expr:
    return op.multiply(centred, op.rsqrt(op.add(variance, float_const(epsilon, variance))))


@converter("LayerNormalization", since=1)
def layer_normalization(node: OnnxNode) -> list[Expr]:
    """Layer normalisation over the axes from `axis` on. Also returns mean and 1 / deviation.

    In ONNX since opset 17; onnxruntime's optimizer also writes it to the default domain of older models.
    """
    node.attrs.ignore("stash_type")
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    epsilon = node.attr_float("epsilon", 1e-5)
    statistics = node.wants(1) or node.wants(2)
    return layer_normalized(node[0], node[1], node.get(2), axis, epsilon, statistics)


def layer_normalized(
    x: Expr, scale: Expr, bias: Expr | None, axis: int, epsilon: float, statistics: bool = False
) -> list[Expr]:
    """Layer normalisation over the axes from `axis` on; with `statistics` also mean and 1 / deviation."""
    last = x.shape[axis:]
    fits = shapes_equal(scale.shape, last) and (bias is None or shapes_equal(bias.shape, last))
    if fits and not statistics and 0 not in last and x.dtype == scale.dtype and x.dtype.bits >= 32:
        offset = zeros(scale.shape, str(scale.dtype)) if bias is None else bias
        return [op.nn.layer_norm(x, scale, offset, axis=axis, epsilon=epsilon)]
    wide = _wide(x)
    axes = tuple(range(axis, len(x.shape)))
    mean = op.mean(wide, axis=axes, keepdims=True)
    centred = op.subtract(wide, mean)
    variance = op.mean(op.multiply(centred, centred), axis=axes, keepdims=True)
    inverse = op.rsqrt(op.add(variance, float_const(epsilon, variance)))
    result = op.multiply(_as(op.multiply(centred, inverse), scale), scale)
    return [result if bias is None else op.add(result, bias), mean, inverse]


def _wide(x: Expr) -> Expr:
    """`x` in the type of the statistics: at least float32."""
    return x if x.dtype.bits >= 32 else op.cast(x, "float32")


@converter("RMSNormalization", since=23)
def rms_normalization(node: OnnxNode) -> Expr:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on."""
    node.attrs.ignore("stash_type")
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    return rms_normalized(node[0], node[1], axis, node.attr_float("epsilon", 1e-5))[0]


def rms_normalized(x: Expr, scale: Expr, axis: int, epsilon: float, statistics: bool = False) -> list[Expr]:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on; with `statistics` also 1 / the root."""
    fits = shapes_equal(scale.shape, x.shape[axis:])
    if fits and not statistics and x.dtype == scale.dtype and x.dtype.bits >= 32:
        return [op.nn.rms_norm(x, scale, axis=axis, epsilon=epsilon)]
    wide = _wide(x)
    mean_square = op.mean(op.multiply(wide, wide), axis=tuple(range(axis, len(x.shape))), keepdims=True)
    inverse = op.rsqrt(op.add(mean_square, float_const(epsilon, mean_square)))
    return [op.multiply(_as(op.multiply(wide, inverse), scale), scale), inverse]


@converter("InstanceNormalization")
def instance_normalization(node: OnnxNode) -> Expr:
    """Normalisation over the spatial axes, with scale and bias per channel."""
    return op.nn.instance_norm(node[0], node[1], node[2], axis=1, epsilon=node.attr_float("epsilon", 1e-5))


@converter("GroupNormalization", since=18)
def group_normalization(node: OnnxNode) -> Expr:
    """Normalisation over groups of channels. Scale and bias are per group, from opset 21 per channel."""
    node.attrs.ignore("stash_type")
    return group_normalized(node, node[0], node.attr_int("num_groups"), node.attr_float("epsilon", 1e-5))


def group_normalized(node: OnnxNode, data: Expr, groups: int, epsilon: float) -> Expr:
    """Group normalisation of `data` [N, C, spatial..]; scale and bias are inputs 1 and 2."""
    shape, rank = data.shape, len(data.shape)
    in_group = quotient(shape[1:2], (groups,)) if rank >= 2 and groups >= 1 else None
    if in_group is None:
        raise node.error(f"{groups} groups of {data.ty}", expected="a divisor of the channels")
    parts = node.type(1).shape[0] if node.rank(1) else 1
    if parts != groups and not dims_match(parts, shape[1]):
        raise node.error(f"a scale of {parts} elements", expected=f"{groups} or {shape[1]}")
    parameters = [node[1], node[2]]
    if isinstance(in_group, int) and data.dtype == node.dtype(1) and data.dtype.bits >= 32:
        if parts == groups:
            parameters = [op.repeat(p, in_group, axis=0) for p in parameters]
        return op.nn.group_norm(data, *parameters, num_groups=groups, axis=1, epsilon=epsilon)
    grouped = reshape_to(_wide(data), (shape[0], groups, product((in_group, *shape[2:]))))
    x = _as(_centred_and_scaled(grouped, (2,), epsilon), node[1])
    in_part = in_group if parts == groups else 1
    split = reshape_to(x, (shape[0], parts, product((in_part, *shape[2:]))))
    scaled = op.add(op.multiply(split, reshape_to(node[1], (parts, 1))), reshape_to(node[2], (parts, 1)))
    return _as(reshape_to(scaled, shape), data)


def _centred_and_scaled(x: Expr, axes: tuple[int, ...], epsilon: float) -> Expr:
    centred = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
    variance = op.mean(op.multiply(centred, centred), axis=axes, keepdims=True)
    return _normalised(centred, variance, epsilon)


@converter("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: OnnxNode) -> Expr:
    """(x - mean) / (deviation + 1e-9) over the axes; over all of them if none are named."""
    axes = node.axes(node.attr_ints("axes", (0, 2, 3)) or range(node.rank(0)), node.rank(0))

    def normalized(x: Expr) -> Expr:
        centred = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
        deviation = op.sqrt(op.mean(op.multiply(centred, centred), axis=axes, keepdims=True))
        return op.divide(centred, op.add(deviation, float_const(1e-9, x)))

    return in_float32(normalized, node[0])


@converter("LpNormalization")
def lp_normalization(node: OnnxNode) -> Expr:
    """x divided by its p-norm along `axis`; 0 where the norm is 0."""
    x, p = node[0], node.attr_int("p", 2)
    axis = (node.axis(node.attr_int("axis", -1), node.rank(0)),)
    if p not in (1, 2):
        raise node.error(f"p is {p}", expected="1 or 2")
    if p == 2:
        least = np.finfo(np.float64 if x.dtype == "float64" else np.float32).smallest_subnormal
        return op.nn.l2_normalize(x, eps=float(least), axis=axis)
    return in_float32(lambda v: _by_sum(v, axis), x)


def _by_sum(x: Expr, axis: tuple[int, ...]) -> Expr:
    """x divided by the sum of absolute values along `axis`; 0 where that is 0."""
    norm = op.sum(op.abs(x), axis=axis, keepdims=True)
    safe = op.where(op.equal(norm, float_const(0.0, x)), float_const(1.0, x), norm)
    return op.divide(x, safe)


@converter("LRN")
def lrn(node: OnnxNode) -> Expr:
    """Local response normalisation across channels."""
    return op.nn.lrn(
        node[0],
        size=node.attr_int("size"),
        axis=1,
        bias=node.attr_float("bias", 1.0),
        alpha=node.attr_float("alpha", 1e-4),
        beta=node.attr_float("beta", 0.75),
    )
