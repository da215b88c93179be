"""Pairwise coupling: class probabilities from the probabilities of pairs of classes."""

from __future__ import annotations

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import TensorType

__all__ = ["PairwiseCoupling", "pairwise_coupling"]


@register_op("ml.pairwise_coupling", pattern=OpPattern.OPAQUE)
class PairwiseCoupling(OpDef):
    """Probabilities (N, classes) from those of class i out of i and j, (N, pairs i < j in order) (ONNX: SVMClassifier).

    Wu, Lin and Weng (2004), as libsvm iterates it; see `topi.pairwise_coupling`. (C1) the element type is a float;
    (C2) there are two classes or more, and a column for each pair of them.
    """

    mixed_precision = MixedPrecision.NEVER

    classes: int

    def infer(self, pairs: TensorType) -> TensorType:
        require_float(1, pairs)
        count = self.classes * (self.classes - 1) // 2
        fits = self.classes >= 2 and pairs.ndim == 2 and pairs.shape[1] == count
        require(bool(fits), f"(C2) {pairs} must have {count} columns, for {self.classes} classes")
        return pairs.with_shape((pairs.shape[0], self.classes))

    def compute(self, pairs: te.Tensor) -> te.Tensor:
        return topi.pairwise_coupling(pairs, self.classes)

    def reference(self, pairs: Array) -> Array:
        rows = [self._coupled(row) for row in pairs]
        return np.array(rows, pairs.dtype).reshape(len(pairs), self.classes)

    def _coupled(self, row: Array) -> Array:
        """The probabilities of one row, computed in its own precision, since the number of iterations depends on it."""
        count = self.classes
        wins = np.zeros((count, count), row.dtype)
        wins[np.triu_indices(count, 1)] = row
        wins += np.tril(1 - wins.T, -1).astype(row.dtype)
        q = -wins * wins.T
        q[np.diag_indices(count)] = (wins**2).sum(0)
        p = np.full(count, 1 / count, row.dtype)
        for _ in range(max(100, count)):
            slope = q @ p
            level = p @ slope
            if np.abs(slope - level).max() < 0.005 / count:
                break
            for i in range(count):
                step = (level - slope[i]) / q[i, i]
                p[i] += step
                level = (level + step * (step * q[i, i] + 2 * slope[i])) / (1 + step) ** 2
                slope = (slope + step * q[i]) / (1 + step)
                p /= 1 + step
        return p


def pairwise_coupling(pairs: Expr, classes: int) -> Call:
    """Class probabilities from those of pairs of classes."""
    return PairwiseCoupling(classes=classes)(pairs)
