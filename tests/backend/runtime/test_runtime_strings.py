"""Runtime strings: the string table, string operations, and damaged descriptions of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.backend.runtime.errors import ArgumentError, ArtifactError
from relayc.backend.runtime.execution_plan import HostStep
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.host_actions import prepared
from relayc.backend.runtime.regex import Pattern
from relayc.backend.runtime.strings import StringTable, as_strings
from tests.effort import lines_run


def strings(*values: str) -> Any:
    return np.array(values, object)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2), max_size=6), max_size=5))
def test_string_table_round_trips(runs):
    table = StringTable(["", "a"])
    for values in runs:
        table.forget()
        assert len(table) == 2
        numbers = table.numbers(strings(*values))
        assert table.strings(numbers).tolist() == values
        assert [n == m for n in numbers for m in numbers] == [a == b for a in values for b in values]
        assert all((n < 2) == (text in ("", "a")) for n, text in zip(numbers, values, strict=True))
    with pytest.raises(ArgumentError, match="stands for no string"):
        table.strings(np.array([-1]))


def test_strings_of_every_form():
    for given_ in (["ä", "b"], np.array(["ä", "b"]), strings("ä", "b"), ("ä", b"b"), np.array([b"\xc3\xa4", b"b"])):
        assert as_strings(given_).tolist() == ["ä", "b"]
    assert as_strings("one").shape == () and as_strings([[]]).shape == (1, 0)


def test_tokens_as_onnxruntime_finds_them():
    how = {"separators": (), "token": "", "mark": False, "least": 1, "fill": "#"}
    words = prepared("tokenize", {**how, "token": "[a-z]+", "least": 2})
    assert words(strings("ab c def", ""))[0].tolist() == [["ab", "def"], ["#", "#"]]
    cut = prepared("tokenize", {**how, "separators": (" ", ",|;"), "mark": True})
    assert cut(strings("a b,c", "d"))[0].tolist() == [["\x02", "a", "b", "c", "\x03"], ["\x02", "d", "\x03", "#", "#"]]
    assert cut(strings("", " "))[0].shape == (2, 0)
    characters = prepared("tokenize", {**how, "token": "."})
    assert characters(strings("äb"))[0].tolist() == [["ä", "b"]]


def test_numbers_are_written_with_significant_digits():
    write = prepared("format", {"digits": 8})
    given_ = np.array([1.0, 0.1, -2.5e-7, 1e20, np.nan, np.inf, -np.inf], np.float32)
    assert write(given_)[0].tolist() == ["1", "0.1", "-2.5e-07", "1e+20", "NaN", "INF", "-INF"]
    assert write(np.array([True, False]))[0].tolist() == ["1", "0"]
    assert write(np.array([-(2**63)]))[0].tolist() == [str(-(2**63))]


@pytest.mark.parametrize(
    ("pattern", "text", "begin", "expected"),
    [
        ("a|ab", "xabab", 0, (1, 3)),
        ("a|ab", "xabab", 2, (3, 5)),
        ("b*", "abb", 0, (0, 0)),
        ("b+", "abb", 0, (1, 3)),
        (r"\bb", "ab b", 1, (3, 4)),
        ("^b", "ab", 1, None),
        ("(ab)+c|b", "abab", 0, (1, 2)),
        ("x", "abc", 0, None),
        ("$", "ab", 0, (2, 2)),
    ],
)
def test_a_search_finds_the_leftmost_of_the_longest(pattern, text, begin, expected):
    assert Pattern(pattern).search(text, begin) == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["a+b?", "(a|ab)(c|bcd)", "[^a]b*", "a{2,3}|b", "(a*)(b|)"]), st.text("abcd", max_size=9))
def test_a_search_agrees_with_whole_matches_of_parts(pattern, text):
    matcher = Pattern(pattern)
    matches = [(b, e) for b in range(len(text) + 1) for e in range(b, len(text) + 1) if matcher.matches(text[b:e])]
    first = min((b for b, _ in matches), default=None)
    expected = None if first is None else (first, max(e for b, e in matches if b == first))
    assert matcher.search(text) == expected


def graph() -> dict[str, Any]:
    """A graph that concatenates two strings, with an output of maps."""
    tensors = [
        {"name": "x", "shape": [3], "dtype": "int64", "storage": ["input", 0]},
        {"name": "y", "shape": [3], "dtype": "int64", "storage": ["value", 1]},
        {"name": "scores", "shape": [3, 2], "dtype": "float32", "storage": ["input", 1]},
    ]
    step = {"step": "text", "action": "normalize", "inputs": [0], "outputs": [1], "source": "s",
            "settings": {"case": "LOWER", "is_case_sensitive": False, "stop_words": ["a"]}}  # fmt: skip
    return {
        "version": 1, "name": "g", "device": "cpu", "target": "llvm", "tensors": tensors, "nodes": [], "inputs": [0, 2],
        "outputs": [1, 2], "arena_bytes": 0, "entry": None, "sizes": [], "steps": [step],
        "texts": {"table": ["", "a"], "inputs": [0], "outputs": [0]}, "maps": [[1, ["no", 1]]],
    }  # fmt: skip


def test_a_description_is_read_as_it_was_written():
    read = Graph.from_json(graph())
    assert isinstance(read.steps[0], HostStep) and read.strings is not None and read.maps == {1: ("no", 1)}
    assert Graph.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("steps", 0, "action"), "reverse", "'reverse'"),
        (("steps", 0, "inputs"), [0, 0], "2 to 1 tensors"),
        (("steps", 0, "inputs"), [7], "inputs"),
        (("steps", 0, "settings"), {"case": "LOWER"}, "is_case_sensitive"),
        (("steps", 0, "settings", "case"), "Lower", "settings of the action"),
        (("steps", 0, "settings", "stop_words"), [1], "stop_words"),
        (("steps", 0, "settings", "more"), 1, "no such field"),
        (("texts", "table"), ["a", ""], "first the empty one"),
        (("texts", "table"), ["", "a", "a"], "different strings"),
        (("texts", "inputs"), [2], "texts.inputs"),
        (("texts", "outputs"), [1], "tensors of int64"),
        (("maps",), [[1, ["no"]]], "as many keys"),
        (("maps",), [[2, ["no", "yes"]]], "position of an output"),
        (("maps",), [[1, ["no", 1.5]]], "a list of keys"),
    ],
)
def test_damaged_descriptions_are_rejected(damaged, place, value, message):
    with pytest.raises(ArtifactError) as error:
        Graph.from_json(damaged(graph(), place, value))
    assert message in str(error.value)


def test_an_invalid_pattern_is_a_damaged_description():
    damaged = graph()
    damaged["steps"][0] |= {"action": "full_match", "settings": {"expression": "("}}
    with pytest.raises(ArtifactError, match="settings of the action 'full_match'"):
        Graph.from_json(damaged)


def test_failed_start_positions_take_linear_time():
    matcher, text = Pattern("a*b|c"), "a" * 20_000
    assert matcher.search(text + "c") == (20_000, 20_001) and matcher.search(text) is None
    assert matcher.search(text + "b") == (0, 20_001)
    efforts = [lines_run(lambda n=n: matcher.search("a" * n)) for n in (1000, 4000)]
    assert efforts[1] < 4.2 * efforts[0]


def test_the_dfa_cache_is_bounded():
    matcher = Pattern("[^a]*a")
    for number in range(200, 25_000):
        assert not matcher.matches(chr(number) if number != ord("a") else "b")
    assert sum(len(row.next) for row in matcher._rows.values()) <= 20_000 and matcher.matches("ba")
