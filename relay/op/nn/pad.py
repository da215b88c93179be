"""Padding of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import OpDef, OpPattern, make_call, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.type import TensorType, Type
from relayc.te.tir import as_dim

__all__ = ["Pad", "pad", "pad_last"]

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@register_op("nn.pad", pattern=OpPattern.INJECTIVE)
class Pad(OpDef):
    """x padded (ONNX: Pad): `pad_width` is (before, after) of each dimension, negative to crop.

    `pad_mode`: "constant" (`pad_value`), "edge", "reflect" (the border element not repeated), "symmetric", "wrap". (C1)
    one pair for each dimension; (C2) the mode is known; (C3) no dimension becomes negative; (C4) an empty dimension
    grows by "constant" only.
    """

    pad_width: tuple[tuple[int, int], ...]
    pad_value: float = 0
    pad_mode: str = "constant"

    def infer(self, x: TensorType) -> TensorType:
        require(len(self.pad_width) == x.ndim, f"(C1) {x} needs {x.ndim} pairs of widths; got {self.pad_width}")
        require(self.pad_mode in _MODES, f"(C2) mode {self.pad_mode!r} is unknown; known are {', '.join(_MODES)}")
        for size, (before, after) in zip(x.shape, self.pad_width, strict=True):
            if not isinstance(size, int):
                continue
            require(size + before + after >= 0, f"(C3) a size of {size} can't lose {-before} and {-after} elements")
            grows = max(before, after) > 0
            if size + min(before, 0) + min(after, 0) <= 0 and grows and self.pad_mode != "constant":
                raise TypeInferenceError(f"(C4) an empty dimension of {x} can't grow by mode {self.pad_mode}")
        return x.with_shape([as_dim(d + (b + a)) for d, (b, a) in zip(x.shape, self.pad_width, strict=True)])

    def compute(self, x: te.Tensor) -> te.Tensor:
        before, after = [b for b, _ in self.pad_width], [a for _, a in self.pad_width]
        if self.pad_mode == "constant":
            return topi.nn.pad(x, before, after, self.pad_value)
        return topi.nn.mirror_pad(x, before, after, self.pad_mode)

    def reference(self, x: Array) -> Array:
        if self.pad_mode == "constant":
            return _with_constant(x, self.pad_width, self.pad_value)
        for axis, (before, after) in enumerate(self.pad_width):
            position = np.arange(-before, x.shape[axis] + after)
            inside = _continued(position, x.shape[axis], self.pad_mode) if max(before, after) > 0 else position
            x = x.take(inside, axis)
        return x.copy()

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(pad_width=tuple([self.pad_width[p] for p in perm]))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        if self.pad_mode == "constant":
            widths = tuple([(-before, -after) for before, after in self.pad_width])
            return (self.replace(pad_width=widths, pad_value=0)(grad),)
        return super().gradient(call, grad)

    def decomposed(self, *args: Expr) -> Expr | None:
        (x,) = args
        if self.pad_mode == "constant":
            return None
        for axis, (before, after) in enumerate(self.pad_width):
            size = x.shape[axis]
            if not isinstance(size, int):
                return None
            position = np.arange(-before, size + after)
            inside = _continued(position, size, self.pad_mode) if max(before, after) > 0 else position
            x = make_call("take", (x, Constant(inside)), axis=axis)
        return x


def _with_constant(x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
    grown = np.pad(x, [(max(b, 0), max(a, 0)) for b, a in widths], constant_values=np.asarray(value, x.dtype))
    cut = tuple([slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(grown.shape, widths, strict=True)])
    return grown[cut].copy()


def _continued(position: Array, size: int, mode: str) -> Array:
    """The position within [0, size) that `position` maps to under the padding mode."""
    if mode == "edge":
        return np.clip(position, 0, size - 1)
    if mode == "wrap":
        return position % size
    period = 2 * size if mode == "symmetric" else max(2 * size - 2, 1)
    folded = position % period
    return np.minimum(folded, period - folded - (1 if mode == "symmetric" else 0))


def pad(data: Expr, pad_width: Sequence[Sequence[int]], pad_value: float = 0, pad_mode: str = "constant") -> Call:
    """`data` padded by (before, after) elements in each dimension."""
    widths = tuple([(int(before), int(after)) for before, after in pad_width])
    return Pad(pad_width=widths, pad_value=pad_value, pad_mode=pad_mode)(data)


def pad_last(data: Expr, count: int) -> Expr:
    """`data` with `count` zeros after the last dimension."""
    return pad(data, [*[(0, 0)] * (len(data.shape) - 1), (0, count)]) if count else data
