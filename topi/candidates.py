"""Schedules as ordered candidates: each schedules a group, or says why it does not serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, first_of

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["Candidate", "schedule_by"]

Candidate = tuple[str, "Callable[[list[te.Tensor], te.Operation, Target], te.Schedule | Refused]"]
"""The name of a schedule, and a function of a group's outputs, its anchor and the target."""


def schedule_by(
    candidates: Sequence[Candidate], outs: list[te.Tensor], anchor: te.Operation, target: Target
) -> te.Schedule:
    """The schedule of the first candidate that serves; the last one always has to."""
    named = [(name, partial(schedule, outs, anchor, target)) for name, schedule in candidates]
    return first_of(f"schedule of {anchor.tag}", named)
