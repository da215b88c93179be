"""Ensembles of decision trees.

A step down a tree has the latency of loading a node, then the feature that it tests. Eight walks are interleaved to
overlap it: of eight rows down one tree, or for remaining rows, down eight trees. On GPUs other threads hide the
latency: each thread has a row.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import DType
from relayc.te.tir import Buffer, PrimExpr, Stmt, as_int, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.te.tir.ops import bitwise_and, bitwise_or, call_intrin, left_shift, right_shift

__all__ = ["COMPARISONS", "LEAF", "MAX_FEATURES", "NODE_FIELDS", "pack_nodes", "tree_ensemble", "unpack_nodes"]

COMPARISONS: tuple[Callable[[PrimExpr, PrimExpr], PrimExpr], ...] = (
    lambda x, split: x <= split,
    lambda x, split: x < split,
    lambda x, split: x >= split,
    lambda x, split: x > split,
    lambda x, split: te.all(x <= split, x >= split),
    lambda x, split: te.any(x < split, x > split),
)
"""The comparison of a feature with a node's split, by mode: <=, <, >=, >, ==, !=."""

LEAF = len(COMPARISONS)
"""The mode of a leaf."""

NODE_FIELDS = ("mode", "feature", "if_true", "if_false", "missing_is_true")
"""What describes a node, beside its split. A leaf has the first of its weights as `if_true`, and the one after its last
as `if_false`; it tests feature 0."""

_TEST, _TRUE, _FALSE, _SPLIT = range(4)
"""Columns of the table of nodes: mode, whether a missing value is true, and feature, from the lowest bit; the next
nodes; the bits of the split, in as many columns as they fill, or the number of a leaf itself, where walks then stay.
With float32 a node has 16 bytes and is in one cache line."""
_MODE_BITS = 3
MAX_FEATURES = 1 << 31 - _MODE_BITS - 1
"""The features that a node can tell apart: those before this one."""


