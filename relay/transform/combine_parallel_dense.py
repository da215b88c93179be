"""CombineParallelDense: dense layers on the same data become one, such as the three projections of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from relay.analysis import users
from relay.arrays import Arena, Jobs, concatenated
from relay.expr import Call, Constant, Expr, Function, numpy_dtype
from relay.op.base import OpDef, OpPattern, make_call
from relay.stored import StoredConstant
from relay.transform.builders import is_call_of
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext, post_order

__all__ = ["CombineParallelDense"]


@dataclass(frozen=True)
class CombineParallelDense(FunctionPass):
    """dense(x, w1) + b1, dense(x, w2) + b2, ... become slices of dense(x, [w1; w2; ...]) + [b1; b2; ...].

    Only where every result is then rearranged anyway (a view, a transposition): there the slice is read in place, while
    elementwise work behind a layer of its own would be fused into that layer, and a recurrence reads memory in order.
    """

    min_branches: int = 2
    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        by_user = users(function)
        siblings: dict[tuple[int, Any], list[_Branch]] = {}
        for used in list(by_user.values()):
            for call in used:
                branch = _branch(call, by_user)
                if branch is not None:
                    group = siblings.setdefault((id(branch.layer.args[0]), branch.layer.op), [])
                    if all(branch.layer is not known.layer for known in group):
                        group.append(branch)
        groups = [group for group in siblings.values() if len(group) >= self.min_branches]
        return _combine(function, groups) if groups else function


@dataclass(frozen=True, slots=True)
class _Branch:
    """A dense layer with its bias, if any; `result` is what the rest of the graph uses."""

    layer: Call
    bias: Constant | None
    result: Call


def _branch(call: Expr, by_user: dict[int, list[Expr]]) -> _Branch | None:
    if not isinstance(call, Call) or not is_call_of(call, "nn.dense") or not isinstance(call.args[1], Constant):
        return None
    result, bias = call, None
    following = by_user[id(call)]
    if len(following) == 1 and is_call_of(following[0], "add"):
        added = cast(Call, following[0])
        others = [a for a in added.args if isinstance(a, Constant)]
        if others and others[0].shape == call.shape[-1:]:
            result, bias = added, others[0]
    rearranged = bool(by_user[id(result)]) and all(_rearranges(user, by_user) for user in by_user[id(result)])
    return _Branch(call, bias, result) if rearranged and isinstance(call.shape[-1], int) else None


def _rearranges(e: Expr, by_user: dict[int, list[Expr]]) -> bool:
    """Does this bring its one argument into another order, on the way to what need not have it in memory?"""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or e.op.pattern != OpPattern.INJECTIVE:
        return False
    return len(e.args) == 1 and not any(_has_pattern(user, OpPattern.OPAQUE) for user in by_user[id(e)])


def _has_pattern(e: Expr, pattern: OpPattern) -> bool:
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.pattern == pattern


def _combine(function: Function, groups: Sequence[Sequence[_Branch]]) -> Function:
    """`function` with each group's results read from one layer, which is made where the first of them was."""
    group_of = {id(b.result): group for group in groups for b in group}
    slices: dict[int, Expr] = {}
    done: dict[int, Expr] = {}
    arena, jobs = Arena(), Jobs()
    for e in cast("list[Expr]", list(post_order(function))):
        if id(e) in group_of and id(e) not in slices:
            group = group_of[id(e)]
            weight = _below_each_other([cast(Constant, b.layer.args[1]) for b in group], arena, jobs)
            slices.update(_slices(group, done[id(group[0].layer.args[0])], weight))
        done[id(e)] = slices[id(e)] if id(e) in slices else e.rebuild(lambda child: done[id(child)])
    jobs.run()
    return cast(Function, done[id(function)])


def _below_each_other(weights: Sequence[Constant], arena: Arena, jobs: Jobs) -> Constant:
    """Weights as one, whose values are there once `jobs` have run; of those in the model's file it stays there."""
    stored = [w for w in weights if isinstance(w, StoredConstant) and not w.is_loaded]
    whole = StoredConstant.concatenated(stored) if len(stored) == len(weights) else None
    return Constant(concatenated([w.data for w in weights], arena, jobs)) if whole is None else whole


def _slices(group: Sequence[_Branch], data: Expr, weight: Constant) -> dict[int, Expr]:
    """id of each branch's result -> the part of the combined layer on `data` that replaces it."""
    first = group[0].layer
    whole: Expr = make_call(cast(OpDef, first.op), (data, weight), first.span)
    if any(b.bias is not None for b in group):
        whole = make_call("add", (whole, Constant(np.concatenate([_bias_of(b) for b in group]))), first.span)
    parts: dict[int, Expr] = {}
    begin = 0
    for b in group:
        width = b.layer.shape[-1]
        assert isinstance(width, int)
        end = begin + width
        bounds = {"begin": (begin,), "end": (end,), "strides": (1,), "axes": (len(b.layer.shape) - 1,)}
        parts[id(b.result)] = make_call("strided_slice", (whole,), b.result.span, **bounds)
        begin = end
    return parts


def _bias_of(branch: _Branch) -> np.ndarray[Any, Any]:
    if branch.bias is not None:
        return branch.bias.data
    weight = branch.layer.args[1]
    return np.zeros(weight.tensor_type.static_shape[:1], numpy_dtype(str(weight.dtype)))
