"""Loads from flat buffers.

A vector index is split into ``base + lane * stride``, and the stride selects the instructions: one vector access for 1,
a splat for 0, shuffled vectors for 2 and -1, one element at a time otherwise. Other indices become gathers,
except those within one vector that is fully used or aligned: it is loaded, and shuffled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from relayc.backend.llvm.codegen.convert import convert
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.gathers import gather, gather_ramp
from relayc.backend.llvm.codegen.index import index_of, index_operand
from relayc.backend.llvm.codegen.instructions import Instruction, available
from relayc.backend.llvm.codegen.memory import (
    MIN_LANES,
    align_of,
    any_lane,
    combined_mask,
    element_address,
    from_memory,
    lane_indices,
    load_elements,
    locate,
    memory_suffix,
    register_lanes,
)
from relayc.backend.llvm.codegen.permutes import PERMUTE
from relayc.backend.llvm.codegen.vector_index import as_lanes, as_ramp
from relayc.backend.llvm.codegen.vectors import (
    concatenate,
    extract_part,
    known_flags,
    pack_lanes,
    permute,
    shuffle,
    splat,
    word_vector,
)
from relayc.backend.llvm.types import element_bytes, memory_type, register_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Add, Broadcast, Buffer, BufferLoad, PrimExpr, Var, const
from relayc.te.tir.substitute import substitute

__all__ = ["emit_load", "load_widened"]

_AVX2_BITS, _MIN_MASKED_BYTES = 256, 4
"""Bits of an AVX2 vector, and the smallest element in bytes that AVX2 has masked loads for."""
_MIN_ELEMENTS_PER_PIECE = 2
"""Minimum average of elements per piece: loading and shuffling a vector costs as much as loading one element."""
_MAX_GAP = 4
"""Maximum distance, in elements, between adjacent elements of a piece."""
_MAX_REGISTERS = 16
"""Maximum number of vector registers of a local buffer that LLVM may keep in registers."""
_INT32 = dtype("int32")
_MAX_PERMUTED = 2
"""Maximum number of vector registers that one instruction permutes."""


def emit_load(e: Emitter, load: BufferLoad) -> str:
    """A scalar or vector read from a buffer; lanes that a mask leaves out are not touched."""
    buffer, of = load.buffer, load.dtype
    if of.lanes == 1:
        return _load_scalar(e, load)
    mask = combined_mask(e, load.predicate, of.lanes)
    ramp = as_ramp(e, load.indices[-1]) if len(load.indices) == 1 else None
    if ramp is None:
        index = load.indices[-1]
        wanted = [True] * of.lanes if mask is None else known_flags(mask)
        block = _load_block(e, buffer, index, of) if mask is None else None
        if block is None and wanted is not None:
            block = _load_pieces(e, buffer, as_lanes(e, index), of, wanted)
        return gather(e, buffer, index, of, mask) if block is None else block
    base, stride = ramp
    if mask is not None:
        block = _load_constant_mask(e, buffer, load.indices[-1], of, mask)
        if block is not None:
            return block
        if stride.value is None and stride.constant == 1:
            return _masked_load(e, buffer, base, of, mask)
        if stride.value is None and stride.constant == 2:
            return _load_every_second(e, buffer, base, of, mask)
        return gather_ramp(e, buffer, base, stride, of, mask)
    if stride.value is not None:
        return _load_lanes(e, buffer, base, stride, of)
    return _load_ramp(e, buffer, base, stride.constant, of)


def _load_scalar(e: Emitter, load: BufferLoad) -> str:
    buffer, mask = load.buffer, e.mask
    if mask is None:
        condition = None if load.predicate is None else e.value(load.predicate)
    else:  # one element for all lanes: loaded if any lane is active
        condition = any_lane(e, mask[0], mask[1])
    if condition is None:
        return load_elements(e, buffer, locate(e, buffer, load.indices), load.dtype)
    text = e.text
    before, then, done = text.block, text.label("load"), text.label("loaded")
    text.branch(condition, then, done)
    text.place(then)
    with text.region():
        value = load_elements(e, buffer, locate(e, buffer, load.indices), load.dtype)
    last = text.block
    text.goto(done)
    text.place(done)
    kind = register_type(load.dtype)
    zero = "null" if load.dtype.is_handle else "0.0" if kind in ("float", "double", "half") else "0"
    return text.value(f"phi {kind} [ {'false' if load.dtype.is_bool else zero}, %{before} ], [ {value}, %{last} ]")


def _load_ramp(e: Emitter, buffer: Buffer, base: Index, stride: int, of: DType) -> str:
    lanes = of.lanes
    if stride == 1:
        across = _load_straddling(e, buffer, base, of)
        return load_elements(e, buffer, base, of) if across is None else across
    if stride == 0:
        return splat(e.text, load_elements(e, buffer, base, of.element), of)
    if stride == -1:
        start = Index(base.value, base.constant - (lanes - 1), base.factor)
        return permute(e.text, load_elements(e, buffer, start, of), None, list(reversed(range(lanes))), of)
    if stride == 2 and lanes > 2:
        # two overlapping vectors, the second ending at the last element, so that nothing beyond it is read
        half, start = (lanes + 1) // 2, lanes - 1
        first = load_elements(e, buffer, base, of)
        second = load_elements(e, buffer, Index(base.value, base.constant + start, base.factor), of)
        picks = [2 * i if i < half else lanes + 2 * i - start for i in range(lanes)]
        return permute(e.text, first, second, picks, of)
    pieces = _load_pieces(e, buffer, (base, [stride * i for i in range(lanes)]), of, [True] * lanes)
    return _load_lanes(e, buffer, base, Index(None, stride, 0), of) if pieces is None else pieces


def _load_straddling(e: Emitter, buffer: Buffer, base: Index, of: DType) -> str | None:
    """Load elements of a small local buffer that straddle its vectors: load the two vectors and shuffle.

    LLVM keeps memory in registers that is accessed by whole vectors only. Otherwise the stores would have to reach
    the cache first: store forwarding serves a load from a single store, not from parts of two.
    """
    most, extent = register_lanes(e, of), buffer.shape[0]
    is_small = buffer.scope == "local" and isinstance(extent, int) and extent <= _MAX_REGISTERS * most
    is_across = base.value is None and (base.constant % most != 0 or of.lanes % most != 0)
    inside = is_small and extent % most == 0 and base.constant + of.lanes <= extent
    if not (inside and is_across and "avx512f" in e.machine.features) or of.is_bool or of.lanes < most:
        return None
    register, count = of.with_lanes(most), -(-of.lanes // most)
    parts: list[tuple[str, int]] = []
    for first in range(base.constant, base.constant + of.lanes, most):
        low = first // most * most
        low_part = load_elements(e, buffer, Index(None, low), register)
        high_part = load_elements(e, buffer, Index(None, low + most), register) if low + most < extent else None
        picks = [i if i < most or high_part else i - most for i in range(first - low, first - low + most)]
        parts.append((permute(e.text, low_part, high_part, picks, register), most))
    element = register_type(of.element)
    return extract_part(e.text, concatenate(e.text, parts, element), element, count * most, 0, of.lanes)


def _load_block(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
    """Load contiguous elements, or those of one aligned vector, in any order; None if they may span several
    vectors."""
    block = block_of(e, buffer, index, of.lanes)
    if block is None:
        return load_permuted(e, buffer, index, of)
    start, count, picks = block
    value = load_elements(e, buffer, start, of.with_lanes(count))
    return splat(e.text, value, of) if count == 1 else permute(e.text, value, None, picks, of.with_lanes(count))


def _load_constant_mask(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType, mask: str) -> str | None:
    """Masked elements under a constant mask by plain loads, which processors can disambiguate from stores.

    None where AVX2 has masked loads, and where LLVM would move single elements: for several registers, and for
    contiguous elements of one or two bytes whose number is no power of two, for which AVX-512 has masked loads.
    """
    wanted = None if _has_sign_masks(e, of) or of.lanes > register_lanes(e, of) else known_flags(mask)
    if wanted is None:
        return None
    spread, is_partial = as_lanes(e, index), sum(wanted).bit_count() != 1
    is_dense = spread is not None and spread[1] == list(range(of.lanes))
    return None if is_dense and is_partial and _has_byte_masks(e, of) else _load_pieces(e, buffer, spread, of, wanted)


def _load_pieces(
    e: Emitter, buffer: Buffer, spread: tuple[Index, list[int]] | None, of: DType, wanted: list[bool]
) -> str | None:
    """Load scattered elements as a few contiguous vectors and shuffle; None if there are too many.

    Gaps between two active elements are in bounds, too. Lanes that are not `wanted` are 0. Registers are assembled
    one at a time: LLVM expands longer shuffles to single-element moves.
    """
    if spread is None:
        return None
    base, offsets = spread
    lanes, most = of.lanes, register_lanes(e, of)
    places = [offset if is_wanted else None for offset, is_wanted in zip(offsets, wanted, strict=True)]
    inside = [o for o in places if o is not None]
    if lanes % most == 1:
        places.append(None)  # a single lane is no vector
    parts = [places[i : i + most] for i in range(0, lanes, most)]
    pieces = [_pieces(part, min(inside), max(inside) + 1) for part in parts]
    if lanes < MIN_LANES or any(found is None for found in pieces):
        return None
    done = [(_assemble(e, buffer, base, part, found or [], of), len(part))
            for part, found in zip(parts, pieces, strict=True)]  # fmt: skip
    element = register_type(of.element)
    return extract_part(e.text, concatenate(e.text, done, element), element, len(places), 0, lanes)


def _assemble(
    e: Emitter, buffer: Buffer, base: Index, places: list[int | None], pieces: list[tuple[int, int]], of: DType
) -> str:
    """Assemble a register of the elements at `places`, 0 where None, from contiguous pieces."""
    lanes = len(places)
    of, missing = of.with_lanes(lanes), {i for i, place in enumerate(places) if place is not None}
    value = "poison" if len(missing) == lanes else "zeroinitializer"
    for first, count in pieces:
        piece = load_elements(e, buffer, Index(base.value, base.constant + first, base.factor), of.with_lanes(count))
        if count == 1:
            piece = splat(e.text, piece, of)
        elif count < lanes:
            widened = [*range(count), *[0] * (lanes - count)]
            piece = permute(e.text, piece, None, widened, of.with_lanes(count))
        here = {i: place - first for i, place in enumerate(places)
                if i in missing and place is not None and first <= place < first + count}  # fmt: skip
        value = permute(e.text, value, piece, [lanes + here[i] if i in here else i for i in range(lanes)], of)
        missing -= set(here)
    return value


def _load_lanes(e: Emitter, buffer: Buffer, base: Index, stride: Index, of: DType) -> str:
    return pack_lanes(
        e.text, [load_elements(e, buffer, at, of.element) for at in lane_indices(e, base, stride, of.lanes)], of
    )


def _masked_load(e: Emitter, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
    """Load the elements that a mask selects, and zeros elsewhere.

    Loads that AVX2 splits are split here with an opaque mask: LLVM 22 reads all of a part, or aborts, if
    instruction selection discovers that the mask of the part is empty.
    """
    lanes, most = of.lanes, e.machine.vector_bits // (8 * element_bytes(of))
    known = known_flags(mask)
    is_wanted = known is not None and all(any(known[i : i + most]) for i in range(0, lanes, most))
    if lanes <= most or not _has_sign_masks(e, of) or is_wanted:
        return _load_register(e, buffer, base, of, mask)
    padded, element = -(-lanes // most) * most, register_type(of.element)
    rest = [min(i, lanes) for i in range(padded)]
    wanted = mask if padded == lanes else shuffle(e.text, mask, "zeroinitializer", "i1", lanes, rest)
    parts: list[tuple[str, int]] = []
    for begin in range(0, padded, most):
        at = Index(base.value, base.constant + begin, base.factor)
        hidden = _opaque(e, extract_part(e.text, wanted, "i1", padded, begin, most), most)
        parts.append((_load_register(e, buffer, at, of.with_lanes(most), hidden), most))
    return extract_part(e.text, concatenate(e.text, parts, element), element, padded, 0, lanes)


def _has_sign_masks(e: Emitter, of: DType) -> bool:
    """Are masked loads of this type AVX2's, whose mask is the sign of each lane?"""
    return e.machine.vector_bits == _AVX2_BITS and element_bytes(of) >= _MIN_MASKED_BYTES


