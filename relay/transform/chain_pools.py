"""ChainPools: max pooling over a large window becomes a chain of poolings over smaller ones."""

from __future__ import annotations

import math
from typing import ClassVar

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.pool import MaxPool
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["ChainPools"]

_PART = 5
"""Elements along each axis of the smaller windows: registers keep the values that adjacent windows share."""
_LARGE = 81
"""Elements of a window (9 x 9) from which on the chain needs fewer operations: for 9 x 9 14 instead of 17, for 7 x 7 12
either way."""
_WIDEST = 257
"""Most elements of a window along an axis: 64 poolings in a row."""


class ChainPools(RewritePass):
    """max_pool of 9 x 9 with stride 1 is two poolings of 5 x 5 in a row, of 13 x 13 three.

    Spatial pyramids pool the same image by 5 x 5, 9 x 9 and 13 x 13: each chain begins with the shorter one.
    """

    opt_level: ClassVar[int] = 2

    def rewrite(self, call: Call) -> Expr:
        if not is_call_of(call, "nn.max_pool") or not isinstance(call.op, MaxPool):
            return call
        op, rank, result = call.op, len(call.op.pool_size), call.args[0]
        suits = math.prod(op.pool_size) >= _LARGE and max(op.pool_size) <= _WIDEST
        if not suits or {*op.strides, *op.dilation} != {1}:
            return call
        sizes = [_parts(size) for size in op.pool_size]
        borders = [_shared(border, sizes[k % rank]) for k, border in enumerate(op.padding)]
        count = max(len(parts) for parts in sizes)
        if any(sum(shares) < border for shares, border in zip(borders, op.padding, strict=True)):
            return call
        for n in range(count):
            size = tuple([parts[n] if n < len(parts) else 1 for parts in sizes])
            padding = tuple([shares[n] if n < len(shares) else 0 for shares in borders])
            axes = op.spec(len(result.shape)).axes
            rooms = zip(axes, padding[:rank], padding[rank:], size, strict=True)
            if not all(isinstance(d := result.shape[a], int) and d + b + e >= k for a, b, e, k in rooms):
                return call
            smaller = op.replace(pool_size=size, padding=padding, ceil_mode=False)
            result = make_call(smaller.name, (result,), call.span, **smaller.attributes())
        return result


def _parts(size: int) -> list[int]:
    """Sizes of windows that, one after the other, cover a window of `size`."""
    whole, rest = divmod(size - 1, _PART - 1)
    return [*[_PART] * whole, *([rest + 1] if rest else [])]


def _shared(border: int, parts: list[int]) -> list[int]:
    """The padding of each of `parts`, at most half of a window, so that each window contains elements of its input."""
    shares: list[int] = []
    for part in parts:
        shares.append(min(border - sum(shares), part // 2))
    return shares
