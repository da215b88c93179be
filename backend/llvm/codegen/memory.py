"""Loads and stores of flat buffers.

A vector index is split into ``base + lane * stride``, and the stride selects the instructions: one vector access for 1,
a splat for 0, shuffled vectors for 2 and -1, one element at a time otherwise. Other indices become gathers or scatters,
except those within one vector that is fully used or aligned: it is loaded, and shuffled.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import gcd
from operator import floordiv, mod
from typing import Any

from relayc.backend.llvm.codegen.expr import known_flags
from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.nontemporal import LINE_BYTES, divides
from relayc.backend.llvm.codegen.nontemporal_stores import NontemporalStoreEmitter
from relayc.backend.llvm.types import element_bytes, memory_type, register_type, suffix
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import (
    Add,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Compare,
    FloorDiv,
    FloorMod,
    IntImm,
    Mul,
    PrimExpr,
    Ramp,
    Select,
    Sub,
    Var,
)

__all__ = ["MemoryEmitter"]

_AVX2_BITS, _MIN_MASKED_BYTES = 256, 4
"""Bits of an AVX2 vector, and the smallest element in bytes that AVX2 has masked loads for."""

_LAUNDER = "llvm.launder.invariant.group.p0"
"""An intrinsic that hides an address's derivation from LLVM's loop passes. It emits no instruction."""

_MAX_REGISTERS = 16
"""Maximum number of vector registers of a local buffer that LLVM may keep in registers."""


class MemoryEmitter(NontemporalStoreEmitter):
    """Emits memory accesses. `alignment` is the known alignment of buffer pointers, in bytes."""

    alignment: dict[Var, int]
    shares_base: bool = False
    """Are adjacent elements addressed relative to one base address, kept in a register?"""

    def address(self, buffer: Buffer, index: Index) -> str:
        """The address of an element. Not `inbounds`: a partial index, or a masked-off lane, may be out of bounds."""
        base, kind = self.visit(buffer.data), memory_type(buffer.dtype)
        if index.value is not None:
            base = self.text.pure(f"getelementptr {kind}, ptr {base}, i64 {index.value}")
            base = self._opaque_address(base) if self.shares_base else base
        if index.constant:
            base = self.text.pure(f"getelementptr {kind}, ptr {base}, i64 {index.constant}")
        return base

    def _opaque_address(self, address: str) -> str:
        """An address opaque to LLVM, whose loop strength reduction would consider hundreds of ways to derive it from
        others.

        In long straight-line code that pass would take several times as long as everything else.
        """
        self.text.module.declare(_LAUNDER, "ptr", "ptr")
        return self.text.pure(f"call ptr @{_LAUNDER}(ptr {address})")

    def locate(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> Index:
        """The index of a scalar access."""
        if len(indices) != 1:
            raise CompileError(f"buffer {buffer.name} is accessed with {len(indices)} indices; flatten it first")
        return self.index(indices[0])

    def align_of(self, buffer: Buffer, index: Index) -> int:
        """The known alignment in bytes of an element's address: a power of two."""
        size = element_bytes(buffer.dtype)
        known = self.alignment.get(buffer.data, size)
        offset = index.multiple * size
        return gcd(known, offset) if offset else known

    # Loads

    def visit_BufferLoad(self, load: BufferLoad) -> str:
        buffer, of = load.buffer, load.dtype
        if of.lanes == 1:
            return self._load_scalar(load)
        mask = self._combined_mask(load.predicate, of.lanes)
        ramp = self.as_ramp(load.indices[-1]) if len(load.indices) == 1 else None
        if ramp is None:
            index = load.indices[-1]
            wanted = [True] * of.lanes if mask is None else known_flags(mask)
            block = self._load_block(buffer, index, of) if mask is None else None
            if block is None and wanted is not None:
                block = self._load_pieces(buffer, self.as_lanes(index), of, wanted)
            return self._gather(buffer, index, of, mask) if block is None else block
        base, stride = ramp
        if mask is not None:
            block = self._load_constant_mask(buffer, load.indices[-1], of, mask)
            if block is not None:
                return block
            if stride.value is None and stride.constant == 1:
                return self._masked_load(buffer, base, of, mask)
            if stride.value is None and stride.constant == 2:
                return self._load_every_second(buffer, base, of, mask)
            return self._gather_ramp(buffer, base, stride, of, mask)
        if stride.value is not None:
            return self._load_lanes(buffer, base, stride, of)
        return self._load_ramp(buffer, base, stride.constant, of)

    def _load_scalar(self, load: BufferLoad) -> str:
        buffer, mask = load.buffer, self.mask
        if mask is None:
            condition = None if load.predicate is None else self.visit(load.predicate)
        else:  # one element for all lanes: loaded if any lane is active
            condition = self._any_lane(mask[0], mask[1])
        if condition is None:
            return self.load(buffer, self.locate(buffer, load.indices), load.dtype)
        text = self.text
        before, then, done = text.block, text.label("load"), text.label("loaded")
        text.branch(condition, then, done)
        text.place(then)
        with text.region():
            value = self.load(buffer, self.locate(buffer, load.indices), load.dtype)
        last = text.block
        text.goto(done)
        text.place(done)
        kind = register_type(load.dtype)
        zero = "null" if load.dtype.is_handle else "0.0" if kind in ("float", "double", "half") else "0"
        return text.value(f"phi {kind} [ {'false' if load.dtype.is_bool else zero}, %{before} ], [ {value}, %{last} ]")

    def load(self, buffer: Buffer, index: Index, of: DType) -> str:
        """Load consecutive elements as a value of type `of`."""
        address, align = self.address(buffer, index), self.align_of(buffer, index)
        return self.from_memory(self.text.value(f"load {memory_type(of)}, ptr {address}, align {align}"), of)

    def from_memory(self, value: str, of: DType) -> str:
        """Convert a value from its memory type to its register type."""
        return self.text.pure(f"trunc {memory_type(of)} {value} to {register_type(of)}") if of.is_bool else value

    def to_memory(self, value: str, of: DType) -> str:
        """Convert a value from its register type to its memory type."""
        return self.text.pure(f"zext {register_type(of)} {value} to {memory_type(of)}") if of.is_bool else value

    def _load_ramp(self, buffer: Buffer, base: Index, stride: int, of: DType) -> str:
        lanes = of.lanes
        if stride == 1:
            across = self._load_straddling(buffer, base, of)
            return self.load(buffer, base, of) if across is None else across
        if stride == 0:
            return self.splat(self.load(buffer, base, of.element), of)
        if stride == -1:
            start = Index(base.value, base.constant - (lanes - 1), base.factor)
            return self._permute(self.load(buffer, start, of), None, list(reversed(range(lanes))), of)
        if stride == 2 and lanes > 2:
            # two overlapping vectors, the second ending at the last element, so that nothing beyond it is read
            half, start = (lanes + 1) // 2, lanes - 1
            first = self.load(buffer, base, of)
            second = self.load(buffer, Index(base.value, base.constant + start, base.factor), of)
            picks = [2 * i if i < half else lanes + 2 * i - start for i in range(lanes)]
            return self._permute(first, second, picks, of)
        pieces = self._load_pieces(buffer, (base, [stride * i for i in range(lanes)]), of, [True] * lanes)
        return self._load_lanes(buffer, base, Index(None, stride, 0), of) if pieces is None else pieces

    def _load_straddling(self, buffer: Buffer, base: Index, of: DType) -> str | None:
        """Load elements of a small local buffer that straddle its vectors: load the two vectors and shuffle.

        LLVM keeps memory in registers that is accessed by whole vectors only. Otherwise the stores would have to reach
        the cache first: store forwarding serves a load from a single store, not from parts of two.
        """
        most, extent = self._register_lanes(of), buffer.shape[0]
        is_small = buffer.scope == "local" and isinstance(extent, int) and extent <= _MAX_REGISTERS * most
        is_across = base.value is None and (base.constant % most != 0 or of.lanes % most != 0)
        inside = is_small and extent % most == 0 and base.constant + of.lanes <= extent
        if not (inside and is_across and "avx512f" in self.machine.features) or of.is_bool or of.lanes < most:
            return None
        register, count = of.with_lanes(most), -(-of.lanes // most)
        parts: list[tuple[str, int]] = []
        for first in range(base.constant, base.constant + of.lanes, most):
            low = first // most * most
            low_part = self.load(buffer, Index(None, low), register)
            high_part = self.load(buffer, Index(None, low + most), register) if low + most < extent else None
            picks = [i if i < most or high_part else i - most for i in range(first - low, first - low + most)]
            parts.append((self._permute(low_part, high_part, picks, register), most))
        element = register_type(of.element)
        return self.part(self.concatenate(parts, element), element, count * most, 0, of.lanes)

    def _permute(self, first: str, second: str | None, picks: list[int], of: DType) -> str:
        kind = register_type(of)
        mask = ", ".join([f"i32 {p}" for p in picks])
        other = second or "poison"
        return self.text.pure(f"shufflevector {kind} {first}, {kind} {other}, <{len(picks)} x i32> <{mask}>")

    def _load_block(self, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
        """Load contiguous elements, or those of one aligned vector, in any order; None if they may span several
        vectors."""
        block = self._block_of(buffer, index, of.lanes)
        if block is None:
            return None
        start, count, picks = block
        value = self.load(buffer, start, of.with_lanes(count))
        return self.splat(value, of) if count == 1 else self._permute(value, None, picks, of.with_lanes(count))

    def _block_of(self, buffer: Buffer, index: PrimExpr, lanes: int) -> tuple[Index, int, list[int]] | None:
        """(start, count, lane offsets) of a block of a buffer that contains all lanes of an index, else None.

        An aligned vector that contains one in-bounds element is itself in bounds if the buffer is a multiple of
        vectors.
        """
        extent = buffer.shape[0]
        spread = self.as_lanes(index)
        if spread is None:
            return None
        base, offsets = spread
        picks = [base.constant + offset for offset in offsets]
        first, count = min(picks), max(picks) - min(picks) + 1
        if len(set(picks)) < count:
            first, count = first // lanes * lanes, lanes
            whole = isinstance(extent, int) and extent % lanes == 0 and base.factor % lanes == 0
            if not whole or max(picks) >= first + lanes:
                return None
        return Index(base.value, first, base.factor), count, [pick - first for pick in picks]

    def _load_constant_mask(self, buffer: Buffer, index: PrimExpr, of: DType, mask: str) -> str | None:
        """Masked elements under a constant mask by plain loads, which processors can disambiguate from stores.

        None where AVX2 has masked loads, and for several registers, for which LLVM would move single elements.
        """
        wanted = None if self._has_sign_masks(of) or of.lanes > self._register_lanes(of) else known_flags(mask)
        return None if wanted is None else self._load_pieces(buffer, self.as_lanes(index), of, wanted)

    def _register_lanes(self, of: DType) -> int:
        return max(self.machine.vector_bits // (8 * element_bytes(of)), _MIN_LANES)

    def _load_pieces(
        self, buffer: Buffer, spread: tuple[Index, list[int]] | None, of: DType, wanted: list[bool]
    ) -> str | None:
        """Load scattered elements as a few contiguous vectors and shuffle; None if there are too many.

        Gaps between two active elements are in bounds, too. Lanes that are not `wanted` are 0. Registers are assembled
        one at a time: LLVM expands longer shuffles to single-element moves.
        """
        if spread is None:
            return None
        base, offsets = spread
        lanes, most = of.lanes, self._register_lanes(of)
        places = [offset if is_wanted else None for offset, is_wanted in zip(offsets, wanted, strict=True)]
        inside = [o for o in places if o is not None]
        if lanes % most == 1:
            places.append(None)  # a single lane is no vector
        parts = [places[i : i + most] for i in range(0, lanes, most)]
        pieces = [_pieces(part, min(inside), max(inside) + 1) for part in parts]
        if lanes < _MIN_LANES or any(found is None for found in pieces):
            return None
        done = [(self._assemble(buffer, base, part, found or [], of), len(part))
                for part, found in zip(parts, pieces, strict=True)]  # fmt: skip
        element = register_type(of.element)
        return self.part(self.concatenate(done, element), element, len(places), 0, lanes)

    def _assemble(
        self, buffer: Buffer, base: Index, places: list[int | None], pieces: list[tuple[int, int]], of: DType
    ) -> str:
        """Assemble a register of the elements at `places`, 0 where None, from contiguous pieces."""
        lanes = len(places)
        of, missing = of.with_lanes(lanes), {i for i, place in enumerate(places) if place is not None}
        value = "poison" if len(missing) == lanes else "zeroinitializer"
        for first, count in pieces:
            piece = self.load(buffer, Index(base.value, base.constant + first, base.factor), of.with_lanes(count))
            if count == 1:
                piece = self.splat(piece, of)
            elif count < lanes:
                widened = [*range(count), *[0] * (lanes - count)]
                piece = self._permute(piece, None, widened, of.with_lanes(count))
            here = {i: place - first for i, place in enumerate(places)
                    if i in missing and place is not None and first <= place < first + count}  # fmt: skip
            value = self._permute(value, piece, [lanes + here[i] if i in here else i for i in range(lanes)], of)
            missing -= set(here)
        return value

    def _load_lanes(self, buffer: Buffer, base: Index, stride: Index, of: DType) -> str:
        return self.pack([self.load(buffer, at, of.element) for at in self._lane_indices(base, stride, of.lanes)], of)

    def _lane_indices(self, base: Index, stride: Index, lanes: int) -> list[Index]:
        if stride.value is None:
            step = stride.constant
            return [Index(base.value, base.constant + i * step, base.factor) for i in range(lanes)]
        found = [base]
        for _ in range(lanes - 1):
            last = found[-1]
            value = self.text.pure(f"add nsw i64 {last.value or 0}, {stride.value}")
            found.append(Index(value, last.constant + stride.constant))
        return found

    # Masks

    def _combined_mask(self, predicate: PrimExpr | None, lanes: int) -> str | None:
        own = None if predicate is None else self._mask_vector(self.visit(predicate), predicate.dtype.lanes, lanes)
        if self.mask is None or self.mask[1] != lanes:
            return own
        if own is None:
            return self.mask[0]
        return self.text.pure(f"and <{lanes} x i1> {own}, {self.mask[0]}")

    def _mask_vector(self, value: str, have: int, lanes: int) -> str | None:
        if value in ("true", "splat (i1 true)"):
            return None
        return value if have == lanes else self.splat(value, dtype("bool").with_lanes(lanes))

    def _any_lane(self, mask: str, lanes: int) -> str:
        name = f"llvm.vector.reduce.or.v{lanes}i1"
        self.text.module.declare(name, "i1", f"<{lanes} x i1>")
        return self.text.pure(f"call i1 @{name}(<{lanes} x i1> {mask})")

    def _masked_load(self, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
        """Load the elements that a mask selects, and zeros elsewhere.

        Loads that AVX2 splits are split here with an opaque mask: LLVM 22 reads all of a part, or aborts, if
        instruction selection discovers that the mask of the part is empty.
        """
        lanes, most = of.lanes, self.machine.vector_bits // (8 * element_bytes(of))
        known = known_flags(mask)
        is_wanted = known is not None and all(any(known[i : i + most]) for i in range(0, lanes, most))
        if lanes <= most or not self._has_sign_masks(of) or is_wanted:
            return self._load_register(buffer, base, of, mask)
        padded, element = -(-lanes // most) * most, register_type(of.element)
        rest = [min(i, lanes) for i in range(padded)]
        wanted = mask if padded == lanes else self._shuffle(mask, "zeroinitializer", "i1", lanes, rest)
        parts: list[tuple[str, int]] = []
        for begin in range(0, padded, most):
            at = Index(base.value, base.constant + begin, base.factor)
            hidden = self._opaque(self.part(wanted, "i1", padded, begin, most), most)
            parts.append((self._load_register(buffer, at, of.with_lanes(most), hidden), most))
        return self.part(self.concatenate(parts, element), element, padded, 0, lanes)

    def _has_sign_masks(self, of: DType) -> bool:
        """Are masked loads of this type AVX2's, whose mask is the sign of each lane?"""
        return self.machine.vector_bits == _AVX2_BITS and element_bytes(of) >= _MIN_MASKED_BYTES

    def _opaque(self, mask: str, lanes: int) -> str:
        """The mask, made opaque to LLVM's optimiser."""
        signs, kind = self.text.pure(f"sext <{lanes} x i1> {mask} to <{lanes} x i32>"), f"<{lanes} x i32>"
        hidden = self.text.value(f'call {kind} asm "", "=x,0"({kind} {signs})')
        return self.text.pure(f"icmp slt {kind} {hidden}, zeroinitializer")

    def _load_register(self, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
        kind, align = memory_type(of), self.align_of(buffer, base)
        name = f"llvm.masked.load.{_memory_suffix(of)}.p0"
        self.text.module.declare(name, kind, f"ptr, i32 immarg, <{of.lanes} x i1>, {kind}")
        operands = f"ptr {self.address(buffer, base)}, i32 {align}, <{of.lanes} x i1> {mask}, {kind} zeroinitializer"
        return self.from_memory(self.text.value(f"call {kind} @{name}({operands})"), of)

    def _load_every_second(self, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
        """Load every second element of a contiguous range, where the mask selects it."""
        lanes = of.lanes
        spread = ", ".join([f"i32 {i // 2 + i % 2 * lanes}" for i in range(2 * lanes)])
        flags = f"<{lanes} x i1>"
        wanted = self.text.pure(
            f"shufflevector {flags} {mask}, {flags} zeroinitializer, <{2 * lanes} x i32> <{spread}>"
        )
        both = of.with_lanes(2 * lanes)
        kind, value = register_type(both), self._masked_load(buffer, base, both, wanted)
        picks = ", ".join([f"i32 {2 * i}" for i in range(lanes)])
        return self.text.pure(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{picks}>")

    def _gather_ramp(self, buffer: Buffer, base: Index, stride: Index, of: DType, mask: str) -> str:
        return self._gather_at(self._ramp_addresses(buffer, base, stride, of.lanes), of, mask)

    def _ramp_addresses(self, buffer: Buffer, base: Index, stride: Index, lanes: int) -> str:
        kind, steps = memory_type(buffer.dtype), ", ".join([f"i64 {i}" for i in range(lanes)])
        step = self.splat(self.operand(stride), dtype("int64").with_lanes(lanes))
        offsets = self.text.pure(f"mul <{lanes} x i64> {step}, <{steps}>")
        return self.text.pure(f"getelementptr {kind}, ptr {self.address(buffer, base)}, <{lanes} x i64> {offsets}")

    def _addresses(self, buffer: Buffer, index: PrimExpr) -> str:
        value, base = self.visit(index), self.visit(buffer.data)
        return self.text.pure(
            f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, {register_type(index.dtype)} {value}"
        )

    def _gather(self, buffer: Buffer, index: PrimExpr, of: DType, mask: str | None) -> str:
        return self._gather_at(self._addresses(buffer, index), of, mask)

    def _gather_at(self, addresses: str, of: DType, mask: str | None) -> str:
        kind, lanes = memory_type(of), of.lanes
        name = f"llvm.masked.gather.{_memory_suffix(of)}.v{lanes}p0"
        self.text.module.declare(name, kind, f"<{lanes} x ptr>, i32 immarg, <{lanes} x i1>, {kind}")
        operands = (
            f"<{lanes} x ptr> {addresses}, i32 {element_bytes(of)}, "
            f"<{lanes} x i1> {mask or 'splat (i1 true)'}, {kind} zeroinitializer"
        )
        return self.from_memory(self.text.value(f"call {kind} @{name}({operands})"), of)

    # Stores

    def visit_BufferStore(self, store: BufferStore) -> None:
        buffer, of = store.buffer, store.value.dtype
        if store.indices[-1].dtype.lanes == 1 and of.lanes == 1:
            self._store_scalar(store)
            return
        lanes = store.indices[-1].dtype.lanes
        value = self.visit(store.value)
        if of.lanes == 1:
            of = of.with_lanes(lanes)
            value = self.splat(value, of)
        value, kind = self.to_memory(value, of), memory_type(of)
        mask = None
        if store.predicate is not None:
            mask = self._mask_vector(self.visit(store.predicate), store.predicate.dtype.lanes, lanes)
        ramp = self.as_ramp(store.indices[-1]) if len(store.indices) == 1 else None
        if ramp is None:
            self._scatter(self._addresses(buffer, store.indices[-1]), value, of, mask)
            return
        base, stride = ramp
        if stride.value is None and stride.constant == 1:
            self._store_contiguous(buffer, base, value, of, mask, store.indices[-1])
        elif mask is not None:
            self._scatter(self._ramp_addresses(buffer, base, stride, lanes), value, of, mask)
        else:
            for i, at in enumerate(self._lane_indices(base, stride, lanes)):
                lane = self.text.pure(f"extractelement {kind} {value}, i64 {i}")
                align = self.align_of(buffer, at)
                self.text.effect(
                    f"store {memory_type(of.element)} {lane}, ptr {self.address(buffer, at)}, align {align}"
                )

    def _store_scalar(self, store: BufferStore) -> None:
        value = self.to_memory(self.visit(store.value), store.value.dtype)
        index = self.locate(store.buffer, store.indices)
        condition = None if store.predicate is None else self.visit(store.predicate)
        address, align = self.address(store.buffer, index), self.align_of(store.buffer, index)
        line = f"store {memory_type(store.value.dtype)} {value}, ptr {address}, align {align}"
        if condition is None or condition == "true":
            self.text.effect(line)
            return
        then, done = self.text.label("store"), self.text.label("stored")
        self.text.branch(condition, then, done)
        self.text.place(then)
        self.text.effect(line)
        self.text.goto(done)
        self.text.place(done)

    def _store_contiguous(
        self, buffer: Buffer, base: Index, value: str, of: DType, mask: str | None, index: PrimExpr
    ) -> None:
        kind, address, align = memory_type(of), self.address(buffer, base), self.align_of(buffer, base)
        if mask is None:
            if align % LINE_BYTES and buffer.data in self.streamed and isinstance(index, Ramp):
                align = LINE_BYTES if divides(LINE_BYTES // element_bytes(of.element), index.base) else align
            if self.is_nontemporal(buffer, of, align):
                self.store_nontemporal(buffer, value, kind, of, address, align)
            else:
                self.text.effect(f"store {kind} {value}, ptr {address}, align {align}")
            return
        if buffer.data in self.streamed and align % LINE_BYTES and self.transposes_lines(of):
            rotated, parts = self.parts_by_lines(value, address, mask)
            for line, chosen in parts:
                self._store_masked(rotated, line, LINE_BYTES, of, chosen)
        else:
            self._store_masked(value, address, align, of, mask)

    def _store_masked(self, value: str, address: str, align: int, of: DType, mask: str) -> None:
        kind, flags, name = memory_type(of), f"<{of.lanes} x i1>", f"llvm.masked.store.{_memory_suffix(of)}.p0"
        self.text.module.declare(name, "void", f"{kind}, ptr, i32 immarg, {flags}")
        self.text.effect(f"call void @{name}({kind} {value}, ptr {address}, i32 {align}, {flags} {mask})")

    def _scatter(self, addresses: str, value: str, of: DType, mask: str | None) -> None:
        kind, lanes = memory_type(of), of.lanes
        name = f"llvm.masked.scatter.{_memory_suffix(of)}.v{lanes}p0"
        self.text.module.declare(name, "void", f"{kind}, <{lanes} x ptr>, i32 immarg, <{lanes} x i1>")
        self.text.effect(
            f"call void @{name}({kind} {value}, <{lanes} x ptr> {addresses}, i32 {element_bytes(of)}, "
            f"<{lanes} x i1> {mask or 'splat (i1 true)'})"
        )

    # Vector indices

    def as_ramp(self, index: PrimExpr) -> tuple[Index, Index] | None:
        """A vector index as (base, stride); None when its lanes are not evenly spaced."""
        if isinstance(index, Ramp):
            return self.index(index.base), self.index(index.stride)
        if isinstance(index, Broadcast):
            return self.index(index.value), Index(None, 0, 0)
        if isinstance(index, Add | Sub):
            return self._combine_ramps(index)
        if isinstance(index, Mul):
            return self._scale_ramp(index)
        return None

    def as_lanes(self, index: PrimExpr) -> tuple[Index, list[int]] | None:
        """A vector index as a base and a constant offset per lane; None if the offsets are not constant."""
        ramp = self.as_ramp(index)
        if ramp is not None:
            base, stride = ramp
            return (base, [stride.constant * i for i in range(index.dtype.lanes)]) if stride.value is None else None
        if isinstance(index, Select):
            return self._choose_lanes_known(index)
        if isinstance(index, Add | Sub | Mul | FloorDiv | FloorMod):
            a, b = self.as_lanes(index.a), self.as_lanes(index.b)
            return None if a is None or b is None else self._combine_lanes(index, a, b)
        return None

    def _choose_lanes_known(self, index: Select) -> tuple[Index, list[int]] | None:
        """A select between two constant-offset indices of the same base by a constant condition."""
        outcomes = self.known_outcomes(index.condition) if isinstance(index.condition, Compare) else None
        a, b = self.as_lanes(index.true_value), self.as_lanes(index.false_value)
        if outcomes is None or a is None or b is None or a[0].value != b[0].value:
            return None
        sides = zip(outcomes, a[1], b[1], strict=True)
        lanes = [a[0].constant + x if first else b[0].constant + y for first, x, y in sides]
        return Index(a[0].value, 0, gcd(a[0].factor, b[0].factor)), lanes

    def _combine_lanes(
        self, index: Any, a: tuple[Index, list[int]], b: tuple[Index, list[int]]
    ) -> tuple[Index, list[int]] | None:
        (first, offsets), (second, others) = a, b
        if isinstance(index, Add | Sub):
            sign = 1 if isinstance(index, Add) else -1
            return self.sum(first, second, sign), [x + sign * y for x, y in zip(offsets, others, strict=True)]
        if second.value is not None or any(others):
            return None
        if isinstance(index, Mul):
            return self.product(first, second), [x * second.constant for x in offsets]
        divisor = second.constant
        if divisor <= 0 or (first.value is not None and first.factor % divisor):
            return None
        if isinstance(index, FloorMod):
            return Index(None, 0, 0), [mod(first.constant + x, divisor) for x in offsets]
        of_lanes = [floordiv(first.constant + x, divisor) for x in offsets]
        if first.value is None:
            return Index(None, 0, 0), of_lanes
        quotient = self.text.pure(f"sdiv exact i64 {first.value}, {divisor}")
        return Index(quotient, 0, first.factor // divisor), of_lanes

    def _combine_ramps(self, index: Any) -> tuple[Index, Index] | None:
        a, b = self.as_ramp(index.a), self.as_ramp(index.b)
        if a is None or b is None:
            return None
        sign = 1 if isinstance(index, Add) else -1
        base, stride = self.sum(a[0], b[0], sign), self.sum(a[1], b[1], sign)
        return base, stride

    def _scale_ramp(self, index: Any) -> tuple[Index, Index] | None:
        for vector, factor in ((index.a, index.b), (index.b, index.a)):
            if isinstance(factor, Broadcast) and isinstance(factor.value, IntImm):
                ramp, scale = self.as_ramp(vector), self.index(factor.value)
                return None if ramp is None else (self.product(ramp[0], scale), self.product(ramp[1], scale))
        return None


_MIN_LANES = 8
"""Minimum lanes of vectors loaded by pieces: scalar loads of fewer elements are as fast."""

_MIN_ELEMENTS_PER_PIECE = 2
"""Minimum average of elements per piece: loading and shuffling a vector costs as much as loading one element."""

_MAX_GAP = 4
"""Maximum distance, in elements, between adjacent elements of a piece."""


def _pieces(places: Sequence[int | None], low: int, high: int) -> list[tuple[int, int]] | None:
    """(first offset, length) of the vectors that cover elements at constant `places`; None if there are too many.

    A piece may contain a few unused elements, which shuffles drop. Pieces of unsupported length are extended within
    [low, high).
    """
    lanes, gap = len(places), _MAX_GAP
    wanted = sorted({place for place in places if place is not None})
    starts = [i for i, place in enumerate(wanted) if i == 0 or place - wanted[i - 1] > gap]
    found: list[tuple[int, int]] = []
    for start, end in itertools.pairwise([*starts, len(wanted)]):
        first, last = wanted[start], wanted[end - 1] + 1
        whole = (last - first) // lanes * lanes
        found += [(begin, lanes) for begin in range(first, first + whole, lanes)]
        if (rest := last - first - whole) and (whole or (rest & (rest - 1) and high - low >= lanes)):
            found.append((max(low, last - lanes), lanes))
        elif rest:
            found.append((first, rest))
    return found if len(found) * _MIN_ELEMENTS_PER_PIECE <= max(lanes, _MIN_LANES) else None


def _memory_suffix(of: DType) -> str:
    return f"v{of.lanes}i8" if of.is_bool else suffix(of)
