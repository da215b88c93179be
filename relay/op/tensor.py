"""Elementwise and broadcasting arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

import te
import topi
from relay.errors import TypeInferenceError
from relay.expr import Call, Expr
from relay.op.base import OpDef, OpPattern, register_op
from relay.type import TensorType, broadcast_shapes

__all__ = ["Add", "add"]


@register_op("add", pattern=OpPattern.BROADCAST)
class Add(OpDef):
    """a + b with numpy's broadcasting (ONNX: Add)."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if a.dtype != b.dtype:
            raise TypeInferenceError(f"both inputs must have one element type; got {a.dtype} and {b.dtype}")
        return TensorType(broadcast_shapes(a.shape, b.shape), a.dtype)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return topi.add(a, b)

    def reference(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.add(a, b)


def add(a: Expr, b: Expr) -> Call:
    """a + b"""
    return Add()(a, b)
