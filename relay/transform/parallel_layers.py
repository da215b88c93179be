"""Layers on the same data as one layer, whose result is split: for passes that combine dense layers or convolutions.

The output channels of such a layer are the first dimension of its weights and the last one of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from relayc.relay.arrays import Arena, Jobs, concatenated
from relayc.relay.expr import Call, Constant, Expr, Function, numpy_dtype
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.stored import StoredConstant
from relayc.relay.transform.builders import is_call_of
from relayc.te.ir import post_order

__all__ = ["Branch", "branch_of", "combined", "rearranges"]


@dataclass(frozen=True, slots=True)
class Branch:
    """A layer with its bias and activation, if any; `result` is the value that the rest of the graph uses."""

    layer: Call
    bias: Constant | None
    activation: tuple[OpDef, ...]
    result: Call

    @property
    def weight(self) -> Constant:
        """The weights of the layer."""
        return cast(Constant, self.layer.args[1])

    @property
    def channels(self) -> int:
        """The number of channels of the result."""
        return self.weight.tensor_type.static_shape[0]


def branch_of(layer: Call, by_user: dict[int, list[Expr]], with_activation: bool) -> Branch:
    """The branch of `layer`, whose weights are constant, with its bias and activation."""
    result, bias, activation = layer, None, []
    following = _only_user(layer, by_user)
    if following is not None and is_call_of(following, "add"):
        others = [a for a in following.args if isinstance(a, Constant)]
        if others and others[0].shape[-1:] == layer.shape[-1:] and all(d == 1 for d in others[0].shape[:-1]):
            result, bias = following, others[0]
    while with_activation and (following := _only_user(result, by_user)) is not None:
        if not isinstance(following.op, OpDef) or following.op.pattern != OpPattern.ELEMWISE or len(following.args) > 1:
            break
        activation.append(following.op)
        result = following
    return Branch(layer, bias, tuple(activation), result)


def _only_user(e: Expr, by_user: dict[int, list[Expr]]) -> Call | None:
    following = by_user[id(e)]
    return following[0] if len(following) == 1 and isinstance(following[0], Call) else None


def rearranges(e: Expr, by_user: dict[int, list[Expr]]) -> bool:
    """Does this permute its one argument, for readers that need not have it in memory?"""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or e.op.pattern != OpPattern.INJECTIVE:
        return False
    return len(e.args) == 1 and not any(_has_pattern(user, OpPattern.OPAQUE) for user in by_user[id(e)])


def _has_pattern(e: Expr, pattern: OpPattern) -> bool:
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.pattern == pattern


def combined(function: Function, groups: Sequence[Sequence[Branch]]) -> Function:
    """`function` with each group's results read from one layer, which is inserted at the first of them.

    Branches of a group have the same data, operator and activation.
    """
    group_of = {id(b.result): group for group in groups for b in group}
    slices: dict[int, Expr] = {}
    done: dict[int, Expr] = {}
    weights = _Weights()
    for e in cast("list[Expr]", list(post_order(function))):
        if id(e) in group_of and id(e) not in slices:
            group = group_of[id(e)]
            slices.update(_slices(group, done[id(group[0].layer.args[0])], weights.below_each_other(group)))
        done[id(e)] = slices[id(e)] if id(e) in slices else e.rebuild(lambda child: done[id(child)])
    weights.jobs.run()
    return cast(Function, done[id(function)])


class _Weights:
    """Concatenates the weights of a group to one constant, whose values are there once `jobs` have run."""

    def __init__(self) -> None:
        self.arena, self.jobs = Arena(), Jobs()
        self.made: dict[tuple[int, ...], Constant] = {}
        """keyed by the identities of the weights: layers on other data may share them"""

    def below_each_other(self, group: Sequence[Branch]) -> Constant:
        """Concatenate the weights along their outputs; weights in the model's file stay there."""
        weights = [b.weight for b in group]
        key = tuple(map(id, weights))
        if key not in self.made:
            stored = [w for w in weights if isinstance(w, StoredConstant) and not w.is_loaded]
            whole = StoredConstant.concatenated(stored) if len(stored) == len(weights) else None
            self.made[key] = self._copied(weights) if whole is None else whole
        return self.made[key]

    def _copied(self, weights: Sequence[Constant]) -> Constant:
        return Constant(concatenated([w.data for w in weights], self.arena, self.jobs))


def _slices(group: Sequence[Branch], data: Expr, weight: Constant) -> dict[int, Expr]:
    """id of each branch's result -> the part of the combined layer on `data` that replaces it."""
    first = group[0].layer
    whole: Expr = make_call(cast(OpDef, first.op), (data, weight), first.span)
    if any(b.bias is not None for b in group):
        whole = make_call("add", (whole, Constant(np.concatenate([_bias_of(b) for b in group]))), first.span)
    for op in group[0].activation:
        whole = make_call(op, (whole,), group[0].result.span)
    parts: dict[int, Expr] = {}
    begin = 0
    for b in group:
        end = begin + b.channels
        bounds = {"begin": (begin,), "end": (end,), "strides": (1,), "axes": (len(b.layer.shape) - 1,)}
        parts[id(b.result)] = make_call("strided_slice", (whole,), b.result.span, **bounds)
        begin = end
    return parts


def _bias_of(branch: Branch) -> np.ndarray[Any, Any]:
    if branch.bias is not None:
        return branch.bias.data.reshape(-1)
    return np.zeros(branch.channels, numpy_dtype(str(branch.weight.dtype)))
