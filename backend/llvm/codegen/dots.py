"""Dot products `te.dot2`, `te.dot4` and `te.dot8` of integers, and `te.dot2_bfloat16`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from relayc.backend.llvm.codegen.legalize import word_vector
from relayc.backend.llvm.codegen.permuted import PermutedLoadEmitter
from relayc.te.math import expand_dot2_bfloat16
from relayc.te.tir import Add, Broadcast, Call, IntImm, PrimExpr

__all__ = ["DotEmitter"]

_MULTIPLY_BYTES = {
    16: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
    8: ("avx2", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    4: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
}
"""Lanes of int32 -> (feature, instruction multiplying uint8 by int8 with 16-bit sums, instruction adding pairs of
these)."""
_VNNI = {
    16: (frozenset({"avx512vnni"}),),
    8: (frozenset({"avx512vnni", "avx512vl"}), frozenset({"avxvnni"})),
    4: (frozenset({"avx512vnni", "avx512vl"}), frozenset({"avxvnni"})),
}
"""Lanes of int32 -> feature sets, any one of which provides vpdpbusd."""
_BFLOAT16 = {16: {"avx512bf16"}, 8: {"avx512bf16", "avx512vl"}, 4: {"avx512bf16", "avx512vl"}}
"""Lanes of float32 -> the features that provide vdpbf16ps."""
_LOW_SEVEN_BITS = 0x7F7F7F7F
"""Bits of four bytes that are no sign bits."""


class DotEmitter(PermutedLoadEmitter):
    """Emits the dot product intrinsics in forms that become one instruction, or as few as the processor has."""

    def emit_byte_pairs(self, call: Call) -> str:
        lanes = call.dtype.lanes
        source = "i16" if lanes == 1 else f"<{lanes} x i16>"
        bytes_ = self.text.pure(f"bitcast {source} {self.visit(call.args[0])} to <{2 * lanes} x i8>")
        wide = self.text.pure(f"sext <{2 * lanes} x i8> {bytes_} to <{2 * lanes} x i16>")
        return self.text.pure(f"bitcast <{2 * lanes} x i16> {wide} to {word_vector(lanes)}")

    def emit_dot2(self, call: Call) -> str:
        """A product with twice the lanes, and the sums of adjacent lanes: the form that LLVM selects one instruction
        for."""
        x, y = self.visit(call.args[0]), self.visit(call.args[1])
        lanes = call.dtype.lanes
        return self._sum_of_parts(self._product_of_parts(x, y, lanes, 2, "sext"), lanes, 2)

    def emit_dot4(self, call: Call) -> str:
        return self._dot4_parts(call, None)

    emit_dot8 = emit_dot4

    def emit_dot2_bfloat16(self, call: Call) -> str:
        return self._dot2_bfloat16_parts(call, None)

    def visit_Add(self, expr: Add) -> str:
        """Add a dot product of 8-bit integers, or of bfloat16, to an accumulator: one instruction with VNNI, or
        vdpbf16ps."""
        for product, other in ((expr.b, expr.a), (expr.a, expr.b)):
            if isinstance(product, Call) and product.op in ("dot4", "dot8"):
                return self._dot4_parts(product, other)
            if isinstance(product, Call) and product.op == "dot2_bfloat16":
                return self._dot2_bfloat16_parts(product, other)
        return self.visit_Binary(expr)

    def _dot2_bfloat16_parts(self, call: Call, onto: PrimExpr | None) -> str:
        """Emit `call` added to `onto`, in vectors of the machine's widths."""
        lanes, (x, y) = call.dtype.lanes, call.args
        widths = [w for w, needed in _BFLOAT16.items() if needed <= self.machine.features]
        if not widths or lanes % min(widths):
            return self.visit(expand_dot2_bfloat16(x, y, onto))
        operands = [self.visit(x), self.visit(y)]
        total = f"<{lanes} x float> zeroinitializer" if onto is None else f"<{lanes} x float> {self.visit(onto)}"
        words = self.text.pure(f"bitcast {total} to {word_vector(lanes)}")
        sums = self.legalize(lanes, widths, [words, *operands], self._add_bfloat16_products)
        return self.text.pure(f"bitcast {word_vector(lanes)} {sums} to <{lanes} x float>")

    def _add_bfloat16_products(self, width: int, words: str, x: str, y: str) -> str:
        """vdpbf16ps of vectors of words, whose bits are float32 sums and pairs of bfloat16."""
        kind, of, pairs = word_vector(width), f"<{width} x float>", f"<{2 * width} x bfloat>"
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"
        self.text.module.declare(name, of, f"{of}, {pairs}, {pairs}")
        total = self.text.pure(f"bitcast {kind} {words} to {of}")
        a, b = [self.text.pure(f"bitcast {kind} {v} to {pairs}") for v in (x, y)]
        sums = self.text.pure(f"call {of} @{name}({of} {total}, {pairs} {a}, {pairs} {b})")
        return self.text.pure(f"bitcast {of} {sums} to {kind}")

    def _dot4_parts(self, call: Call, onto: PrimExpr | None) -> str:
        """Emit `call`, with one or two pairs of operands, added to `onto`, in vectors of the machine's widths."""
        lanes = call.dtype.lanes
        widths = self._widths(call)
        operands = [self.visit(arg) for arg in call.args]
        total = None if onto is None else self.visit(onto)
        if widths and lanes % min(widths) == 0:
            count = len(operands)
            operands += [] if total is None else [total]
            return self.legalize(lanes, widths, operands, lambda w, *v: self._instruction(w, v[:count], *v[count:]))
        values = [] if total is None else [total]
        for x, y in zip(operands[::2], operands[1::2], strict=True):
            values.append(self._sum_of_parts(self._product_of_parts(x, y, lanes, 4, "zext", "sext"), lanes, 4))
        return self._added(values, word_vector(lanes))

    def _added(self, values: Sequence[str], kind: str) -> str:
        """The sum of vectors of type `kind`."""
        return reduce(lambda a, b: self.text.pure(f"add {kind} {a}, {b}"), values)

    def _widths(self, call: Call) -> list[int]:
        """Lanes of the vectors that the processor has instructions for."""
        features = self.machine.features
        if "neon" in features:
            signed = "dotprod" in features and all(map(_are_small, call.args[::2]))
            return [4] if signed or "i8mm" in features else []
        return [w for w, (needed, _, _) in _MULTIPLY_BYTES.items() if needed in features or self._has_vnni(w)]

    def _has_vnni(self, width: int) -> bool:
        return any(needed <= self.machine.features for needed in _VNNI[width])

    def _instruction(self, width: int, operands: Sequence[str], total: str | None = None) -> str:
        """The sum of `total` and the dot products of each pair x, y in `operands`, one pair or two."""
        kind, module = word_vector(width), self.text.module
        pairs = list(zip(operands[::2], operands[1::2], strict=True))
        if "neon" in self.machine.features:
            return self._neon_instruction(pairs, total)
        if self._has_vnni(width):
            name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
            module.declare(name, kind, ", ".join([kind] * 3))
            value = "zeroinitializer" if total is None else total
            for x, y in pairs:
                value = self.text.pure(f"call {kind} @{name}({kind} {value}, {kind} {x}, {kind} {y})")
            return value
        _, multiply, add = _MULTIPLY_BYTES[width]
        byte_type, words = f"<{4 * width} x i8>", f"<{2 * width} x i16>"
        module.declare(multiply, words, f"{byte_type}, {byte_type}")
        module.declare(add, kind, f"{words}, {words}")
        products: list[str] = []
        for pair in pairs:
            a, b = [self.text.pure(f"bitcast {kind} {v} to {byte_type}") for v in pair]
            products.append(self.text.pure(f"call {words} @{multiply}({byte_type} {a}, {byte_type} {b})"))
        value = self.text.pure(f"call {kind} @{add}({words} {self._added(products, words)}, {words} splat (i16 1))")
        return value if total is None else self._added([total, value], kind)

    def _neon_instruction(self, pairs: Sequence[tuple[str, str]], total: str | None) -> str:
        """usdot; or sdot, for unsigned bytes below 128."""
        name = f"llvm.aarch64.neon.{'usdot' if 'i8mm' in self.machine.features else 'sdot'}.v4i32.v16i8"
        kind, byte_type = word_vector(4), "<16 x i8>"
        self.text.module.declare(name, kind, f"{kind}, {byte_type}, {byte_type}")
        value = "zeroinitializer" if total is None else total
        for pair in pairs:
            a, b = [self.text.pure(f"bitcast {kind} {v} to {byte_type}") for v in pair]
            value = self.text.pure(f"call {kind} @{name}({kind} {value}, {byte_type} {a}, {byte_type} {b})")
        return value

    def _product_of_parts(self, x: str, y: str, lanes: int, parts: int, *signs: str) -> str:
        """The products of the packed fields of int32 vectors, `parts` per lane, sign- or zero-extended to int32."""
        kind, bits, wide = word_vector(lanes), 32 // parts, f"<{parts * lanes} x i32>"
        fields = f"<{parts * lanes} x i{bits}>"
        extended = [
            self.text.pure(f"{sign} {fields} {self.text.pure(f'bitcast {kind} {v} to {fields}')} to {wide}")
            for v, sign in ((x, signs[0]), (y, signs[-1]))
        ]
        return self.text.pure(f"mul nsw {wide} {extended[0]}, {extended[1]}")

    def _sum_of_parts(self, product: str, lanes: int, parts: int) -> str:
        """Sums of `parts` adjacent lanes."""
        wide, kind = f"<{parts * lanes} x i32>", word_vector(lanes)
        if lanes == 1:
            terms = [self.text.pure(f"extractelement {wide} {product}, i64 {i}") for i in range(parts)]
        else:
            picks = [", ".join([f"i32 {i}" for i in range(start, parts * lanes, parts)]) for start in range(parts)]
            terms = [
                self.text.pure(f"shufflevector {wide} {product}, {wide} poison, <{lanes} x i32> <{p}>") for p in picks
            ]
        total = terms[0]
        for term in terms[1:]:
            total = self.text.pure(f"add {kind} {total}, {term}")
        return total


def _are_small(word: PrimExpr) -> bool:
    """Are all bytes of these words visibly below 128, masked by a constant?"""
    if not isinstance(word, Call) or word.op != "bitwise_and":
        return False
    masks = [m.value if isinstance(m, Broadcast) else m for m in word.args]
    return any(isinstance(m, IntImm) and m.value & _LOW_SEVEN_BITS == m.value for m in masks)
