"""Operators of object detection (TVM: `relay.vision`)."""

from __future__ import annotations

import math

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import TensorType, dims_match, shapes_match

__all__ = ["RoiAlign", "WeightedPixels", "roi_align", "weighted_pixels"]


@register_op("vision.roi_align", pattern=OpPattern.OPAQUE)
class RoiAlign(OpDef):
    """Regions of x (N, C, H, W) resampled to a size: (R, C, *pooled_size) (ONNX: RoiAlign).

    `rois` (R, 4) are x1, y1, x2, y2 in units of 1 / `spatial_scale` pixels, `batch_indices` (R,) their images. A bin is
    the "avg" or "max" of `sample_ratio` samples along each axis (0: about one for each pixel). `half_pixel` shifts by
    half a pixel. (C1) x has four dimensions and floats as elements; (C2) rois are (R, 4) floats, batch_indices (R,)
    integers; (C3) the mode is avg or max, sizes are positive; (C4) sample_ratio is from 0 to 1024.
    """

    mixed_precision = MixedPrecision.NEVER

    pooled_size: tuple[int, int]
    spatial_scale: float = 1.0
    sample_ratio: int = 0
    half_pixel: bool = True
    mode: str = "avg"

    def infer(self, x: TensorType, rois: TensorType, batch_indices: TensorType) -> TensorType:
        require_float(1, x)
        require(x.ndim == 4, f"(C1) x must have four dimensions; got {x}")
        regions = rois.ndim == 2 and dims_match(rois.shape[1], 4) and rois.dtype.is_float
        fits = regions and batch_indices.dtype.is_integral and shapes_match(rois.shape[:1], batch_indices.shape)
        require(bool(fits), f"(C2) {rois} and {batch_indices} must be floats (R, 4) and integers (R,)")
        valid = self.mode in ("avg", "max") and min(self.pooled_size) >= 1
        require(valid, f"(C3) mode {self.mode!r}, size {self.pooled_size}")
        most = topi.vision.MAX_SAMPLES
        samples = f"(C4) {self.sample_ratio} samples along each axis of a bin; expected 0 to {most}"
        require(0 <= self.sample_ratio <= most, samples)
        return x.with_shape((rois.shape[0], x.shape[1], *self.pooled_size))

    def compute(self, x: te.Tensor, rois: te.Tensor, batch_indices: te.Tensor) -> te.Tensor:
        return topi.vision.roi_align(
            x, rois, batch_indices, self.pooled_size, self.spatial_scale, self.sample_ratio, self.half_pixel, self.mode
        )

    def reference(self, x: Array, rois: Array, batch_indices: Array) -> Array:
        out = np.zeros((len(rois), x.shape[1], *self.pooled_size), x.dtype)
        for r, (box, owner) in enumerate(zip(rois, np.clip(batch_indices, 0, len(x) - 1), strict=True)):
            edges = box.astype(np.float64) * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
            axes = [self._samples(edges[1 - a], edges[3 - a], self.pooled_size[a], x.shape[2 + a]) for a in (0, 1)]
            for (py, rows), (px, columns) in ((y, z) for y in enumerate(axes[0]) for z in enumerate(axes[1])):
                samples = [self._sample(x[owner], row, column) for row in rows for column in columns]
                if samples:
                    combine = np.mean if self.mode == "avg" else np.max
                    out[r, :, py, px] = combine(np.stack(samples), axis=0)
        return out

    def _samples(self, start: float, end: float, bins: int, extent: int) -> list[list[tuple[int, int, float] | None]]:
        """For each bin of an axis its samples: pixels and weight of the second one, None outside of the image."""
        length = end - start if self.half_pixel else max(end - start, 1.0)
        size = length / bins
        count = self.sample_ratio or math.ceil(min(max(size, 0.0), topi.vision.MAX_SAMPLES))
        result: list[list[tuple[int, int, float] | None]] = []
        for b in range(bins):
            positions = [start + b * size + (k + 0.5) * size / count for k in range(count)]
            result.append([None if not -1 <= p <= extent else self._between(p, extent) for p in positions])
        return result

    @staticmethod
    def _between(position: float, extent: int) -> tuple[int, int, float]:
        at = min(max(position, 0.0), extent - 1.0)
        return int(at), min(int(at) + 1, extent - 1), at - int(at)

    def _sample(self, x: Array, row: tuple[int, int, float] | None, column: tuple[int, int, float] | None) -> Array:
        """One sample of every channel: the sum of the four weighted neighbours, or with "max" the largest of them."""
        if row is None or column is None:
            return np.zeros(len(x))
        terms = [
            wy * wx * x[:, y, z]
            for y, wy in ((row[0], 1 - row[2]), (row[1], row[2]))
            for z, wx in ((column[0], 1 - column[2]), (column[1], column[2]))
        ]
        combine = np.sum if self.mode == "avg" else np.max
        return combine(np.stack(terms), axis=0)


