"""Schedules of matrix products: dense layers, matrix multiplications, convolutions of any rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cuda.contraction import Contraction, contraction_of
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.depthwise import schedule_direct
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.mma_matmul import schedule_mma
from relayc.topi.cuda.product_tiles import (
    Choice,
    MmaTile,
    Problem,
    SimtTile,
    WgmmaTile,
    architecture,
    mma_choices,
    simt_choices,
    wgmma_choices,
)
from relayc.topi.cuda.simt_matmul import schedule_simt
from relayc.topi.cuda.split_depth import split_depth
from relayc.topi.cuda.stagewise import schedule_stagewise
from relayc.topi.cuda.tensor_core import Multiply, multiplies
from relayc.topi.cuda.wgmma_matmul import schedule_wgmma, supports_wgmma
from relayc.topi.groups import constant_size
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["plans_of", "schedule_contraction", "schedule_product", "schedule_tile"]

Plan = Choice[SimtTile] | Choice[MmaTile] | Choice[WgmmaTile]
"""A tile and its split-K factor."""

_LAYOUTS = ("ncw", "nwc", "nchw", "nhwc", "ncdhw", "ndhwc")
_CONVOLUTIONS = [f"conv{len(x) - 2}d{kind}_{x}" for x in _LAYOUTS for kind in ("", "_transpose")]


@register_schedule(["dense", "batch_matmul", *_CONVOLUTIONS], "cuda")
def schedule_product(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule the anchor as a matrix product, with its epilogue on the results in registers."""
    contraction = contraction_of(anchor)
    if contraction is None or plan_of(contraction, target) is None:
        return _schedule_otherwise(outs, anchor, target)
    s, out = start_schedule(outs, anchor, target)
    schedule_contraction(s, out, contraction, target)
    return s


def schedule_contraction(s: te.Schedule, out: te.Tensor, c: Contraction, target: Target) -> None:
    """Schedule contraction `c` of `s` with the best tile, and the output `out` that reads it at its own index."""
    plan = plan_of(c, target)
    assert plan is not None, "a contraction without groups has a tile"
    schedule_tile(s, out, c, plan, target)


def schedule_tile(s: te.Schedule, out: te.Tensor, c: Contraction, plan: Plan, target: Target) -> None:
    """Schedule contraction `c` of `s` by a plan."""
    note("tiles", type(plan.tile).__name__, plan.tile, cycles=plan.cycles, split_k=plan.parts)
    if plan.parts > 1:
        out, c = split_depth(s, out, c, plan.parts, target)
    if isinstance(plan.tile, MmaTile):
        instruction = _instruction(c, target)
        assert instruction is not None, "a tile for tensor cores has an instruction"
        if isinstance(plan.tile, WgmmaTile):
            schedule_wgmma(s, out, c, plan.tile, instruction)
        else:
            schedule_mma(s, out, c, plan.tile, instruction)
    else:
        schedule_simt(s, out, c, plan.tile)


def plan_of(c: Contraction, target: Target) -> Plan | None:
    """The best plan of a contraction; None when no tile fits its groups."""
    return next(iter(plans_of(c, target)), None)


def plans_of(c: Contraction, target: Target) -> Sequence[Plan]:
    """The plans of a contraction, best first: on tensor cores where they support its types and a tile fits."""
    problem = problem_of(c, target)
    if _instruction(c, target) is None:
        return simt_choices(target, problem)
    plans: list[Plan] = [*mma_choices(target, problem)]
    if target.get("arch") == "sm_90a" and supports_wgmma(c):
        plans += wgmma_choices(problem)
    return sorted(plans, key=lambda plan: plan.cycles) or simt_choices(target, problem)


def _schedule_otherwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule an operation without a matching tile: convolutions with few channels per group, or no matrix product."""
    if anchor.tag in _CONVOLUTIONS[::2]:
        return schedule_direct(outs, anchor, target)
    return schedule_stagewise(outs, anchor, target)


def problem_of(c: Contraction, target: Target) -> Problem:
    """The problem size of a contraction, for tile selection; tiles must not cross groups of channels."""
    batch, rows, columns, depth = (constant_size([d]) for d in (c.batch, c.rows, c.columns, c.depth))
    grouped = c.split is not None
    whole = grouped and c.split_in_rows, grouped and not c.split_in_rows
    return Problem(Gpu.of(target), batch, rows, columns, depth, c.left.value.dtype.nbytes, whole)


def _instruction(c: Contraction, target: Target) -> Multiply | None:
    """The tensor core instruction for a contraction of constant columns and depth, if any.

    float32 has one only where the target enables tf32.
    """
    constant = isinstance(c.columns, int) and isinstance(c.depth, int)
    if not constant or c.left.dtype != c.right.dtype or architecture(target) < 80:
        return None
    if c.left.dtype == "float32" and not target.get("tf32", False):
        return None
    return multiplies(c.left.dtype, c.wide)
