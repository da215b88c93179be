"""Rotary position embedding."""

from __future__ import annotations

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float, require_same_dtype
from relayc.relay.sizes import dims_equal, dims_match, product
from relayc.relay.type import TensorType, broadcasts_to, shapes_match

__all__ = ["RotaryEmbedding", "rotary_embedding"]


@register_op("nn.rotary_embedding", pattern=OpPattern.INJECTIVE)
class RotaryEmbedding(OpDef):
    """Pairs of channels of x (..., D) rotated by an angle each: first * cos - second * sin, second * cos + first * sin.

    Pairs are channels c and c + D / 2 or, `interleaved`, adjacent ones. Cosine and sine broadcast to x with one value
    for each channel (D) or for each pair (D / 2) in the last dimension (Su et al., "RoFormer", 2021; ONNX:
    RotaryEmbedding). (C1) the element type is a float; (C2) of all inputs; (C3) D is even; (C4) cosine and sine have
    one shape, as above.
    """

    interleaved: bool = False

    def infer(self, x: TensorType, cosine: TensorType, sine: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, cosine, sine)
        channels = x.shape[-1] if x.ndim else 1
        require(not isinstance(channels, int) or (channels > 0 and channels % 2 == 0), f"(C3) an even number; got {x}")
        expected = f"(C4) one shape that broadcasts to {x}, {channels} columns or half as many; got {cosine} and {sine}"
        require(shapes_match(cosine.shape, sine.shape) and cosine.ndim >= 1, expected)
        columns = cosine.shape[-1]
        require(dims_equal(columns, channels) or dims_match(product((2, columns)), channels), expected)
        require(broadcasts_to((*cosine.shape[:-1], channels), x.shape), expected)
        return x

    def compute(self, x: te.Tensor, cosine: te.Tensor, sine: te.Tensor) -> te.Tensor:
        return topi.nn.rotary_embedding(x, cosine, sine, self.interleaved)

    def reference(self, x: Array, cosine: Array, sine: Array) -> Array:
        half = x.shape[-1] // 2
        partner = np.empty_like(x)
        first = (..., slice(0, None, 2)) if self.interleaved else (..., slice(0, half))
        second = (..., slice(1, None, 2)) if self.interleaved else (..., slice(half, None))
        partner[first], partner[second] = -x[second], x[first]
        if cosine.shape[-1] == half:
            cosine, sine = [self._for_channels(a) for a in (cosine, sine)]
        return x * cosine + partner * sine

    def _for_channels(self, angles: Array) -> Array:
        return angles.repeat(2, -1) if self.interleaved else np.concatenate([angles, angles], -1)


def rotary_embedding(x: Expr, cosine: Expr, sine: Expr, interleaved: bool = False) -> Call:
    """x with pairs of channels rotated by the angles of `cosine` and `sine`."""
    return RotaryEmbedding(interleaved=interleaved)(x, cosine, sine)
