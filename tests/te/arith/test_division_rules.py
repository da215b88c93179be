"""The equation in the docstring of each rule, evaluated on random integers."""

from __future__ import annotations

import re
from random import Random

import pytest

from relayc.te.arith.division import QUOTIENT_RULES, REMAINDER_RULES, quotient, remainder, sign_of_quotient
from relayc.te.arith.forms import Forms

RULES = [*QUOTIENT_RULES, *REMAINDER_RULES, quotient, remainder, sign_of_quotient, Forms._rounded_difference]
POSITIVE = frozenset("acdg")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_equation(rule):
    *conditions, conclusion = [part.strip() for part in rule.__doc__.split("==>")]
    names = sorted(set(re.findall(r"\b[a-z]\b", rule.__doc__)))
    holds = compile(" and ".join(conditions) or "True", "condition", "eval")
    equation = compile(conclusion.replace(" = ", " == "), "equation", "eval")
    rng, checked = Random(0), 0
    for _ in range(6000):
        values = {n: rng.randint(1, 6) if n in POSITIVE else rng.randint(-12, 12) for n in names}
        if eval(holds, {}, values):
            checked += 1
            assert eval(equation, {}, values), values
    assert checked > 100
