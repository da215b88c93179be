"""Split-K: matrix products with few tiles and a large depth are split along it, and a second kernel sums the parts.

The contraction is rewritten as `parts` contractions over a slice of the depth each, whose results go to memory, and a
short sum over them that is fused with the epilogue.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import PrimExpr, as_dim
from relayc.topi.cuda.common import launch
from relayc.topi.cuda.contraction import Contraction, contraction_of, zero_filled
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.stagewise import schedule_stage
from relayc.topi.groups import constant_size
from relayc.topi.utils import ceil_div

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["split_depth"]

_UNIT = 64
"""Slices are multiples of this many products, so that they begin at aligned vectors."""


def split_depth(
    s: te.Schedule, out: te.Tensor, c: Contraction, parts: int, target: Target
) -> tuple[te.Tensor, Contraction]:
    """Rewrite `c` as sums over slices and schedule all but these.

    Returns the tensor of the slices' sums, (batch * parts, rows, columns), and its contraction.
    """
    depth = c.depth
    slice_depth = as_dim(ceil_div(ceil_div(depth, parts), _UNIT) * _UNIT)
    step = gcd(depth, 16) if isinstance(depth, int) else 1
    exact = isinstance(depth, int) and isinstance(slice_depth, int) and depth == slice_depth * parts
    k = te.reduce_axis((0, slice_depth), name="k")

    def partial(b: Any, i: Any, j: Any) -> PrimExpr:
        position = b % parts * slice_depth + k
        inside = () if exact else (position // step < depth // step,)
        x = zero_filled(c.left.at(b // parts, i, position), *inside)
        y = zero_filled(c.right.at(b // parts, j, position), *inside)
        return te.sum(te.cast(c.wide, x) * te.cast(c.wide, y), axis=k)

    partials = te.compute((as_dim(c.batch * parts), c.rows, c.columns), partial, name="partials")
    part = te.reduce_axis((0, parts), name="part")

    def total(*index: Any) -> PrimExpr:
        b, i, j = c.position(index)
        return te.sum(partials(b * parts + part, i, j), axis=part)

    result = c.op.output(0)
    s.recompute(result, te.compute(result.shape, total, name=c.op.name))
    if s[out] is s[c.op]:
        schedule_stage(s, s[c.op].op, target)
    else:
        item = launch(s, out, list(s[out].op.axis), Gpu.of(target).block_size(constant_size(out.shape)))
        s[c.op].set_scope("local")
        s[c.op].compute_at(s[out], item)
        s[c.op].unroll(s[c.op].op.reduce_axis[0])
    slices = contraction_of(partials.op)
    assert slices is not None, "a slice of a contraction is one"
    return partials, replace(slices, right=replace(slices.right, packed=c.right.packed))
