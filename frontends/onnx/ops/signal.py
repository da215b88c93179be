"""Windows of signal processing."""

from __future__ import annotations

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from frontends.onnx.tensors import check_computed, numpy_dtype
from relay.expr import Constant, Expr

_COSINE_SUMS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""a0, a1, a2 of a0 - a1 cos(t) + a2 cos(2t)."""


@converter(*_COSINE_SUMS, since=17)
def window(node: OnnxNode) -> Expr:
    """One period of a sum of cosines; symmetric ones end where they begin."""
    size = node.constant_ints(0, "the size")[0]
    dtype = numpy_dtype(node.attr_int("output_datatype", 1), node.where)
    if size < 0:
        raise node.error(f"a window of {size} elements", expected="0 or more")
    check_computed((size,), node.where)
    period = size if node.attr_bool("periodic", True) else size - 1
    t = 2 * np.pi * np.arange(size) / max(period, 1)
    a0, a1, a2 = _COSINE_SUMS[node.op_type]
    return Constant((a0 - a1 * np.cos(t) + a2 * np.cos(2 * t)).astype(dtype))
