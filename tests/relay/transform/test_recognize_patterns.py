"""RecognizePatterns: spelled-out operators, in the spellings that exporters write."""

from __future__ import annotations

import numpy as np
import pytest

from relay import Expr, Function, const, op, var
from relay.transform import RecognizePatterns


def parameter(n: int, seed: int) -> Expr:
    return const(np.random.default_rng(seed).standard_normal(n).astype("float32"))


@pytest.mark.parametrize("squared", ["power", "multiply"])
@pytest.mark.parametrize("rooted", ["divide", "rsqrt"])
def test_layer_norm(transformed, operators, squared: str, rooted: str):
    x = var("x", (2, 3, 8))
    distance = op.subtract(x, op.mean(x, axis=-1, keepdims=True))
    square = op.power(distance, const(2.0)) if squared == "power" else op.multiply(distance, distance)
    total = op.add(op.mean(square, axis=-1, keepdims=True), const(1e-5))
    normal = op.divide(distance, op.sqrt(total)) if rooted == "divide" else op.multiply(distance, op.rsqrt(total))
    y = op.add(op.multiply(normal, parameter(8, 1)), parameter(8, 2))
    assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.layer_norm": 1}


def test_normalisation_over_other_axes_stays(transformed):
    x = var("x", (2, 3, 8))
    distance = op.subtract(x, op.mean(x, axis=1, keepdims=True))
    total = op.add(op.mean(op.multiply(distance, distance), axis=1, keepdims=True), const(1e-5))
    before = Function((x,), op.add(op.multiply(op.divide(distance, op.sqrt(total)), const(2.0)), const(1.0)))
    assert transformed(before, RecognizePatterns()) is before


def test_rms_norm(transformed, operators):
    x = var("x", (2, 3, 8))
    total = op.add(op.mean(op.power(x, const(2.0)), axis=-1, keepdims=True), const(1e-6))
    y = op.multiply(op.multiply(x, op.rsqrt(total)), parameter(8, 3))
    assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.rms_norm": 1}


def test_gelu_and_silu(transformed, operators):
    x = var("x", (2, 8))
    gate = op.add(op.erf(op.divide(x, const(2.0**0.5))), const(1.0))
    for y in (
        op.multiply(op.multiply(x, gate), const(0.5)),
        op.multiply(op.multiply(const(0.5), x), gate),
        op.multiply(x, op.multiply(gate, const(0.5))),
    ):
        assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.gelu": 1}
    cube = op.multiply(const(0.044715), op.power(x, const(3.0)))
    gate = op.add(const(1.0), op.tanh(op.multiply(const((2 / np.pi) ** 0.5), op.add(x, cube))))
    found = transformed(Function((x,), op.multiply(op.multiply(const(0.5), x), gate)), RecognizePatterns())
    assert operators(found) == {"nn.gelu": 1} and found.body.op.approximate
    y = op.multiply(x, op.sigmoid(x))
    assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.silu": 1}
