"""Operators with data-dependent result sizes: results are padded to a bound and returned with a count."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, ir_builder, product
from relayc.te.tir.ir_builder import BufferView, IRBuilder

__all__ = ["non_max_suppression", "nonzero"]


def nonzero(x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the elements of a vector that are not zero, in order, and how many there are.

    The positions fill the front of a vector as long as `x`; zeros follow.
    """
    (n,) = x.shape

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, positions, count = ib.buffer(ins[0]), ib.buffer(outs[0]), ib.buffer(outs[1])
        found = ib.allocate("int32", 1, "found")
        found[0] = 0
        with ib.for_range(0, n, "i") as i:
            positions[i] = te.const(0, "int64")
        with ib.for_range(0, n, "i") as i, ib.if_scope(source[i] != te.const(0, x.dtype)):
            positions[found[0]] = te.cast("int64", i)
            found[0] = found[0] + 1
        count[0] = te.cast("int64", found[0])
        return ib.get()

    positions, count = te.extern([(n,), (1,)], [x], fill, name="nonzero", dtype=["int64", "int64"], tag="scan")
    return positions, count


def non_max_suppression(
    boxes: Tensor, scores: Tensor, order: Tensor, limit: Tensor, iou: Tensor, least: Tensor, center: bool
) -> tuple[Tensor, Tensor]:
    """Boxes kept of each class of each image, best first: rows (image, class, box), and how many rows there are.

    boxes (B, N, 4) are corners y1, x1, y2, x2 in any order, or with `center` x, y, width, height; scores (B, C, N);
    `order` the positions along N by falling score. At most `limit` boxes of a class are kept, those scoring above
    `least` whose overlap (intersection over union) with each better kept box is at most `iou`.
    """
    images, count, _ = boxes.shape
    classes = scores.shape[1]
    rows = product((images, classes, count))

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        box, score, ranked, most, threshold, lowest = map(ib.buffer, ins)
        result, total = map(ib.buffer, outs)
        kept, first, free = (ib.allocate("int32", 1, name) for name in ("kept", "first", "free"))
        # The intervals of a class's kept boxes, contiguous, so that a box is compared with several by vectors.
        names = (("begin_y", "end_y"), ("begin_x", "end_x"))
        edges = [[ib.allocate("float32", count, name, scope="global") for name in axis] for axis in names]
        kept[0] = 0
        with ib.for_range(0, rows, "row") as row, ib.for_range(0, 3, "column") as column:
            result[row, column] = te.const(0, "int64")
        with ib.for_range(0, images, "b") as b, ib.for_range(0, classes, "c") as c:
            first[0] = kept[0]
            with ib.for_range(0, count, "k") as k:
                at = ib.let("at", te.cast("int32", ranked[b, c, k]))
                here = ib.let("here", kept[0] - first[0])
                room = te.cast("int64", here) < most[0]
                with ib.if_scope(te.all(score[b, c, at] > lowest[0], room)):
                    box_spans = [_span(ib, box, b, at, axis, center) for axis in (0, 1)]
                    free[0] = 1
                    with ib.for_range(0, here, "j") as j:
                        others = [(begins[j], ends[j]) for begins, ends in edges]
                        free[0] = te.select(_overlap(box_spans, others) > threshold[0], 0, free[0])
                    with ib.if_scope(free[0] == 1):
                        for column, value in enumerate((b, c, at)):
                            result[kept[0], column] = te.cast("int64", value)
                        for pair, span in zip(edges, box_spans, strict=True):
                            for edge, value in zip(pair, span, strict=True):
                                edge[here] = value
                        kept[0] = kept[0] + 1
        total[0] = te.cast("int64", kept[0])
        return ib.get()

    inputs = [boxes, scores, order, limit, iou, least]
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
