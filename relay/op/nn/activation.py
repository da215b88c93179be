"""Activations."""

from __future__ import annotations

from typing import Any

import numpy as np

import te
import topi
from relay.expr import Call, Expr
from relay.op.base import OpDef, OpPattern, register_op
from relay.type import TensorType

__all__ = ["Relu", "relu"]


@register_op("nn.relu", pattern=OpPattern.ELEMWISE)
class Relu(OpDef):
    """max(x, 0) (ONNX: Relu)."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.relu(x)

    def reference(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.maximum(x, np.zeros((), x.dtype))


def relu(x: Expr) -> Call:
    """max(x, 0)"""
    return Relu()(x)
