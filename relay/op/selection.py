"""Operators whose number of results depends on the data: computed up to an upper bound, with a count.

A model binds the count to a size variable and slices the results to it (see `relay.lowering.dynamic`).
"""

from __future__ import annotations

import math

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr, TupleGetItem
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.sizes import product, smaller
from relayc.relay.type import TensorType, TupleType, dims_match
from relayc.te.dtype import INT32

__all__ = ["NonMaxSuppression", "NonZero", "non_max_suppression", "nonzero"]


@register_op("nonzero", pattern=OpPattern.OPAQUE)
class NonZero(OpDef):
    """Positions of the elements of x that are not zero, at the front of a vector as long as x, and their count.

    (ONNX: NonZero, of a vector.) Gives int64 (n,) and int64 (1,); zeros follow the positions. (C1) x is a vector.
    """

    def infer(self, x: TensorType) -> TupleType:
        require(x.ndim == 1, f"(C1) x must be a vector; got {x}")
        return TupleType([x.with_dtype("int64"), TensorType((1,), "int64")])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        return topi.nonzero(x)

    def reference(self, x: Array) -> tuple[Array, Array]:
        found = np.flatnonzero(x)
        return np.pad(found, (0, x.size - found.size)).astype(np.int64), np.array([found.size], np.int64)


@register_op("vision.non_max_suppression", pattern=OpPattern.OPAQUE)
class NonMaxSuppression(OpDef):
    """Rows (image, class, box) of the boxes kept, best first within a class, and how many there are.

    (ONNX: NonMaxSuppression.) boxes (B, N, 4) float32 are corners y1, x1, y2, x2, or with `center` x, y, width, height;
    scores (B, C, N) float32; `limit` int64 (1,), `iou` and `least` float32 (1,) as in `topi.non_max_suppression`. Gives
    int64 (B * C * min(N, `most`), 3), zeros past the count, and int64 (1,). (C1) boxes are (B, N, 4), scores (B, C, N).
    """

    center: bool = False
    most: int | None = None

    def infer(
        self,
        boxes: TensorType,
        scores: TensorType,
        limit: TensorType,
        iou: TensorType,
        least: TensorType,
    ) -> TupleType:
        fits = boxes.ndim == scores.ndim == 3 and dims_match(boxes.shape[2], 4)
        fits = fits and dims_match(boxes.shape[0], scores.shape[0]) and dims_match(boxes.shape[1], scores.shape[2])
        require(fits, f"(C1) boxes must be (B, N, 4), scores (B, C, N); got {boxes} and {scores}")
        *classes, count = scores.shape
        room = count if self.most is None else smaller(count, self.most)
        return TupleType([TensorType((product((*classes, room)), 3), "int64"), TensorType((1,), "int64")])

    def compute(self, *inputs: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        boxes, scores, limit, iou, least = inputs
        return topi.non_max_suppression(boxes, scores, limit, iou, least, self.center, self.most)

    def reference(
        self, boxes: Array, scores: Array, limit: Array, iou: Array, least: Array
    ) -> tuple[Array, Array]:
        rows: list[tuple[int, int, int]] = []
        *classes, count = scores.shape
        room = count if self.most is None else min(count, self.most)
        for image, cls in np.ndindex(*classes):
            kept: list[int] = []
            for at in map(int, np.argsort(-scores[image, cls], kind="stable")):
                overlaps = [_overlap(boxes[image, at], boxes[image, other], self.center) for other in kept]
                fits = len(kept) < min(room, limit[0]) and all(o <= iou[0] for o in overlaps)
                if scores[image, cls, at] > least[0] and fits:
                    kept.append(at)
            rows.extend((image, cls, at) for at in kept)
        result = np.zeros((math.prod(classes) * room, 3), np.int64)
        result[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
        return result, np.array([len(rows)], np.int64)


def _overlap(a: Array, b: Array, center: bool) -> float:
    corners = [
        np.array([[v[1] - v[3] / 2, v[0] - v[2] / 2], [v[1] + v[3] / 2, v[0] + v[2] / 2]]) if center
        else np.sort(v.reshape(2, 2), axis=0)
        for v in (a, b)
    ]  # fmt: skip
    low, high = np.maximum(corners[0][0], corners[1][0]), np.minimum(corners[0][1], corners[1][1])
    common = float(np.prod(np.maximum(high - low, 0)))
    union = sum(float(np.prod(c[1] - c[0])) for c in corners) - common
    return common / union if union > 0 else 0.0


def nonzero(data: Expr) -> tuple[TupleGetItem, TupleGetItem]:
    """Positions of the elements of a vector that are not zero, and their count."""
    call: Call = NonZero()(data)
    return TupleGetItem(call, 0), TupleGetItem(call, 1)


def non_max_suppression(
    boxes: Expr, scores: Expr, limit: Expr, iou: Expr, least: Expr, center: bool = False, most: int | None = None
) -> tuple[TupleGetItem, TupleGetItem]:
    """Rows (image, class, box) of the boxes kept, and how many there are; `most` bounds `limit`.

    A `most` beyond int32, as exporters write for "all", bounds nothing: boxes are numbered in int32.
    """
    most = None if most is None or most > INT32.max_value() else most
    call: Call = NonMaxSuppression(center=center, most=most)(boxes, scores, limit, iou, least)
    return TupleGetItem(call, 0), TupleGetItem(call, 1)
