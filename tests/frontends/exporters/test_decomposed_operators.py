"""Fusion of decomposed norms, activations, softmax, rotary embeddings and attention, as exporters write them.

All decompositions of one operator are outputs of one model: each is fused to that operator and agrees with
onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.frontends.exporters.graphs import Graph, check, compiled_operators, tensorflow, torchscript

N = 8
FAR = np.iinfo(np.int64).max

Decomposition = Callable[[Graph, str], str]


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


GAMMA, BETA = normal(N, seed=1), normal(N, seed=2)


def number(g: Graph, value: float) -> str:
    return g.constant(np.float32(value))


def mean(g: Graph, x: str) -> str:
    return g("ReduceMean", x, axes=[-1])


def total(g: Graph, x: str) -> str:
    return g("ReduceSum", x, g.constant([-1]))


def square(g: Graph, x: str) -> str:
    return g("Mul", x, x)


def scaled(g: Graph, x: str) -> str:
    return g("Mul", g.weight(GAMMA), x)


def shifted(g: Graph, x: str) -> str:
    return g("Add", x, g.weight(BETA))


def torch_layer_norm(g: Graph, x: str) -> str:
    """Before opset 17."""
    away = g("Sub", x, mean(g, x))
    variance = mean(g, g("Pow", away, number(g, 2)))
    return shifted(g, scaled(g, g("Div", away, g("Sqrt", g("Add", variance, number(g, 1e-5))))))


def keras_layer_norm(g: Graph, x: str) -> str:
    """tf.nn.moments and tf.nn.batch_normalization"""
    middle = mean(g, x)
    away = g("Sub", x, middle)
    root = g("Reciprocal", g("Sqrt", g("Add", mean(g, square(g, away)), number(g, 1e-3))))
    scale = g("Mul", root, g.weight(GAMMA))
    return g("Add", g("Mul", x, scale), g("Sub", g.weight(BETA), g("Mul", middle, scale)))


def flax_layer_norm(g: Graph, x: str) -> str:
    middle = mean(g, x)
    variance = g("Max", number(g, 0), g("Sub", mean(g, square(g, x)), square(g, middle)))
    root = g("Reciprocal", g("Sqrt", g("Add", variance, number(g, 1e-6))))
    return shifted(g, g("Mul", g("Sub", x, middle), g("Mul", root, g.weight(GAMMA))))


def layer_norm_by_sums(g: Graph, x: str) -> str:
    away = g("Sub", x, g("Div", total(g, x), number(g, N)))
    variance = g("Mul", total(g, square(g, away)), number(g, 1 / N))
    root = g("Pow", g("Add", variance, number(g, 1e-5)), number(g, -0.5))
    return shifted(g, scaled(g, g("Mul", away, root)))


def llama_norm(g: Graph, x: str) -> str:
    root = g("Sqrt", g("Add", mean(g, g("Pow", x, number(g, 2))), number(g, 1e-6)))
    return scaled(g, g("Mul", x, g("Div", number(g, 1), root)))


def rms_norm_by_power(g: Graph, x: str) -> str:
    root = g("Pow", g("Add", mean(g, square(g, x)), number(g, 1e-6)), number(g, -0.5))
    return scaled(g, g("Mul", x, root))


def t5_norm(g: Graph, x: str) -> str:
    root = g("Sqrt", g("Add", mean(g, square(g, x)), number(g, 1e-6)))
    return scaled(g, g("Div", x, root))


def torch_normalize(g: Graph, x: str) -> str:
    length = g("ReduceL2", x, axes=[-1], keepdims=1)
    return g("Div", x, g("Max", length, number(g, 1e-12)))


def tensorflow_l2_normalize(g: Graph, x: str) -> str:
    squares = g("Max", total(g, square(g, x)), number(g, 1e-12))
    return g("Mul", x, g("Reciprocal", g("Sqrt", squares)))


def half_of(g: Graph, x: str) -> str:
    return g("Mul", x, number(g, 0.5))


def one_and(g: Graph, x: str) -> str:
    return g("Add", number(g, 1), x)


def torch_gelu(g: Graph, x: str) -> str:
    return half_of(g, g("Mul", x, one_and(g, g("Erf", g("Div", x, number(g, math.sqrt(2)))))))


def keras_gelu(g: Graph, x: str) -> str:
    return g("Mul", half_of(g, x), one_and(g, g("Erf", g("Mul", x, number(g, math.sqrt(0.5))))))


def flax_gelu(g: Graph, x: str) -> str:
    return g("Mul", x, half_of(g, one_and(g, g("Erf", g("Div", x, number(g, math.sqrt(2)))))))


def gpt2_gelu(g: Graph, x: str) -> str:
    cube = g("Mul", number(g, 0.044715), g("Pow", x, number(g, 3)))
    return g("Mul", half_of(g, x), one_and(g, g("Tanh", g("Mul", number(g, 0.7978845608), g("Add", x, cube)))))


def bloom_gelu(g: Graph, x: str) -> str:
    growth = one_and(g, g("Mul", g("Mul", number(g, 0.044715), x), x))
    gate = g("Tanh", g("Mul", g("Mul", number(g, 0.79788456), x), growth))
    return g("Mul", half_of(g, x), one_and(g, gate))


def sigmoid_by_exp(g: Graph, x: str) -> str:
    return g("Div", number(g, 1), one_and(g, g("Exp", g("Neg", x))))


def silu_by_exp(g: Graph, x: str) -> str:
    return g("Div", x, one_and(g, g("Exp", g("Neg", x))))


def mish_by_log(g: Graph, x: str) -> str:
    return g("Mul", x, g("Tanh", g("Log", one_and(g, g("Exp", x)))))


def relu6(g: Graph, x: str) -> str:
    return g("Clip", x, number(g, 0), number(g, 6))


def least(g: Graph, x: str, most: float) -> str:
    return g("Min", x, number(g, most))


def raised(g: Graph, x: str) -> str:
    return g("Add", x, number(g, 3))


def softmax_less_maximum(g: Graph, x: str) -> str:
    weight = g("Exp", g("Sub", x, g("ReduceMax", x, axes=[-1], keepdims=1)))
    return g("Div", weight, total(g, weight))


def softmax_as_is(g: Graph, x: str) -> str:
    weight = g("Exp", x)
    return g("Mul", weight, g("Reciprocal", total(g, weight)))


def softmax_of_rows(g: Graph, x: str) -> str:
    flat = g("Softmax", g("Reshape", x, g.constant([-1, N])), axis=1)
    return g("Reshape", flat, g.constant([2, 5, N]))


def log_softmax_less_maximum(g: Graph, x: str) -> str:
    less = g("Sub", x, g("ReduceMax", x, axes=[-1], keepdims=1))
    return g("Sub", less, g("Log", total(g, g("Exp", less))))


def log_softmax_by_log_sum_exp(g: Graph, x: str) -> str:
    return g("Sub", x, g("ReduceLogSumExp", x, axes=[-1], keepdims=1))


FAMILIES: dict[str, tuple[str, Mapping[str, Decomposition]]] = {
    "layer norm": (
        "nn.layer_norm",
        {"torch": torch_layer_norm, "keras": keras_layer_norm, "flax": flax_layer_norm, "sums": layer_norm_by_sums},
    ),
    "rms norm": ("nn.rms_norm", {"llama": llama_norm, "power": rms_norm_by_power, "t5": t5_norm}),
    "euclidean": ("nn.l2_normalize", {"torch": torch_normalize, "tensorflow": tensorflow_l2_normalize}),
    "gelu": ("nn.gelu", {"torch": torch_gelu, "keras": keras_gelu, "flax": flax_gelu}),
    "gelu by tanh": ("nn.gelu", {"gpt2": gpt2_gelu, "bloom": bloom_gelu}),
    "sigmoid": ("sigmoid", {"exp": sigmoid_by_exp}),
    "silu": ("nn.silu", {"torch": lambda g, x: g("Mul", x, g("Sigmoid", x)), "exp": silu_by_exp}),
    "mish": ("nn.mish", {"torch": lambda g, x: g("Mul", x, g("Tanh", g("Softplus", x))), "log": mish_by_log}),
    "hard swish": (
        "nn.hard_swish",
        {
            "torch": lambda g, x: g("Div", g("Mul", x, relu6(g, raised(g, x))), number(g, 6)),
            "tensorflow": lambda g, x: g("Mul", x, g("Mul", relu6(g, raised(g, x)), number(g, 1 / 6))),
            "minimum": lambda g, x: g("Mul", x, g("Div", least(g, g("Relu", raised(g, x)), 6), number(g, 6))),
            "hard sigmoid": lambda g, x: g("Mul", x, g("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
        },
    ),
    "softmax": (
        "nn.softmax",
        {"less maximum": softmax_less_maximum, "as is": softmax_as_is, "rows": softmax_of_rows},
    ),
    "log softmax": (
        "nn.log_softmax",
        {"less maximum": log_softmax_less_maximum, "log_sum_exp": log_softmax_by_log_sum_exp},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_decomposed_patterns_are_fused(family: str):
    name, decompositions = FAMILIES[family]
    g = Graph(torchscript)
    inputs = [g.input(f"x{i}", [2, 5, N]) for i in range(len(decompositions))]
    model = g.model([decomposed(g, x) for decomposed, x in zip(decompositions.values(), inputs, strict=True)], 13)
    assert compiled_operators(model) == {name: len(decompositions)}
    check(model, {x: 2 * normal(2, 5, N, seed=i) for i, x in enumerate(inputs)})


def rows_group_norm(g: Graph, x: str) -> str:
    """Group norm of torch models: groups as rows, scaled and shifted per channel."""
    rows = g("Reshape", x, g.constant([2, 4, -1]))
    normed = g("Reshape", torch_standardized(g, rows, [-1]), g.constant([2, N, 3, 5]))
    return g("Add", g("Mul", normed, g.weight(GAMMA[:, None, None])), g.weight(BETA[:, None, None]))


def keras_group_norm(g: Graph, x: str) -> str:
    """Channels last, split into groups: tf.nn.moments and tf.nn.batch_normalization."""
    groups = g("Reshape", x, g.constant([2, 3, 5, 4, 2]))
    middle = g("ReduceMean", groups, axes=[1, 2, 4])
    variance = g("ReduceMean", square(g, g("Sub", groups, middle)), axes=[1, 2, 4])
    root = g("Reciprocal", g("Sqrt", g("Add", variance, number(g, 1e-3))))
    scale = g("Mul", root, g.weight(GAMMA.reshape(1, 1, 1, 4, 2)))
    shift = g("Sub", g.weight(BETA.reshape(1, 1, 1, 4, 2)), g("Mul", middle, scale))
    return g("Reshape", g("Add", g("Mul", groups, scale), shift), g.constant([2, 3, 5, N]))


def torch_standardized(g: Graph, x: str, axes: list[int]) -> str:
    away = g("Sub", x, g("ReduceMean", x, axes=axes))
    variance = g("ReduceMean", square(g, away), axes=axes)
    return g("Div", away, g("Sqrt", g("Add", variance, number(g, 1e-5))))


@pytest.mark.parametrize(("norm", "shape"), [(rows_group_norm, (2, N, 3, 5)), (keras_group_norm, (2, 3, 5, N))])
def test_group_norms(norm: Decomposition, shape: tuple[int, ...]):
    g = Graph(tensorflow)
    model = g.model([norm(g, g.input("x", shape))], 13)
    assert compiled_operators(model) == {"nn.group_norm": 1}
    check(model, {"x": 3 + normal(*shape)})


def cut(g: Graph, x: str, begin: int, end: int, step: int = 1) -> str:
    return g("Slice", x, g.constant([begin]), g.constant([end]), g.constant([-1]), g.constant([step]))


def rotated(g: Graph, first: str, second: str, c: str, s: str) -> tuple[str, str]:
    real = g("Sub", g("Mul", first, c), g("Mul", second, s))
    return real, g("Add", g("Mul", first, s), g("Mul", second, c))


def stacked(g: Graph, *parts: str) -> str:
    columns = [g("Unsqueeze", x, g.constant([-1])) for x in parts]
    return g("Reshape", g("Concat", *columns, axis=-1), g.constant([1, 2, 5, N]))


def hugging_face_rotation(g: Graph, x: str, c: str, s: str) -> str:
    swapped = g("Concat", g("Neg", cut(g, x, N // 2, FAR)), cut(g, x, 0, N // 2), axis=-1)
    c, s = (g("Concat", t, t, axis=-1) for t in (c, s))
    return g("Add", g("Mul", x, c), g("Mul", swapped, s))


def halves_rotation(g: Graph, x: str, c: str, s: str) -> str:
    return g("Concat", *rotated(g, cut(g, x, 0, N // 2), cut(g, x, N // 2, N), c, s), axis=-1)


def gptj_rotation(g: Graph, x: str, c: str, s: str) -> str:
    swapped = stacked(g, g("Neg", cut(g, x, 1, FAR, 2)), cut(g, x, 0, FAR, 2))
    columns = [g("Unsqueeze", t, g.constant([-1])) for t in (c, s)]
    c, s = (g("Reshape", g("Concat", t, t, axis=-1), g.constant([5, N])) for t in columns)
    return g("Add", g("Mul", x, c), g("Mul", swapped, s))


def llama_rotation(g: Graph, x: str, c: str, s: str) -> str:
    """Complex numbers"""
    pairs = g("Reshape", x, g.constant([1, 2, 5, N // 2, 2]))
    first, second = (g("Gather", pairs, g.constant(np.int64(i)), axis=-1) for i in (0, 1))
    return stacked(g, *rotated(g, first, second, c, s))


@pytest.mark.parametrize("rotation", [hugging_face_rotation, halves_rotation, gptj_rotation, llama_rotation])
def test_rotary_embeddings(rotation: Callable[[Graph, str, str, str], str]):
    g = Graph(torchscript)
    angle = np.arange(5)[:, None] / 10.0 ** np.arange(N // 2)
    x, c, s = g.input("x", [1, 2, 5, N]), *[g.weight(f(angle).astype(np.float32)) for f in (np.cos, np.sin)]
    model = g.model([rotation(g, x, c, s)], 13)
    assert compiled_operators(model)["nn.rotary_embedding"] == 1
    check(model, {"x": normal(1, 2, 5, N)})


HEADS, LENGTH, DEPTH = 2, 9, 4
SEEN = np.tri(LENGTH, dtype=np.float32)
SEEN[3] = 0  # a query that sees no key


def without(g: Graph, mask: str) -> str:
    return g("Sub", number(g, 1), mask)


MASKS: dict[str, Callable[[Graph, str, str], str]] = {
    "less 1e4": lambda g, x, m: g("Sub", g("Mul", x, m), g("Mul", number(g, 1e4), without(g, m))),
    "less 1e10": lambda g, x, m: g("Sub", g("Mul", x, m), g("Mul", number(g, 1e10), without(g, m))),
    "plus -1e4": lambda g, x, m: g("Add", g("Mul", x, m), g("Mul", without(g, m), number(g, -1e4))),
    "added -1e4": lambda g, x, m: g("Add", x, g("Mul", without(g, m), number(g, -1e4))),
    "subtracted 1e4": lambda g, x, m: g("Sub", x, g("Mul", without(g, m), number(g, 1e4))),
    "where": lambda g, x, m: g("Where", g("Cast", m, to=9), x, number(g, -1e4)),
}


@pytest.mark.parametrize("softmax", ["Softmax", "decomposed"])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("masking", MASKS)
def test_attention(masking: str, computed: bool, softmax: str):
    g = Graph(tensorflow)
    q, k, v = [g.input(name, [2, HEADS, LENGTH, DEPTH]) for name in "qkv"]
    scores = g("Div", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), number(g, 2))
    mask = g("Cast", g("Less", g.input("limit", [1, 1, LENGTH, LENGTH]), number(g, 0.5)), to=1)
    scores = MASKS[masking](g, scores, mask if computed else g.weight(SEEN[None, None]))
    weights = g("Softmax", scores, axis=-1) if softmax == "Softmax" else softmax_less_maximum(g, scores)
    model = g.model([g("MatMul", weights, v)], 13)
    found = compiled_operators(model)
    assert found["nn.blocked_attention"] == 1 and "nn.softmax" not in found
    inputs = {name: normal(2, HEADS, LENGTH, DEPTH, seed=i) for i, name in enumerate("qkv")}
    check(model, {**inputs, "limit": 1 - SEEN[None, None]})


LOWEST = float(np.finfo(np.float32).min)


def keras_attention(g: Graph) -> str:
    """MultiHeadAttention: einsums with the keys first, and a mask that is added behind the scale."""
    x = g.input("x", [2, LENGTH, HEADS * DEPTH])
    weights = [g.weight(normal(HEADS * DEPTH, HEADS, DEPTH, seed=i)) for i in range(3)]
    q, k, v = [g("Einsum", x, w, equation="abc,cde->abde") for w in weights]
    scores = g("Einsum", k, g("Mul", q, number(g, 0.5)), equation="aecd,abcd->acbe")
    scores = g("Add", scores, g("Mul", without(g, g.weight(SEEN[None, None])), number(g, -1e9)))
    mixed = g("Einsum", g("Softmax", scores, axis=-1), v, equation="acbe,aecd->abcd")
    return g("Einsum", mixed, g.weight(normal(HEADS, DEPTH, 8, seed=4)), equation="abcd,cde->abe")


def bart_attention(g: Graph) -> str:
    """Batch and heads are one dimension but for the mask."""
    q, k, v = [g.input(name, [2 * HEADS, LENGTH, DEPTH]) for name in "qkv"]
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 2, 1]))
    hidden = g("Mul", without(g, g.input("mask", [2, 1, 1, LENGTH])), number(g, LOWEST))
    scores = g("Add", g("Reshape", scores, g.constant([2, HEADS, LENGTH, LENGTH])), hidden)
    scores = g("Reshape", scores, g.constant([2 * HEADS, LENGTH, LENGTH]))
    return g("MatMul", g("Softmax", scores, axis=-1), v)


def swin_attention(g: Graph) -> str:
    """Windows that are shifted: a bias of positions, and a mask for each window of an image."""
    q, k, v = [g.input(name, [6, HEADS, LENGTH, DEPTH]) for name in "qkv"]
    scores = g("MatMul", g("Mul", q, number(g, 0.5)), g("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g("Add", scores, g.weight(normal(1, HEADS, LENGTH, LENGTH)))
    mask = np.where(normal(1, 3, 1, LENGTH, LENGTH, seed=5) > 0, 0, -100).astype(np.float32)
    scores = g("Add", g("Reshape", scores, g.constant([2, 3, HEADS, LENGTH, LENGTH])), g.weight(mask))
    weights = g("Softmax", g("Reshape", scores, g.constant([6, HEADS, LENGTH, LENGTH])), axis=-1)
    return g("MatMul", weights, v)


def cosine_attention(g: Graph) -> str:
    """Swin V2: a temperature for each head."""
    q, k, v = [g.input(name, [2, HEADS, LENGTH, DEPTH]) for name in "qkv"]
    q, k = torch_normalize(g, q), torch_normalize(g, k)
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), g.weight(np.abs(normal(HEADS, 1, 1)) + 3))
    scores = g("Add", scores, g.weight(normal(1, HEADS, LENGTH, LENGTH)))
    return g("MatMul", g("Softmax", scores, axis=-1), v)


@pytest.mark.parametrize("attention", [keras_attention, bart_attention, swin_attention, cosine_attention])
def test_attention_of_models(attention: Callable[[Graph], str]):
    g = Graph(torchscript)
    model = g.model([attention(g)], 13)
    found = compiled_operators(model)
    assert found["nn.blocked_attention"] == 1 and not {"nn.softmax", "nn.batch_matmul_packed"} & set(found)
    inputs = {i.name: normal(*[d.dim_value for d in i.type.tensor_type.shape.dim]) for i in model.graph.input}
    if "mask" in inputs:
        inputs["mask"] = np.ones((2, 1, 1, LENGTH), np.float32)
        inputs["mask"][0] = 0  # no key is seen: all have the same score
    check(model, inputs)


REPETITIONS: dict[str, Decomposition] = {
    "expand": lambda g, x: g("Expand", g("Unsqueeze", x, g.constant([2])), g.constant([1, 2, 3, LENGTH, DEPTH])),
    "tile": lambda g, x: g("Tile", g("Unsqueeze", x, g.constant([2])), g.constant([1, 1, 3, 1, 1])),
    "concat": lambda g, x: g("Concat", *[g("Unsqueeze", x, g.constant([2]))] * 3, axis=2),
    "gather": lambda g, x: g("Gather", x, g.constant([0, 0, 0, 1, 1, 1]), axis=1),
}


@pytest.mark.parametrize("repetition", REPETITIONS)
def test_repeated_keys_and_values_are_read_once(repetition: str):
    g = Graph(torchscript)
    q, k, v = [g.input(name, [1, 6 if name == "q" else 2, LENGTH, DEPTH]) for name in "qkv"]
    k, v = (g("Reshape", REPETITIONS[repetition](g, x), g.constant([1, 6, LENGTH, DEPTH])) for x in (k, v))
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
    model = g.model([g("MatMul", g("Softmax", scores, axis=-1), v)], 13)
    assert set(compiled_operators(model)) <= {"nn.blocked_attention", "transpose"}
    check(model, {name: normal(1, 6 if name == "q" else 2, LENGTH, DEPTH, seed=i) for i, name in enumerate("qkv")})
