"""Speculation: results are computed by a cheaper formula first, and by the exact one where a guard rejects them.

A `Speculation` pairs the stages of both formulas. They write to the same memory::

    by                                      # cheap, nearly always right
    if not is_valid(the last of by):        # for any of the elements that are computed here
        exact                               # with the stages that only these need
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.te.errors import ScheduleError
from relayc.te.stage import Stage
from relayc.te.tensor import Tensor
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Max, Min, PrimExpr, Select, Var
from relayc.te.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Stmt

if TYPE_CHECKING:
    from relayc.te.schedule import Schedule

__all__ = ["Speculation", "check", "move_with_exact", "only_for", "recomputed_if_invalid"]

_MOST_LANES = 64
"""The most elements that are tested by one vectorised loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Speculation:
    """Stages `by` are computed in place of `exact`, one for each; the exact ones only where `is_valid` fails.

    `is_valid` takes an element of the last tensor of `by`.
    """

    exact: tuple[Stage, ...]
    by: tuple[Stage, ...]
    is_valid: Callable[[PrimExpr], PrimExpr]

    def of(self, twins: Mapping[Stage, Stage]) -> Speculation:
        """A copy in which each stage is replaced by its twin: for a copied schedule."""
        exact, by = [tuple([twins[stage] for stage in stages]) for stages in (self.exact, self.by)]
        return Speculation(exact, by, self.is_valid)


def check(schedule: Schedule, exact: Sequence[Tensor], by: Sequence[Tensor]) -> None:
    """Raise ScheduleError unless `by` are new computed tensors, one for each of `exact`, of its shape and type."""
    if len(exact) != len(by) or not exact:
        raise ScheduleError(f"speculation of {len(exact)} tensors by {len(by)}; expected one for each")
    for real, speculated in zip(exact, by, strict=True):
        where = f"speculation of {real.name} by {speculated.name}"
        if real.dtype != speculated.dtype or tuple(real.shape) != tuple(speculated.shape):
            raise ScheduleError(f"{where}: {tuple(real.shape)} of {real.dtype} by {tuple(speculated.shape)} of "
                                f"{speculated.dtype}; expected the same")  # fmt: skip
        if speculated.op in schedule.stage_map:
            raise ScheduleError(f"{where}, which is a stage already; expected a computation of its own")
        if real.op.num_outputs != 1 or speculated.op.num_outputs != 1:
            raise ScheduleError(f"{where}: expected operations of one result")


def move_with_exact(schedule: Schedule) -> None:
    """Attach speculated stages to the loop of the exact ones, in memory of the same scope."""
    for speculation in schedule.speculations:
        places = {(e.attach, e.attach_stage, e.attach_axis) for e in speculation.exact}
        if len(places) != 1 or speculation.exact[0].attach == "inline":
            names = ", ".join(e.name for e in speculation.exact)
            raise ScheduleError(f"speculation of {names}, which are not computed at one loop; move them to one")
        for exact, by in zip(speculation.exact, speculation.by, strict=True):
            by.attach, by.attach_stage, by.attach_axis = exact.attach, exact.attach_stage, exact.attach_axis
            by.scope = exact.scope


def only_for(
    speculation: Speculation, stages: Sequence[Stage], readers: Callable[[Stage], set[Stage | None]]
) -> list[Stage]:
    """The stages of the fallback: the exact ones, and those of `stages` that nothing else needs.

    `stages` are computed at one loop. `readers` gives the stages of this loop that read a stage, directly or through
    stages computed inside of them; None stands for all others.
    """
    needed: list[Stage] = []
    for stage in reversed(stages):
        if stage in speculation.exact or (
            stage not in speculation.by and readers(stage) and readers(stage) <= {*needed}
        ):
            needed.insert(0, stage)
    return needed


def recomputed_if_invalid(
    speculation: Speculation, result: Buffer, ends: Sequence[PrimExpr | None], exact: Stmt
) -> Stmt:
    """The statement `exact`, guarded: it runs if `is_valid` fails for an element of `result`, the last speculated one.

    `ends`: how many elements of each dimension are computed, where that may be fewer than there is memory for.
    """
    lanes = _lanes(result)
    invalid = Buffer(f"{result.name}.doubts", (lanes,), "int32", scope="local")
    any_invalid = Buffer(f"{result.name}.doubted", (1,), "int32", scope="local")
    *outer, last = [ops.convert(d) for d in (result.shape or (1,))]
    *variables, part, lane, each = [Var(f"{result.name}.i{n}") for n in range(len(outer) + 3)]
    no, yes, index = ops.const(0), ops.const(1), [*variables, part * lanes + lane]
    within = [i if end is None else Min(i, end - 1) for i, end in zip(index, ends, strict=False)]
    valid = speculation.is_valid(BufferLoad(result, tuple(within)))
    test = For(lane, no, ops.const(lanes), ForKind.VECTORIZED, BufferStore(invalid, Select(valid, no, yes), (lane,)))
    worst = Max(BufferLoad(any_invalid, (no,)), BufferLoad(invalid, (each,)))
    fold = For(each, no, ops.const(lanes), ForKind.SERIAL, BufferStore(any_invalid, worst, (no,)))
    body = ops.seq(test, fold)
    for var, extent in reversed([*zip((*variables, part), (*outer, last // lanes), strict=True)]):
        body = For(var, no, extent, ForKind.SERIAL, body)
    body = ops.seq(BufferStore(any_invalid, no, (no,)), body, IfThenElse(BufferLoad(any_invalid, (no,)) != no, exact))
    return Allocate(any_invalid, Allocate(invalid, body))


def _lanes(result: Buffer) -> int:
    """Elements that are tested at once: the largest power of two that the last dimension is a multiple of."""
    last = result.shape[-1] if result.shape else 1
    return min(last & -last, _MOST_LANES) if isinstance(last, int) else 1
