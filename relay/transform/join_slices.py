"""JoinSlices: a concatenation of slices that cover a tensor becomes a transposition of it, or a roll."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, cast

from relayc.relay.expr import Call, Expr, Function
from relayc.relay.op.base import make_call
from relayc.relay.op.common import check_axis
from relayc.relay.op.joining import Concatenate
from relayc.relay.op.transform import StridedSlice
from relayc.relay.pattern import Found, PatternRule, is_op, rewrite
from relayc.relay.transform.builders import is_call_of, reshaped
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext
from relayc.te.tir import Dim
from relayc.topi.transform import MOST_ROLLED

__all__ = ["JoinSlices"]


class JoinSlices(FunctionPass):
    """concatenate(x[..., 0::2], x[..., 1::2]) = reshape(transpose(reshape(x))).

    Some detectors write space to depth in this form as their first layer, and vision transformers the merging of
    patches. Every slice reads all cache lines of a part of x and uses half of each: a transposition reads them once.

    concatenate(x[k:], x[:k]) = roll(x, -k), by which a Swin Transformer shifts windows, fuses with adjacent operators.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([StepsJoined(), EndsSwapped()], function)


class StepsJoined(PatternRule):
    """concatenate(x[i::m, j::n] for all i and j), where these divide x evenly, in ascending order"""

    pattern = is_op("concatenate")

    def replace(self, call: Call, found: Found) -> Expr | None:
        slices = [a for a in call.args if isinstance(a, Call) and is_call_of(a, "strided_slice")]
        if len(slices) < max(len(call.args), 2) or any(cut.args[0] is not slices[0].args[0] for cut in slices):
            return None
        x = slices[0].args[0]
        shape = [d for d in x.shape if isinstance(d, int)]
        resolved = [cast(StridedSlice, cut.op).resolved(x.shape) for cut in slices]
        steps, firsts = resolved[0][1], [[b for b in begin if isinstance(b, int)] for begin, _, _ in resolved]
        alike = all(own == steps for _, own, _ in resolved) and all(cut.shape == slices[0].shape for cut in slices)
        known = len(shape) == len(x.shape) and all(len(first) == len(shape) for first in firsts)
        if not alike or not known or any(s < 1 or d % s for d, s in zip(shape, steps, strict=True)):
            return None
        order = _order(steps, firsts)
        if order is None:
            return None
        joined = check_axis(3, cast(Concatenate, call.op).axis, len(shape))
        factored = [part for d, s in zip(shape, steps, strict=True) for part in (d // s, s)]
        axes = [n for a in range(len(shape)) for n in (*[2 * i + 1 for i in order if a == joined], 2 * a)]
        axes += [2 * a + 1 for a in range(len(shape)) if a not in order]
        moved = make_call("transpose", (reshaped(x, factored),), call.span, axes=tuple(axes))
        return reshaped(moved, call.shape, call.span)


class EndsSwapped(PatternRule):
    """concatenate(x[k:], x[:k]), except for rows so long that two copies are faster"""

    pattern = is_op("concatenate")

    def replace(self, call: Call, found: Found) -> Expr | None:
        slices = [a for a in call.args if isinstance(a, Call) and is_call_of(a, "strided_slice")]
        if len(slices) != 2 or len(call.args) != 2 or slices[0].args[0] is not slices[1].args[0]:
            return None
        x, axis = slices[0].args[0], check_axis(3, cast(Concatenate, call.op).axis, len(call.shape))
        begins, steps, _ = zip(*[cast(StridedSlice, cut.op).resolved(x.shape) for cut in slices], strict=True)
        size, first = x.shape[axis], begins[0][axis]
        if not isinstance(size, int) or not isinstance(first, int):
            return None
        if axis == len(x.shape) - 1 and (axis == 0 or size > MOST_ROLLED):
            return None
        plain = all(step == 1 for own in steps for step in own) and begins[1][axis] == 0
        whole = all(cut.shape == _with(x.shape, axis, cut.shape[axis]) for cut in slices)
        if not plain or not whole or [cut.shape[axis] for cut in slices] != [size - first, first]:
            return None
        return make_call("roll", (x,), call.span, shifts=(-first,), axes=(axis,))


def _with(shape: Sequence[Dim], axis: int, size: Dim) -> tuple[Dim, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _order(steps: Sequence[int], firsts: Sequence[Sequence[int]]) -> list[int] | None:
    """The axes that slices step along, slowest first in the order of the slices' offsets; None if they are in no such
    order.

    All offsets occur exactly once.
    """
    stepped = [a for a, step in enumerate(steps) if step > 1]
    if len(firsts) != math.prod(steps):
        return None
    changes = {a: [n for n in range(1, len(firsts)) if firsts[n][a] != firsts[n - 1][a]] for a in stepped}
    order = sorted(stepped, key=lambda a: len(changes[a]))
    for n, first in enumerate(firsts):
        rest, expected = n, [0] * len(steps)
        for a in reversed(order):
            rest, expected[a] = divmod(rest, steps[a])
        if list(first) != expected:
            return None
    return order
