"""LowerDenseBits: products with block-quantised weights, as sums over blocks, of floats or of int8 activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function, TupleGetItem
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op import broadcast, elementwise, reduce
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.dense_bits import DenseBits, DenseBlocks, QuantizeBlocks
from relayc.relay.op.nn.dot4 import Words
from relayc.relay.transform.builders import reshaped
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext
from relayc.te.tir import as_int
from relayc.topi.cpu.tiling import has_byte_products, vector_lanes

__all__ = ["LowerDenseBits"]

PassContext.declare_option(
    "relay.activations", "auto",
    "data of products with 4- or 8-bit weights: 'int8', quantised block by block; 'float'; 'auto', as the model says",
    choices=("auto", "int8", "float"),
)  # fmt: skip


@dataclass(frozen=True)
class LowerDenseBits(FunctionPass):
    """`nn.dense_bits` becomes `nn.dense_blocks`, which needs the sums of the data over each block.

    Where the option "relay.activations" says so, or by default the operator, the data become int8 first, by the largest
    magnitude of each block, as onnxruntime does it at accuracy_level 4. Products of the same data share that
    (`EliminateCommonSubexpr`), and rows that are taken for several experts are rounded before. Those with codes of a
    table stay floats. Where a vector holds a value of each code, floats without zero points have such a table: a
    selection takes the place of a mask and a conversion.
    """

    target: Target
    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        wanted = context.option("relay.activations")

        def lower(call: Call) -> Expr:
            op = call.op
            if not isinstance(op, DenseBits):
                return call
            to_int8 = op.int8_activations if wanted == "auto" else wanted == "int8"
            return self._lowered(call, op, to_int8 and not op.has_table)

        return rewrite_calls(function, lower)

    def _lowered(self, call: Call, op: DenseBits, to_int8: bool) -> Expr:
        data, codes, scales, *rest = call.args
        zeros, table, chosen = op.split(rest)
        x = data if data.dtype == "float32" else elementwise.cast(data, "float32")
        if not to_int8 and zeros is table is None and 1 << op.bits <= vector_lanes(self.target):
            table = Constant(np.arange(1 << op.bits, dtype=np.float32) - (1 << (op.bits - 1)))
        blocks = scales.tensor_type.static_shape[1]
        made = DenseBlocks(units=op.units, bits=op.bits, has_zeros=zeros is not None, has_table=table is not None,
                           in_16_bits=to_int8 and not has_byte_products(self.target), experts=op.experts)  # fmt: skip
        unit = 1.0 if zeros is not None else float(1 << (op.bits - 1))
        data_scales: Expr | None = None
        sums: Expr | None = None
        if to_int8 and chosen is not None and _are_rows_taken(data):
            x, data_scales, sums = _quantized_before_taken(data, blocks, unit)
        elif to_int8:
            x, data_scales, sums = _quantized(x, blocks, unit)
        elif table is None:
            sums = reduce.sum(_in_blocks(x, blocks), axis=-1)
            sums = sums if zeros is not None else broadcast.multiply(sums, Constant(np.array(unit, np.float32)))
        others = [e for e in (sums, data_scales, zeros, table, chosen) if e is not None]
        result = made(x, codes, scales, *others, span=call.span)
        return result if call.dtype == "float32" else elementwise.cast(result, str(call.dtype))


def _in_blocks(x: Expr, blocks: int) -> Expr:
    """x (..., K) as (..., blocks, K / blocks)."""
    depth = as_int(x.shape[-1])
    assert depth is not None
    return reshaped(x, (*x.shape[:-1], blocks, depth // blocks))


def _are_rows_taken(x: Expr) -> bool:
    """Is `x` made of whole rows of an activation?"""
    if not isinstance(x, Call) or not isinstance(x.op, Take) or x.op.batch_dims:
        return False
    rank = len(x.args[0].shape)
    return x.op.axis % rank < rank - 1 and not isinstance(x.args[0], Constant)


def _quantized_before_taken(taken: Expr, blocks: int, unit: float) -> tuple[Expr, Expr, Expr]:
    """`_quantized` of rows that are taken, each once or several times: a row is rounded once."""
    assert isinstance(taken, Call) and isinstance(taken.op, Take)
    rows, at = taken.args
    rows = rows if rows.dtype == "float32" else elementwise.cast(rows, "float32")
    op = taken.op.replace(axis=taken.op.axis % len(rows.shape))
    words, scales, sums = [op(part, at, span=taken.span) for part in _quantized(rows, blocks, unit)]
    return words, scales, sums


def _quantized(x: Expr, blocks: int, unit: float) -> tuple[Expr, Expr, Expr]:
    """x (..., K) in int8: words (..., K / 4), scales (..., blocks), and the sums of each block times `unit`."""
    made = QuantizeBlocks(blocks=blocks, unit=unit)(x)
    values, scales, sums = [TupleGetItem(made, i) for i in range(3)]
    return Words()(reshaped(values, x.shape)), scales, sums
