"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

import te
from te import Tensor
from te.tir import PrimExpr
from topi.tag import INJECTIVE
from topi.utils import broadcast_index, same_dim

__all__ = ["rotary_embedding"]


def rotary_embedding(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool = False) -> Tensor:
    """Pairs of channels (last dimension) of x turned by angles: half of them apart or, `interleaved`, neighbours.

    `cosine` and `sine` broadcast to x with one number for each channel, or for each pair. The first of a pair becomes
    first * cosine - second * sine, the second becomes second * cosine + first * sine.
    """
    channels, columns = x.shape[-1], cosine.shape[-1]
    by_pair = not same_dim(columns, channels)
    half = columns if by_pair else channels // 2

    def angle(table: Tensor, *i: Any) -> PrimExpr:
        c = i[-1]
        if by_pair:
            c = c // 2 if interleaved else te.if_then_else(c < half, c, c - half)
        return table(*broadcast_index((*i[:-1], c), table.shape))

    def body(*i: Any) -> PrimExpr:
        *at, c = i
        if interleaved:
            partner = te.if_then_else(c % 2 == 0, -x(*at, c + 1), x(*at, c - 1))
        else:
            partner = te.if_then_else(c < half, -x(*at, c + half), x(*at, c - half))
        return x(*i) * angle(cosine, *i) + partner * angle(sine, *i)

    return te.compute(x.shape, body, name="rotary_embedding", tag=INJECTIVE)
