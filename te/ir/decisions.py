"""Decisions of the compiler as values: what was chosen, and for each candidate that was not, the reason.

A candidate gives its result, or says why it does not serve, with `Refused`. `first_of` takes the first of an ordered
list that serves::

    def flattened(rows: Rows) -> Plan | Refused:
        if rows.length > MOST:
            return Refused(f"rows of {rows.length} elements exceed {MOST}")
        ...

    plan = first_of("rows", [("flattened", lambda: flattened(rows)), ("row by row", lambda: row_by_row(rows))])

Within `recording()` every choice is kept as a `Decision`, which can be printed; elsewhere nothing is.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

__all__ = [
    "Decision", "Refused", "Serves", "first_of", "is_recording", "note", "record", "recording",
    "serves_if",
]  # fmt: skip

T = TypeVar("T")
Serves = Literal[True]
"""What a predicate with reasons gives where it holds; elsewhere it gives the `Refused`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a candidate does not serve. False as a condition, so that predicates with reasons compose."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


def serves_if(condition: object, reason: str) -> Serves | Refused:
    """True where the condition holds, elsewhere the refusal for a reason."""
    return True if condition else Refused(reason)


@dataclass(slots=True)
class Decision:
    """A choice: its subject, what was chosen ("" if nothing served), and the candidates before it, with reasons.

    `facts` are the fields of the plan that was made, by name, as values of JSON; `cycles` is its predicted cost on the
    busiest core, where there is a cost model. `where` is the file and line, from the folder of the sources, of the
    candidate that was chosen, or of the code that chose.
    """

    subject: str
    choice: str = ""
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    cycles: float | None = None
    where: str = ""

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        cost = "" if self.cycles is None else f"; {self.cycles:.3g} cycles predicted"
        where = f"  [{self.where}]" if self.where else ""
        lines = [f"{self.subject}: {self.choice or 'none'}{f' ({facts})' if facts else ''}{cost}{where}"]
        return "\n".join([*lines, *[f"  not {name}: {reason}" for name, reason in self.refused]])

    def to_json(self) -> dict[str, Any]:
        """The decision as JSON values."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Decision:
        """The decision of `to_json`. Raises TypeError or KeyError for anything else."""
        fields: dict[str, Any] = {**record, "refused": [(str(name), str(why)) for name, why in record["refused"]]}
        return Decision(**fields)


_current: ContextVar[list[Decision] | None] = ContextVar("relayc_decisions", default=None)


@contextmanager
def recording() -> Generator[list[Decision]]:
    """Record the decisions that are made in this scope, in order; one that contains others comes before them."""
    decisions: list[Decision] = []
    token = _current.set(decisions)
    try:
        yield decisions
    finally:
        _current.reset(token)


def is_recording() -> bool:
    """Are decisions recorded?"""
    return _current.get() is not None


def first_of(subject: str, candidates: Iterable[tuple[str, Callable[[], T | Refused]]]) -> T:
    """The result of the first candidate that serves; the last one always has to."""
    decisions = _current.get()
    decision = Decision(subject)
    if decisions is not None:
        decisions.append(decision)
    for name, candidate in candidates:
        inner = 0 if decisions is None else len(decisions)
        found = candidate()
        if not isinstance(found, Refused):
            decision.choice = name
            if decisions is not None:
                decision.where = _place_of(candidate)
            return found
        decision.refused.append((name, found.reason))
        if decisions is not None:
            del decisions[inner:]  # what a refused candidate considered
    raise AssertionError(f"{subject}: no candidate serves; {decision}")


_SOURCES = Path(__file__).parents[2]
"""The folder of the packages."""


def _place_of(candidate: Callable[..., Any]) -> str:
    """The file and line where a function, or that of a `partial`, begins."""
    code = getattr(candidate.func if isinstance(candidate, partial) else candidate, "__code__", None)
    if code is None:  # an object that can be called
        return ""
    return f"{Path(code.co_filename).relative_to(_SOURCES)}:{code.co_firstlineno}" if _is_own(code) else ""


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).relative_to(_SOURCES)}:{frame.f_lineno}" if _is_own(frame.f_code) else ""


def _is_own(code: CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(_SOURCES)


def note(
    subject: str, choice: str, plan: Any = None, *, cycles: float | None = None, at: Callable[..., Any] | None = None,
    **facts: Any,
) -> None:  # fmt: skip
    """Record a choice without refused candidates, with the fields of `plan`, a dataclass, and further `facts`.

    A field `cycles` of the plan is its predicted cost. The choice was made by the caller, or is the function `at`.
    """
    decisions = _current.get()
    if decisions is not None:
        fields = {} if plan is None else {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
        cost = fields.pop("cycles", cycles)
        plain = {name: value if isinstance(value, int | float | str) else str(value)
                 for name, value in {**fields, **facts}.items()}  # fmt: skip
        where = _place(sys._getframe(1)) if at is None else _place_of(at)
        decisions.append(Decision(subject, choice, [], plain, cost, where))


def record(decision: Decision) -> None:
    """Record a decision that was made elsewhere."""
    decisions = _current.get()
    if decisions is not None:
        decisions.append(decision)