def _has_byte_masks(e: Emitter, of: DType) -> bool:
    """Are masked loads of this type those of AVX-512 for elements of one and two bytes?"""
    return "avx512bw" in e.machine.features and element_bytes(of) < _MIN_MASKED_BYTES


def _opaque(e: Emitter, mask: str, lanes: int) -> str:
    """The mask, made opaque to LLVM's optimiser."""
    signs, kind = e.text.pure(f"sext <{lanes} x i1> {mask} to <{lanes} x i32>"), f"<{lanes} x i32>"
    hidden = e.text.value(f'call {kind} asm "", "=x,0"({kind} {signs})')
    return e.text.pure(f"icmp slt {kind} {hidden}, zeroinitializer")


def _load_register(e: Emitter, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
    kind, align = memory_type(of), align_of(e, buffer, base)
    name = f"llvm.masked.load.{memory_suffix(of)}.p0"
    e.text.module.declare(name, kind, f"ptr, i32 immarg, <{of.lanes} x i1>, {kind}")
    operands = f"ptr {element_address(e, buffer, base)}, i32 {align}, <{of.lanes} x i1> {mask}, {kind} zeroinitializer"
    return from_memory(e, e.text.value(f"call {kind} @{name}({operands})"), of)


def _load_every_second(e: Emitter, buffer: Buffer, base: Index, of: DType, mask: str) -> str:
    """Load every second element of a contiguous range, where the mask selects it."""
    lanes = of.lanes
    spread = ", ".join([f"i32 {i // 2 + i % 2 * lanes}" for i in range(2 * lanes)])
    flags = f"<{lanes} x i1>"
    wanted = e.text.pure(f"shufflevector {flags} {mask}, {flags} zeroinitializer, <{2 * lanes} x i32> <{spread}>")
    both = of.with_lanes(2 * lanes)
    kind, value = register_type(both), _masked_load(e, buffer, base, both, wanted)
    picks = ", ".join([f"i32 {2 * i}" for i in range(lanes)])
    return e.text.pure(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{picks}>")


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
    return found if len(found) * _MIN_ELEMENTS_PER_PIECE <= max(lanes, MIN_LANES) else None


def block_of(e: Emitter, buffer: Buffer, index: PrimExpr, lanes: int) -> tuple[Index, int, list[int]] | None:
    """(start, count, lane offsets) of a block of a buffer that contains all lanes of an index, else None.

    An aligned vector that contains one in-bounds element is itself in bounds if the buffer is a multiple of
    vectors.
    """
    extent = buffer.shape[0]
    spread = as_lanes(e, index)
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


def load_widened(e: Emitter, load: BufferLoad, of: DType) -> str | None:
    """Load float16, converted to float32 before it is permuted; None for other loads.

    It is converted once if the vector is also loaded in order, or if lanes share elements. On x86, converting takes
    longer than permuting; for few registers each is one instruction.
    """
    index, narrow = load.indices[-1], load.dtype
    is_widened = (narrow.element, of.element) == ("float16", "float32") and "f16c" in e.machine.features
    is_masked = load.predicate is not None or e.mask is not None
    if not is_widened or is_masked or narrow.lanes == 1 or as_ramp(e, index) is not None:
        return None
    block = block_of(e, load.buffer, index, narrow.lanes)
    if block is None:
        return None
    start, count, picks = block
    if not 1 < count <= min(narrow.lanes, _MAX_PERMUTED * register_lanes(e, of)):
        return None
    value = load_elements(e, load.buffer, start, narrow.with_lanes(count))
    wide = of.with_lanes(count)
    return permute(e.text, convert(e, value, narrow.with_lanes(count), wide), None, picks, wide)


def load_permuted(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
    """Load from one aligned vector that contains all lanes for every value of a loop variable; None for others."""
    lanes, extent, kind = of.lanes, buffer.shape[0], register_type(of.element)
    row = available(PERMUTE[kind], e.machine).get(lanes) if kind in PERMUTE else None
    if row is None or not (isinstance(extent, int) and extent % lanes == 0):
        return None
    for var in _added_variables(index):
        if var not in e.ranges:
            continue
        low, high = e.ranges[var]
        spread = as_lanes(e, substitute(index, {var: const(0, var.dtype)}))
        if spread is None or spread[0].factor % lanes:
            return None
        base, offsets = spread
        picks = [base.constant + offset for offset in offsets]
        first = (min(picks) + low) // lanes * lanes
        if max(picks) + high > first + lanes:
            continue
        block = load_elements(e, buffer, Index(base.value, first, base.factor), of)
        return _permuted(e, block, var, [pick - first for pick in picks], of, row)
    return None


def _permuted(e: Emitter, block: str, var: Var, picks: list[int], of: DType, row: Instruction) -> str:
    """The elements of a vector at `picks` plus the value of `var`."""
    index = word_vector(of.lanes)
    place = e.text.pure(f"trunc i64 {index_operand(e, index_of(e, var))} to i32")
    words = ", ".join([f"i32 {pick}" for pick in picks])
    places = e.text.pure(f"add {index} {splat(e.text, place, _INT32.with_lanes(of.lanes))}, <{words}>")
    return row.emit(e.text, row, block, places)


def _added_variables(index: PrimExpr) -> Iterator[Var]:
    """Variables that contribute equally to all lanes of an index."""
    if isinstance(index, Add):
        yield from _added_variables(index.a)
        yield from _added_variables(index.b)
    elif isinstance(index, Broadcast):
        yield from _added_variables(index.value)
    elif isinstance(index, Var):
        yield index
