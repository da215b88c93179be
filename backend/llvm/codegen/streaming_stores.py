"""Stores that go past the caches, of vectors that cover whole lines of memory."""

from __future__ import annotations

from math import gcd

from backend.llvm.codegen.bfloats import BfloatEmitter
from backend.llvm.codegen.parts import word_vector
from backend.llvm.codegen.streaming import LINE_BYTES
from backend.llvm.types import element_bytes
from te.dtype import DType
from te.tir import Buffer, Var

__all__ = ["StreamingStoreEmitter"]

_HALF_BITS = 16
"""Of float16 and bfloat16."""
_X86_VECTOR_BITS = (256, 512)
"""Of vectors that only registers of x86 have."""
_OPAQUE = 'asm "", "=v,0"'
"""No instruction, but LLVM doesn't know that what comes out is what goes in."""


class StreamingStoreEmitter(BfloatEmitter):
    """Emits them. `streamed` are the buffers that are large enough."""

    streamed: frozenset[Var]
    """Pointers of buffers that are stored to past the caches."""
    streaming_stores: set[Var]
    """Those of them that such stores were made to, in this function and those outlined from it."""

    def is_streaming(self, buffer: Buffer, of: DType, align: int) -> bool:
        """Does a store of a vector, to an address so aligned, go past the caches?"""
        whole_lines = of.lanes * element_bytes(of.element) % LINE_BYTES == 0 and align % LINE_BYTES == 0
        return buffer.data in self.streamed and whole_lines

    def store_past_caches(self, buffer: Buffer, value: str, kind: str, of: DType, address: str, align: int) -> None:
        """Store a vector, of type `kind` in memory, to an address for which `is_streaming` holds."""
        self.streaming_stores.add(buffer.data)
        self.text.module.metadata["!0"] = "!{i32 1}"
        parts = [(value, kind)]
        if of.is_float and of.bits == _HALF_BITS:
            parts = self._as_integers(value, kind, of)
        for n, (part, words) in enumerate(parts):
            size = of.lanes * element_bytes(of.element) // len(parts)
            at = self.text.pure(f"getelementptr inbounds i8, ptr {address}, i64 {n * size}") if n else address
            self.text.effect(f"store {words} {part}, ptr {at}, align {gcd(align, n * size)}, !nontemporal !0")

    def _as_integers(self, value: str, kind: str, of: DType) -> list[tuple[str, str]]:
        """Half-precision numbers as vectors of int32, two in each: LLVM has no instruction that stores them past the
        caches. It would make them what they were again, where they have been computed, if it knew.

        Of float16, of which no instruction makes more, halves of the widest registers aren't put together for that.
        """
        words, width = of.lanes // 2, self.machine.vector_bits
        value = self.text.pure(f"bitcast {kind} {value} to {word_vector(words)}")
        if width not in _X86_VECTOR_BITS:
            return [(value, word_vector(words))]
        each = (min(_X86_VECTOR_BITS) if of.element == "float16" else width) // 32
        found: list[tuple[str, str]] = []
        for begin in range(0, words, each):
            vector, part = word_vector(each), self.part(value, "i32", words, begin, each)
            found.append((self.text.pure(f"call {vector} {_OPAQUE}({vector} {part})"), vector))
        return found
