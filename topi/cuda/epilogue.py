"""Epilogue fusion: whether a group's elementwise operations can run on the anchor's results in registers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.rewrite import map_reads
from relayc.te.tir import Dim, PrimExpr, ProducerLoad, Var, as_int
from relayc.te.tir.substitute import substitute
from relayc.topi.cuda.stagewise import schedule_stage
from relayc.topi.groups import inline_injective, inlined, is_injective
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["fused_output", "start_schedule"]


def fused_output(outs: Sequence[te.Tensor], anchor: te.Operation) -> te.Tensor | None:
    """The output whose elements read the anchor's result at their own index only, if nothing else has to be
    computed."""
    if len(outs) != 1:
        return None
    out, result = outs[0], anchor.output(0)
    if out.op is anchor:
        return out
    if not is_injective(out.op) or len(out.shape) != len(result.shape):
        return None
    if not all(a is b or a == b for a, b in zip(_known(out), _known(result), strict=True)):
        return None
    assert isinstance(out.op, te.ComputeOp)
    own = [axis.var for axis in out.op.axis]
    for load in [n for n in post_order(inlined(out.op.body[0], anchor)) if isinstance(n, ProducerLoad)]:
        if load.producer.op is anchor and not all(map(_is_own, load.indices, own, result.shape)):
            return None
    return out


def _is_own(index: PrimExpr, own: Var, size: Dim) -> bool:
    """Is the index that of the output's element? In a dimension of one element it may be the constant 0."""
    return index is own or (as_int(size) == 1 and as_int(index) == 0)


def _read_at_own_index(s: te.Schedule, out: te.Tensor, anchor: te.Operation) -> None:
    """Make `out` read the anchor by its own loops in dimensions of one element too, which are tiled like others."""
    assert isinstance(out.op, te.ComputeOp)
    own = [axis.var for axis in out.op.axis]

    def read(load: ProducerLoad) -> PrimExpr:
        return ProducerLoad(load.producer, tuple(own)) if load.producer.op is anchor else load

    body = map_reads(inlined(out.op.body[0], anchor), read)

    def element(*index: Var) -> PrimExpr:
        return substitute(body, dict(zip(own, index, strict=True)))

    s.recompute(out, te.compute(out.shape, element, out.op.name, out.op.tag))


def _known(tensor: te.Tensor) -> list[object]:
    return [d if isinstance(d, int) else id(d) for d in tensor.shape]


def start_schedule(
    outs: Sequence[te.Tensor], anchor: te.Operation, target: Target, separate: Collection[te.Operation] = ()
) -> tuple[te.Schedule, te.Tensor]:
    """A schedule complete except for the anchor, the tensor that it is written out through (returned), and `separate`.

    The epilogue is written out by the group's output if it can be fused, else by the anchor, and its readers are
    kernels of their own. The anchor's injective inputs are inlined.
    """
    fused = fused_output(outs, anchor)
    s = te.create_schedule([out.op for out in outs])
    if fused is not None and fused.op is not anchor:
        _read_at_own_index(s, fused, anchor)
    keep = [] if fused is not None else [anchor]
    inline_injective(s, outs, keep)
    out = anchor.output(0) if fused is None else fused
    for op in operations_behind(outs):
        if op is not anchor and op is not out.op and op not in separate and s[op].attach != "inline":
            schedule_stage(s, op, target)
    return s, out
