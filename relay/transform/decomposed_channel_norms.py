"""Instance and group norms decomposed into smaller operators: rules of `RecognizePatterns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, numpy_dtype
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.nn.norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm, Standardize
from relayc.relay.op.transform import Transpose
from relayc.relay.pattern import Found, PatternRule, is_constant, is_op, wildcard
from relayc.relay.transform.builders import array_of, reshaped, static_shape
from relayc.relay.transform.decomposed_parts import reduced_axes
from relayc.relay.type import dims_match, shapes_equal
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Dim

__all__ = ["CHANNEL_NORM_RULES"]


_CHANNEL_NORMS = (InstanceNorm, GroupNorm)


def _per_channel(constant: Expr, norm: Call) -> np.ndarray[Any, Any] | None:
    """A constant as one value for each channel of `norm`; None if it varies otherwise."""
    number, rank = array_of(constant), len(norm.shape)
    axis, channels = expect_op(norm, *_CHANNEL_NORMS).axis % rank, array_of(norm.args[1]).size
    if number.ndim > rank:
        return None
    shape = (1,) * (rank - number.ndim) + number.shape
    if any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(number.reshape(-1), (channels,))


def _is_one(constant: Constant) -> bool:
    return bool((constant.data == 1).all())


def _per_split_channel(constant: Expr, norm: Call, shape: Sequence[Dim]) -> np.ndarray[Any, Any] | None:
    """A constant as one value for each channel, after a view of `norm` to `shape`, whose last two dimensions are the
    channels."""
    number, rank = array_of(constant), len(shape)
    split = shape[-2:]
    last = expect_op(norm, *_CHANNEL_NORMS).axis % len(norm.shape) == len(norm.shape) - 1
    if not last or rank != len(norm.shape) + 1 or not shapes_equal(shape[:-2], norm.shape[:-1]) or number.ndim > rank:
        return None
    sides = (*(1,) * (2 - number.ndim), *number.shape)
    if any(d != 1 for d in sides[:-2]) or any(d not in (1, n) for d, n in zip(sides[-2:], split, strict=True)):
        return None
    return np.broadcast_to(number.reshape(sides[-2:]), static_shape(split)).reshape(-1)


class DecomposedGroupNorm(PatternRule):
    """instance_norm(reshape(x, [N, G, -1]), gamma, beta) = reshape(group_norm(x, gamma', beta', G), [N, G, -1])

    gamma' and beta' are the parameters of the groups, repeated for each channel. Torch exports this form before opset
    21, followed by a reshape back and the scales of channels, with other operators possibly in between.
    """

    x, gamma, beta = wildcard(), is_constant(), is_constant()
    pattern = is_op("nn.instance_norm")(is_op("reshape")(x), gamma, beta)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, op = found[self.x], expect_op(call, InstanceNorm)
        groups, channels = call.shape[1], next(iter(x.shape[1:]), None)
        plain = len(call.shape) == 3 and op.axis == 1
        if not plain or not dims_match(call.shape[0], x.shape[0]):
            return Refused("the view is not (batch, groups, elements) of the batch of the input")
        if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
            return Refused(f"{channels} channels are not a static multiple of {groups} groups")
        size, epsilon = channels // groups, op.epsilon
        parameters = [Constant(array_of(found[p]).repeat(size), span=found[p].span) for p in (self.gamma, self.beta)]
        norm = make_call("nn.group_norm", (x, *parameters), call.span, num_groups=groups, axis=1, epsilon=epsilon)
        return reshaped(norm, call.shape)


def _group_norm(call: Call, x: Expr, groups: int, channels: int, axis: int) -> Expr:
    """The result of `call`, a norm of a view of `x`, computed by a group norm of its channels along `axis`."""
    one, epsilon = np.ones(channels, numpy_dtype(x.dtype)), expect_op(call, LayerNorm, Standardize).epsilon
    parameters = (Constant(one), Constant(np.zeros_like(one)))
    norm = make_call("nn.group_norm", (x, *parameters), call.span, num_groups=groups, axis=axis, epsilon=epsilon)
    return reshaped(norm, call.shape)


class GroupNormOfRows(PatternRule):
    """layer_norm(reshape(x, [N, G, -1]), 1, 0) = reshape(group_norm(x, 1, 0, G), [N, G, -1])

    The rule also applies to a standardisation of rows of dynamic size.
    """

    x = wildcard()
    rows = is_op("reshape")(x)
    norm = is_op(LayerNorm)(rows, is_constant(_is_one), is_constant(lambda c: not c.data.any()))
    pattern = norm | is_op("nn.standardize")(rows).has_attr({"axis": (2,), "margin": 0.0, "centred": True})

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x = found[self.x]
        if len(call.shape) != 3 or (self.norm in found and found.op(self.norm).axis % 3 != 2):
            return None
        if len(x.shape) < 3 or not dims_match(call.shape[0], x.shape[0]):
            return Refused("the view is not (batch, groups, elements) of the batch of an input with channels")
        count, size = call.shape[1], x.shape[1]
        if not isinstance(count, int) or not isinstance(size, int) or size <= count or size % count:
            return Refused(f"{size} channels are not a static multiple of {count} groups")
        return _group_norm(call, x, count, size, axis=1)


class GroupNormOfSplitChannels(PatternRule):
    """standardize(reshape(x, [N, ..., G, C / G])) over all but N and G = reshape(group_norm(x, 1, 0, G)), channels last

    The group norm of Keras.
    """

    x = wildcard()
    pattern = is_op("nn.standardize")(is_op("reshape")(x)).has_attr({"margin": 0.0, "centred": True})

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, rank = found[self.x], len(call.shape)
        if rank < 4 or len(x.shape) != rank - 1 or not shapes_equal(x.shape[:-1], call.shape[:-2]):
            return None
        groups, channels = call.shape[-2], x.shape[-1]
        if reduced_axes(call) != (*range(1, rank - 2), rank - 1):
            return None
        if not isinstance(groups, int) or not isinstance(channels, int):
            return Refused("the number of groups or of channels is dynamic")
        return _group_norm(call, x, groups, channels, axis=-1)


class RestoredShape(PatternRule):
    """reshape(reshape(norm, ...), shape of norm) = norm"""

    norm = is_op("nn.group_norm")(wildcard(), wildcard(), wildcard())
    pattern = is_op("reshape")(is_op("reshape")(norm))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        return found[self.norm] if found[self.norm].ty is call.ty else None


_CHANNEL_NORM = is_op("nn.instance_norm")(wildcard(), is_constant(), is_constant()) | is_op("nn.group_norm")(
    wildcard(), is_constant(), is_constant()
)


class _FoldedIntoChannels(PatternRule):
    """Base of rules that fold a value for each channel or group, applied after a norm, into the norm's parameters."""

    norm = _CHANNEL_NORM
    view = is_op("reshape")(norm)
    number = is_constant()

    def parameters(self, number: np.ndarray[Any, Any], gamma: Expr, beta: Expr) -> list[Expr]:
        """The parameters of the norm with `number`, one for each channel or group, folded in."""
        raise NotImplementedError

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        norm, constant = found.call(self.norm), found[self.number]
        outermost = found.get(self.view, norm)
        if outermost.ty is not call.ty or found.shared(norm) or found.shared(outermost):
            return Refused("the constant changes the type of the norm, or the norm is used elsewhere as well")
        number = _per_channel(constant, norm) if outermost is norm else _per_split_channel(constant, norm, call.shape)
        if number is None:
            return Refused("the constant is not one value for each channel")
        x, gamma, beta = norm.args
        made = make_call(norm.operator, (x, *self.parameters(number, gamma, beta)), call.span)
        return reshaped(made, call.shape)


