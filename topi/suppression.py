"""Non-maximum suppression: the boxes of a detector that overlap no better one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, as_dim, ir_builder, product
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.groups import constant_size
from relayc.topi.heap import Heap
from relayc.topi.utils import unravel_index

__all__ = ["non_max_suppression"]

_SCORES = 16
"""Scores that are compared with the least one together: most blocks of a detector's scores have none above it."""
_BOXES = 16
"""Kept boxes that a candidate is compared with before it may be given up; a whole vector of single floats."""
_WORTH_SHARING = 1 << 16
"""The least number of scores for which classes run in parallel."""


def non_max_suppression(
    boxes: Tensor, scores: Tensor, limit: Tensor, iou: Tensor, least: Tensor, center: bool, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Boxes kept of each class of each image, best first: rows (image, class, box), and how many rows there are.

    boxes (B, N, 4) are corners y1, x1, y2, x2 in any order, or with `center` x, y, width, height; scores (B, C, N). At
    most `limit` boxes of a class are kept, and no more than `most`: those scoring above `least` whose overlap
    (intersection over union) with each better kept box is at most `iou`. Of equal scores the first is the better.

    Candidates are filtered by score, then taken from a heap until a class is full. Zeros follow the rows.
    """
    images, count, _ = boxes.shape
    classes = scores.shape[1]
    room = count if most is None else as_dim(te.min(count, most))
    rows = product((images, classes, room))

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        box, score, limit, iou, least = map(ib.buffer, ins)
        result, total = map(ib.buffer, outs)
        places = ib.allocate("int32", (product((images, classes)), room), "places", scope="global")
        counts = ib.allocate("int32", product((images, classes)), "counts", scope="global")
        kind = "parallel" if constant_size(scores.shape) >= _WORTH_SHARING else "serial"
        with ib.for_range(0, product((images, classes)), "row", kind, independent=True) as row:
            image, cls = unravel_index(row, (images, classes))
            candidates = _Candidates(ib, count)
            candidates.collect(lambda k: score[image, cls, k], least[0])
            kept = _Kept(ib, room, iou[0])
            most_kept = ib.let("most_kept", te.min(limit[0], te.cast("int64", room)))
            with ib.while_loop(te.all(candidates.left[0] > 0, te.cast("int64", kept.count[0]) < most_kept)):
                at = candidates.take()
                spans = [_span(ib, box, image, at, axis, center) for axis in (0, 1)]
                with ib.if_scope(kept.has_room_for(spans)):
                    places[row, kept.count[0]] = at
                    kept.append(spans)
            counts[row] = kept.count[0]
        _gather(ib, (images, classes), rows, places, counts, result, total)
        return ib.get()

    inputs = [boxes, scores, limit, iou, least]
    result, total = te.extern(
        [(rows, 3), (1,)], inputs, fill, name="non_max_suppression", dtype=["int64", "int64"], tag="scan"
    )
    return result, total


_Span = tuple[PrimExpr, PrimExpr]


def _overlap(a: Sequence[_Span], b: Sequence[_Span]) -> PrimExpr:
    """The intersection over union of two boxes, passed as intervals along two axes; 0 without area."""
    zero = te.const(0.0, "float32")
    sides = [te.maximum(te.minimum(p[1], q[1]) - te.maximum(p[0], q[0]), zero) for p, q in zip(a, b, strict=True)]
    common = sides[0] * sides[1]
    areas = [(box[0][1] - box[0][0]) * (box[1][1] - box[1][0]) for box in (a, b)]
    union = areas[0] + areas[1] - common
    return te.select(union > zero, common / union, zero)


def _span(
    ib: IRBuilder, box: BufferView, image: Dim, at: PrimExpr, axis: int, center: bool
) -> _Span:
    """The interval of a box along an axis."""
    if center:
        middle, half = box[image, at, 1 - axis], box[image, at, 3 - axis] * te.const(0.5, "float32")
        return ib.let("begin", middle - half), ib.let("end", middle + half)
    p, q = box[image, at, axis], box[image, at, axis + 2]
    return ib.let("begin", te.minimum(p, q)), ib.let("end", te.maximum(p, q))


class _Candidates:
    """The boxes of a class that score enough, in a heap with the best one on top."""

    def __init__(self, ib: IRBuilder, most: Dim) -> None:
        self.ib, self.most = ib, most
        self.values = ib.allocate("float32", most, "values", scope="global")
        self.places = ib.allocate("int32", most, "candidates", scope="global")
        self.left = ib.allocate("int32", 1, "left")
        self.heap = Heap(ib, self.values, self.places, self._above)

    @staticmethod
    def _above(a: PrimExpr, place: Any, b: PrimExpr, other: Any) -> PrimExpr:
        return te.any(a > b, te.all(a == b, place < other))

    def collect(self, score: Callable[[Any], PrimExpr], least: PrimExpr) -> None:
        """Make a heap of all positions k whose ``score(k)`` is above `least`."""
        ib, left = self.ib, self.left
        least = ib.let("least", least)
        left[0] = 0

        def append(begin: Any, end: Any) -> None:
            with ib.for_range(begin, end, "k") as k:
                value, at = ib.let("value", score(k)), ib.let("at", left[0])
                self.values[at], self.places[at] = value, k
                left[0] = at + te.cast("int32", value > least)

        enough = ib.allocate("int32", 1, "enough")
        with ib.for_range(0, self.most // _SCORES, "block") as block:
            begin = ib.let("begin", block * _SCORES)
            enough[0] = 0
            with ib.for_range(0, _SCORES, "k") as k:
                enough[0] = te.max(enough[0], te.cast("int32", score(begin + k) > least))
            with ib.if_scope(enough[0] > 0):
                append(begin, begin + _SCORES)
        append(self.most // _SCORES * _SCORES, self.most)
        self.heap.build(ib.let("found", left[0]))

    def take(self) -> PrimExpr:
        """The position of the best one, which leaves the heap."""
        ib, last = self.ib, self.ib.let("last", self.left[0] - 1)
        best = ib.let("best", self.places[0])
        self.left[0] = last
        self.heap.sink(0, self.values[last], self.places[last], last)
        return best


class _Kept:
    """The kept boxes of a class: contiguous bounds, so that a box is compared with a vector of them.

    The last block of boxes is filled up with empty ones at the origin, which overlap nothing.
    """

    def __init__(self, ib: IRBuilder, most: Dim, iou: PrimExpr) -> None:
        self.ib, self.iou = ib, ib.let("iou", iou)
        names = (("begin_y", "end_y"), ("begin_x", "end_x"))
        self.bounds = [[ib.allocate("float32", most + _BOXES, name, scope="global") for name in axis] for axis in names]
        self.count, self.free, self.met = (ib.allocate("int32", 1, name) for name in ("count", "free", "met"))
        self.count[0] = 0

    def has_room_for(self, spans: Sequence[_Span]) -> PrimExpr:
        """Does a box overlap none of the kept ones too much?"""
        ib, free, met = self.ib, self.free, self.met
        free[0], met[0] = 1, 0
        with ib.while_loop(te.all(free[0] > 0, met[0] < self.count[0])):
            begin = ib.let("begin", met[0])
            with ib.for_range(0, _BOXES, "j") as j:
                others = [(begins[begin + j], ends[begin + j]) for begins, ends in self.bounds]
                free[0] = te.select(_overlap(spans, others) > self.iou, 0, free[0])
            met[0] = begin + _BOXES
        return free[0] > 0

    def append(self, spans: Sequence[_Span]) -> None:
        """Keep a box."""
        ib, here = self.ib, self.ib.let("here", self.count[0])
        with ib.if_scope(here % _BOXES == 0), ib.for_range(0, _BOXES, "j") as j:
            for bound in (b for pair in self.bounds for b in pair):
                bound[here + j] = te.const(0.0, "float32")
        for pair, span in zip(self.bounds, spans, strict=True):
            for bound, value in zip(pair, span, strict=True):
                bound[here] = value
        self.count[0] = here + 1


def _gather(
    ib: IRBuilder, shape: Sequence[Dim], rows: Dim, places: BufferView, counts: BufferView, result: BufferView,
    total: BufferView,
) -> None:  # fmt: skip
    """Write the kept boxes of all classes one after the other, and their number."""
    with ib.for_range(0, rows, "row") as row, ib.for_range(0, 3, "column") as column:
        result[row, column] = te.const(0, "int64")
    first = ib.allocate("int32", 1, "first")
    first[0] = 0
    with ib.for_range(0, product(shape), "row") as row:
        begin = ib.let("begin", first[0])
        with ib.for_range(0, counts[row], "k") as k:
            for column, value in enumerate((*unravel_index(row, shape), places[row, k])):
                result[begin + k, column] = te.cast("int64", value)
        first[0] = begin + counts[row]
    total[0] = te.cast("int64", first[0])
