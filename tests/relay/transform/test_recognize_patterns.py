"""RecognizePatterns: decomposed operators as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, const, op, var
from relayc.relay.transform import RecognizePatterns


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


def test_normalisation_over_other_axes_is_no_norm_of_rows(transformed, operators):
    x = var("x", (2, 3, 8))
    distance = op.subtract(x, op.mean(x, axis=1, keepdims=True))
    total = op.add(op.mean(op.multiply(distance, distance), axis=1, keepdims=True), const(1e-5))
    before = Function((x,), op.add(op.multiply(op.divide(distance, op.sqrt(total)), const(2.0)), const(1.0)))
    found = operators(transformed(before, RecognizePatterns()))
    assert found == {"nn.standardize": 1, "multiply": 1, "add": 1}


def test_rms_norm(transformed, operators):
    x = var("x", (2, 3, 8))
    total = op.add(op.mean(op.power(x, const(2.0)), axis=-1, keepdims=True), const(1e-6))
    y = op.multiply(op.multiply(x, op.rsqrt(total)), parameter(8, 3))
    assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.rms_norm": 1}


def test_norms_without_scales(transformed, operators):
    x = var("x", (2, 3, 8))
    distance = op.subtract(x, op.mean(x, axis=-1, keepdims=True))
    for y, name in ((x, "nn.rms_norm"), (distance, "nn.layer_norm")):
        total = op.add(op.mean(op.multiply(y, y), axis=-1, keepdims=True), const(1e-6))
        after = transformed(Function((x,), op.divide(y, op.sqrt(total))), RecognizePatterns())
        assert operators(after) == {name: 1}


def test_scale_behind_a_norm_is_part_of_it(transformed, operators):
    x, gamma, beta = var("x", (2, 3, 8)), parameter(8, 1), parameter(8, 2)
    for y in (op.nn.rms_norm(x, gamma), op.nn.layer_norm(x, gamma, beta)):
        for scale in (const(0.5), parameter(8, 3)):
            after = transformed(Function((x,), op.multiply(scale, y)), RecognizePatterns())
            assert operators(after) == {y.op.name: 1}
    shared = op.nn.rms_norm(x, gamma)
    before = Function((x,), op.add(op.multiply(shared, const(0.5)), shared))
    assert transformed(before, RecognizePatterns()) is before


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


def sixth(x: Expr) -> Expr:
    return op.divide(x, const(6.0))


def one_and_erf(x: Expr) -> Expr:
    return op.add(op.erf(op.divide(x, const(2.0**0.5))), const(1.0))


def clipped(x: Expr) -> Expr:
    return op.clip(op.add(x, const(3.0)), 0.0, 6.0)


ACTIVATIONS = {
    "silu by exp": ("nn.silu", lambda x: op.divide(x, op.add(const(1.0), op.exp(op.negative(x))))),
    "mish": ("nn.mish", lambda x: op.multiply(x, op.tanh(op.nn.softplus(x)))),
    "mish by log": ("nn.mish", lambda x: op.multiply(op.tanh(op.log(op.add(op.exp(x), const(1.0)))), x)),
    "mish by log1p": ("nn.mish", lambda x: op.multiply(x, op.tanh(op.log1p(op.exp(x))))),
    "gelu, divided by two": ("nn.gelu", lambda x: op.divide(op.multiply(x, one_and_erf(x)), const(2.0))),
    "gelu, halves of one and erf": ("nn.gelu", lambda x: op.multiply(x, op.divide(one_and_erf(x), const(2.0)))),
    "hard swish": ("nn.hard_swish", lambda x: op.multiply(x, sixth(clipped(x)))),
    "hard swish, divided last": ("nn.hard_swish", lambda x: sixth(op.multiply(x, clipped(x)))),
    "hard swish, divided first": ("nn.hard_swish", lambda x: op.multiply(sixth(x), clipped(x))),
    "hard swish, multiplied": ("nn.hard_swish", lambda x: op.multiply(x, op.multiply(clipped(x), const(1 / 6)))),
    "hard swish by hard sigmoid": ("nn.hard_swish", lambda x: op.multiply(x, op.nn.hard_sigmoid(x, 1 / 6, 0.5))),
}


@pytest.mark.parametrize("pattern", ACTIVATIONS)
def test_activations(transformed, operators, pattern: str):
    name, decomposed = ACTIVATIONS[pattern]
    x = var("x", (2, 8))
    assert operators(transformed(Function((x,), decomposed(x)), RecognizePatterns())) == {name: 1}


def test_other_activations_stay(transformed):
    x = var("x", (2, 8))
    for y in (
        op.multiply(x, op.nn.hard_sigmoid(x, 0.2, 0.5)),
        op.multiply(x, sixth(op.clip(op.add(x, const(3.0)), 0.0, 5.0))),
        op.multiply(x, op.tanh(op.log(op.add(op.exp(x), const(2.0))))),
    ):
        before = Function((x,), y)
        assert transformed(before, RecognizePatterns()) is before


def test_a_sixth_that_was_rounded_stays_in_float64(transformed, operators):
    x, rounded = var("x", (2, 8), "float64"), float(np.float32(1 / 6))
    for y in (
        op.multiply(x, op.nn.hard_sigmoid(x, rounded, 0.5)),
        op.multiply(x, op.multiply(op.clip(op.add(x, const(np.float64(3))), 0.0, 6.0), const(np.float64(rounded)))),
    ):
        before = Function((x,), y)
        assert transformed(before, RecognizePatterns()) is before
    exact = op.multiply(x, op.nn.hard_sigmoid(x, 1 / 6, 0.5))
    assert operators(transformed(Function((x,), exact), RecognizePatterns())) == {"nn.hard_swish": 1}


def rotary(x: Expr, cosine: Expr, sine: Expr, half: int, axis: int = -1) -> Expr:
    """The form of torch models as exported: a slice end far beyond the last channel means all of them."""
    first = op.strided_slice(x, (0,), (half,), axes=(len(x.shape) - 1,))
    second = op.strided_slice(x, (half,), (2**31 - 1,), axes=(len(x.shape) - 1,))
    swapped = op.concatenate([op.negative(second), first], axis=axis)
    return op.add(op.multiply(x, cosine), op.multiply(swapped, sine))


def test_rotary_embedding(transformed, operators):
    x, cosine, sine = var("x", (1, 2, 5, 8)), var("cos", (1, 1, 5, 8)), var("sin", (1, 1, 5, 8))
    after = transformed(Function((x, cosine, sine), rotary(x, cosine, sine, 4)), RecognizePatterns())
    assert operators(after) == {"nn.rotary_embedding": 1}


def test_other_rotations_stay(transformed):
    x, cosine, sine = var("x", (1, 2, 8, 8)), var("cos", (8, 8)), var("sin", (8, 8))
    before = Function((x, cosine, sine), rotary(x, cosine, sine, 2))
    assert transformed(before, RecognizePatterns()) is before
