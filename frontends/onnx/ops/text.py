"""TfIdfVectorizer: n-gram counts.

Elements become numbers. N-grams of the pool are looked up element by element, like in a trie: the state of the prefix
and the next element form a key in a sorted table. So the time depends on the length of the text, not on the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered, float_const, require_rank, zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import add_sizes

MAX_SKIPS = 256
"""Most skipped elements of an n-gram, where rows are longer than that."""


@converter("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: OnnxNode) -> Expr:
    """Counts of n-grams per row, with up to max_skip_count skipped elements."""
    mode = node.attr_choice("mode", ("TF", "IDF", "TFIDF"), "TF")
    shortest, longest = node.attr_int("min_gram_length"), node.attr_int("max_gram_length")
    skips, columns = _skips(node), np.array(node.attr_ints("ngram_indexes"), np.int64)
    pool, numbers = _pool_and_numbers(node)
    if len(columns) != sum(len(grams) for grams in pool.values()) or not columns.size or columns.min() < 0:
        raise node.error(f"{len(columns)} indexes for {sum(len(grams) for grams in pool.values())} n-grams")
    require_rank(node, 0, 1, 2)
    vector = node.rank(0) == 1
    rows = op.expand_dims(numbers, 0) if vector else numbers
    width = int(columns.max()) + 1
    found: list[Expr] = []
    start = 0
    for length, grams in pool.items():
        places = columns[start : start + len(grams)]
        start += len(grams)
        if shortest <= length <= longest and len(grams):
            # Unigrams are counted once: there is nothing to skip.
            for skip in range(skips + 1 if length > 1 else 1):
                found += _columns_met(node, rows, grams, places, width, skip + 1)
    total = zeros((rows.shape[0], width), "float32")
    if found:
        met = op.concatenate(found, axis=1) if len(found) > 1 else found[0]
        ones = op.broadcast_to(Constant(np.ones((), np.float32)), met.shape)
        counts = op.scatter_elements(zeros((rows.shape[0], width + 1), "float32"), met, ones, 1, "add")
        total = op.strided_slice(counts, (0,), (width,), axes=(1,))
    result = _weighted(node, total, mode, columns, width)
    return op.squeeze(result, axis=(0,)) if vector else result


def _skips(node: OnnxNode) -> int:
    """The attribute max_skip_count, as far as a row is long enough for it: each skip is a lookup of its own."""
    skips, extent = node.attr_int("max_skip_count"), node.type(0).shape[-1] if node.rank(0) else 1
    possible = min(skips, max(extent, 1) - 1) if isinstance(extent, int) else skips
    if skips < 0 or possible > MAX_SKIPS:
        raise node.error(f"max_skip_count is {skips}", expected=f"0 to {MAX_SKIPS}")
    return possible


def _pool_and_numbers(node: OnnxNode) -> tuple[dict[int, np.ndarray], Expr]:
    """The n-grams of each length, and input 0 as element numbers; int64.

    Elements that are not in the pool get the next number.
    """
    words = node.attrs.get_strings("pool_strings") or ()
    if words:
        table = list(dict.fromkeys(words))
        numbers = {word: number for number, word in enumerate(table)}
        return _pool(node, [numbers[word] for word in words]), op.strings.index(node[0], table)
    elements = np.array(node.attr_ints("pool_int64s"), np.int64)
    known, places = np.unique(elements, return_inverse=True)
    return _pool(node, places.tolist()), _place(known, op.cast(node[0], "int64"))


def _place(known: np.ndarray, x: Expr) -> Expr:
    """Binary search: positions of the elements of `x` in a sorted vector, its length for missing ones; int64."""
    if not known.size:
        return op.zeros_like(x)
    at = op.searchsorted(Constant(known), x, dtype="int64")
    there = op.take(Constant(known), op.minimum(at, Constant(np.array(known.size - 1))), axis=0, mode="fast")
    return op.where(op.equal(there, x), at, Constant(np.array(known.size)))


def _pool(node: OnnxNode, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """The n-grams of each length: [count, length], in the order of the attribute."""
    flat, starts = np.array(numbers, np.int64), list(node.attr_ints("ngram_counts"))
    pool: dict[int, np.ndarray] = {}
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(flat)], strict=True), start=1):
        if not 0 <= begin <= end <= len(flat) or (end - begin) % length:
            raise node.error(f"n-grams of {length} from {begin} to {end} in a pool of {len(flat)}")
        pool[length] = flat[begin:end].reshape(-1, length)
    return pool


def _columns_met(
    node: OnnxNode, rows: Expr, grams: np.ndarray, places: np.ndarray, width: int, step: int
) -> list[Expr]:
    """[rows, positions]: the output column of the n-gram that starts there, elements `step` apart; `width` without one.

    None if the rows are too short.
    """
    if len(np.unique(grams, axis=0)) != len(grams):
        raise node.unsupported("an n-gram that is twice in the pool", expected="different n-grams")
    extent, span = rows.shape[1], (grams.shape[1] - 1) * step
    if isinstance(extent, int) and extent <= span:
        return []
    if not isinstance(extent, int):  # elements past the end match no n-gram
        rows = bordered(rows, 1, 0, span, float(grams.max() + 1))
        count = extent
    else:
        count = extent - span
    beginnings: np.ndarray = np.zeros(len(grams), np.int64)
    at: Expr | None = None
    radix = int(grams.max()) + 2
    for k in range(grams.shape[1]):
        part = op.strided_slice(rows, (k * step,), (add_sizes(count, k * step),), axes=(1,))
        element = op.minimum(part, Constant(np.array(radix - 1)))
        keys = beginnings * radix + grams[:, k]
        known, beginnings = np.unique(keys, return_inverse=True)
        key = element if at is None else op.add(op.multiply(at, Constant(np.array(radix))), element)
        at = _place(known, key)
    assert at is not None, "n-grams have elements"
    table = np.full(len(grams) + 1, width, np.int64)
    table[beginnings] = places
    return [op.take(Constant(table), at, axis=0, mode="fast")]


def _weighted(node: OnnxNode, counts: Expr, mode: str, columns: np.ndarray, width: int) -> Expr:
    """Apply the mode: "TF" counts, "IDF" 0 or 1 times the weights, "TFIDF" counts times the weights."""
    passed = node.attrs.get_floats("weights")
    if mode == "TF":
        return counts
    weights = np.ones(width, np.float32)
    if passed:
        weights[columns] = np.array(passed, np.float32)
    some = op.cast(op.greater(counts, float_const(0.0, counts)), "float32") if mode == "IDF" else counts
    return op.multiply(some, Constant(weights))
