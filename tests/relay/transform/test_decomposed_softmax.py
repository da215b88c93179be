"""RecognizePatterns: softmax, its logarithm and log-sum-exp as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, Tuple, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform import EliminateCommonSubexpr, RecognizePatterns

PASSES = EliminateCommonSubexpr(), RecognizePatterns()


def shifted(x: Expr, axis: int = -1) -> Expr:
    return op.subtract(x, op.max(x, axis=axis, keepdims=True))


def total(x: Expr, axis: int = -1) -> Expr:
    return op.sum(op.exp(x), axis=axis, keepdims=True)


def divided(x: Expr, axis: int = -1) -> Expr:
    weight = op.exp(x)
    return op.divide(weight, op.sum(weight, axis=axis, keepdims=True))


def scaled(x: Expr) -> Expr:
    weight = op.exp(x)
    return op.multiply(weight, op.divide(const(1.0), op.sum(weight, axis=-1, keepdims=True)))


def unsqueezed(x: Expr) -> Expr:
    """Sums whose dimension is restored by a view."""
    weight = op.exp(op.subtract(x, op.reshape(op.max(x, axis=1), (4, 1, 5))))
    return op.divide(weight, op.reshape(op.sum(weight, axis=1), (4, 1, 5)))


PATTERNS = {
    "softmax": ("nn.softmax", lambda x: divided(shifted(x))),
    "softmax of planes": ("nn.softmax", lambda x: divided(shifted(x, 1), 1)),
    "softmax without its maximum": ("nn.softmax", divided),
    "softmax by the inverse": ("nn.softmax", lambda x: scaled(shifted(x))),
    "softmax less the maximum of all": ("nn.softmax", lambda x: divided(op.subtract(x, op.max(x)))),
    "softmax by views": ("nn.softmax", unsqueezed),
    "softmax of rows": (
        "nn.softmax",
        lambda x: op.reshape(nn.softmax(op.reshape(x, (-1, x.shape[-1])), axis=1), x.shape),
    ),
    "log softmax": ("nn.log_softmax", lambda x: op.subtract(shifted(x), op.log(total(shifted(x))))),
    "log softmax without its maximum": ("nn.log_softmax", lambda x: op.subtract(x, op.log(total(x)))),
    "log softmax by log_sum_exp": ("nn.log_softmax", lambda x: op.subtract(x, op.log_sum_exp(x, -1, keepdims=True))),
    "log_sum_exp": (
        "log_sum_exp",
        lambda x: op.add(op.max(x, axis=1, keepdims=True), op.log(total(shifted(x, 1), 1))),
    ),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_decomposed_patterns(transformed, operators, pattern: str):
    name, decomposed = PATTERNS[pattern]
    x = var("x", (4, 3, 5))
    after = transformed(Function((x,), decomposed(x)), *PASSES)
    assert operators(after) == {name: 1}


def test_log_softmax_of_the_long_form(transformed, operators):
    """The form x - (max + log(sum(exp(x - max))))."""
    x = var("x", (4, 3, 5))
    y = op.subtract(x, op.add(op.max(x, axis=-1, keepdims=True), op.log(total(shifted(x)))))
    assert operators(transformed(Function((x,), y), *PASSES)) == {"nn.log_softmax": 1}


def test_finite_results_stay_finite(transformed):
    x = var("x", (2, 4))
    values = np.array([[80.0, -80.0, 0.0, -np.inf], [-80.0, -81.0, -79.0, -70.0]], "float32")
    for y in (divided(x), divided(shifted(x))):
        before = Function((x,), y)
        after = transformed(before, RecognizePatterns())
        np.testing.assert_allclose(evaluate(after, [values]), evaluate(before, [values]), rtol=1e-5, atol=1e-30)


def test_others_stay(transformed):
    x = var("x", (4, 4, 4))
    weight = op.exp(x)
    for y in (
        op.divide(weight, op.sum(weight, axis=(1, 2), keepdims=True)),
        op.divide(weight, op.sum(weight, axis=-1)),
        op.divide(weight, op.add(op.sum(weight, axis=-1, keepdims=True), const(1.0))),
        op.divide(op.sum(weight, axis=-1, keepdims=True), weight),
        op.divide(weight, total(op.negative(x))),
        nn.softmax(shifted(x, 1), axis=-1),
        op.subtract(x, op.log(op.sum(weight, axis=-1))),
        op.add(op.max(x, axis=0, keepdims=True), op.log(total(shifted(x, 1), 1))),
        op.reshape(nn.softmax(op.reshape(x, (16, 4)), axis=0), (4, 4, 4)),
        op.reshape(nn.softmax(op.reshape(x, (4, 16)), axis=1), (4, 4, 4)),
    ):
        before = transformed(Function((x,), y), EliminateCommonSubexpr())
        assert transformed(before, RecognizePatterns()) is before


def test_sums_that_are_used_elsewhere_stay(transformed):
    x = var("x", (4, 5))
    weight = op.exp(x)
    sums = op.sum(weight, axis=-1, keepdims=True)
    before = Function((x,), Tuple((op.divide(weight, sums), sums)))
    assert transformed(before, RecognizePatterns()) is before
