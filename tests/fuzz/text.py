"""Generators for string operators on constant and dynamic strings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.builder import STRING, WORDS, GraphBuilder, Value, operator

__all__: list[str] = []


def _text(g: GraphBuilder, low: int = 0, high: int = 3) -> Value:
    """A string tensor: computed, input or constant."""
    found = [v for v in g.values if v.dtype == STRING and low <= v.rank <= high]
    if found and g.chance(0.5):
        return g.choice(found)
    shape = tuple(g.integer(1, 4) for _ in range(g.integer(low, high)))
    return g.operand(STRING, shape) if g.chance(0.5) else g.input(STRING, shape)


def _made(g: GraphBuilder, op: str, inputs: list[Any], shape: tuple[int, ...], **how: Any) -> Value:
    return g.node(op, inputs, STRING, shape, True, 0, 0, **how)


@operator("StringConcat")
def concatenated(g: GraphBuilder) -> Value:
    x = _text(g)
    other = g.operand(STRING, [1 if g.chance(0.3) else d for d in x.shape])
    return _made(g, "StringConcat", [x, other], x.shape)


@operator("StringSplit")
def split(g: GraphBuilder) -> Value:
    """StringSplit: the number of parts; the parts themselves have a data-dependent size."""
    x = _text(g)
    how: dict[str, Any] = {"delimiter": g.choice(["", ",", " ", "e"])} if g.chance(0.7) else {}
    if g.chance(0.3):
        how["maxsplit"] = g.integer(1, 2)
    parts = g.node("StringSplit", [x], STRING, (*x.shape, 1), True, 0, 0, outputs=2, **how)
    g.values.remove(parts)
    return g.also(1, parts, "int64", x.shape, True, 0, 9)


@operator("RegexFullMatch")
def matches(g: GraphBuilder) -> Value:
    x = _text(g)
    pattern = g.choice(["[a-z]+", "t.*a", "", "(a|b)?", r"-?\d+(\.\d+)?", "[^,]*", "(?i)tea"])
    return g.node("RegexFullMatch", [x], "bool", x.shape, True, 0, 1, pattern=pattern)


@operator("StringNormalizer")
def normalised(g: GraphBuilder) -> Value:
    x = g.operand(STRING, (g.integer(1, 4),))
    how = {"case_change_action": g.choice(["NONE", "LOWER", "UPPER"])}
    return _made(g, "StringNormalizer", [x], x.shape, **how)


@operator("TfIdfVectorizer")
def n_grams(g: GraphBuilder) -> Value:
    x = g.input(g.choice(["int64", "int32"]), (*g.shape(0, 1), g.integer(2, 8)), 0, 4)
    ones = g.rng.sample(range(5), g.integer(1, 4))
    pairs = [g.integer(0, 4) for _ in range(2 * g.integer(1, 3))]
    count = len(ones) + len(pairs) // 2
    if len({*zip(pairs[::2], pairs[1::2], strict=True)}) < len(pairs) // 2:
        raise LookupError("an n-gram twice")
    how: dict[str, Any] = {
        "mode": g.choice(["TF", "IDF", "TFIDF"]), "min_gram_length": 1, "max_gram_length": g.integer(1, 2),
        "max_skip_count": g.integer(0, 2), "ngram_counts": [0, len(ones)], "pool_int64s": [*ones, *pairs],
        "ngram_indexes": g.rng.sample(range(count), count),
        "weights": [float(np.float32(w)) for w in g.numbers.uniform(0.5, 2, count)],
    }  # fmt: skip
    return g.node("TfIdfVectorizer", [x], "float32", (*x.shape[:-1], count), False, 0, 20, **how)


@operator("ai.onnx.ml.CategoryMapper")
def categories(g: GraphBuilder) -> Value:
    x = _text(g)
    words = g.rng.sample(WORDS, 5)
    return g.node("ai.onnx.ml.CategoryMapper", [x], "int64", x.shape, True, -1, 5, cats_strings=words,
                  cats_int64s=list(range(5)), default_int64=-1)  # fmt: skip


@operator("ai.onnx.ml.OneHotEncoder")
def one_hot(g: GraphBuilder) -> Value:
    how: dict[str, Any] = {"zeros": 1}
    if g.chance(0.5):
        x = _text(g, 1, 2)
        how["cats_strings"] = g.rng.sample(WORDS, 4)
        count = 4
    else:
        x = g.input(g.choice(["int64", "int32", "float32"]), g.shape(1, 2), -1, 4)
        if x.is_float:
            x = g.node("Floor", [x], x.dtype, x.shape, True, -1, 4)
        count = g.integer(1, 5)
        how["cats_int64s"] = g.rng.sample(range(-1, 6), count)
    return g.node("ai.onnx.ml.OneHotEncoder", [x], "float32", (*x.shape, count), True, 0, 1, **how)


@operator("ai.onnx.ml.LabelEncoder")
def labels(g: GraphBuilder) -> Value:
    if g.versions["ai.onnx.ml"] < 2:
        x = _text(g)
        return g.node("ai.onnx.ml.LabelEncoder", [x], "int64", x.shape, True, -1, 9,
                      classes_strings=g.rng.sample(WORDS, 4), default_int64=-1)  # fmt: skip
    from_text = g.chance(0.4)
    x = _text(g) if from_text else g.input("int64", g.shape(0, 3), -3, 5)
    keys: Any = g.rng.sample(WORDS, 4) if from_text else g.rng.sample(range(-3, 6), g.integer(1, 6))
    whole = g.chance(0.5)
    numbers = [g.integer(-9, 9) if whole else float(np.float32(g.numbers.uniform(-9, 9))) for _ in keys]
    how: dict[str, Any] = {"keys_strings" if from_text else "keys_int64s": keys}
    how.update({"values_int64s": numbers, "default_int64": 7} if whole else
               {"values_floats": numbers, "default_float": 0.5})  # fmt: skip
    return g.node("ai.onnx.ml.LabelEncoder", [x], "int64" if whole else "float32", x.shape, True, -9, 9, **how)
