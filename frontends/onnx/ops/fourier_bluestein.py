"""Discrete Fourier transforms of dynamic length, or with a large prime factor, by matrix products.

A transform of any length is a convolution of the signal, modulated by a chirp, with the conjugate chirp (L. I.
Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", 1970). The convolution is
circular, of a length p * p that it fits into, and is a product of transforms of that length. Each of them is two
products with p x p matrices with twiddle factors in between (W. M. Gentleman and G. Sande, "Fast Fourier transforms:
for fun and profit", 1966); the inverse runs the steps in opposite order, so no reordering is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered, counted, float_const, reshape_to
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import add_sizes, dims_equal, floor_divide, product, smaller
from relayc.te.tir import Dim

__all__ = ["bluestein_dft", "resized"]


@dataclass(frozen=True, slots=True)
class _Complex:
    """Real and imaginary parts of one shape."""

    real: Expr
    imaginary: Expr

    def conjugate(self) -> _Complex:
        return _Complex(self.real, op.negative(self.imaginary))

    def __mul__(self, other: _Complex) -> _Complex:
        a, b, c, d = self.real, self.imaginary, other.real, other.imaginary
        return _Complex(op.subtract(op.multiply(a, c), op.multiply(b, d)),
                        op.add(op.multiply(a, d), op.multiply(b, c)))  # fmt: skip

    def reshape(self, *shape: Dim) -> _Complex:
        return _Complex(reshape_to(self.real, shape), reshape_to(self.imaginary, shape))

    def joined(self, axis: int) -> Expr:
        """Real and imaginary parts, concatenated along an axis."""
        return op.concatenate([self.real, self.imaginary], axis=axis)


def bluestein_dft(node: OnnxNode, x: Expr, length: Dim, inverse: bool, onesided: bool) -> Expr:
    """Transforms of rows [rows, n, parts] like `relay.op.dft`, with about 45 * length ** 1.5 FMAs each."""
    half = add_sizes(floor_divide(length, 2), 1)
    terms = half if inverse and onesided else length
    bins = half if onesided and not inverse else length
    rows, dtype = x.shape[0], str(x.dtype)
    x = resized(x, terms)
    column = [op.squeeze(op.strided_slice(x, (p,), (p + 1,), axes=(2,)), axis=(2,)) for p in range(_parts(x))]
    signal = _Complex(column[0], column[1] if len(column) == 2 else op.zeros((rows, terms), dtype))
    if inverse and onesided:
        shares = _shares(length, terms, x)
        signal = _Complex(op.multiply(signal.real, shares), op.multiply(signal.imaginary, shares))
    plan = _Square.of(node, length, dtype)
    chirp = plan.chirp(1 if inverse else -1)
    modulated = signal * plan.first(chirp, terms)
    padded = _Complex(*[bordered(part, 1, 0, plan.room(terms)) for part in (modulated.real, modulated.imaginary)])
    spectrum = plan.forwards(padded.reshape(rows, plan.side, plan.side))
    kernel = plan.forwards(chirp.conjugate().reshape(1, plan.side, plan.side))
    convolved = plan.backwards(spectrum * kernel).reshape(rows, plan.length)
    result = plan.first(convolved, bins) * plan.first(chirp, bins)
    parts = [result.real] if inverse and onesided else [result.real, result.imaginary]
    stacked = op.stack(parts, axis=2)
    return op.divide(stacked, op.cast(_number(length), dtype)) if inverse else stacked


def resized(x: Expr, extent: Dim) -> Expr:
    """`x` truncated or zero-padded to `extent` along axis 1."""
    if dims_equal(x.shape[1], extent):
        return x
    kept = smaller(x.shape[1], extent)
    x = op.strided_slice(x, (0,), (kept,), axes=(1,))
    return bordered(x, 1, 0, add_sizes(extent, product((-1, kept))))


def _parts(x: Expr) -> int:
    return 1 if x.shape[2] == 1 else 2


def _shares(length: Dim, terms: Dim, like: Expr) -> Expr:
    """Multiplicity of each bin of a half spectrum: 1 for the first, and the middle one of an even length, else 2."""
    at, size = counted(terms), op.size_tensor((length,), ())
    single = op.logical_or(op.equal(at, const(0, "int64")), op.equal(op.multiply(at, const(2, "int64")), size))
    return op.where(single, float_const(1.0, like), float_const(2.0, like))


def _number(d: Dim) -> Expr:
    return op.cast(op.size_tensor((d,), ()), "float64")


def _roots(phases: Expr, of: Expr, dtype: str) -> _Complex:
    """exp(2 pi i phases / of), computed in float64."""
    angle = op.divide(op.multiply(op.cast(phases, "float64"), const(2 * math.pi, "float64")), of)
    return _Complex(op.cast(op.cos(angle), dtype), op.cast(op.sin(angle), dtype))


def _side(node: OnnxNode, wanted: Dim) -> Dim:
    """The side of a square of at least 2 * wanted - 1."""
    if isinstance(wanted, int):
        return math.isqrt(2 * wanted) + 1
    root = op.floor(op.sqrt(_number(product((2, wanted)))))
    above = op.cast(op.add(root, const(1.0, "float64")), "int64")
    return node.bind(op.expand_dims(above, 0), "the side of a square for its length")[0]


@dataclass(frozen=True, slots=True)
class _Square:
    """Circular convolutions of side * side elements, for transforms of `wanted`."""

    wanted: Dim
    side: Dim
    matrix: Expr
    """[2 side, 2 side]: the DFT matrix of `side` elements on concatenated real and imaginary parts"""
    twiddles: _Complex
    """[side, side]: twiddle factors between the two products"""

    @staticmethod
    def of(node: OnnxNode, wanted: Dim, dtype: str) -> _Square:
        """The plan whose length holds all differences of two positions below `wanted`."""
        side = _side(node, wanted)
        at = counted(side)
        both = op.multiply(op.expand_dims(at, 1), at)
        table = _roots(op.floor_mod(both, op.size_tensor((side,), ())), _number(side), dtype).conjugate()
        upper = op.concatenate([table.real, op.negative(table.imaginary)], axis=1)
        matrix = op.concatenate([upper, op.concatenate([table.imaginary, table.real], axis=1)], axis=0)
        return _Square(wanted, side, matrix, _roots(both, _number(product((side, side))), dtype).conjugate())

    @property
    def length(self) -> Dim:
        return product((self.side, self.side))

    def room(self, used: Dim) -> Dim:
        """Padding after `used` elements."""
        return add_sizes(self.length, product((-1, used)))

    def chirp(self, sign: int) -> _Complex:
        """The chirp exp(sign pi i k k / wanted) at k and, cyclically, at -k: [1, length]."""
        at = counted(self.length)
        distance = op.minimum(at, op.subtract(op.size_tensor((self.length,), ()), at))
        twice = op.size_tensor((product((2, self.wanted)),), ())
        phases = op.floor_mod(op.multiply(distance, distance), twice)
        roots = _roots(phases, op.cast(twice, "float64"), str(self.matrix.dtype))
        chirp = roots if sign > 0 else roots.conjugate()
        return chirp.reshape(1, self.length)

    def first(self, x: _Complex, count: Dim) -> _Complex:
        """The first elements of each row."""
        return _Complex(*[op.strided_slice(part, (0,), (count,), axes=(1,)) for part in (x.real, x.imaginary)])

    def _halves(self, x: Expr, axis: int) -> _Complex:
        twice = product((2, self.side))
        return _Complex(op.strided_slice(x, (0,), (self.side,), axes=(axis,)),
                        op.strided_slice(x, (self.side,), (twice,), axes=(axis,)))  # fmt: skip

    def forwards(self, x: _Complex) -> _Complex:
        """Transforms of [rows, side, side], with bins in transposed order."""
        columns = self._halves(op.nn.matmul(self._matrices(), x.joined(1)), 1)
        return self._halves(op.nn.matmul((columns * self.twiddles).joined(2), self._matrices(), transpose_b=True), 2)

    def backwards(self, x: _Complex) -> _Complex:
        """The inverse of `forwards`."""
        rows = self._halves(op.nn.matmul(x.joined(2), self._matrices()), 2) * self.twiddles.conjugate()
        result = self._halves(op.nn.matmul(self._matrices(), rows.joined(1), transpose_a=True), 1)
        share = op.cast(op.divide(const(1.0, "float64"), _number(self.length)), str(self.matrix.dtype))
        return _Complex(op.multiply(result.real, share), op.multiply(result.imaginary, share))

    def _matrices(self) -> Expr:
        return op.expand_dims(self.matrix, 0)
