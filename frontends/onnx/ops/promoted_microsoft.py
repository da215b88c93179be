"""Contrib operators of com.microsoft that were promoted to ONNX, some with changes."""

from __future__ import annotations

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, require_rank, reshape_to
from relayc.frontends.onnx.ops.constant import spanned
from relayc.frontends.onnx.ops.gather import gather_nd
from relayc.frontends.onnx.ops.grid import grid_sample
from relayc.frontends.onnx.ops.padding import padded
from relayc.frontends.onnx.ops.selection import distinct
from relayc.frontends.onnx.ops.shape import trilu
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import product

convert_with(gather_nd, "GatherND", domain=MICROSOFT)
convert_with(grid_sample, "GridSample", domain=MICROSOFT)
convert_with(trilu, "Trilu", domain=MICROSOFT)


@converter("Range", domain=MICROSOFT)
def range_(node: OnnxNode) -> Expr:
    """start, start + delta, ... below the limit; delta is 1 by default."""
    step = const(1, node.dtype(0)) if node.get(2) is None else node[2]
    return spanned(node.with_inputs([node[0], node[1], step]))


@converter("Pad", domain=MICROSOFT)
def pad(node: OnnxNode) -> Expr:
    """Pads are a vector or a 1-row matrix."""
    mode = node.attr_choice("mode", ("constant", "reflect", "edge"), "constant")
    pads = reshape_to(node[1], (product(node.type(1).shape),))
    return padded(node.with_inputs([node[0], pads, node.get(2)]), range(node.rank(0)), mode)


@converter("Unique", domain=MICROSOFT)
def unique(node: OnnxNode) -> list[Expr]:
    """Distinct elements of a vector by first occurrence, inverse indices, and counts."""
    require_rank(node, 0, 1, 1)
    values, _, inverse, counts = distinct(node, None, in_order=False)
    return [values, inverse, counts]


@converter("CDist", domain=MICROSOFT)
def c_dist(node: OnnxNode) -> Expr:
    """Pairwise distances of the rows of two matrices."""
    for index in (0, 1):
        require_rank(node, index, 2, 2)
    metric = node.attr_choice("metric", ("sqeuclidean", "euclidean"), "sqeuclidean")
    away = op.subtract(op.expand_dims(node[0], 1), op.expand_dims(node[1], 0))
    squares = op.sum(op.multiply(away, away), axis=2)
    return op.sqrt(squares) if metric == "euclidean" else squares