def pack_nodes(nodes: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """The table of nodes (M, 4 or 5) int32 that `tree_ensemble` reads, of `NODE_FIELDS` (M, 5) int32 and splits (M,)
    float32 or float64."""
    mode, feature, if_true, if_false, missing = nodes.T
    if feature.max(initial=0) >= MAX_FEATURES:
        raise ValueError(f"a tree that tests feature {feature.max()} of fewer than {MAX_FEATURES}")
    test = mode | missing << _MODE_BITS | feature << _MODE_BITS + 1
    bits = splits.copy().view(np.int32).reshape(len(nodes), splits.itemsize // 4)
    (leaves,) = np.nonzero(mode == LEAF)
    bits[leaves, 0] = leaves
    return np.column_stack([test, if_true, if_false, bits]).astype(np.int32)


def unpack_nodes(table: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """What `pack_nodes` was given, with splits of `dtype`."""
    test = table[:, _TEST]
    mode, missing, feature = test % (1 << _MODE_BITS), test >> _MODE_BITS & 1, test >> _MODE_BITS + 1
    nodes = np.column_stack([mode, feature, table[:, _TRUE], table[:, _FALSE], missing])
    return nodes, np.ascontiguousarray(table[:, _SPLIT:]).view(dtype).reshape(-1)


def tree_ensemble(
    x: Tensor,
    nodes: Tensor,
    targets: Tensor,
    weights: Tensor,
    roots: Tensor,
    num_targets: int,
    aggregate: str,
    modes: Sequence[int],
    missing: bool,
) -> Tensor:
    """Scores (N, num_targets) of rows x (N, F): the leaves' weights, aggregated over all trees.

    `nodes` are a table made by `pack_nodes`; a leaf's weights are pairs of `targets` and `weights` (L,). `aggregate`:
    "sum", "min" or "max"; a target without weight gets 0. `modes` are the comparisons that occur; is a `missing` value
    true for any node?
    """
    rows = x.shape[0]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer], *, side_by_side: bool = True) -> Stmt:
        ib = ir_builder.create()
        features, table, leaf_targets, leaf_weights, starts = (ib.buffer(b) for b in ins)
        out = ib.buffer(outs[0])
        empty = {"sum": 0.0, "min": float("inf"), "max": float("-inf")}[aggregate]
        trees = as_int(roots.shape[0])
        assert trees is not None, "the roots of an ensemble are counted when it is imported"

        def clear(n: Any) -> None:
            with ib.for_range(0, num_targets, "t") as t:
                out[n, t] = te.const(empty, weights.dtype)

        def walk(walks: Sequence[tuple[Any, Any]]) -> None:
            at = ib.allocate("int32", len(walks), "at")
            for place, (_, tree) in enumerate(walks):
                at[place] = starts[tree]
            _descend(ib, features, table, at, [n for n, _ in walks], modes, missing)
            for place, (n, _) in enumerate(walks):
                with ib.for_range(table[at[place], _TRUE], table[at[place], _FALSE], "k") as k:
                    target = ib.let("target", leaf_targets[k])
                    out[n, target] = _COMBINE[aggregate](out[n, target], leaf_weights[k])

        def finish(n: Any) -> None:
            if aggregate != "sum":
                with ib.for_range(0, num_targets, "t") as t:
                    untouched = out[n, t] == te.const(empty, weights.dtype)
                    out[n, t] = te.if_then_else(untouched, te.const(0.0, weights.dtype), out[n, t])

        if not side_by_side:
            with ib.for_range(0, rows, "n", kind="parallel") as n:
                clear(n)
                with ib.for_range(0, trees, "tree") as tree:
                    walk([(n, tree)])
                finish(n)
            return ib.get()
        blocks = rows // _ROWS
        with ib.for_range(0, blocks, "block", kind="parallel") as block:
            begin = ib.let("begin", block * _ROWS)
            with ib.for_range(0, _ROWS, "n") as n:
                clear(begin + n)
            with ib.for_range(0, trees, "tree") as tree, ib.for_range(0, _ROWS // _TOGETHER, "group") as group:
                walk([(begin + group * _TOGETHER + n, tree) for n in range(_TOGETHER)])
            with ib.for_range(0, _ROWS, "n") as n:
                finish(begin + n)
        with ib.for_range(blocks * _ROWS, rows, "n", kind="parallel") as n:
            clear(n)
            with ib.for_range(0, trees // _TOGETHER, "group") as group:
                walk([(n, group * _TOGETHER + tree) for tree in range(_TOGETHER)])
            if trees % _TOGETHER:
                walk([(n, tree) for tree in range(trees // _TOGETHER * _TOGETHER, trees)])
            finish(n)
        return ib.get()

    inputs = [x, nodes, targets, weights, roots]
    attrs = {"for_threads": functools.partial(fill, side_by_side=False)}
    return te.extern(
        (rows, num_targets), inputs, fill, name="tree_ensemble", dtype=weights.dtype, tag="default", attrs=attrs
    )


_TOGETHER = 8
"""Walks that are interleaved."""
_ROWS = 32
"""Rows that walk a tree before the next tree: it stays in the first-level cache meanwhile."""

_COMBINE: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": lambda a, b: a + b,
    "min": te.minimum,
    "max": te.maximum,
}


def _descend(
    ib: IRBuilder,
    features: BufferView,
    nodes: BufferView,
    at: BufferView,
    rows: Sequence[Any],
    modes: Sequence[int],
    missing: bool,
) -> None:
    """Walk each of `rows` from its node in `at` to a leaf, where it stays until all have arrived."""
    going = ib.allocate("int32", 1, "going")
    going[0] = 1
    with ib.while_loop(going[0] > 0):
        going[0] = 0
        for place, n in enumerate(rows):
            node = ib.let("node", at[place])
            test = ib.let("test", nodes[node, _TEST])
            mode = ib.let("mode", bitwise_and(test, (1 << _MODE_BITS) - 1))
            value = ib.let("value", features[n, right_shift(test, _MODE_BITS + 1)])
            split = ib.let("split", _split(nodes, node, value.dtype))
            asked = [(m, te.cast("int32", COMPARISONS[m](value, split))) for m in modes]
            answers = [a if len(modes) == 1 else a * te.cast("int32", mode == m) for m, a in asked]
            holds = functools.reduce(operator.add, answers)
            if missing:
                is_missing = bitwise_and(right_shift(test, _MODE_BITS), te.cast("int32", te.isnan(value)))
                holds = bitwise_or(holds, is_missing)
            # The column of the next node is computed: a branch would be mispredicted every other time.
            at[place] = nodes[node, te.select(mode == LEAF, _SPLIT, _FALSE - holds)]
            going[0] = bitwise_or(going[0], te.cast("int32", mode < LEAF))


def _split(nodes: BufferView, node: PrimExpr, dtype: DType) -> PrimExpr:
    """The split of a node, of the words that hold its bits, lowest first."""
    words = [te.cast("uint32", nodes[node, _SPLIT + k]) for k in range(dtype.bits // 32)]
    bits = [left_shift(te.cast(f"uint{dtype.bits}", word), 32 * k) for k, word in enumerate(words)]
    return call_intrin(dtype, "reinterpret", functools.reduce(bitwise_or, bits))
