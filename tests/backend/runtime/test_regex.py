"""Regular expressions in RE2's syntax. The expected results were compared with RE2."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper

from relayc.backend.runtime.regex import Pattern, PatternError
from relayc.frontends.onnx import UnsupportedOperatorError
from relayc.frontends.onnx.backend import RelayBackend
from tests.effort import lines_run

REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], ["a"]),
        ("a|b*", ["a", "", "bb"], ["ab"]),
        ("(ab){2,3}?", ["abab", "ababab"], ["ab", "abababab"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        (r"[\w.+-]+@[[:alnum:]-]+\.com$", ["a.b+c@d-e.com"], ["a@b.com\n", "é@b.com"]),
        ("[^a]", ["\n", "b"], ["a", ""]),
        (".", ["b", "é"], ["\n"]),
        ("(?s).", ["\n"], [""]),
        (r"a$\n", [], ["a\n"]),
        (r"(?m)a$\n^b\z", ["a\nb"], ["ab"]),
        (r"\d\s\W", ["1 -"], ["٣ -", "1\u00a0-", "1 a"]),
        (r"\bfoo\B\w", ["foos"], ["foo-"]),
        ("(?i:straSSe)K", ["STRAsseK", "\u017ftrasseK"], ["strassek"]),
        ("(?i)[^k]", ["a"], ["k", "K", "\u212a"]),
        ("(?i)[[:^lower:]]", ["1"], ["a", "A"]),
        (r"\pL\p{Nd}\P{Lu}\p{^Lu}", ["é٣aa"], ["é٣Aa", "1111"]),
        (r"\Qa.b\E+", ["a.bb"], ["a.ba.b", "axb"]),
        (r"\x41\x{e9}\101\.", ["AéA."], ["AéAx"]),
        ("[]a-]+[a-c]", ["]-ab"], ["d"]),
        ("(?P<year>[0-9]{4})-(?:x)?", ["2024-", "2024-x"], ["24-"]),
        ("(?i)a(?-i)b", ["Ab"], ["AB"]),
    ],
)
def test_matches(pattern, matching, others):
    compiled = Pattern(pattern)
    assert all(compiled.matches(text) for text in matching)
    assert not any(compiled.matches(text) for text in others)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[a", "[z-a]", "*", "a**", "a++", "a{2}{3}", "a{1001}", "a{3,2}", r"(a)\1", "(?=a)", "(?<!a)b",
     "(?>a)", r"a\Z", "\\", r"\8", "[[:letter:]]", r"\p{Greek}", r"\C", "(?x)a", "(?i)*", "(?P<1>a)", r"\x{110000}"],
)  # fmt: skip
def test_what_is_not_in_the_syntax_is_rejected(pattern):
    with pytest.raises(PatternError, match="position"):
        Pattern(pattern)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "", "^", "$"]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(REPEATS)).map(lambda p: f"(?:{p[0]}){p[1]}"),
            st.lists(inner, max_size=3).map("".join),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}|{p[1]})"),
        ),
        max_leaves=8,
    ),
    st.text("abc", max_size=6),
)  # fmt: skip
def test_common_syntax_agrees_with_python_re(pattern, text):
    assert Pattern(pattern).matches(text) == (re.fullmatch(pattern, text) is not None)


def test_time_is_linear_and_size_limited():
    pattern = Pattern("(a*)*" * 5 + "b")
    efforts: list[int] = []
    for length in (500, 2000):
        assert not pattern.matches("a" * length)
        efforts.append(lines_run(lambda length=length: pattern.matches("a" * length)))
    assert efforts[1] < 4.2 * efforts[0]
    for pattern in ("((a{100}){100}){100}", "(" * 5000):
        with pytest.raises(PatternError, match="more than"):
            Pattern(pattern)


def test_the_operator_names_an_unsupported_pattern():
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=r"(a)\1")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.STRING, [1])],
                              [helper.make_tensor_value_info("y", TensorProto.BOOL, [1])])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(UnsupportedOperatorError, match=r"the escape '\\1'"):
        RelayBackend.run_model(model, [np.array(["aa"], object)])
