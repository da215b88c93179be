"""Sums of overlapping windows on GPUs: a thread for each pixel, which goes through the taps that may lie there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cuda.cost import Gpu
from topi.cuda.extern import rewritten, schedule_extern
from topi.cuda.stagewise import schedule_stage
from topi.groups import inline_injective
from topi.registry import register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_col2im"]


@register_schedule("col2im", "cuda")
def schedule_col2im(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The loops of the anchor by its elements, then what is computed of them."""
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs)
    for stage in list(s.stages):
        op = stage.op
        if op is anchor:
            assert isinstance(op, te.ExternOp)
            schedule_extern(s, op, Gpu.of(target), rewritten(op, op.attrs["by_element"]))
        elif stage.attach != "inline":
            schedule_stage(s, op, target)
    return s
