"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import te
from te import Tensor
from te.tir import Buffer, PrimExpr, Stmt, ir_builder
from te.tir.ir_builder import BufferView, IRBuilder

__all__ = ["COMPARISONS", "LEAF", "NODE_FIELDS", "tree_ensemble"]

COMPARISONS: tuple[Callable[[PrimExpr, PrimExpr], PrimExpr], ...] = (
    lambda x, split: x <= split,
    lambda x, split: x < split,
    lambda x, split: x >= split,
    lambda x, split: x > split,
    lambda x, split: te.all(x <= split, x >= split),
    lambda x, split: te.any(x < split, x > split),
)
"""What a node asks of a feature, by its mode: at most, below, at least, above, equal to, other than its split."""

LEAF = len(COMPARISONS)
"""The mode of a leaf."""

NODE_FIELDS = ("mode", "feature", "if_true", "if_false", "missing_is_true", "first_weight", "last_weight")
"""Columns of the table of nodes; a leaf's weights are those from `first_weight` up to, not including, `last_weight`."""

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

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        features, table, limits, leaf_targets, leaf_weights, starts = (ib.buffer(b) for b in ins)
        out = ib.buffer(outs[0])
        empty = {"sum": 0.0, "min": float("inf"), "max": float("-inf")}[aggregate]
        with ib.for_range(0, rows, "n", kind="parallel") as n:
            with ib.for_range(0, num_targets, "t") as t:
                out[n, t] = te.const(empty, weights.dtype)
            with ib.for_range(0, roots.shape[0], "tree") as tree:
                at = ib.allocate("int32", 1, "at")
                at[0] = starts[tree]
                _descend(ib, features, table, limits, at, n, modes)
                with ib.for_range(table[at[0], _FIRST], table[at[0], _LAST], "k") as k:
                    target = ib.let("target", leaf_targets[k])
                    out[n, target] = _COMBINE[aggregate](out[n, target], leaf_weights[k])
            if aggregate != "sum":
                with ib.for_range(0, num_targets, "t") as t:
                    untouched = out[n, t] == te.const(empty, weights.dtype)
                    out[n, t] = te.if_then_else(untouched, te.const(0.0, weights.dtype), out[n, t])
        return ib.get()

    inputs = [x, nodes, splits, targets, weights, roots]
    return te.extern((rows, num_targets), inputs, fill, name="tree_ensemble", dtype=weights.dtype, tag="default")


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
    n: PrimExpr,
    modes: Sequence[int],
) -> None:
    """Walk from node `at` to a leaf."""
    with ib.while_loop(nodes[at[0], _MODE] < LEAF):
        node = ib.let("node", at[0])
        value = ib.let("value", features[n, nodes[node, _FEATURE]])
        split = ib.let("split", splits[node])
        holds = COMPARISONS[modes[0]](value, split)
        for mode in modes[1:]:
            asked = nodes[node, _MODE] == mode
            holds = te.any(te.all(asked, COMPARISONS[mode](value, split)), te.all(~asked, holds))
        missing = te.all(te.isnan(value), nodes[node, _MISSING] != 0) if value.dtype.is_float else te.const(False)
        at[0] = te.if_then_else(te.any(holds, missing), nodes[node, _TRUE], nodes[node, _FALSE])
