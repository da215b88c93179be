"""Discrete Fourier transforms."""

from __future__ import annotations

import numpy as np

from relayc import te
from relayc.backend.runtime.sizes import MAX_EXTENT
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import TensorType
from relayc.topi.fourier import dft as dft_compute, dft_roots

__all__ = ["Dft", "dft"]


@register_op("dft", pattern=OpPattern.OPAQUE)
class Dft(OpDef):
    """Transforms of rows [rows, n, parts], real and imaginary parts last (ONNX: DFT; TVM: dft).

    Forwards, rows are cut or filled with zeros to `length`; the result has `length` bins, with `onesided` the first
    length // 2 + 1 of them. Inverse, rows are spectra (with `onesided` the first half of one whose other half are the
    conjugates), and the result is divided by `length`; with `onesided` it is real.

    (C1) the input is float32 or float64 [rows, n, 1 or 2], n known; (C2) the roots are [2, length] of its type;
    (C3) length is at least 1; (C4) a half spectrum has two parts.
    """

    mixed_precision = MixedPrecision.NEVER

    length: int
    inverse: bool = False
    onesided: bool = False

    def infer(self, x: TensorType, roots: TensorType) -> TensorType:
        fits = x.ndim == 3 and x.dtype in ("float32", "float64") and x.shape[2] in (1, 2)
        require(fits and isinstance(x.shape[1], int), f"(C1) {x} must be float32 or float64 [rows, n, 1 or 2], n known")
        require(roots == TensorType((2, self.length), x.dtype), f"(C2) {roots} must be [2, {self.length}] of {x.dtype}")
        require(self.length >= 1, f"(C3) length {self.length} must be at least 1")
        half = self.onesided and self.inverse
        require(not half or x.shape[2] == 2, f"(C4) a half spectrum has two parts; got {x}")
        bins = self.length // 2 + 1 if self.onesided and not self.inverse else self.length
        return x.with_shape((x.shape[0], bins, 1 if half else 2))

    def compute(self, x: te.Tensor, roots: te.Tensor) -> te.Tensor:
        return dft_compute(x, roots, self.length, self.inverse, self.onesided)

    def reference(self, x: Array, roots: Array) -> Array:
        parts, n = x.shape[2], self.length
        signal = x[..., 0] if parts == 1 else x[..., 0] + x[..., 1] * x.dtype.type(1) * 1j
        if self.inverse and self.onesided:
            return np.fft.irfft(signal, n, axis=1)[..., None].astype(x.dtype)
        if self.inverse:
            result = np.fft.ifft(signal, n, axis=1)
        elif parts == 1:
            half = np.fft.rfft(signal, n, axis=1)
            upper = half[:, 1 : (n + 1) // 2][:, ::-1].conj()
            result = half if self.onesided else np.concatenate([half, upper], axis=1)
        else:
            result = np.fft.fft(signal, n, axis=1)[:, : n // 2 + 1 if self.onesided else n]
        return np.stack([result.real, result.imag], axis=-1).astype(x.dtype)


def dft(x: Expr, length: int, inverse: bool = False, onesided: bool = False) -> Call:
    """Transforms of rows [rows, n, parts]; see `Dft`."""
    require(1 <= length <= MAX_EXTENT, f"length is {length}; expected 1 to {MAX_EXTENT}")
    require_float(1, x.tensor_type)
    roots = Constant(dft_roots(length).astype(str(x.dtype)))
    return Dft(length=length, inverse=inverse, onesided=onesided)(x, roots)
