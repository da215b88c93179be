"""Decisions of the compiler as values: candidates in order, refusals with reasons, and what is recorded of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import pytest

from relayc.te.ir.decisions import Decision, Refused, first_of, is_recording, note, record, recording, serves_if


@dataclass(frozen=True)
class Plan:
    block: int
    cycles: float


def wide(columns: int) -> str | Refused:
    if columns < 8:
        return Refused(f"{columns} columns are fewer than 8")
    return "wide"


def narrow(columns: int) -> str:
    note("block", "one", Plan(columns, 12.0), unrolled=True)
    return "narrow"


def choose(columns: int) -> str:
    return first_of("columns", [("wide", partial(wide, columns)), ("narrow", lambda: narrow(columns))])


def test_the_first_candidate_that_serves_is_taken() -> None:
    assert choose(8) == "wide" and choose(7) == "narrow"


def test_a_decision_has_the_refused_candidates_before_the_one_that_was_taken() -> None:
    with recording() as decisions:
        choose(7)
    outer, inner = decisions
    assert (outer.subject, outer.choice) == ("columns", "narrow")
    assert outer.refused == [("wide", "7 columns are fewer than 8")]
    assert (inner.subject, inner.choice, inner.cycles) == ("block", "one", 12.0)
    assert inner.facts == {"block": 7, "unrolled": True}
    assert str(outer).splitlines()[1] == "  not wide: 7 columns are fewer than 8"
    assert "block 7, unrolled True" in str(inner) and "12 cycles" in str(inner)


def test_what_a_refused_candidate_considered_is_not_recorded() -> None:
    def refused() -> str | Refused:
        note("inner", "anything")
        return Refused("no")

    with recording() as decisions:
        first_of("outer", [("first", refused), ("second", lambda: "done")])
    assert [decision.subject for decision in decisions] == ["outer"]


def test_where_no_candidate_serves_the_error_has_all_reasons() -> None:
    with pytest.raises(AssertionError, match="7 columns are fewer than 8"):
        first_of("columns", [("wide", partial(wide, 7))])


def test_nothing_is_recorded_outside_of_recording() -> None:
    with recording() as decisions:
        pass
    choose(7)
    note("subject", "choice")
    record(Decision("subject"))
    assert not decisions and not is_recording()


def test_recordings_nest() -> None:
    with recording() as outer:
        with recording() as inner:
            note("subject", "inner")
        note("subject", "outer")
    assert [d.choice for d in outer] == ["outer"] and [d.choice for d in inner] == ["inner"]


def test_refusals_are_false_as_conditions() -> None:
    assert not serves_if(False, "a reason") and serves_if(True, "a reason") is True
    assert isinstance(serves_if([], "empty"), Refused)


def test_decisions_survive_json() -> None:
    with recording() as decisions:
        choose(7)
    again = [Decision.from_json(json.loads(json.dumps(d.to_json()))) for d in decisions]
    assert again == decisions
