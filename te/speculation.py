"""Results that are computed by a formula that costs less first, and again where that can't be trusted.

A `Speculation` has stages for what is guessed next to those that it stands for. Both write to the same memory::

    by                                      # quick, nearly always right
    if not trusted(the last of by):         # for some of the elements that are computed here
        exact                               # with all that is needed for nothing else
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

__all__ = ["Speculation", "check", "move_with_exact", "only_for", "retried"]

_MOST_LANES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Speculation:
    """Stages `by` are computed in the place of `exact`, one for each, which are computed where `trusted` does not hold.

    `trusted` is about an element of the last of them.
    """

    exact: tuple[Stage, ...]
    by: tuple[Stage, ...]
    trusted: Callable[[PrimExpr], PrimExpr]

    def of(self, twins: Mapping[Stage, Stage]) -> Speculation:
        """The same of other stages."""
        exact, by = [tuple([twins[stage] for stage in stages]) for stages in (self.exact, self.by)]
        return Speculation(exact, by, self.trusted)


def check(schedule: Schedule, exact: Sequence[Tensor], by: Sequence[Tensor]) -> None:
    """Raise ScheduleError for guesses that are no computed tensors of the same shapes and types as what they guess."""
    if len(exact) != len(by) or not exact:
        raise ScheduleError(f"guess of {len(exact)} tensors by {len(by)}; expected one for each")
    for real, guessed in zip(exact, by, strict=True):
        where = f"guess of {real.name} by {guessed.name}"
        if real.dtype != guessed.dtype or tuple(real.shape) != tuple(guessed.shape):
            raise ScheduleError(f"{where}: {tuple(real.shape)} of {real.dtype} by {tuple(guessed.shape)} of "
                                f"{guessed.dtype}; expected the same")  # fmt: skip
        if guessed.op in schedule.stage_map:
            raise ScheduleError(f"{where}, which is a stage already; expected a computation of its own")
        if real.op.num_outputs != 1 or guessed.op.num_outputs != 1:
            raise ScheduleError(f"{where}: expected operations of one result")


def move_with_exact(schedule: Schedule) -> None:
    """Guesses are computed where what they stand for is, in memory of the same scope."""
    for guess in schedule.guesses:
        places = {(e.attach, e.attach_stage, e.attach_axis) for e in guess.exact}
        if len(places) != 1 or guess.exact[0].attach == "inline":
            names = ", ".join(e.name for e in guess.exact)
            raise ScheduleError(f"guess of {names}, which are not computed at one loop; move them to one")
        for exact, by in zip(guess.exact, guess.by, strict=True):
            by.attach, by.attach_stage, by.attach_axis = exact.attach, exact.attach_stage, exact.attach_axis
            by.scope = exact.scope


def only_for(guess: Speculation, stages: Sequence[Stage], readers: Callable[[Stage], set[Stage | None]]) -> list[Stage]:
    """Those of `stages`, computed at one place, that are needed for nothing but what is guessed; and that itself.

    `readers` are the stages of this place that read a stage themselves or by what is computed inside of them; None
    stands for all others.
    """
    needed: list[Stage] = []
    for stage in reversed(stages):
        if stage in guess.exact or (stage not in guess.by and readers(stage) and readers(stage) <= {*needed}):
            needed.insert(0, stage)
    return needed


def retried(guess: Speculation, result: Buffer, ends: Sequence[PrimExpr | None], exact: Stmt) -> Stmt:
    """`exact` where an element of `result`, the last guess, is not trusted.

    `ends`: how many elements of each dimension are computed, where that may be fewer than there is memory for.
    """
    lanes = _lanes(result)
    flags = Buffer(f"{result.name}.doubts", (lanes,), "int32", scope="local")
    doubted = Buffer(f"{result.name}.doubted", (1,), "int32", scope="local")
    *outer, last = [ops.convert(d) for d in (result.shape or (1,))]
    *variables, part, lane, each = [Var(f"{result.name}.i{n}") for n in range(len(outer) + 3)]
    no, yes, index = ops.const(0), ops.const(1), [*variables, part * lanes + lane]
    within = [i if end is None else Min(i, end - 1) for i, end in zip(index, ends, strict=False)]
    holds = guess.trusted(BufferLoad(result, tuple(within)))
    test = For(lane, no, ops.const(lanes), ForKind.VECTORIZED, BufferStore(flags, Select(holds, no, yes), (lane,)))
    worst = Max(BufferLoad(doubted, (no,)), BufferLoad(flags, (each,)))
    fold = For(each, no, ops.const(lanes), ForKind.SERIAL, BufferStore(doubted, worst, (no,)))
    body = ops.seq(test, fold)
    for var, extent in reversed([*zip((*variables, part), (*outer, last // lanes), strict=True)]):
        body = For(var, no, extent, ForKind.SERIAL, body)
    body = ops.seq(BufferStore(doubted, no, (no,)), body, IfThenElse(BufferLoad(doubted, (no,)) != no, exact))
    return Allocate(doubted, Allocate(flags, body))


def _lanes(result: Buffer) -> int:
    """Elements that are tested at once: the largest power of two that the last dimension is a multiple of."""
    last = result.shape[-1] if result.shape else 1
    return min(last & -last, _MOST_LANES) if isinstance(last, int) else 1
