"""Schedules of operations that are products of matrices: dense layers, matrix products, convolutions of any rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cuda.contraction import contraction_of
from topi.cuda.epilogue import start_schedule
from topi.cuda.product_tiles import best_simt_tile
from topi.cuda.simt_matmul import schedule_simt
from topi.cuda.stagewise import schedule_stagewise
from topi.groups import constant_size
from topi.registry import register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_product"]

_LAYOUTS = ("ncw", "nwc", "nchw", "nhwc", "ncdhw", "ndhwc")
_CONVOLUTIONS = [f"conv{len(x) - 2}d{kind}_{x}" for x in _LAYOUTS for kind in ("", "_transpose")]


@register_schedule(["dense", "batch_matmul", *_CONVOLUTIONS], "cuda")
def schedule_product(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The anchor as a product of matrices, its epilogue on the results in registers."""
    contraction = contraction_of(anchor)
    if contraction is None:
        return schedule_stagewise(outs, anchor, target)
    s, out = start_schedule(outs, anchor, target)
    batch, rows, columns, depth = (
        constant_size([d]) for d in (contraction.batch, contraction.rows, contraction.columns, contraction.depth)
    )
    schedule_simt(s, out, contraction, best_simt_tile(target, batch, rows, columns, depth))
    return s
