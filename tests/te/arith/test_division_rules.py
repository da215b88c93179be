"""The equation in the docstring of each rule, evaluated on random integers."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from te.arith.division import QUOTIENT_RULES, REMAINDER_RULES, quotient, remainder, sign_of_quotient
from te.arith.forms import Forms

RULES = [*QUOTIENT_RULES, *REMAINDER_RULES, quotient, remainder, sign_of_quotient, Forms._rounded_difference]
POSITIVE = frozenset("acdg")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_equation(rule):
    *condition, conclusion = [part.strip() for part in rule.__doc__.split("==>")]
    names = sorted(set(re.findall(r"[a-z]", rule.__doc__)))
    small = {n: st.integers(1, 6) if n in POSITIVE else st.integers(-12, 12) for n in names}

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.fixed_dictionaries(small))
    def check(values):
        assume(all(eval(c, {}, values) for c in condition))
        assert eval(conclusion.replace(" = ", " == "), {}, values)

    check()
