"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import broadcast_index, full_precision, same_dim

__all__ = ["rotary_embedding"]


def rotary_embedding(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool = False) -> Tensor:
    """Pairs of channels (last dimension) of x rotated by angles.

    The channels of a pair are half of the channels apart or, `interleaved`, adjacent. `cosine` and `sine` broadcast to
    x with one value for each channel, or for each pair. The first of a pair becomes first * cosine - second * sine, the
    second becomes second * cosine + first * sine. Low-precision floats are rounded once.
    """
    channels, columns = x.shape[-1], cosine.shape[-1]
    by_pair = not same_dim(columns, channels)
    half = columns if by_pair else channels // 2

    def angle(table: Tensor, *i: Any) -> PrimExpr:
        *at, c = i
        if by_pair:
            c = c // 2 if interleaved else c - te.select(c < half, 0, half)
        return table(*broadcast_index((*at, c), table.shape))

    def body(*i: Any) -> PrimExpr:
        *at, c = i
        apart, is_first = (1, c % 2 == 0) if interleaved else (half, c < half)
        partner = x(*at, c + te.select(is_first, apart, -apart))

        def turned(own: Any, other: Any, cosine: Any, sine: Any) -> PrimExpr:
            return own * cosine + other * (te.select(is_first, te.const(-1, own.dtype), te.const(1, own.dtype)) * sine)

        return full_precision(turned, x(*i), partner, angle(cosine, *i), angle(sine, *i))

    return te.compute(x.shape, body, name="rotary_embedding", tag=INJECTIVE)
