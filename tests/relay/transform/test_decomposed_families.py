"""RecognizePatterns: norms by moments, Euclidean norms, activations and rotary embeddings as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, Tuple, analysis, const, op, var
from relayc.relay.transform import CanonicalizeOps, EliminateCommonSubexpr, RecognizePatterns, SimplifyExpr
from relayc.relay.transform.builders import is_call_of

N = 8
PASSES = EliminateCommonSubexpr(), CanonicalizeOps(), SimplifyExpr(), RecognizePatterns()
GAMMA, BETA = (const(np.random.default_rng(i).uniform(0.5, 1.5, N).astype("float32")) for i in (1, 2))


def mean(x: Expr) -> Expr:
    return op.mean(x, axis=-1, keepdims=True)


def summed(x: Expr) -> Expr:
    return op.sum(x, axis=-1, keepdims=True)


def square(x: Expr) -> Expr:
    return op.multiply(x, x)


def distance(x: Expr) -> Expr:
    return op.subtract(x, mean(x))


def inverse(total: Expr) -> Expr:
    return op.rsqrt(op.add(total, const(1e-5)))


def by_moments(x: Expr) -> Expr:
    """TensorFlow's form: x * (r * gamma) + (beta - mean * (r * gamma))"""
    scale = op.multiply(inverse(mean(square(distance(x)))), GAMMA)
    return op.add(op.multiply(x, scale), op.subtract(BETA, op.multiply(mean(x), scale)))


def by_moments_without_beta(x: Expr) -> Expr:
    scale = inverse(mean(square(distance(x))))
    return op.add(op.multiply(x, scale), op.multiply(op.negative(mean(x)), scale))


def by_sums(x: Expr) -> Expr:
    middle = op.divide(summed(x), const(float(N)))
    away = op.subtract(x, middle)
    return op.multiply(away, inverse(op.multiply(summed(square(away)), const(1 / N))))


def fast_variance(x: Expr) -> Expr:
    """The variance of flax: mean(x**2) - mean(x)**2"""
    variance = op.maximum(op.subtract(mean(square(x)), square(mean(x))), const(0.0))
    return op.add(op.multiply(distance(x), op.multiply(inverse(variance), GAMMA)), BETA)


def by_power(x: Expr) -> Expr:
    total = op.add(mean(square(distance(x))), const(1e-5))
    return op.multiply(distance(x), op.power(total, const(-0.5)))


def rms_by_power(x: Expr) -> Expr:
    total = op.add(op.divide(summed(square(x)), const(float(N))), const(1e-5))
    return op.multiply(op.multiply(x, op.power(total, const(-0.5))), GAMMA)


def with_margin(x: Expr) -> Expr:
    length = op.multiply(op.sqrt(summed(square(x))), const(float(N**-0.5)))
    return op.divide(x, op.add(length, const(1e-3)))


NORMS = {
    "layer norm by moments": ("nn.layer_norm", by_moments),
    "layer norm by moments, without beta": ("nn.layer_norm", by_moments_without_beta),
    "layer norm by sums": ("nn.layer_norm", by_sums),
    "layer norm with fast variance": ("nn.layer_norm", fast_variance),
    "layer norm by power": ("nn.layer_norm", by_power),
    "rms norm by power": ("nn.rms_norm", rms_by_power),
    "rms norm with margin": ("nn.standardize", with_margin),
    "euclidean": (
        "nn.l2_normalize",
        lambda x: op.divide(x, op.maximum(op.sqrt(summed(square(x))), const(1e-12))),
    ),
    "euclidean by the inverse root": (
        "nn.l2_normalize",
        lambda x: op.multiply(x, op.rsqrt(op.maximum(summed(square(x)), const(1e-12)))),
    ),
}