class ScaledChannels(_FoldedIntoChannels):
    """norm(x, gamma, beta) * scale = norm(x, gamma * scale, beta * scale) of channels or groups"""

    pattern = is_op("multiply")(_FoldedIntoChannels.view | _FoldedIntoChannels.norm, _FoldedIntoChannels.number)

    def parameters(self, number: np.ndarray[Any, Any], gamma: Expr, beta: Expr) -> list[Expr]:
        return [Constant(array_of(p) * number, span=p.span) for p in (gamma, beta)]


class ShiftedChannels(_FoldedIntoChannels):
    """norm(x, gamma, beta) + shift = norm(x, gamma, beta + shift) of channels or groups"""

    pattern = is_op("add")(_FoldedIntoChannels.view | _FoldedIntoChannels.norm, _FoldedIntoChannels.number)

    def parameters(self, number: np.ndarray[Any, Any], gamma: Expr, beta: Expr) -> list[Expr]:
        return [gamma, Constant(array_of(beta) + number, span=beta.span)]


class DecomposedInstanceNorm(PatternRule):
    """layer_norm(x, 1, 0) over the rows and columns after batch and channels = instance_norm(x, 1, 0)

    As a norm of rows it would read a plane of ones and a plane of zeros for every plane.
    """

    x = wildcard()
    ones = is_constant(_is_one)
    zeros = is_constant(lambda c: not c.data.any())
    pattern = is_op("nn.layer_norm")(x, ones, zeros)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        rank, ones = len(call.shape), array_of(found[self.ones])
        channels = call.shape[1] if rank > 3 else None
        op = expect_op(call, LayerNorm)
        if op.axis % rank != 2 or not isinstance(channels, int):
            return None
        gamma, beta = np.ones(channels, ones.dtype), np.zeros(channels, ones.dtype)
        parameters = (Constant(gamma), Constant(beta))
        return make_call("nn.instance_norm", (found[self.x], *parameters), call.span, axis=1, epsilon=op.epsilon)


class TransposedNorm(PatternRule):
    """transpose(norm(transpose(x, p), ...), q), where q undoes p = standardize(x) over dimension p[-1], scaled, shifted

    For norms of rows, layer_norm or rms_norm: torch exports a norm over the channels of planes in this form. Without
    the transposes it takes two passes over memory less.
    """

    x, gamma, beta = wildcard(), wildcard(), wildcard()
    transposed = is_op(Transpose)(x)
    norm = is_op("nn.layer_norm")(transposed, gamma, beta) | is_op("nn.rms_norm")(transposed, gamma)
    pattern = is_op("transpose")(norm)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, norm, rank = found[self.x], found.call(self.norm), len(call.shape)
        there, back = found.op(self.transposed).axes, expect_op(call, Transpose).axes
        op = expect_op(norm, LayerNorm, RMSNorm)
        last = op.axis % rank == rank - 1
        if not last or any(there[a] != n for n, a in enumerate(back)) or found.shared(norm):
            return Refused("the norm is of another dimension or used elsewhere as well, or the transposes don't cancel")
        axis, centred = there[-1], self.beta in found
        result = make_call("nn.standardize", (x,), norm.span, axis=(axis,), epsilon=op.epsilon, centred=centred)
        sides = (x.shape[axis], *[1] * (rank - 1 - axis))
        for name, parameter in (("multiply", self.gamma), ("add", self.beta)):
            if parameter in found:
                result = make_call(name, (result, reshaped(found[parameter], sides)), norm.span)
        return result


CHANNEL_NORM_RULES: tuple[type[PatternRule], ...] = (
    DecomposedGroupNorm,
    GroupNormOfRows,
    GroupNormOfSplitChannels,
    RestoredShape,
    ScaledChannels,
    ShiftedChannels,
    DecomposedInstanceNorm,
    TransposedNorm,
)
