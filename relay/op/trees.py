"""Ensembles of decision trees."""

from __future__ import annotations

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.type import TensorType, shapes_equal
from relayc.topi.trees import LEAF, unpack_nodes

__all__ = ["TreeEnsemble", "tree_ensemble"]

_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


@register_op("ml.tree_ensemble", pattern=OpPattern.OPAQUE)
class TreeEnsemble(OpDef):
    """Scores (N, num_targets) of rows x (N, F): the weights of the leaves that they reach (ONNX: TreeEnsemble).

    `nodes` are M nodes and their splits in the element type of x, packed by `topi.trees.pack_nodes`; leaves own runs of
    `targets` and `weights` (L,); `roots` (T,) are the trees' first nodes. `aggregate` is "sum", "min" or "max", `modes`
    the comparisons that occur, `missing` whether NaN counts as true for any node. (C1) x is a matrix of float32 or
    float64; (C2) nodes, targets and roots are int32; (C3) the shapes fit; (C4) the aggregate is known, there is a
    target and a mode.
    """

    mixed_precision = MixedPrecision.NEVER

    num_targets: int
    aggregate: str = "sum"
    modes: tuple[int, ...] = (0,)
    missing: bool = True

    def infer(
        self,
        x: TensorType,
        nodes: TensorType,
        targets: TensorType,
        weights: TensorType,
        roots: TensorType,
    ) -> TensorType:
        require(x.ndim == 2 and x.dtype in ("float32", "float64"), f"(C1) {x} must be a matrix of float32 or float64")
        integers = {nodes.dtype, targets.dtype, roots.dtype} == {"int32"}
        require(integers, f"(C2) {nodes}, {targets} and {roots} must be int32")
        columns = 3 + x.dtype.bits // 32
        fits = nodes.ndim == 2 and nodes.shape[1] == columns
        fits = fits and targets.ndim == roots.ndim == 1 and shapes_equal(targets.shape, weights.shape)
        require(fits, f"(C3) {nodes}, {targets}, {weights} and {roots} must be (M, {columns}), (L), (L), (T)")
        known = self.aggregate in ("sum", "min", "max") and self.num_targets >= 1 and len(self.modes) >= 1
        require(known, f"(C4) aggregate {self.aggregate!r} of {self.num_targets} targets, modes {self.modes}")
        return TensorType((x.shape[0], self.num_targets), weights.dtype)

    def compute(
        self,
        x: te.Tensor,
        nodes: te.Tensor,
        targets: te.Tensor,
        weights: te.Tensor,
        roots: te.Tensor,
    ) -> te.Tensor:
        attributes = (self.num_targets, self.aggregate, self.modes, self.missing)
        return topi.tree_ensemble(x, nodes, targets, weights, roots, *attributes)

    def reference(self, x: Array, nodes: Array, targets: Array, weights: Array, roots: Array) -> Array:
        empty = {"sum": 0.0, "min": np.inf, "max": -np.inf}[self.aggregate]
        combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.aggregate]
        nodes, splits = unpack_nodes(nodes, x.dtype.name)
        scores = np.full((len(x), self.num_targets), empty, weights.dtype)
        for row, score in zip(x, scores, strict=True):
            for root in roots:
                at = root
                while nodes[at, 0] < LEAF:
                    mode, feature, if_true, if_false, missing = nodes[at]
                    holds = _COMPARE[mode](row[feature], splits[at]) or (missing and row[feature] != row[feature])
                    at = if_true if holds else if_false
                for k in range(nodes[at, 2], nodes[at, 3]):
                    score[targets[k]] = combine(score[targets[k]], weights[k])
        return np.where(scores == empty, 0, scores).astype(weights.dtype)


def tree_ensemble(
    data: Expr,
    nodes: Expr,
    targets: Expr,
    weights: Expr,
    roots: Expr,
    num_targets: int,
    aggregate: str = "sum",
    modes: tuple[int, ...] = (0,),
    missing: bool = True,
) -> Call:
    """Scores of the rows of `data`; see `TreeEnsemble`."""
    op = TreeEnsemble(num_targets=num_targets, aggregate=aggregate, modes=modes, missing=missing)
    return op(data, nodes, targets, weights, roots)
