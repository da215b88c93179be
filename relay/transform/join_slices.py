"""JoinSlices: slices that together are all of a tensor, joined again, are a transposition of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, cast

from relay.expr import Call, Expr, Function
from relay.op.base import make_call
from relay.op.common import check_axis
from relay.op.transform import Concatenate, StridedSlice
from relay.pattern import Found, PatternRule, is_op, rewrite
from relay.transform.builders import is_call_of, reshaped
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext

__all__ = ["JoinSlices"]


class JoinSlices(FunctionPass):
    """concatenate(x[..., 0::2], x[..., 1::2]) = reshape(transpose(reshape(x))).

    Space to depth as the first layer of some detectors spells it, and the merging of patches in vision transformers.
    Every slice reads all cache lines of a part of x and wants a half of each: a transposition reads them once.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([StepsJoined()], function)


class StepsJoined(PatternRule):
    """concatenate(x[i::m, j::n] for all i and j), where these divide x evenly, in an order that counts up"""

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
        apart = [part for d, s in zip(shape, steps, strict=True) for part in (d // s, s)]
        axes = [n for a in range(len(shape)) for n in (*[2 * i + 1 for i in order if a == joined], 2 * a)]
        axes += [2 * a + 1 for a in range(len(shape)) if a not in order]
        moved = make_call("transpose", (reshaped(x, apart),), call.span, axes=tuple(axes))
        return reshaped(moved, call.shape, call.span)


def _order(steps: Sequence[int], firsts: Sequence[Sequence[int]]) -> list[int] | None:
    """The axes that slices step along, slowest first as they are counted by where slices begin; None where they aren't.

    All beginnings are there, once.
    """
    stepped = [a for a, step in enumerate(steps) if step > 1]
    if len(firsts) != math.prod(steps):
        return None
    turns = {a: [n for n in range(1, len(firsts)) if firsts[n][a] != firsts[n - 1][a]] for a in stepped}
    order = sorted(stepped, key=lambda a: len(turns[a]))
    for n, first in enumerate(firsts):
        rest, expected = n, [0] * len(steps)
        for a in reversed(order):
            rest, expected[a] = divmod(rest, steps[a])
        if list(first) != expected:
            return None
    return order
