"""RepeatElements: a gather along the last dimension that repeats each element equally often becomes a repeat."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Expr, Function
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.pad import Pad
from relayc.relay.op.transform import Repeat, StridedSlice
from relayc.relay.pattern import Found, PatternRule, is_constant, is_op, rewrite, wildcard
from relayc.relay.transform.builders import array_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["RepeatElements", "times_and_first"]

_MOST_TIMES = 16
"""Maximum number of repetitions."""
_REACH = 2
"""Maximum distance in elements from the position of a result: the support of a cubic filter."""


class RepeatElements(FunctionPass):
    """take(x, [(first + i) // times]) = strided_slice(repeat(pad(x), times)) along the last dimension.

    And take(x, [first + i * step]) = strided_slice(x). Both occur in resampling of images by integer factors: computed
    positions allow vector loads, where positions in memory need a gather. Other dimensions are left alone: there one
    position serves many elements.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([TakeRepeated()], function)


class TakeRepeated(PatternRule):
    """take(x, indices) with evenly ascending indices, repeated or strided, that are clamped at the ends of x"""

    x, indices = wildcard(), is_constant()
    pattern = is_op("take")(x, indices)

    def replace(self, call: Call, found: Found) -> Expr | None:
        op, x, indices = call.op, found[self.x], array_of(found[self.indices])
        assert isinstance(op, Take)
        extent = x.shape[-1] if x.shape else None
        if op.axis not in (-1, len(x.shape) - 1) or op.batch_dims or indices.ndim != 1 or not isinstance(extent, int):
            return None
        counted, step = times_and_first(indices, extent), _step(indices)
        if counted is None:
            first, last = (int(indices[0]), int(indices[-1])) if step else (0, 0)
            even = StridedSlice(begin=(first,), end=(last + 1,), strides=(step,), axes=(len(x.shape) - 1,))
            return make_call(even, (x,), call.span) if step and first >= 0 and last < extent else None
        (times, first), out, last = counted, len(indices), len(x.shape) - 1
        before, after = max(-(first // times), 0), max(-(-(out + first) // times) - extent, 0)
        widths = tuple([(before, after) if a == last else (0, 0) for a in range(last + 1)])

        def made(operator: OpDef, argument: Expr) -> Expr:
            return make_call(operator, (argument,), call.span)

        if before or after:
            x = made(Pad(pad_width=widths, pad_mode="edge"), x)
        start = first + before * times
        repeated = made(Repeat(repeats=times, axis=last), x)
        if start == 0 and repeated.shape[-1] == out:
            return repeated
        return made(StridedSlice(begin=(start,), end=(start + out,), strides=(1,), axes=(last,)), repeated)


def _step(indices: np.ndarray) -> int:
    """The constant difference of consecutive indices, if it is 2 or more; else 0."""
    steps = np.diff(indices)
    return int(steps[0]) if len(steps) and steps[0] >= 2 and (steps == steps[0]).all() else 0


def times_and_first(indices: np.ndarray, extent: int) -> tuple[int, int] | None:
    """(times, first) where element i is (first + i) // times, or the nearest end of `extent` elements."""
    times, rest = divmod(len(indices), extent) if extent else (0, 1)
    if rest or not 2 <= times <= _MOST_TIMES:
        return None
    i = np.arange(len(indices))
    for first in range(-_REACH * times, _REACH * times + 1):
        if np.array_equal(indices, np.clip((i + first) // times, 0, extent - 1)):
            return times, first
    return None
