"""Dot products `te.dot2`, `te.dot4` and `te.dot8` of integers, and `te.dot2_bfloat16`, in as few instructions as the
processor has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic, available, legalized
from relayc.backend.llvm.codegen.machine import Machine
from relayc.backend.llvm.codegen.vectors import word_vector
from relayc.te.errors import CompileError
from relayc.te.tir import Broadcast, Call, IntImm, PrimExpr

__all__ = [
    "INSTRUCTIONS", "emit_add_dot2_bfloat16", "emit_add_dot4", "emit_byte_pairs", "emit_dot2", "emit_dot2_bfloat16",
    "emit_dot4", "has_dot2_bfloat16",
]  # fmt: skip

_LOW_SEVEN_BITS = 0x7F7F7F7F
"""Bits of four bytes that are no sign bits."""


def emit_byte_pairs(e: Emitter, call: Call) -> str:
    """Pairs of signed bytes, in the halves of 16-bit lanes, as pairs of 16-bit integers in lanes of 32."""
    lanes = call.dtype.lanes
    source = "i16" if lanes == 1 else f"<{lanes} x i16>"
    bytes_ = e.text.pure(f"bitcast {source} {e.value(call.args[0])} to <{2 * lanes} x i8>")
    wide = e.text.pure(f"sext <{2 * lanes} x i8> {bytes_} to <{2 * lanes} x i16>")
    return e.text.pure(f"bitcast <{2 * lanes} x i16> {wide} to {word_vector(lanes)}")


def emit_dot2(e: Emitter, call: Call) -> str:
    """A product with twice the lanes, and the sums of adjacent lanes: the form that LLVM selects one instruction
    for."""
    x, y = e.value(call.args[0]), e.value(call.args[1])
    lanes = call.dtype.lanes
    return _sum_of_parts(e.text, _product_of_parts(e.text, x, y, lanes, 2, "sext"), lanes, 2)


def emit_dot4(e: Emitter, call: Call) -> str:
    """A dot4 or dot8, of one or two pairs of operands."""
    return _dot4(e, call, None, call.args)


def emit_add_dot4(e: Emitter, call: Call) -> str:
    """A dot4 or dot8, added to the first operand."""
    return _dot4(e, call, call.args[0], call.args[1:])


def _dot4(e: Emitter, call: Call, onto: PrimExpr | None, pairs: Sequence[PrimExpr]) -> str:
    lanes, rows = call.dtype.lanes, available(_DOT4, e.machine)
    if not rows and all(map(_are_small, pairs[::2])):
        rows = available(_DOT4_BELOW_128, e.machine)
    operands = [e.value(arg) for arg in pairs]
    total = [] if onto is None else [e.value(onto)]
    if rows and lanes % min(rows) == 0:
        return legalized(e.text, rows, lanes, [*operands, *total], "i32")
    values = total
    for x, y in _pairs(operands):
        values.append(_sum_of_parts(e.text, _product_of_parts(e.text, x, y, lanes, 4, "zext", "sext"), lanes, 4))
    return _added(e.text, values, word_vector(lanes))


def has_dot2_bfloat16(machine: Machine, lanes: int) -> bool:
    """Has the processor an instruction for dot products of as many pairs of bfloat16?"""
    rows = available(_DOT2_BFLOAT16, machine)
    return bool(rows) and lanes % min(rows) == 0


def emit_dot2_bfloat16(e: Emitter, call: Call) -> str:
    """A dot product of pairs of bfloat16, where the processor has an instruction for it."""
    return _dot2_bfloat16(e, call, None, *call.args)


def emit_add_dot2_bfloat16(e: Emitter, call: Call) -> str:
    """A dot product of pairs of bfloat16, added to the first operand."""
    return _dot2_bfloat16(e, call, *call.args)


def _dot2_bfloat16(e: Emitter, call: Call, onto: PrimExpr | None, x: PrimExpr, y: PrimExpr) -> str:
    lanes = call.dtype.lanes
    if not has_dot2_bfloat16(e.machine, lanes):
        raise CompileError(f"no instruction is {call.op!r} of {call.dtype} on this processor: {call}")
    operands = [e.value(x), e.value(y)]
    total = f"<{lanes} x float> zeroinitializer" if onto is None else f"<{lanes} x float> {e.value(onto)}"
    words = e.text.pure(f"bitcast {total} to {word_vector(lanes)}")
    sums = legalized(e.text, available(_DOT2_BFLOAT16, e.machine), lanes, [words, *operands], "i32")
    return e.text.pure(f"bitcast {word_vector(lanes)} {sums} to <{lanes} x float>")


# What rows of dot4 emit: operands are pairs x, y (one or two) and, where their number is odd, last what is added to.


def _pairs(operands: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(operands[::2], operands[1::2], strict=False))


def _accumulate(text: FunctionText, row: Instruction, *operands: str) -> str:
    """An instruction that adds the products of one pair."""
    (dot,) = row.intrinsics
    words, kind = word_vector(row.lanes), dot.operands[-1]
    value = operands[-1] if len(operands) % 2 else "zeroinitializer"
    for pair in _pairs(operands):
        x, y = [v if kind == words else text.pure(f"bitcast {words} {v} to {kind}") for v in pair]
        value = dot.call(text, value, x, y)
    return value


def _accumulate_bfloat16(text: FunctionText, row: Instruction, total: str, x: str, y: str) -> str:
    """An instruction that adds the products of vectors of words, whose bits are float32 sums and pairs of bfloat16."""
    (dot,), words = row.intrinsics, word_vector(row.lanes)
    bits = [text.pure(f"bitcast {words} {v} to {of}") for v, of in zip((total, x, y), dot.operands, strict=True)]
    return text.pure(f"bitcast {dot.result} {dot.call(text, *bits)} to {words}")


def _multiply_then_add(text: FunctionText, row: Instruction, *operands: str) -> str:
    """An instruction that multiplies uint8 by int8 with 16-bit sums of pairs, and one that adds pairs of these."""
    multiply, add = row.intrinsics
    words, kind = word_vector(row.lanes), multiply.operands[0]
    products: list[str] = []
    for pair in _pairs(operands):
        products.append(multiply.call(text, *[text.pure(f"bitcast {words} {v} to {kind}") for v in pair]))
    value = add.call(text, _added(text, products, multiply.result), "splat (i16 1)")
    return _added(text, [operands[-1], value], words) if len(operands) % 2 else value


def _added(text: FunctionText, values: Sequence[str], kind: str) -> str:
    """The sum of vectors of type `kind`."""
    return reduce(lambda a, b: text.pure(f"add {kind} {a}, {b}"), values)


def _product_of_parts(text: FunctionText, x: str, y: str, lanes: int, parts: int, *signs: str) -> str:
    """The products of the packed fields of int32 vectors, `parts` per lane, sign- or zero-extended to int32."""
    kind, bits, wide = word_vector(lanes), 32 // parts, f"<{parts * lanes} x i32>"
    fields = f"<{parts * lanes} x i{bits}>"
    extended = [
        text.pure(f"{sign} {fields} {text.pure(f'bitcast {kind} {v} to {fields}')} to {wide}")
        for v, sign in ((x, signs[0]), (y, signs[-1]))
    ]
    return text.pure(f"mul nsw {wide} {extended[0]}, {extended[1]}")


def _sum_of_parts(text: FunctionText, product: str, lanes: int, parts: int) -> str:
    """Sums of `parts` adjacent lanes."""
    wide, kind = f"<{parts * lanes} x i32>", word_vector(lanes)
    if lanes == 1:
        terms = [text.pure(f"extractelement {wide} {product}, i64 {i}") for i in range(parts)]
    else:
        picks = [", ".join([f"i32 {i}" for i in range(start, parts * lanes, parts)]) for start in range(parts)]
        terms = [text.pure(f"shufflevector {wide} {product}, {wide} poison, <{lanes} x i32> <{p}>") for p in picks]
    return _added(text, terms, kind)


def _are_small(word: PrimExpr) -> bool:
    """Are all bytes of these words visibly below 128, masked by a constant?"""
    if not isinstance(word, Call) or word.op != "bitwise_and":
        return False
    masks = [m.value if isinstance(m, Broadcast) else m for m in word.args]
    return any(isinstance(m, IntImm) and m.value & _LOW_SEVEN_BITS == m.value for m in masks)


# Rows: lanes are those of the result, of 32 bits.


def _vnni(lanes: int, *features: str) -> Instruction:
    words = word_vector(lanes)
    dot = LLVMIntrinsic(f"x86.avx512.vpdpbusd.{32 * lanes}", words, (words, words, words))
    return Instruction("dot4", "int32", lanes, frozenset(features), _accumulate, (dot,))


def _multiply_add(lanes: int, feature: str, multiply: str, add: str) -> Instruction:
    quarters, halves, words = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>", word_vector(lanes)
    steps = LLVMIntrinsic(multiply, halves, (quarters, quarters)), LLVMIntrinsic(add, words, (halves, halves))
    return Instruction("dot4", "int32", lanes, frozenset({feature}), _multiply_then_add, steps)


def _neon(operator: str, feature: str, name: str) -> Instruction:
    words, quarters = word_vector(4), "<16 x i8>"
    dot = LLVMIntrinsic(f"aarch64.neon.{name}.v4i32.v16i8", words, (words, quarters, quarters))
    return Instruction(operator, "int32", 4, frozenset({feature}), _accumulate, (dot,))


def _bfloat16(lanes: int, *features: str) -> Instruction:
    floats, pairs = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    dot = LLVMIntrinsic(f"x86.avx512bf16.dpbf16ps.{32 * lanes}", floats, (floats, pairs, pairs))
    return Instruction("dot2_bfloat16", "float32", lanes, frozenset(features), _accumulate_bfloat16, (dot,))


_DOT4 = (
    _vnni(16, "avx512vnni"),
    _vnni(8, "avx512vnni", "avx512vl"),
    _vnni(8, "avxvnni"),
    _vnni(4, "avx512vnni", "avx512vl"),
    _vnni(4, "avxvnni"),
    _multiply_add(16, "avx512bw", "x86.avx512.pmaddubs.w.512", "x86.avx512.pmaddw.d.512"),
    _multiply_add(8, "avx2", "x86.avx2.pmadd.ub.sw", "x86.avx2.pmadd.wd"),
    _multiply_add(4, "ssse3", "x86.ssse3.pmadd.ub.sw.128", "x86.sse2.pmadd.wd"),
    _neon("dot4", "i8mm", "usdot"),
)
_DOT4_BELOW_128 = (_neon("dot4 of uint8 below 128", "dotprod", "sdot"),)
_DOT2_BFLOAT16 = (
    _bfloat16(16, "avx512bf16"),
    _bfloat16(8, "avx512bf16", "avx512vl"),
    _bfloat16(4, "avx512bf16", "avx512vl"),
)
INSTRUCTIONS = (*_DOT4, *_DOT4_BELOW_128, *_DOT2_BFLOAT16)
"""Dot products of bytes and of bfloat16."""
