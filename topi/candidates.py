"""Schedules as ordered candidates: each schedules a group, or says why it does not serve; and plans of one output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from relayc import te
from relayc.te.ir.decisions import Refused, first_of, note
from relayc.topi.groups import is_static
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["Candidate", "KernelFacts", "Plan", "apply_plan", "schedule_by"]


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """A group to be scheduled, by its outputs, its anchor and the target, and what candidates ask about it."""

    outs: list[te.Tensor]
    anchor: te.Operation
    target: Target

    @property
    def out(self) -> te.Tensor:
        """The first output."""
        return self.outs[0]

    @property
    def has_one_result(self) -> bool:
        """Whether there is one output."""
        return len(self.outs) == 1

    @property
    def result(self) -> te.Tensor:
        """The anchor's result."""
        return self.anchor.output(0)

    @cached_property
    def is_static(self) -> bool:
        """Whether the sizes of the anchor's result are constant."""
        return is_static(self.result.shape)

    @cached_property
    def stages(self) -> list[te.ComputeOp]:
        """The operations of the group, producers first."""
        return [op for op in operations_behind(self.outs) if isinstance(op, te.ComputeOp)]

    def create_schedule(self) -> te.Schedule:
        """A schedule of the outputs, in which nothing is chosen yet."""
        return te.create_schedule([out.op for out in self.outs])


Facts = TypeVar("Facts", bound=KernelFacts)
Candidate = tuple[str, Callable[[Facts], te.Schedule | Refused]]
"""The name of a schedule, and a function of the facts of a kernel."""


def schedule_by(candidates: Sequence[Candidate[Facts]], facts: Facts) -> te.Schedule:
    """The schedule of the first candidate that serves; the last one always has to."""
    named = [(name, partial(schedule, facts)) for name, schedule in candidates]
    return first_of(f"schedule of {facts.anchor.tag}", named)


Loops = TypeVar("Loops", covariant=True)


class Plan(Protocol[Loops]):
    """How an output is scheduled, as a dataclass: its fields say what `apply` does, which returns the loops outside."""

    def apply(self, s: te.Schedule) -> Loops:
        """Schedule the output."""
        ...


def apply_plan(s: te.Schedule, subject: str, plan: Plan[Loops]) -> Loops:
    """Apply a plan, and record it as the decision on `subject`, with its fields."""
    note(subject, type(plan).__name__, plan, at=plan.apply)
    return plan.apply(s)