@pytest.mark.parametrize("pattern", NORMS)
def test_norms(transformed, operators, pattern: str):
    name, decomposed = NORMS[pattern]
    x = var("x", (2, 3, N))
    assert operators(transformed(Function((x,), decomposed(x)), *PASSES)) == {name: 1}


def test_other_norms_stay(transformed, operators):
    x = var("x", (2, N, N))
    lost = op.divide(x, op.maximum(op.sqrt(summed(square(x))), const(1e-30)))
    others = op.subtract(op.mean(square(x), axis=1, keepdims=True), square(mean(x)))
    length = op.multiply(op.sqrt(summed(square(x))), const(0.3))
    kept = summed(x)
    for y in (
        lost,
        others,
        op.divide(summed(x), const(7.0)),
        op.divide(x, op.add(length, const(1e-3))),
        Tuple((op.divide(kept, const(8.0)), kept)),
    ):
        found = operators(transformed(Function((x,), y), *PASSES))
        assert not {"nn.l2_normalize", "variance", "nn.standardize", "nn.rms_norm"} & set(found)
        assert "mean" not in found or y is others


def erf(x: Expr) -> Expr:
    return op.erf(op.divide(x, const(2.0**0.5)))


def gelu_fast(x: Expr) -> Expr:
    growth = op.add(const(1.0), op.multiply(op.multiply(const(0.044715), x), x))
    gate = op.add(const(1.0), op.tanh(op.multiply(op.multiply(x, const((2 / np.pi) ** 0.5)), growth)))
    return op.multiply(op.multiply(const(0.5), x), gate)


def six(x: Expr) -> Expr:
    return op.minimum(op.maximum(op.add(x, const(3.0)), const(0.0)), const(6.0))


ACTIVATIONS = {
    "gelu": ("nn.gelu", lambda x: op.multiply(x, op.add(const(0.5), op.multiply(const(0.5), erf(x))))),
    "gelu_fast": ("nn.gelu", gelu_fast),
    "sigmoid": ("sigmoid", lambda x: op.divide(const(1.0), op.add(const(1.0), op.exp(op.negative(x))))),
    "silu": (
        "nn.silu",
        lambda x: op.multiply(x, op.divide(const(1.0), op.add(const(1.0), op.exp(op.negative(x))))),
    ),
    "hard swish": ("nn.hard_swish", lambda x: op.multiply(x, op.divide(six(x), const(6.0)))),
    "hard swish by clip": (
        "nn.hard_swish",
        lambda x: op.multiply(x, op.clip(op.add(op.divide(x, const(6.0)), const(0.5)), 0.0, 1.0)),
    ),
}


@pytest.mark.parametrize("pattern", ACTIVATIONS)
def test_activations(transformed, operators, pattern: str):
    name, decomposed = ACTIVATIONS[pattern]
    x = var("x", (2, N))
    assert operators(transformed(Function((x,), decomposed(x)), *PASSES)) == {name: 1}


def test_other_activations_stay(transformed, operators):
    x = var("x", (2, N))
    for y in (
        op.multiply(x, op.add(const(0.5), op.multiply(const(0.4), erf(x)))),
        op.divide(const(1.0), op.add(const(1.0), op.exp(x))),
        op.multiply(x, op.clip(op.add(op.divide(x, const(6.0)), const(0.4)), 0.0, 1.0)),
    ):
        found = operators(transformed(Function((x,), y), *PASSES))
        assert not {"nn.gelu", "sigmoid", "nn.hard_swish"} & set(found)


def cut(x: Expr, begin: int, end: int, step: int = 1) -> Expr:
    return op.strided_slice(x, (begin,), (end,), (step,), axes=(len(x.shape) - 1,))


def rotated(a: Expr, b: Expr, c: Expr, s: Expr) -> tuple[Expr, Expr]:
    first = op.subtract(op.multiply(a, c), op.multiply(b, s))
    return first, op.add(op.multiply(b, c), op.multiply(a, s))


