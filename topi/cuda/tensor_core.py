"""Tensor cores: the instructions `mma.sync` and `ldmatrix` as tensor intrinsics.

A warp multiplies a tile of 16 rows by one of 8 columns over 32 bytes of depth. Its 32 threads, lane = 4 * g + t, hold
the result between them: thread (g, t) has rows g and g + 8, columns 2 * t and 2 * t + 1. As tensors, with a row as
(tile, half, g) and a column as (tile, t, e):

    product[..., half, e] += sum over k of left[..., half, k] * right[..., e, k]       by every thread for itself

is what the stages of a schedule compute. The intrinsics do it cooperatively: the registers that `load_left` and
`load_right` fill do not hold the thread's own rows and columns but the part of the warp's operands that `mma.sync`
requires there (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Only `multiply` reads them. Without the intrinsics the
schedule computes the same result on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from relayc import te
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    PrimExpr,
    Stmt,
    StringImm,
    Var,
    const,
    convert,
    decl_buffer,
    seq,
)
from relayc.te.tir.ops import call_intrin

__all__ = [
    "COLUMNS",
    "ROWS",
    "SLICE",
    "WARP_COLUMNS",
    "Multiply",
    "address",
    "call",
    "load_left",
    "load_right",
    "multiplies",
    "multiply",
    "multiply_slice",
]

ROWS, COLUMNS = 16, 8
"""Rows and columns of the result of one instruction."""
WARP_COLUMNS = 4
"""Threads of a warp across the columns; there are 8 down the rows."""
SLICE = 64
"""Depth of a `wgmma` slice in two-byte elements: one 128-byte line of shared memory."""


@dataclass(frozen=True, slots=True)
class Multiply:
    """A tensor core instruction: operands of `dtype`, accumulators of `wide`, `depth` products at a time, prelude
    name."""

    dtype: str
    wide: str
    depth: int
    name: str


_INSTRUCTIONS = {
    (row.dtype, row.wide): row
    for row in (
        Multiply("float16", "float32", 16, "rc_mma_float16"),
        Multiply("bfloat16", "float32", 16, "rc_mma_bfloat16"),
        Multiply("int8", "int32", 32, "rc_mma_int8"),
        Multiply("float32", "float32", 8, "rc_mma_tfloat32"),
    )
}


def multiplies(dtype: str, wide: str) -> Multiply | None:
    """The instruction for operands of a type, or None. float32 operands lose 13 bits of precision (tf32)."""
    return _INSTRUCTIONS.get((dtype, wide))


def address(buffer: Buffer, index: Sequence[Any]) -> PrimExpr:
    """The address of an element of a buffer."""
    return call_intrin("handle", "address_of", BufferLoad(buffer, tuple([convert(i) for i in index])))


def call(name: str, *args: Any) -> Stmt:
    """A call of a function of the prelude."""
    return Evaluate(call_intrin("int32", "call_extern", StringImm(name), *args))


def _strided(tensor: te.Tensor, name: str) -> Buffer:
    """A buffer declaration for a part of any buffer: `Var` strides, except for the last dimension."""
    strides = [*[Var(f"{name}_stride{i}") for i in range(len(tensor.shape) - 1)], 1]
    return decl_buffer(tensor.shape, str(tensor.dtype), name, strides=strides, elem_offset=Var(f"{name}_offset"))


@cache
def multiply(instruction: Multiply) -> te.TensorIntrin:
    """product (2, 2) += left (2, depth) * right (2, depth)."""
    depth = instruction.depth
    left = te.placeholder((2, depth), instruction.dtype, name="left")
    right = te.placeholder((2, depth), instruction.dtype, name="right")
    k = te.reduce_axis((0, depth), name="k")

    def body(half: Any, e: Any) -> PrimExpr:
        return te.sum(te.cast(instruction.wide, left(half, k)) * te.cast(instruction.wide, right(e, k)), axis=k)

    product = te.compute((2, 2), body, name="product")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> tuple[None, Stmt, Stmt]:
        result = outputs[0]
        zero = const(0, instruction.wide)
        start = seq([BufferStore(result, zero, (const(i), const(j))) for i in range(2) for j in range(2)])
        places = [address(b, (0, 0)) for b in (result, *inputs)]
        return None, start, call(instruction.name, *places)

    return te.decl_tensor_intrin(product.op, emit, instruction.name)


@cache
def load_left(instruction: Multiply, transposed: bool) -> te.TensorIntrin:
    """Rows g and g + 8 of a tile, (2, depth), from shared memory: (half, g, k), or `transposed` (k, tile, half, g)."""
    depth = instruction.depth
    shape = (depth, 1, 2, 8) if transposed else (2, 8, depth)
    source = te.placeholder(shape, instruction.dtype, name="source")
    out = te.compute((2, depth), lambda h, k: source(k, 0, h, 0) if transposed else source(h, 0, k), name="rows")
    return _load(out, source, "rc_load_left" + ("_transposed" if transposed else ""), 0 if transposed else 1, [(0, 0)])


@cache
def load_right(instruction: Multiply, transposed: bool, tiles: int = 1) -> te.TensorIntrin:
    """Columns 2 t and 2 t + 1 of one or two tiles, (tiles, 1, 2, depth), from shared memory.

    The source is (tile, t, e, k), or `transposed` (k, tile, t, e).
    """
    depth = instruction.depth
    shape = (depth, tiles, WARP_COLUMNS, 2) if transposed else (tiles, WARP_COLUMNS, 2, depth)
    source = te.placeholder(shape, instruction.dtype, name="source")

    def body(tile: Any, t: Any, e: Any, k: Any) -> PrimExpr:
        return source(k, tile, t, e) if transposed else source(tile, t, e, k)

    out = te.compute((tiles, 1, 2, depth), body, name="columns")
    name = "rc_load_right" + ("_pair" if tiles == 2 else "") + ("_transposed" if transposed else "")
    return _load(out, source, name, 0 if transposed else 2, [(tile, 0, 0, 0) for tile in range(tiles)])


def _load(
    out: te.Tensor, source: te.Tensor, name: str, row_dimension: int, places: Sequence[Sequence[int]]
) -> te.TensorIntrin:
    """A call with the fragments' `places`, the thread's first element and the row stride in bytes."""
    declared = _strided(source, "source")
    assert declared.strides is not None
    row = declared.strides[row_dimension] * source.dtype.nbytes

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        fragments = [address(outputs[0], place) for place in places]
        return call(name, *fragments, address(inputs[0], (0,) * len(source.shape)), row)

    return te.decl_tensor_intrin(out.op, emit, name, binds={source: declared})


@cache
def multiply_slice(instruction: Multiply, columns: int, transposed: bool) -> te.TensorIntrin:
    """product (block, tile, 1, 1, half, e) += left (half, 1, k) * right (8 block + tile, e, k), summed over 64 k.

    Computed by four warps together (`wgmma`), from swizzled shared memory: 64 rows by `columns`, 8 to a tile, 8 tiles a
    block. A `transposed` right operand is indexed by (block, k, 8 tile + e).
    """
    blocks, dtype, wide = columns // SLICE, instruction.dtype, instruction.wide
    left = te.placeholder((2, 1, SLICE), dtype, name="left")
    right = te.placeholder((blocks, SLICE, SLICE) if transposed else (8 * blocks, COLUMNS, SLICE), dtype, name="right")
    k = te.reduce_axis((0, SLICE), name="k")

    def body(block: Any, tile: Any, g: Any, t: Any, half: Any, e: Any) -> PrimExpr:
        column = tile * COLUMNS + t * 2 + e
        other = right(block, k, column) if transposed else right(block * 8 + tile, t * 2 + e, k)
        return te.sum(te.cast(wide, left(half, g, k)) * te.cast(wide, other), axis=k)

    product = te.compute((blocks, 8, 1, 1, 2, 2), body, name="product")
    name = f"rc_wgmma_{dtype}<{columns}, {int(transposed)}>"

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> tuple[None, Stmt, Stmt]:
        places = [address(b, (0,) * len(b.shape)) for b in (*outputs, *inputs)]
        return None, _zeros(outputs[0], blocks), call(name, *places)

    declared = {tensor: _strided(tensor, str(tensor.op.name)) for tensor in (left, right)}
    return te.decl_tensor_intrin(product.op, emit, name, binds=declared)


def _zeros(result: Buffer, blocks: int) -> Stmt:
    """Zeros in a buffer (blocks, tiles, 1, 1, 2, 2)."""
    block, tile = Var("block"), Var("tile")
    places = [(block, tile, const(0), const(0), const(i), const(j)) for i in range(2) for j in range(2)]
    stores = seq([BufferStore(result, const(0, result.dtype), place) for place in places])
    inner = For(tile, const(0), const(SLICE // COLUMNS), ForKind.UNROLLED, stores)
    return For(block, const(0), const(blocks), ForKind.UNROLLED, inner)
