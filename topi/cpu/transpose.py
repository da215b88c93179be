"""Transpositions on CPUs: where inputs are read across memory, a tile of both axes stays in the first-level cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from te.ir import post_order
from te.tir import IterVar, PrimExpr, ProducerLoad, Var, as_int
from te.tir.substitute import substitute
from topi.groups import constant_size, is_injective

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["strided_axis", "tile_strided"]

_TILE = 16
"""Elements of the strided axis in a tile: a cache line of float32."""


def strided_axis(out: te.Tensor) -> int | None:
    """The axis of `out` along which a large input lies in memory, when it is not the last one; None otherwise.

    Everything injective behind `out` is taken as inlined.
    """
    op = out.op
    if not isinstance(op, te.ComputeOp) or len(op.axis) < 2 or op.reduce_axis:
        return None
    numbers = {axis.var: n for n, axis in enumerate(op.axis)}
    last = len(op.axis) - 1
    strided: set[int] = set()
    for tensor, index in _reads(op, {}):
        if constant_size(tensor.shape) * 2 < constant_size(out.shape):
            continue
        variable = _only_variable(index[-1]) if index else None
        number = None if variable is None else numbers.get(variable)
        if number is None or number == last:
            return None
        strided.add(number)
    return strided.pop() if len(strided) == 1 else None


def _reads(op: te.ComputeOp, mapping: Mapping[Var, PrimExpr]) -> Iterator[tuple[te.Tensor, list[PrimExpr]]]:
    """The tensors that are not inlined and the indices they are read at, in terms of the output's axes."""
    for load in [e for e in post_order(op.body) if isinstance(e, ProducerLoad)]:
        index = [substitute(i, mapping) if mapping else i for i in load.indices]
        producer = load.producer.op
        if isinstance(producer, te.ComputeOp) and is_injective(producer):
            yield from _reads(producer, {axis.var: i for axis, i in zip(producer.axis, index, strict=True)})
        else:
            yield load.producer, index


def _only_variable(index: PrimExpr) -> Var | None:
    """The variable that `index` is, give or take a constant."""
    variables = [e for e in post_order((index,)) if isinstance(e, Var)]
    terms = [e for e in post_order((index,)) if not isinstance(e, Var) and as_int(e) is None]
    plain = all(type(e).__name__ in ("Add", "Sub") for e in terms)
    return variables[0] if len(variables) == 1 and plain else None


def tile_strided(s: te.Schedule, out: te.Tensor, number: int, last_outer: IterVar) -> list[IterVar]:
    """Split axis `number` into tiles, whose loop runs just outside the vectors of the last axis.

    `last_outer` counts those vectors. Returns the loops outside of a tile, outermost first.
    """
    axes = list(s[out].op.axis)
    extent = as_int(out.shape[number])
    if extent is None:
        outer, inner = s[out].split(axes[number], factor=_TILE)
    elif extent >= _TILE:
        outer, inner = s[out].split(axes[number], factor=_TILE, tail="shift")
    else:
        outer, inner = s[out].split(axes[number], nparts=1)
    tiles = [*axes[:number], *axes[number + 1 : -1], outer, last_outer]
    s[out].reorder(*tiles, inner)
    return tiles
