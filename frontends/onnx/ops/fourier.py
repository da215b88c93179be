"""Discrete Fourier transforms, as products with small matrices of roots of unity (Cooley and Tukey's factorisation).

They are computed in float64: sums of rounded roots do not cancel in float32, where the spectrum of a signal is exactly
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import reshape_to, transposed
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr

DIRECT = 64
"""Lengths up to this are transformed by one product."""


@dataclass(frozen=True, slots=True)
class _Complex:
    """A complex tensor; without `imaginary` a real one."""

    real: Expr
    imaginary: Expr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.real.tensor_type.static_shape

    def reshaped(self, shape: Sequence[int]) -> _Complex:
        return self.each(lambda x: reshape_to(x, tuple(shape)))

    def transposed(self, axes: Sequence[int]) -> _Complex:
        return self.each(lambda x: transposed(x, axes))

    def each(self, function: Callable[[Expr], Expr]) -> _Complex:
        return _Complex(function(self.real), None if self.imaginary is None else function(self.imaginary))

    def combined(self, product: Callable[[Expr, Expr], Expr], roots: np.ndarray) -> _Complex:
        """`product`, a bilinear function, of this tensor and constant `roots`."""
        c, s = Constant(np.ascontiguousarray(np.real(roots))), Constant(np.ascontiguousarray(np.imag(roots)))
        if self.imaginary is None:
            return _Complex(product(self.real, c), product(self.real, s))
        real = op.subtract(product(self.real, c), product(self.imaginary, s))
        return _Complex(real, op.add(product(self.real, s), product(self.imaginary, c)))


def _roots(products: np.ndarray, length: int, sign: int) -> np.ndarray:
    """exp(sign * 2 pi i * products / length), of exactly reduced angles."""
    quarter = (products % length) * 4
    angle = 2 * np.pi * (products % length) / length
    result = np.cos(angle) + sign * 1j * np.sin(angle)
    exact = np.array([1, 1j, -1, -1j])
    whole = quarter % length == 0
    values = exact[(quarter // length) % 4]
    return np.where(whole, np.real(values) + sign * 1j * np.imag(values), result)


def transform(x: _Complex, sign: int) -> _Complex:
    """The transform along the last axis, not scaled; `sign` is that of the exponent, -1 forwards."""
    *lead, length = x.shape
    rows = _factor(length)
    if rows == 1:
        k = np.arange(length)
        return x.combined(op.nn.matmul, _roots(np.outer(k, k), length, sign))
    columns, rank = length // rows, len(lead)
    swapped = (*range(rank), rank + 1, rank)
    k = np.arange(rows)
    # x[n], n = columns * a + b: transform over a, turn by roots of the whole length, transform over b.
    over_a = x.reshaped((*lead, rows, columns)).transposed(swapped)
    over_a = over_a.combined(op.nn.matmul, _roots(np.outer(k, k), rows, sign)).transposed(swapped)
    turned = over_a.combined(op.multiply, _roots(np.outer(k, np.arange(columns)), length, sign))
    return transform(turned, sign).transposed(swapped).reshaped((*lead, length))


def _factor(length: int) -> int:
    """The largest factor of `length` that is at most its root and `DIRECT`; 1 for short and prime lengths."""
    if length <= DIRECT:
        return 1
    limit = min(int(length**0.5), DIRECT)
    return next(f for f in range(limit, 0, -1) if length % f == 0)


def _read(x: Expr) -> _Complex:
    """float64 numbers from a tensor whose last axis holds real and, if it has two, imaginary parts."""
    wide, rank = op.cast(x, "float64"), len(x.shape)
    parts = [
        op.squeeze(op.strided_slice(wide, (i,), (i + 1,), axes=(rank - 1,)), axis=(rank - 1,))
        for i in range(x.tensor_type.static_shape[-1])
    ]
    return _Complex(*parts)


def _written(x: _Complex, dtype: str) -> Expr:
    """The tensor whose last axis holds the parts of `x`."""
    parts = [x.real] if x.imaginary is None else [x.real, x.imaginary]
    return op.cast(op.stack(parts, axis=-1), dtype)


def _to_length(x: Expr, axis: int, length: int) -> Expr:
    """`x` cut or filled with zeros along an axis."""
    extent = x.tensor_type.static_shape[axis]
    if extent >= length:
        return x if extent == length else op.strided_slice(x, (0,), (length,), axes=(axis,))
    return op.nn.pad(x, [(0, length - extent if a == axis else 0) for a in range(len(x.shape))])


def _half(x: _Complex, length: int) -> _Complex:
    """The bins 0 .. length // 2, which determine the others when the signal is real."""
    last = len(x.shape) - 1
    return x.each(lambda part: op.strided_slice(part, (0,), (length // 2 + 1,), axes=(last,)))


def _mirrored(x: _Complex, length: int) -> _Complex:
    """All bins of a real signal from the first half of them."""
    assert x.imaginary is not None
    last, rest = len(x.shape) - 1, length - (length // 2 + 1)
    if rest == 0:
        return x
    tails = [
        op.reverse(op.strided_slice(part, (1,), (1 + rest,), axes=(last,)), axis=last) for part in (x.real, x.imaginary)
    ]
    real = op.concatenate([x.real, tails[0]], axis=last)
    return _Complex(real, op.concatenate([x.imaginary, op.negative(tails[1])], axis=last))


@converter("DFT", since=17)
def dft_17(node: OnnxNode) -> Expr:
    return _dft(node, node.attr_int("axis", 1))


@converter("DFT", since=20)
def dft(node: OnnxNode) -> Expr:
    given = node.constant_or_none(2, "the axis")
    return _dft(node, -2 if given is None else int(given.reshape(-1)[0]))


def _dft(node: OnnxNode, axis: int) -> Expr:
    shape, rank = node.shape(0), node.rank(0)
    inverse, onesided = node.attr_bool("inverse", False), node.attr_bool("onesided", False)
    axis = node.axis(axis, rank)
    if rank < 2 or axis == rank - 1 or shape[-1] not in (1, 2):
        raise node.error(f"axis {axis} of {list(shape)}", expected="a signal axis, and 1 or 2 parts in the last axis")
    if onesided and shape[-1] != 2 - (not inverse):
        raise node.error(f"onesided=1 with {shape[-1]} parts", expected="a real signal, or a complex spectrum")
    wanted = node.constant_or_none(1, "the length")
    full = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    length = full if wanted is None else int(wanted.reshape(-1)[0])
    if length < 1:
        raise node.error(f"a transform of length {length}", expected="1 or more")
    bins = length // 2 + 1 if inverse and onesided else length
    order = (*[a for a in range(rank - 1) if a != axis], axis)
    x = _read(_to_length(node[0], axis, bins)).transposed(order)
    if inverse and onesided:
        x = _mirrored(x, length)
    result = transform(x, 1 if inverse else -1)
    if inverse:
        result = result.each(lambda part: op.divide(part, Constant(np.array(float(length)))))
    if onesided:
        result = _Complex(result.real) if inverse else _half(result, length)
    return _written(result.transposed(tuple(int(a) for a in np.argsort(order))), str(node.dtype(0)))


@converter("STFT", since=17)
def stft(node: OnnxNode) -> Expr:
    """Transforms of windowed frames of signals [batch, length, parts]: [batch, frames, bins, 2]."""
    _, extent, parts = node.shape(0)
    step = node.constant_ints(1, "the frame step")[0]
    given = node.constant_or_none(3, "the frame length")
    window = node.get(2)
    length = node.shape(2)[0] if window is not None else extent
    length = length if given is None else int(given.reshape(-1)[0])
    onesided = node.attr_bool("onesided", True)
    if step < 1 or not 1 <= length <= extent or parts not in (1, 2):
        raise node.error(f"frames of {length} every {step} of a signal of {extent}, {parts} parts")
    count = (extent - length) // step + 1
    starts = np.arange(count)[:, None] * step + np.arange(length)
    frames = _read(op.take(node[0], Constant(starts.astype(np.int32)), axis=1, mode="fast"))
    if window is not None:
        weights = op.cast(window, "float64")
        frames = frames.each(lambda part: op.multiply(part, weights))
    result = transform(frames, -1)
    return _written(_half(result, length) if onesided else result, str(node.dtype(0)))