def roi_align(
    data: Expr,
    rois: Expr,
    batch_indices: Expr,
    pooled_size: tuple[int, int],
    spatial_scale: float = 1.0,
    sample_ratio: int = 0,
    half_pixel: bool = True,
    mode: str = "avg",
) -> Call:
    """Regions of `data` resampled to `pooled_size`."""
    op = RoiAlign(
        pooled_size=pooled_size,
        spatial_scale=spatial_scale,
        sample_ratio=sample_ratio,
        half_pixel=half_pixel,
        mode=mode,
    )
    return op(data, rois, batch_indices)


@register_op("vision.weighted_pixels", pattern=OpPattern.OUT_FUSABLE)
class WeightedPixels(OpDef):
    """Sums of weighted pixels, the form of resampling between pixels: (N, M, C).

    x is (N, P, C), positions and weights (N, T, M): result m of image n is the sum over t of the pixels at
    ``positions[n, t, m]``, times ``weights[n, t, m]``. A negative position adds nothing; others must be less than P.
    Without weights all factors are 1; without `channels_last` x is (N, C, P), and the result (N, C, M). (C1) x has
    three dimensions and floats as elements; (C2) positions are integers of three dimensions, of as many images; (C3)
    weights have their shape and the type of x.
    """

    mixed_precision = MixedPrecision.NEVER

    channels_last: bool = True

    def infer(self, x: TensorType, positions: TensorType, *weights: TensorType) -> TensorType:
        require_float(1, x)
        require(x.ndim == 3, f"(C1) x must have three dimensions; got {x}")
        fits = positions.dtype.is_integral and positions.ndim == 3 and dims_match(positions.shape[0], x.shape[0])
        require(fits, f"(C2) {positions} are not positions in {x}")
        fits = all(w.dtype == x.dtype and shapes_match(w.shape, positions.shape) for w in weights) and len(weights) < 2
        require(fits, f"(C3) {', '.join(map(str, weights))} are not the weights of {positions} in {x}")
        images, count = x.shape[0], positions.shape[2]
        return x.with_shape((images, count, x.shape[2]) if self.channels_last else (images, x.shape[1], count))

    def compute(self, x: te.Tensor, positions: te.Tensor, *weights: te.Tensor) -> te.Tensor:
        return topi.vision.weighted_pixels(x, positions, *weights, channels_last=self.channels_last)

    def reference(self, x: Array, positions: Array, *weights: Array) -> Array:
        rows = (x if self.channels_last else x.swapaxes(1, 2)).astype(np.float64)
        read = np.stack([image[at] for image, at in zip(rows, positions, strict=True)])  # n t m c
        for factors in weights:
            read = read * factors[..., None]
        total = np.where(positions[..., None] >= 0, read, 0.0).sum(1)
        return (total if self.channels_last else total.swapaxes(1, 2)).astype(x.dtype)


def weighted_pixels(data: Expr, positions: Expr, weights: Expr | None = None, channels_last: bool = True) -> Call:
    """Sums of the pixels of `data` at positions (N, T, M), times their weights; see `WeightedPixels`."""
    factors = () if weights is None else (weights,)
    return WeightedPixels(channels_last=channels_last)(data, positions, *factors)
