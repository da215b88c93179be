"""Stores that go past the caches, of vectors that cover whole lines of memory."""

from __future__ import annotations

from math import gcd

from relayc.backend.llvm.codegen.bfloats import BfloatEmitter
from relayc.backend.llvm.codegen.legalize import word_vector
from relayc.backend.llvm.codegen.nontemporal import LINE_BYTES
from relayc.backend.llvm.types import element_bytes
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Buffer, Var

__all__ = ["NontemporalStoreEmitter"]

_HALF_BITS = 16
"""Of float16 and bfloat16."""
_X86_VECTOR_BITS = (256, 512)
"""Of vectors that only registers of x86 have."""
_LANES, _TURN = 16, "llvm.x86.avx512.permvar.sf.512"
"""Numbers of 4 bytes in a cache line, and what gives each lane the one that the last bits of a word say."""
_OPAQUE = 'asm "", "=v,0"'
"""No instruction, but LLVM doesn't know that what comes out is what goes in."""


class NontemporalStoreEmitter(BfloatEmitter):
    """Emits them. `streamed` are the buffers that are large enough."""

    streamed: frozenset[Var]
    """Pointers of buffers that are stored to past the caches."""
    streaming_stores: set[Var]
    """Those of them that such stores were made to, in this function and those outlined from it."""

    def is_nontemporal(self, buffer: Buffer, of: DType, align: int) -> bool:
        """Does a store of a vector, to an address so aligned, go past the caches?"""
        whole_lines = of.lanes * element_bytes(of.element) % LINE_BYTES == 0 and align % LINE_BYTES == 0
        return buffer.data in self.streamed and whole_lines

    def store_nontemporal(self, buffer: Buffer, value: str, kind: str, of: DType, address: str, align: int) -> None:
        """Store a vector, of type `kind` in memory, to an address for which `is_nontemporal` holds."""
        self.streaming_stores.add(buffer.data)
        self.text.module.metadata["!0"] = "!{i32 1}"
        parts = [(value, kind)]
        if of.is_float and of.bits == _HALF_BITS:
            parts = self._as_integers(value, kind, of)
        for n, (part, words) in enumerate(parts):
            size = of.lanes * element_bytes(of.element) // len(parts)
            at = self.text.pure(f"getelementptr inbounds i8, ptr {address}, i64 {n * size}") if n else address
            self.text.effect(f"store {words} {part}, ptr {at}, align {gcd(align, n * size)}, !nontemporal !0")

    def transposes_lines(self, of: DType) -> bool:
        """Is such a vector a cache line, whose lanes one instruction moves to any others?"""
        return of == dtype("float32").with_lanes(_LANES) and "avx512f" in self.machine.features

    def parts_by_lines(self, value: str, address: str, mask: str) -> tuple[str, list[tuple[str, str]]]:
        """A vector, and the addresses and masks by which it is stored to two lines in place of one masked store.

        A processor asks for both lines of a store that lies across them, whatever the mask, and had to give one of them
        up again to store it past the caches. A part without elements goes to the line of the other one.
        """
        pure, of, places = self.text.pure, f"<{_LANES} x float>", word_vector(_LANES)
        within = pure(f"and i64 {pure(f'ptrtoint ptr {address} to i64')}, {LINE_BYTES - 1}")
        first = pure(f"trunc i64 {pure(f'lshr i64 {within}, 2')} to i32")
        lanes = ", ".join([f"i32 {i}" for i in range(_LANES)])
        from_first = pure(f"sub {places} <{lanes}>, {self.splat(first, dtype('int32').with_lanes(_LANES))}")
        self.text.module.declare(_TURN, of, f"{of}, {places}")
        turned = pure(f"call {of} @{_TURN}({of} {value}, {places} {from_first})")
        line = pure(f"getelementptr i8, ptr {address}, i64 {pure(f'sub i64 0, {within}')}")
        lines = line, pure(f"getelementptr i8, ptr {line}, i64 {LINE_BYTES}")
        masks = self._masks_by_lines(mask, pure(f"trunc i32 {first} to i{_LANES}"))
        empty = [pure(f"icmp eq i{_LANES} {part}, 0") for part in masks]
        chosen = [pure(f"select i1 {empty[n]}, ptr {lines[1 - n]}, ptr {lines[n]}") for n in (0, 1)]
        flags = [pure(f"bitcast i{_LANES} {part} to <{_LANES} x i1>") for part in masks]
        return turned, list(zip(chosen, flags, strict=True))

    def _masks_by_lines(self, mask: str, first: str) -> tuple[str, str]:
        """The bits of a mask turned by so many lanes: those from there on, and those that came round."""
        pure, word = self.text.pure, f"i{_LANES}"
        bits, rotation = pure(f"bitcast <{_LANES} x i1> {mask} to {word}"), f"llvm.fshl.{word}"
        self.text.module.declare(rotation, word, f"{word}, {word}, {word}")
        turned = pure(f"call {word} @{rotation}({word} {bits}, {word} {bits}, {word} {first})")
        here = pure(f"and {word} {turned}, {pure(f'shl {word} -1, {first}')}")
        return here, pure(f"xor {word} {turned}, {here}")

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
