"""The registry of schedules, by the tag of a group's main operation and the target's keys.

A schedule is a function from output tensors, anchor operation and target to a `te.Schedule`, registered for a tag and
a target key::

    @register_schedule("conv2d_nhwc_packed", "cpu")
    def conv2d_nhwc_packed(outs, anchor, target): ...

`schedule_for` looks at every operation behind the outputs, takes the one whose tag has a schedule of the highest rank
for one of the target's keys, or else for "generic" (the *anchor*), and calls that schedule. Tags such as "injective"
have the lowest rank: they apply when the group has nothing heavier. `schedules_for` continues with further ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from relayc import te
from relayc.te.errors import CompileError
from relayc.te.ir.decisions import note

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["Rank", "ScheduleFunction", "operations_after", "operations_behind", "register_schedule",
           "registered_schedules", "schedule_for", "schedules_for"]  # fmt: skip


class Rank(IntEnum):
    """The rank of an operation: in a fused group the highest one determines the schedule."""

    ELEMENTWISE = 0
    REDUCTION = 1
    HEAVY = 2


class ScheduleFunction(Protocol):
    """A function that schedules fused outputs around the anchor operation."""

    def __call__(self, outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    rank: Rank
    function: ScheduleFunction


_schedules: dict[tuple[str, str], _Entry] = {}
_PROVIDERS = {"cpu": "relayc.topi.cpu", "cuda": "relayc.topi.cuda"}
"""Packages that register built-in schedules; imported at the first look-up of their key."""


def register_schedule(
    tags: str | Iterable[str], key: str, *, rank: Rank = Rank.HEAVY
) -> Callable[[ScheduleFunction], ScheduleFunction]:
    """Register a schedule for operations tagged `tags` on targets with key `key` ("cpu", "cuda", "generic").

    Raises CompileError when the pair is taken.
    """

    def add(function: ScheduleFunction) -> ScheduleFunction:
        for tag in [tags] if isinstance(tags, str) else tags:
            if (tag, key) in _schedules:
                owner = _schedules[tag, key].function
                raise CompileError(f"the schedule of {tag!r} on {key!r} is already {owner.__module__}.{owner}")
            _schedules[tag, key] = _Entry(rank, function)
        return function

    return add


def registered_schedules(target: Target) -> list[ScheduleFunction]:
    """Every schedule that applies to a target."""
    keys = {*target.keys, "generic"}
    return [entry.function for (_, key), entry in _schedules.items() if key in keys]


def registered_definitions() -> list[ScheduleFunction]:
    """Every schedule registered so far."""
    return [entry.function for entry in _schedules.values()]


def operations_behind(outs: Sequence[te.Tensor]) -> list[te.Operation]:
    """Every operation that the outputs need, each once, producers first."""
    order: list[te.Operation] = []
    seen: set[int] = set()
    stack: list[tuple[te.Operation, bool]] = [(out.op, False) for out in reversed(outs)]
    while stack:
        op, expanded = stack.pop()
        if expanded:
            order.append(op)
        elif id(op) not in seen:
            seen.add(id(op))
            stack.append((op, True))
            stack.extend((t.op, False) for t in reversed(op.input_tensors))
    return order


def operations_after(anchor: te.Operation, outs: Sequence[te.Tensor]) -> list[te.Operation]:
    """The operations that the outputs need but `anchor` does not: those on its result, and their other producers."""
    before = {id(op) for op in operations_behind([anchor.output(0)])}
    return [op for op in operations_behind(outs) if id(op) not in before]


def _find(tag: str, target: Target) -> _Entry | None:
    for key in (*target.keys, "generic"):
        if key in _PROVIDERS:
            importlib.import_module(_PROVIDERS[key])
        entry = _schedules.get((tag, key))
        if entry is not None:
            return entry
    return None


def _computes_nothing(outs: list[te.Tensor], operations: Sequence[te.Operation]) -> bool:
    """Are all results of loops without iterations? What other operations do, such as sorts, is not known."""
    empty = [any(isinstance(d, int) and d == 0 for d in out.shape) for out in outs]
    return all(empty) and all(isinstance(op, te.ComputeOp | te.PlaceholderOp) for op in operations)


def schedule_for(outs: list[te.Tensor], target: Target) -> te.Schedule:
    """The first of `schedules_for`: that of the anchor."""
    return next(schedules_for(outs, target))


def schedules_for(outs: list[te.Tensor], target: Target) -> Iterator[te.Schedule]:
    """Schedules of the group that computes `outs`, made lazily, the anchor's first.

    Those of operations of lower rank follow, then the one registered for the tag "default", which is the first for a
    group without an anchor, and the only one for a group without elements to compute. A caller takes the next where a
    kernel exceeds a limit of the target. Raises CompileError when the target has none.
    """
    operations = operations_behind(outs)
    found = [(_find(op.tag, target), op) for op in reversed(operations) if op.input_tensors or op.tag]
    ranked = sorted([(entry, op) for entry, op in found if entry is not None], key=lambda pair: -pair[0].rank)
    default = _find("default", target)
    if default is not None:
        ranked.append((default, outs[0].op))
    if not ranked:
        tags = sorted({op.tag for op in operations} - {""})
        raise CompileError(f"no schedule on {target} for a group tagged {', '.join(tags) or '(nothing)'}; "
                           "register one with topi.register_schedule")  # fmt: skip
    tried: set[int] = set()
    if default is not None and _computes_nothing(outs, operations):
        ranked = ranked[-1:]
    for entry, anchor in ranked:
        if id(entry.function) not in tried:
            tried.add(id(entry.function))
            note("schedule", "default" if entry is default else anchor.tag, at=entry.function, operation=anchor.name)
            yield entry.function(outs, anchor, target)
