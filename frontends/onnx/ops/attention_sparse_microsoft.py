"""Block-sparse attention of com.microsoft."""

from __future__ import annotations

import math

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_grouped_microsoft import GroupedAttention
from relayc.frontends.onnx.ops.attention_microsoft import number
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, reshape_to
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import dims_equal
from relayc.te.tir import Dim


@converter("SparseAttention", domain=MICROSOFT)
def sparse_attention(node: OnnxNode) -> list[Expr | None]:
    """Block-sparse GroupQueryAttention; layouts are assigned to heads cyclically.

    Inputs: Q (or packed QKV), K, V, past keys and values, row pointers and column indices of the layouts (CSR), the
    largest number of keys, that of each row, cosines, sines.
    """
    lengths = op.subtract(node[8], number(1, node[8]))
    inputs = [*[node.get(i) for i in range(5)], lengths, node[7], node.get(9), node.get(10)]
    return _SparseAttention(node.with_inputs(inputs), _layouts(node), node.attr_int("sparse_block_size")).outputs()


def _layouts(node: OnnxNode) -> np.ndarray:
    """Visibility of key blocks to query blocks: bool [layouts, blocks, blocks]."""
    rows, columns = node.constant(5, "the rows of the blocks"), node.constant(6, "the columns of the blocks")
    if rows.ndim != 2 or columns.ndim != 2 or len(rows) != len(columns):
        raise node.error(f"rows {rows.shape} and columns {columns.shape} of blocks", expected="a line for each layout")
    count = rows.shape[1] - 1
    seen = np.zeros((len(rows), count, count), bool)
    for layout, (first, at) in enumerate(zip(rows, columns, strict=True)):
        for row in range(count):
            blocks = at[first[row] : first[row + 1]]
            if len(blocks) != first[row + 1] - first[row] or not ((blocks >= 0) & (blocks < count)).all():
                raise node.error(f"columns {blocks.tolist()} of blocks", expected=f"columns below {count}")
            seen[layout, row, blocks] = True
    return seen


class _SparseAttention(GroupedAttention):
    def __init__(self, node: OnnxNode, layouts: np.ndarray, block: int) -> None:
        super().__init__(node)
        self.layouts, self.block = layouts, block
        if block < 1 or self.heads % len(layouts):
            problem = f"{len(layouts)} layouts of blocks of {block} for {self.heads} heads"
            raise node.error(problem, expected="a divisor of the heads")

    def bias(self, total: Dim, first: Expr | None = None) -> Expr:
        """The mask of grouped attention, plus -inf for invisible key blocks: [batch, heads, length, total]."""
        bias, step = super().bias(total, first), Constant(np.array(self.block, np.int64))
        begin = reshape_to(op.cast(self.past, "int64"), (self.batch, 1))
        queries = op.floor_divide(op.add(begin, op.arange(0, self.length, 1, "int64")), step)
        keys = op.floor_divide(op.arange(0, total, 1, "int64"), step)
        seen = op.take(op.take(Constant(self.layouts), queries, axis=1), keys, axis=3)
        seen = op.tile(op.transpose(seen, (1, 0, 2, 3)), (1, self.heads // len(self.layouts), 1, 1))
        assert dims_equal(seen.shape[3], total), "a column for each key"
        return op.where(seen, bias, float_const(-math.inf, bias))
