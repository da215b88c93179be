"""Operators of object detection (TVM: `topi.vision`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.tag import ELEMWISE
from relayc.topi.utils import accumulator_type

__all__ = ["roi_align", "weighted_pixels"]


def roi_align(
    x: Tensor,
    rois: Tensor,
    batches: Tensor,
    size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    half_pixel: bool,
    mode: str,
) -> Tensor:
    """Regions of x (N, C, H, W) resampled to `size`: (R, C, *size). (He et al., *Mask R-CNN*; ONNX: RoiAlign)

    `rois` (R, 4) are x1, y1, x2, y2 in units of 1 / `spatial_scale` pixels, `batches` (R,) their images. A bin of the
    result is the mean ("avg") or maximum ("max") of its samples, `sampling_ratio` along each axis, or with 0 about one
    for each pixel, but no more than MAX_SAMPLES. `half_pixel` shifts by half a pixel; without, regions are at least one
    pixel large.
    """
    shape = (rois.shape[0], x.shape[1], *size)

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        image, boxes, owners = (ib.buffer(b) for b in ins)
        out = ib.buffer(outs[0])
        with ib.for_range(0, shape[0], "r", independent=True) as r:
            owner = ib.let("owner", te.maximum(te.minimum(te.cast("int32", owners[r]), x.shape[0] - 1), 0))
            axes = [
                _Bins(ib, boxes, r, 1 - a, size[a], x.shape[2 + a], spatial_scale, sampling_ratio, half_pixel)
                for a in range(2)
            ]
            with ib.for_range(0, size[0], "py") as py, ib.for_range(0, size[1], "px") as px:
                _pool_bin(ib, image, out, (owner, r, py, px), axes, x.shape[1], mode)
        return ib.get()

    return te.extern(shape, [x, rois, batches], fill, name="roi_align", dtype=x.dtype, tag="default")


MAX_SAMPLES = 1024
"""Most samples of a bin along an axis: a region may be as large as floats are, and the time must not be."""


class _Bins:
    """The bins of a region along one axis: their start, size and number of samples."""

    def __init__(
        self,
        ib: IRBuilder,
        boxes: BufferView,
        r: PrimExpr,
        column: int,
        count: int,
        extent: Dim,
        scale: float,
        ratio: int,
        half_pixel: bool,
    ) -> None:
        def edge(at: int) -> PrimExpr:
            value = te.cast("float32", boxes[r, at]) * te.const(scale, "float32")
            return value - te.const(0.5 if half_pixel else 0.0, "float32")

        self.ib, self.extent = ib, extent
        self.start = ib.let("start", edge(column))
        length = edge(column + 2) - self.start
        length = ib.let("length", length if half_pixel else te.maximum(length, te.const(1.0, "float32")))
        self.size = ib.let("size", length / te.const(float(count), "float32"))
        most = te.const(float(MAX_SAMPLES), "float32")
        zero = te.const(0.0, "float32")
        per_pixel = te.select(self.size > zero, te.minimum(te.ceil(self.size), most), zero)  # 0 for NaN
        self.samples = ib.let("samples", te.const(ratio) if ratio else te.cast("int32", per_pixel))

    def sample(self, bin_: PrimExpr, at: PrimExpr) -> _Sample:
        """The position of sample `at` of a bin, between two pixels."""
        ib, last = self.ib, self.extent - 1
        step = (te.cast("float32", at) + te.const(0.5, "float32")) * self.size / te.cast("float32", self.samples)
        position = ib.let("position", self.start + te.cast("float32", bin_) * self.size + step)
        inside = te.all(position >= te.const(-1.0, "float32"), position <= te.cast("float32", self.extent))
        clipped = te.minimum(te.maximum(position, te.const(0.0, "float32")), te.cast("float32", last))
        clipped = te.select(inside, clipped, te.const(0.0, "float32"))  # a NaN is no index
        low = ib.let("low", te.cast("int32", clipped))
        return _Sample(low, te.minimum(low + 1, last), clipped - te.cast("float32", low), inside)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A position between pixels `low` and `high`, `weight` of the way; `inside` the image or near it."""

    low: PrimExpr
    high: PrimExpr
    weight: PrimExpr
    inside: PrimExpr


def _pool_bin(
    ib: IRBuilder,
    image: BufferView,
    out: BufferView,
    where: tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr],
    axes: Sequence[_Bins],
    channels: Dim,
    mode: str,
) -> None:
    """One bin of every channel: the mean or maximum of its samples."""
    owner, r, py, px = where
    dtype = out.buffer.dtype
    count = ib.let("count", te.maximum(axes[0].samples * axes[1].samples, 0))
    empty = te.const(float("-inf"), dtype) if mode == "max" else te.const(0, dtype)
    with ib.for_range(0, channels, "c") as c:
        out[r, c, py, px] = te.if_then_else(count > 0, empty, te.const(0, dtype))
    rows, columns = (te.maximum(axis.samples, 0) for axis in axes)
    with ib.for_range(0, rows, "iy") as iy, ib.for_range(0, columns, "ix") as ix:
        y, x = axes[0].sample(py, iy), axes[1].sample(px, ix)
        one = te.const(1.0, "float32")
        taps = [
            (row, column, ib.let("w", te.if_then_else(te.all(y.inside, x.inside), wy * wx, te.const(0.0, "float32"))))
            for row, wy in ((y.low, one - y.weight), (y.high, y.weight))
            for column, wx in ((x.low, one - x.weight), (x.high, x.weight))
        ]
        with ib.for_range(0, channels, "c") as c:
            terms = [te.cast(dtype, w) * image[owner, c, row, column] for row, column, w in taps]
            if mode == "max":
                best = te.maximum(te.maximum(terms[0], terms[1]), te.maximum(terms[2], terms[3]))
                out[r, c, py, px] = te.maximum(out[r, c, py, px], best)
            else:
                out[r, c, py, px] = out[r, c, py, px] + terms[0] + terms[1] + terms[2] + terms[3]
    if mode == "avg":
        with ib.for_range(0, channels, "c") as c:
            out[r, c, py, px] = out[r, c, py, px] / te.cast(dtype, te.maximum(count, 1))


def weighted_pixels(
    x: Tensor, positions: Tensor, weights: Tensor | None = None, channels_last: bool = True
) -> Tensor:
    """Sums over t of the pixels at ``positions[n, t, m]`` of image n, times ``weights[n, t, m]``: (N, M, C).

    x is (N, P, C), positions and weights are (N, T, M). A negative position adds nothing; others must be less than P,
    which is not checked. Without `channels_last` x is (N, C, P), and the result (N, C, M). Without `weights` all are 1.
    """
    taps, wide = te.reduce_axis((0, positions.shape[1]), name="t"), accumulator_type(x.dtype)

    def body(n: Any, i: Any, j: Any) -> PrimExpr:
        m, c = (i, j) if channels_last else (j, i)
        at = te.cast("int32", positions(n, taps, m))
        value = te.cast(wide, x(n, at, c) if channels_last else x(n, c, at))
        value = value if weights is None else value * te.cast(wide, weights(n, taps, m))
        return te.sum(te.if_then_else(at >= 0, value, te.const(0, wide)), axis=taps)

    count = positions.shape[2]
    shape = (x.shape[0], count, x.shape[2]) if channels_last else (*x.shape[:2], count)
    total = te.compute(shape, body, name="weighted_pixels", tag="default")
    if wide == x.dtype:
        return total
    return te.compute(shape, lambda *i: te.cast(x.dtype, total(*i)), name="rounded", tag=ELEMWISE)
