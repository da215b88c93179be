"""Sorting on GPUs: chunks sorted by rank, then merged by binary searches, with a thread per element throughout.

The position of an element in its chunk is the number of others that precede it. Two sorted runs are merged by a binary
search of every element in the other run. Both are stable. All elements of all rows are processed together: n / 2 ** 10
chunks take log2 of that many passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import Buffer, PrimExpr, Stmt, as_int, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.extern import schedule_extern
from relayc.topi.cuda.stagewise import schedule_stage
from relayc.topi.groups import inline_injective
from relayc.topi.loops import loop_nest
from relayc.topi.registry import register_schedule
from relayc.topi.utils import same_dim

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_sort"]

_CHUNK = 1024
"""Elements that are sorted by rank; also the chunk of a longer row, or of one of symbolic length."""


@register_schedule("sort", "cuda")
def schedule_sort(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule the sorted indices, then the reads at them."""
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs)
    for stage in list(s.stages):
        op = stage.op
        if isinstance(op, te.ExternOp) and "comes_before" in op.attrs:
            schedule_extern(s, op, Gpu.of(target), _parallel_sort(op))
        elif stage.attach != "inline":
            schedule_stage(s, op, target)
    return s


def _parallel_sort(op: te.ExternOp) -> te.ExternOp:
    """The sorted indices by rank and merge; if only the first ones are wanted, they are copied from all."""
    shape, axis = op.inputs[0].shape, int(op.attrs["axis"])
    n, others, wanted = shape[axis], (*shape[:axis], *shape[axis + 1 :]), op.outputs[0].shape
    whole = same_dim(n, wanted[axis])
    known = as_int(n)
    passes = 0 if known is None else max(-(-known // _CHUNK) - 1, 0).bit_length()

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        keys = ib.buffer(ins[0])
        scratch = [ib.allocate("int32", shape, f"order{i}", scope="global") for i in range(min(passes, 2))]
        out = ib.buffer(outs[0])
        orders = [scratch[i % 2] for i in range(passes)]
        orders.append(out if whole else ib.allocate("int32", shape, "sorted", scope="global"))

        def first(at: Sequence[PrimExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr:
            return op.attrs["comes_before"](keys[_place(at, axis, a)], keys[_place(at, axis, b)])

        with loop_nest(ib, (*others, n), independent=True) as index:
            _count_in_chunk(ib, index, axis, n, _CHUNK if passes else te.maximum(n, 1), orders[0], first)
        for i in range(passes):
            with loop_nest(ib, (*others, n), independent=True) as index:
                _merge_one(ib, index, axis, n, _CHUNK << i, orders[i], orders[i + 1], first)
        if not whole:
            with loop_nest(ib, wanted, independent=True) as index:
                out[index] = orders[-1][index]
        return ib.get()

    made = te.extern(wanted, list(op.inputs), fill, name=op.name, dtype=str(op.outputs[0].dtype))
    assert isinstance(made.op, te.ExternOp)
    return made.op


def _place(at: Sequence[PrimExpr], axis: int, position: PrimExpr) -> tuple[PrimExpr, ...]:
    return (*at[:axis], position, *at[axis:])


First = Callable[[Sequence[PrimExpr], PrimExpr, PrimExpr], PrimExpr]


def _count_in_chunk(
    ib: IRBuilder, index: Sequence[PrimExpr], axis: int, n: te.Dim, chunk: Any, out: BufferView, first: First
) -> None:
    """Store element `index` at its rank in its chunk."""
    *at, k = index
    start = ib.let("start", k // chunk * chunk)
    before = ib.allocate("int32", 1, "before")
    before[0] = 0
    with ib.for_range(start, te.minimum(start + chunk, n), "other") as other:
        earlier = te.any(first(at, other, k), te.all(other < k, ~first(at, k, other)))
        before[0] = before[0] + te.cast("int32", earlier)
    out[_place(at, axis, start + before[0])] = k


def _merge_one(
    ib: IRBuilder,
    index: Sequence[PrimExpr],
    axis: int,
    n: te.Dim,
    width: int,
    source: BufferView,
    out: BufferView,
    first: First,
) -> None:
    """Store the element at `index`, in sorted runs of `width`, at its position in the merged pair of runs."""
    *at, k = index
    run = ib.let("run", k // width)
    sibling = ib.let("sibling", (run + 1 - run % 2 * 2) * width)
    mine = ib.let("mine", source[_place(at, axis, k)])
    low, high = ib.allocate("int32", 1, "low"), ib.allocate("int32", 1, "high")
    low[0] = te.minimum(sibling, n)
    high[0] = te.minimum(sibling + width, n)
    with ib.while_loop(low[0] < high[0]):
        middle = ib.let("middle", (low[0] + high[0]) // 2)
        other = ib.let("other", source[_place(at, axis, middle)])
        # equal values of the left run come first
        with ib.if_scope(te.if_then_else(run % 2 == 0, first(at, other, mine), ~first(at, mine, other))):
            low[0] = middle + 1
        with ib.else_scope():
            high[0] = middle
    inside = k - run * width + low[0] - te.minimum(sibling, n)
    out[_place(at, axis, run // 2 * (2 * width) + inside)] = mine
