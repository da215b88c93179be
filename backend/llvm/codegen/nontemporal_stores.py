"""Non-temporal stores of vectors that cover whole cache lines."""

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
"""Bits of float16 and bfloat16."""
_X86_VECTOR_BITS = (256, 512)
"""Bits of vectors that only x86 has registers for."""
_LANES, _PERMUTE = 16, "llvm.x86.avx512.permvar.sf.512"
"""Lanes of 4 bytes in a cache line, and the intrinsic that permutes them by the low bits of an index vector."""
_OPAQUE = 'asm "", "=v,0"'
"""An empty inline assembly that hides from LLVM that its result is its operand."""


class NontemporalStoreEmitter(BfloatEmitter):
    """Emits non-temporal stores to the buffers in `streamed`."""

    streamed: frozenset[Var]
    """Pointers of the buffers that may be written by non-temporal stores."""
    streaming_stores: set[Var]
    """The pointers in `streamed` that such stores were emitted for, in this function and those outlined from it."""

    def is_nontemporal(self, buffer: Buffer, of: DType, align: int) -> bool:
        """Is a vector store at an address of this alignment emitted as a non-temporal one?"""
        whole_lines = of.lanes * element_bytes(of.element) % LINE_BYTES == 0 and align % LINE_BYTES == 0
        return buffer.data in self.streamed and whole_lines

    def store_nontemporal(self, buffer: Buffer, value: str, kind: str, of: DType, address: str, align: int) -> None:
        """Store a vector, of memory type `kind`, to an address for which `is_nontemporal` holds."""
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
        """Is such a vector one cache line, whose lanes one instruction permutes?"""
        return of == dtype("float32").with_lanes(_LANES) and "avx512f" in self.machine.features

    def parts_by_lines(self, value: str, address: str, mask: str) -> tuple[str, list[tuple[str, str]]]:
        """Split an unaligned masked store into two aligned ones: the rotated vector, and (address, mask) for each cache
        line.

        A processor fetches both lines of a store that straddles them, whatever the mask, and would have to evict one of
        them to store it non-temporally. A part without active lanes uses the address of the other one.
        """
        pure, of, places = self.text.pure, f"<{_LANES} x float>", word_vector(_LANES)
        within = pure(f"and i64 {pure(f'ptrtoint ptr {address} to i64')}, {LINE_BYTES - 1}")
        first = pure(f"trunc i64 {pure(f'lshr i64 {within}, 2')} to i32")
        lanes = ", ".join([f"i32 {i}" for i in range(_LANES)])
        from_first = pure(f"sub {places} <{lanes}>, {self.splat(first, dtype('int32').with_lanes(_LANES))}")
        self.text.module.declare(_PERMUTE, of, f"{of}, {places}")
        rotated = pure(f"call {of} @{_PERMUTE}({of} {value}, {places} {from_first})")
        line = pure(f"getelementptr i8, ptr {address}, i64 {pure(f'sub i64 0, {within}')}")
        lines = line, pure(f"getelementptr i8, ptr {line}, i64 {LINE_BYTES}")
        masks = self._masks_by_lines(mask, pure(f"trunc i32 {first} to i{_LANES}"))
        empty = [pure(f"icmp eq i{_LANES} {part}, 0") for part in masks]
        chosen = [pure(f"select i1 {empty[n]}, ptr {lines[1 - n]}, ptr {lines[n]}") for n in (0, 1)]
        flags = [pure(f"bitcast i{_LANES} {part} to <{_LANES} x i1>") for part in masks]
        return rotated, list(zip(chosen, flags, strict=True))

    def _masks_by_lines(self, mask: str, first: str) -> tuple[str, str]:
        """Rotate the bits of a mask by a number of lanes; returns those of the first and of the second cache line."""
        pure, word = self.text.pure, f"i{_LANES}"
        bits, rotation = pure(f"bitcast <{_LANES} x i1> {mask} to {word}"), f"llvm.fshl.{word}"
        self.text.module.declare(rotation, word, f"{word}, {word}, {word}")
        rotated = pure(f"call {word} @{rotation}({word} {bits}, {word} {bits}, {word} {first})")
        here = pure(f"and {word} {rotated}, {pure(f'shl {word} -1, {first}')}")
        return here, pure(f"xor {word} {rotated}, {here}")

    def _as_integers(self, value: str, kind: str, of: DType) -> list[tuple[str, str]]:
        """Reinterpret 16-bit floats as vectors of int32, since LLVM has no non-temporal store of the former, opaquely:
        LLVM would otherwise undo the bitcast where the values were computed.

        float16 is stored by narrower vectors, since no instruction produces full ones and concatenating halves would
        cost more.
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
