"""CombineParallelConv2D: convolutions of the same data become one where the cost model expects a gain.

Winograd's algorithm then transforms the data once. Convolutions of few channels fill a register tile, or a vector, only
together. Others run at peak by themselves.

A slice of a wider result is read as a view. Beyond the second-level cache that costs about as much as copying it; and
an input of a concatenation, or a slice that is not of whole cache lines, has to be copied: these cycles are weighed
against the gain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeGuard, cast

from relayc.backend.target import Target
from relayc.relay.analysis import evaluation_order, scopes, users
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.parallel_layers import Branch, branch_of, combined
from relayc.relay.transform.winograd import winograd_plan, winograd_shape, winograd_tiles
from relayc.te.ir import PassContext
from relayc.topi.cpu.tiling import LINE_ELEMENTS, MEMORY_BYTES_PER_CYCLE, product_cycles
from relayc.topi.tuning import Config

__all__ = ["CombineParallelConv2D"]

_GAIN = 0.96
"""Convolutions are combined if that takes less than this fraction of their cycles."""


@dataclass(frozen=True)
class CombineParallelConv2D(FunctionPass):
    """f(conv2d(x, w1) + b1), f(conv2d(x, w2) + b2), ... become slices of f(conv2d(x, [w1; w2; ...]) + [b1; b2; ...]).

    Layouts are NHWC and OIHW. Weights that several images share are combined for all of them or for none.
    """

    target: Target
    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        by_user, (where, _) = users(function), scopes(function)
        siblings: dict[tuple[Any, ...], list[Branch]] = {}
        for e in evaluation_order(function):
            if _is_candidate(e):
                branch = branch_of(e, by_user, with_activation=True)
                if not _has_only_elementwise_readers(branch, by_user):
                    key = id(e.args[0]), e.op, branch.activation, id(where[id(e)])
                    siblings.setdefault(key, []).append(branch)
        model = _CostModel(self.target, winograd_tiles(context), by_user)
        with Config():  # for plans that are only considered, no tuner is consulted
            groups = [group for some in siblings.values() if len(some) > 1 for group in model.groups(some)]
        groups = _of_separate_weights(groups, by_user)
        return combined(function, groups) if groups else function


def _is_candidate(e: Expr) -> TypeGuard[Call]:
    if not isinstance(e, Call) or not isinstance(e.op, Conv2D) or not isinstance(e.args[1], Constant):
        return False
    forms = (e.op.data_layout, e.op.kernel_layout, e.op.groups) == ("NHWC", "OIHW", 1)
    return forms and e.tensor_type.is_static and e.dtype == e.args[1].dtype == "float32"


def _has_only_elementwise_readers(branch: Branch, by_user: dict[int, list[Expr]]) -> bool:
    """Are all readers of the result elementwise, so that they would be fused into the layer's kernel?"""
    return all(_pattern(user) <= OpPattern.BROADCAST for user in by_user[id(branch.result)])


def _pattern(e: Expr) -> OpPattern:
    return e.op.pattern if isinstance(e, Call) and isinstance(e.op, OpDef) else OpPattern.OPAQUE


def _of_separate_weights(groups: Sequence[Sequence[Branch]], by_user: dict[int, list[Expr]]) -> list[Sequence[Branch]]:
    """The groups whose weights are used by groups of the same weights only, so that the weights are stored once."""
    uses = Counter([_weights_of(group) for group in groups])
    return [g for g in groups if all(len(by_user[id(b.weight)]) == uses[_weights_of(g)] for b in g)]


def _weights_of(group: Sequence[Branch]) -> tuple[int, ...]:
    return tuple([id(b.weight) for b in group])


@dataclass(frozen=True, slots=True)
class _CostModel:
    target: Target
    winograd_tiles: frozenset[int]
    by_user: dict[int, list[Expr]]

    def groups(self, branches: Sequence[Branch]) -> list[list[Branch]]:
        """The convolutions of the same data that gain by being combined, the narrowest ones first."""
        found: list[list[Branch]] = []
        group: list[Branch] = []
        for branch in sorted(branches, key=lambda b: b.channels):
            apart = self._cycles(group) + self._cycles([branch]) if group else 0.0
            if self._cycles([*group, branch]) > _GAIN * apart:
                found.append(group)
                group = []
            group.append(branch)
        return [g for g in (*found, group) if len(g) > 1]

    def _cycles(self, group: Sequence[Branch]) -> float:
        """Cycles of the combined convolution of a group, and of reading its results as strided slices."""
        layer, channels = group[0].layer, sum([b.channels for b in group])
        cycles = self._convolution_cycles(layer, channels)
        if len(group) == 1:
            return cycles
        pixel_bytes = 4 * math.prod(layer.tensor_type.static_shape[:-1])
        cached = pixel_bytes * channels <= self.target.cache_bytes.l2
        apart = sum([b.channels for b in group if not (cached and self._is_read_in_place(b))])
        return cycles + 2 * pixel_bytes * apart / MEMORY_BYTES_PER_CYCLE

    def _convolution_cycles(self, layer: Call, channels: int) -> float:
        """Cycles on the busiest core of a convolution like `layer` with other `channels`, as its weights are packed."""
        op = cast(Conv2D, layer.op)
        shape = winograd_shape(layer, op)
        plan = None
        if shape is not None:
            plan = winograd_plan(self.target, replace(shape, outputs=channels), self.winograd_tiles)
        if plan is not None:
            return plan.cycles
        *pixels, _ = layer.tensor_type.static_shape
        _, inputs, *taps = layer.args[1].tensor_type.static_shape
        line = pixels[-1] if math.prod(taps) > 1 else 0
        steps, apart = inputs * math.prod(taps), 4 * inputs * op.strides[-1]
        return product_cycles(self.target, math.prod(pixels), channels, steps, line, apart)

    def _is_read_in_place(self, branch: Branch) -> bool:
        """Can every reader of the result read it as a view of another tensor? See `relay.lowering.buffer_aliasing`."""
        following = self.by_user[id(branch.result)]
        is_rearranged = any(is_call_of(user, "concatenate", "reshape") for user in following)
        loops = all(_pattern(user) <= OpPattern.OUT_FUSABLE for user in following)
        return loops and not is_rearranged and branch.channels >= LINE_ELEMENTS