def stacked(first: Expr, second: Expr) -> Expr:
    """Two tensors interleaved, by a new last dimension."""
    columns = [op.expand_dims(e, len(e.shape)) for e in (first, second)]
    return op.reshape(op.concatenate(columns, axis=-1), (*first.shape[:-1], 2 * int(first.shape[-1])))


def pairs(x: Expr) -> tuple[Expr, Expr]:
    """The columns of (..., channels / 2, 2)."""
    view = op.reshape(x, (*x.shape[:-1], int(x.shape[-1]) // 2, 2))
    return op.squeeze(cut(view, 0, 1), axis=(-1,)), op.squeeze(cut(view, 1, 2), axis=(-1,))


ROTATIONS = {
    "halves": lambda x, c, s: op.concatenate(rotated(cut(x, 0, 4), cut(x, 4, 8), c, s), axis=-1),
    "neighbours": lambda x, c, s: stacked(*rotated(cut(x, 0, 8, 2), cut(x, 1, 8, 2), c, s)),
    "complex numbers": lambda x, c, s: stacked(*rotated(*pairs(x), c, s)),
}


@pytest.mark.parametrize("pattern", ROTATIONS)
def test_rotary_embedding(transformed, operators, pattern: str):
    x, c, s = var("x", (1, 2, 5, N)), var("c", (5, N // 2)), var("s", (5, N // 2))
    after = transformed(Function((x, c, s), ROTATIONS[pattern](x, c, s)), *PASSES)
    assert operators(after) == {"nn.rotary_embedding": 1}
    assert after.body.op.interleaved == (pattern != "halves")


def test_rotary_embedding_by_swapped_adjacent_channels(transformed, operators):
    """The form of GPT-J."""
    x, c, s = var("x", (1, 2, 5, N)), var("c", (5, N)), var("s", (5, N))
    swapped = stacked(op.negative(cut(x, 1, 8, 2)), cut(x, 0, 8, 2))
    after = transformed(Function((x, c, s), op.add(op.multiply(x, c), op.multiply(swapped, s))), *PASSES)
    assert operators(after) == {"nn.rotary_embedding": 1} and after.body.op.interleaved


def test_rotary_embedding_of_the_first_channels(transformed, operators):
    """The form of GPT-NeoX."""
    x, c, s = var("x", (1, 2, 5, 12)), var("c", (5, N // 2)), var("s", (5, N // 2))
    parts = (*rotated(cut(x, 0, 4), cut(x, 4, 8), c, s), cut(x, 8, 12))
    after = transformed(Function((x, c, s), op.concatenate(parts, axis=-1)), *PASSES)
    assert operators(after) == {"nn.rotary_embedding": 1, "strided_slice": 2, "concatenate": 1}


def test_other_rotations_stay(transformed, operators):
    x, c, s = var("x", (4, 4, N)), var("c", (4, 4)), var("s", (4, 4))
    first, second = cut(x, 0, 4), cut(x, 4, 8)
    a, b = rotated(first, second, c, s)
    for y in (
        op.concatenate(rotated(second, first, c, s), axis=-1),
        op.concatenate((a, b), axis=1),
        op.concatenate((b, a), axis=-1),
        op.concatenate(rotated(cut(x, 0, 8, 2), cut(x, 1, 8, 2), c, s), axis=-1),
        stacked(a, b),
        op.concatenate((a, op.subtract(op.multiply(second, c), op.multiply(first, s))), axis=-1),
    ):
        assert "nn.rotary_embedding" not in operators(transformed(Function((x, c, s), y), *PASSES))


def tanh_gelu(x: Expr) -> Expr:
    inner = op.multiply(const((2 / np.pi) ** 0.5), op.add(x, op.multiply(const(0.044715), op.power(x, const(3.0)))))
    return op.multiply(op.multiply(const(0.5), x), op.add(const(1.0), op.tanh(inner)))


def inside(e: Expr, name: str) -> Expr:
    """The call of operator `name` in `e`."""
    (found,) = [c for c in analysis.evaluation_order(e) if is_call_of(c, name)]
    return found


@pytest.mark.parametrize(
    ("costly", "decomposed"),
    [
        ("erf", ACTIVATIONS["gelu"][1]),
        ("tanh", gelu_fast),
        ("tanh", tanh_gelu),
        ("exp", ACTIVATIONS["sigmoid"][1]),
        ("sigmoid", lambda x: op.multiply(x, op.sigmoid(x))),
        ("tanh", lambda x: op.multiply(x, op.tanh(op.nn.softplus(x)))),
        ("exp", lambda x: op.multiply(x, op.tanh(op.log(op.add(op.exp(x), const(1.0)))))),
    ],
)
def test_activations_stay_whose_inner_value_is_used_elsewhere(transformed, operators, costly: str, decomposed):
    x = var("x", (2, N))
    y = decomposed(x)
    before = Function((x,), Tuple((y, op.multiply(inside(y, costly), const(3.0)))))
    found = operators(transformed(before, RecognizePatterns()))
    assert found[costly] == 1 and not {"nn.gelu", "nn.silu", "nn.mish"} & set(found)


def test_activations_of_a_shared_value_are_recognised(transformed, operators):
    """The operand may be expensive, too, and is computed once."""
    x = var("x", (2, N))
    y = op.tanh(x)
    before = Function((x,), Tuple((op.multiply(y, op.sigmoid(y)), y)))
    assert operators(transformed(before, RecognizePatterns())) == {"tanh": 1, "nn.silu": 1}


@pytest.mark.parametrize("inner", ["mean", "variance", "subtract"])
def test_norms_beside_other_uses_of_their_parts(transformed, operators, inner: str):
    """The norm reads x once, like the last of its small operators; other used values are computed separately."""
    x = var("x", (2, 3, N))
    away = distance(x)
    variance = op.variance(x, axis=-1, keepdims=True)
    parts = {"mean": mean(x), "variance": variance, "subtract": away}
    y = op.add(op.multiply(op.multiply(away, inverse(variance)), GAMMA), BETA)
    before = Function((x,), Tuple((y, op.sigmoid(parts[inner]))))
    found = operators(transformed(before, *PASSES))
    others = {"mean": {"mean": 1}, "variance": {"variance": 1}, "subtract": {"mean": 1, "subtract": 1}}[inner]
    assert found == {"nn.layer_norm": 1, "sigmoid": 1, **others}


def test_scaled_norms_beside_the_norm(transformed, operators):
    """There is one norm, whose scale is not folded."""
    x = var("x", (2, 3, N))
    norm = op.multiply(distance(x), inverse(mean(square(distance(x)))))
    before = Function((x,), Tuple((op.multiply(norm, GAMMA), norm)))
    assert operators(transformed(before, *PASSES)) == {"nn.layer_norm": 1, "multiply": 1}


def test_sums_of_squares_beside_a_norm(transformed, operators):
    x = var("x", (2, 3, N))
    squares = summed(square(x))
    y = op.divide(x, op.maximum(op.sqrt(squares), const(1e-12)))
    found = operators(transformed(Function((x,), Tuple((y, squares))), *PASSES))
    assert found == {"nn.l2_normalize": 1, "sum": 1, "multiply": 1}


def test_rotary_embedding_beside_other_uses_of_its_parts(transformed, operators):
    x, c, s = var("x", (1, 2, 5, N)), var("c", (5, N // 2)), var("s", (5, N // 2))
    first, second = rotated(cut(x, 0, 4), cut(x, 4, 8), c, s)
    before = Function((x, c, s), Tuple((op.concatenate((first, second), axis=-1), op.sigmoid(first))))
    found = operators(transformed(before, *PASSES))
    assert found["nn.rotary_embedding"] == 1 and found["concatenate"] == 0
