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

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, PrimExpr, Stmt, as_int, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.te.tir.ops import bitwise_or

__all__ = ["COMPARISONS", "LEAF", "NODE_FIELDS", "tree_ensemble"]

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

NODE_FIELDS = ("mode", "feature", "if_true", "if_false", "missing_is_true", "first_weight", "last_weight")
"""Columns of the table of nodes; a leaf's weights are those from `first_weight` up to, not including, `last_weight`. A
leaf tests feature 0 and leads to itself."""

_MODE, _FEATURE, _TRUE, _FALSE, _MISSING, _FIRST, _LAST = range(len(NODE_FIELDS))


def tree_ensemble(
    x: Tensor,
    nodes: Tensor,
    splits: Tensor,
    targets: Tensor,
    weights: Tensor,
    roots: Tensor,
    num_targets: int,
    aggregate: str,
    modes: Sequence[int],
) -> Tensor:
    """Scores (N, num_targets) of rows x (N, F): the leaves' weights, aggregated over all trees.

    `nodes` (M, 7) are int32, see `NODE_FIELDS`; `splits` (M,) the values that features are compared with; a leaf's
    weights are pairs of `targets` and `weights` (L,). `aggregate`: "sum", "min" or "max"; a target without weight gets
    0. `modes` are the comparisons that occur.
    """
    rows = x.shape[0]

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer], *, side_by_side: bool = True) -> Stmt:
        ib = ir_builder.create()
        features, table, limits, leaf_targets, leaf_weights, starts = (ib.buffer(b) for b in ins)
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
            _descend(ib, features, table, limits, at, [n for n, _ in walks], modes)
            for place, (n, _) in enumerate(walks):
                with ib.for_range(table[at[place], _FIRST], table[at[place], _LAST], "k") as k:
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

    inputs = [x, nodes, splits, targets, weights, roots]
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
    splits: BufferView,
    at: BufferView,
    rows: Sequence[Any],
    modes: Sequence[int],
) -> None:
    """Walk each of `rows` from its node in `at` to a leaf, where it stays until all have arrived."""
    going = ib.allocate("int32", 1, "going")
    going[0] = 1
    with ib.while_loop(going[0] > 0):
        going[0] = 0
        for place, n in enumerate(rows):
            node = ib.let("node", at[place])
            kind = ib.let("mode", nodes[node, _MODE])
            value = ib.let("value", features[n, nodes[node, _FEATURE]])
            split = ib.let("split", splits[node])
            asked = [(mode, te.cast("int32", COMPARISONS[mode](value, split))) for mode in modes]
            answers = [a if len(modes) == 1 else a * te.cast("int32", kind == mode) for mode, a in asked]
            holds = ib.let("holds", functools.reduce(operator.add, answers))
            column = _FALSE - holds  # column of the next node: a branch would be mispredicted every other time
            if value.dtype.is_float:
                known = _FALSE - te.max(holds, nodes[node, _MISSING])
                column = te.select(te.isnan(value), known, column)
            at[place] = nodes[node, column]
            going[0] = bitwise_or(going[0], te.cast("int32", kind < LEAF))
