"""Counts of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import float_const, zeros
from frontends.onnx.ops.strings import strings
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr


@converter("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: OnnxNode) -> Expr:
    """For each n-gram of the pool, how often it occurs in a row with 0 to max_skip_count elements left out between."""
    mode = node.attr_choice("mode", ("TF", "IDF", "TFIDF"), "TF")
    shortest, longest = node.attr_int("min_gram_length"), node.attr_int("max_gram_length")
    skips, columns = node.attr_int("max_skip_count"), np.array(node.attr_ints("ngram_indexes"), np.int64)
    words = node.attrs.get_strings("pool_strings") or ()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    pool = _pool(node, [numbers[word] for word in words] if words else node.attr_ints("pool_int64s"))
    if len(columns) != sum(len(grams) for grams in pool.values()) or not columns.size or columns.min() < 0:
        raise node.error(f"{len(columns)} indexes for {sum(len(grams) for grams in pool.values())} n-grams")
    vector = node.rank(0) == 1
    x = Constant(np.vectorize(lambda s: numbers.get(s, -1), otypes=[np.int64])(strings(node, 0))) if words else node[0]
    rows = op.cast(op.expand_dims(x, 0) if vector else x, "int64")
    width = int(columns.max()) + 1
    counts: list[Expr] = []
    start = 0
    for length, grams in pool.items():
        places = columns[start : start + len(grams)]
        start += len(grams)
        if shortest <= length <= longest and len(grams):
            # Elements next to each other are counted once: a single one has nothing to skip.
            found = [_occurrences(node, rows, grams, skip + 1) for skip in range(skips + 1 if length > 1 else 1)]
            found = [x for x in found if x is not None]
            if found:
                counts.append(_spread(reduce(op.add, found), places, width))
    total = reduce(op.add, counts) if counts else zeros((rows.shape[0], width), "float32")
    result = _weighted(node, total, mode, columns, width)
    return op.squeeze(result, axis=(0,)) if vector else result


def _pool(node: OnnxNode, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """The n-grams of each length [count, length], in the order of the attribute."""
    flat, starts = np.array(numbers, np.int64), list(node.attr_ints("ngram_counts"))
    pool: dict[int, np.ndarray] = {}
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(flat)], strict=True), start=1):
        if not 0 <= begin <= end <= len(flat) or (end - begin) % length:
            raise node.error(f"n-grams of {length} from {begin} to {end} in a pool of {len(flat)}")
        pool[length] = flat[begin:end].reshape(-1, length)
    return pool


def _occurrences(node: OnnxNode, rows: Expr, grams: np.ndarray, step: int) -> Expr | None:
    """[rows, n-grams]: how often each occurs with elements `step` apart; None where the rows are too short."""
    extent = node.extent(rows, 1, "the words")
    length = grams.shape[1]
    windows = extent - (length - 1) * step
    if windows < 1:
        return None
    equal: Expr | None = None
    for k in range(length):
        part = op.expand_dims(op.strided_slice(rows, (k * step,), (k * step + windows,), axes=(1,)), 2)
        same = op.equal(part, Constant(grams[:, k]))
        equal = same if equal is None else op.logical_and(equal, same)
    assert equal is not None
    return op.sum(op.cast(equal, "float32"), axis=(1,))


def _spread(counts: Expr, places: np.ndarray, width: int) -> Expr:
    """Column k of `counts` at column ``places[k]`` of `width` columns."""
    table = np.zeros((len(places), width), np.float32)
    table[np.arange(len(places)), places] = 1
    return op.nn.matmul(counts, Constant(table))


def _weighted(node: OnnxNode, counts: Expr, mode: str, columns: np.ndarray, width: int) -> Expr:
    """Counts, 1 where there is any ("IDF"), or counts, times the weights where they are given."""
    given = node.attrs.get_floats("weights")
    if mode == "TF":
        return counts
    weights = np.ones(width, np.float32)
    if given:
        weights[columns] = np.array(given, np.float32)
    some = op.cast(op.greater(counts, float_const(0.0, counts)), "float32") if mode == "IDF" else counts
    return op.multiply(some, Constant(weights))
