"""Conversions between types.

16-bit floats are storage types: arithmetic on them is done in float32. bfloat16 is converted by integer arithmetic or
by the processor, float16 by integer arithmetic where the processor has no instruction for it (LLVM would call a library
that may be missing).
"""

from __future__ import annotations

from functools import partial, reduce

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic, available
from relayc.backend.llvm.codegen.vectors import concatenate, extract_part, value_of_branches
from relayc.backend.llvm.types import compute_type, constant, register_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import PrimExpr

__all__ = ["INSTRUCTIONS", "cast", "computed", "convert", "rounded"]

_LANES = 16
"""Lanes of an AVX-512 register of float32."""
_HALF_BITS = 16
"""Bits of float16 and bfloat16."""
_DENORMAL = 0x20
"""The class mask of denormals in `vfpclassps`."""


def convert(e: Emitter, value: str, source: DType, target: DType) -> str:
    """A value of type `source` as type `target`."""
    if source == target:
        return value
    if target.is_bool:
        return _to_bool(e, value, source)
    if source.is_float:
        return _float_to_float(e, value, source, target) if target.is_float else _to_int(e, value, source, target)
    if target.is_float:
        through = compute_type(target)
        how = "sitofp" if source.is_int else "uitofp"
        return convert(e, cast(e.text, how, value, source, through), through, target)
    if source.is_handle != target.is_handle:
        return cast(e.text, "ptrtoint" if source.is_handle else "inttoptr", value, source, target)
    if source.bits == target.bits:
        return value
    narrower = target.bits < source.bits
    return cast(e.text, "trunc" if narrower else "sext" if source.is_int else "zext", value, source, target)


def computed(e: Emitter, expr: PrimExpr) -> str:
    """A value in the type that its arithmetic is done in."""
    return convert(e, e.value(expr), expr.dtype, compute_type(expr.dtype))


def rounded(e: Emitter, value: str, of: DType) -> str:
    """A result of arithmetic on `of`, converted back to `of`."""
    return convert(e, value, compute_type(of), of)


def cast(text: FunctionText, how: str, value: str, source: DType, target: DType) -> str:
    """LLVM's conversion `how`, such as "bitcast", of a value."""
    return text.pure(f"{how} {register_type(source)} {value} to {register_type(target)}")


def _to_bool(e: Emitter, value: str, source: DType) -> str:
    if source.is_float:
        through = compute_type(source)
        value = convert(e, value, source, through)
        return e.text.pure(f"fcmp une {register_type(through)} {value}, {constant(through, 0.0)}")
    zero = constant(source, 0) if source.lanes == 1 else "zeroinitializer"
    return e.text.pure(f"icmp ne {register_type(source)} {value}, {zero}")


def _to_int(e: Emitter, value: str, source: DType, target: DType) -> str:
    value, source = convert(e, value, source, compute_type(source)), compute_type(source)
    if target.bits < 32:  # values outside the narrow type wrap, as from int32
        through = dtype("int32").with_lanes(target.lanes)
        return cast(e.text, "trunc", cast(e.text, "fptosi", value, source, through), through, target)
    if target.element == "uint32":
        through = dtype("int64").with_lanes(target.lanes)
        return cast(e.text, "trunc", cast(e.text, "fptosi", value, source, through), through, target)
    if target.is_int:
        return cast(e.text, "fptosi", value, source, target)
    negative = e.text.pure(f"fcmp olt {register_type(source)} {value}, {constant(source, 0.0)}")
    wrapped, whole = (cast(e.text, how, value, source, target) for how in ("fptosi", "fptoui"))
    flag, kind = register_type(dtype("bool").with_lanes(target.lanes)), register_type(target)
    return e.text.pure(f"select {flag} {negative}, {kind} {wrapped}, {kind} {whole}")


def _float_to_float(e: Emitter, value: str, source: DType, target: DType) -> str:
    if source.bits == _HALF_BITS:
        wide = compute_type(source)
        return convert(e, _by_row(_WIDEN[source.code], e, value, source, wide), wide, target)
    if target.bits == _HALF_BITS:
        wide = compute_type(target)
        return _by_row(_ROUND[target.code], e, convert(e, value, source, wide), wide, target)
    return cast(e.text, "fpext" if target.bits > source.bits else "fptrunc", value, source, target)


def _by_row(rows: tuple[Instruction, ...], e: Emitter, value: str, source: DType, target: DType) -> str:
    found = available(rows, e.machine)
    row = found.get(source.lanes) or found[0]
    return row.emit(e.text, value, source, target)


def _extend_float(text: FunctionText, value: str, source: DType, target: DType) -> str:
    return cast(text, "fpext", value, source, target)


def _truncate_float(text: FunctionText, value: str, source: DType, target: DType) -> str:
    return cast(text, "fptrunc", value, source, target)


def _widen_half_by_integers(text: FunctionText, value: str, source: DType, target: DType) -> str:
    words, pure = _words(source), text.pure
    kind, flag = register_type(words), _flag(source)
    bits = _half_bits(text, value, source)
    sign = pure(f"shl {kind} {pure(f'and {kind} {bits}, {constant(words, 0x8000)}')}, {constant(words, 16)}")
    size = pure(f"and {kind} {bits}, {constant(words, 0x7FFF)}")
    shifted = pure(f"shl {kind} {size}, {constant(words, 13)}")
    # The exponent biases differ by 112; the multiplication also normalises denormals.
    scale = constant(target, 2.0**112)
    scaled = pure(f"fmul {register_type(target)} {cast(text, 'bitcast', shifted, words, target)}, {scale}")
    special = pure(f"icmp uge {kind} {size}, {constant(words, 0x7C00)}")
    endless = pure(f"or {kind} {shifted}, {constant(words, 0x7F800000)}")
    finite = cast(text, "bitcast", scaled, target, words)
    found = pure(f"select {flag} {special}, {kind} {endless}, {kind} {finite}")
    return cast(text, "bitcast", pure(f"or {kind} {found}, {sign}"), words, target)


def _half_bits(text: FunctionText, value: str, source: DType) -> str:
    words, shorts = _words(source), dtype("uint16").with_lanes(source.lanes)
    return cast(text, "zext", cast(text, "bitcast", value, source, shorts), shorts, words)


def _round_half_by_integers(text: FunctionText, value: str, source: DType, target: DType) -> str:
    """Round to nearest, ties to even; overflow to infinity."""
    words, pure = _words(source), text.pure
    kind, flag, floats = register_type(words), _flag(source), register_type(source)

    def choose(condition: str, bound: int, then: str, otherwise: str) -> str:
        test = pure(f"icmp {condition} {kind} {size}, {constant(words, bound)}")
        return pure(f"select {flag} {test}, {kind} {then}, {kind} {otherwise}")

    bits = cast(text, "bitcast", value, source, words)
    sign = pure(f"and {kind} {pure(f'lshr {kind} {bits}, {constant(words, 16)}')}, {constant(words, 0x8000)}")
    size = pure(f"and {kind} {bits}, {constant(words, 0x7FFFFFFF)}")
    last = pure(f"and {kind} {pure(f'lshr {kind} {size}, {constant(words, 13)}')}, {constant(words, 1)}")
    biased = pure(f"add {kind} {pure(f'add {kind} {size}, {last}')}, {constant(words, 0xFFF - (112 << 23))}")
    normal = pure(f"lshr {kind} {biased}, {constant(words, 13)}")
    # Denormals: adding 1/2 rounds at float16's last bit and leaves the result in the low bits.
    half = constant(source, 0.5)
    raised = pure(f"fadd {floats} {cast(text, 'bitcast', size, words, source)}, {half}")
    tiny = pure(f"sub {kind} {cast(text, 'bitcast', raised, source, words)}, {constant(words, 0x3F000000)}")
    found = choose("ult", 0x38800000, tiny, normal)
    found = choose("uge", 0x477FF000, constant(words, 0x7C00), found)
    found = choose("ugt", 0x7F800000, constant(words, 0x7E00), found)
    shorts = dtype("uint16").with_lanes(target.lanes)
    narrow = cast(text, "trunc", pure(f"or {kind} {found}, {sign}"), words, shorts)
    return cast(text, "bitcast", narrow, shorts, target)


def _widen_bfloat_by_shifting(text: FunctionText, value: str, source: DType, target: DType) -> str:
    words = _words(source)
    kind = register_type(words)
    wide = text.pure(f"zext {register_type(source)} {value} to {kind}")
    shifted = text.pure(f"shl {kind} {wide}, {constant(words, 16)}")
    return cast(text, "bitcast", shifted, words, target)


def _round_bfloat_by_integers(text: FunctionText, value: str, source: DType, target: DType) -> str:
    """Round to nearest, ties to even, by integer arithmetic on the bits; NaN stays NaN."""
    words, pure = _words(source), text.pure
    kind, flag = register_type(words), _flag(source)
    bits = cast(text, "bitcast", value, source, words)
    upper = pure(f"lshr {kind} {bits}, {constant(words, 16)}")
    odd = pure(f"and {kind} {upper}, {constant(words, 1)}")
    bias = pure(f"add {kind} {odd}, {constant(words, 0x7FFF)}")
    biased = pure(f"add {kind} {bits}, {bias}")
    bad = pure(f"fcmp uno {register_type(source)} {value}, {value}")
    # All ones are a NaN. A select of another NaN would be applied after packing, with a packed mask.
    chosen = pure(f"or {kind} {biased}, {pure(f'sext {flag} {bad} to {kind}')}")
    rounded = pure(f"lshr {kind} {chosen}, {constant(words, 16)}")
    return pure(f"trunc {kind} {rounded} to {register_type(target)}")


def _round_bfloat_by_pairs(text: FunctionText, value: str, source: DType, target: DType) -> str:
    """Round two registers by one instruction, which treats denormals as zero: vectors that have some take a slow
    path."""
    registers = [extract_part(text, value, "float", source.lanes, i, _LANES) for i in range(0, source.lanes, _LANES)]
    by_integers = partial(_round_bfloat_by_integers, text, value, source, target)
    kind, rounded = f"<{target.lanes} x i16>", _rounded_pairs(text, registers)

    def with_zeros() -> str:
        return value_of_branches(text, _none_denormal(text, registers), kind, lambda: rounded, by_integers, likely=True)

    return value_of_branches(
        text, _all_nonzero(text, rounded, target.lanes), kind, lambda: rounded, with_zeros, likely=True
    )


def _all_nonzero(text: FunctionText, rounded: str, lanes: int) -> str:
    """Are the exponents of all rounded lanes nonzero? One test per two registers, and usually sufficient."""
    width, words = min(lanes, 2 * _LANES), list[str]()
    of = f"<{width} x i16>"
    for begin in range(0, lanes, width):
        part = extract_part(text, rounded, "i16", lanes, begin, width)
        exponents = text.pure(f"and {of} {part}, splat (i16 {0x7F80})")
        zeros = text.pure(f"icmp eq {of} {exponents}, zeroinitializer")
        words.append(text.pure(f"bitcast <{width} x i1> {zeros} to i{width}"))
    any_of = reduce(lambda a, b: text.pure(f"or i{width} {a}, {b}"), words)
    return text.pure(f"icmp eq i{width} {any_of}, 0")


def _none_denormal(text: FunctionText, registers: list[str]) -> str:
    found = [_CLASSIFY.call(text, x) for x in registers]
    any_of = found[0]
    for other in found[1:]:
        any_of = text.pure(f"or {_CLASSIFY.result} {any_of}, {other}")
    word = text.pure(f"bitcast {_CLASSIFY.result} {any_of} to i{_LANES}")
    return text.pure(f"icmp eq i{_LANES} {word}, 0")


def _rounded_pairs(text: FunctionText, registers: list[str]) -> str:
    if len(registers) == 1:
        rounded = text.pure(f"fptrunc {_FLOATS} {registers[0]} to <{_LANES} x bfloat>")
        return text.pure(f"bitcast <{_LANES} x bfloat> {rounded} to <{_LANES} x i16>")
    parts: list[tuple[str, int]] = []
    for low, high in zip(registers[::2], registers[1::2], strict=True):
        pair = _ROUND_PAIR.call(text, high, low)
        parts.append((text.pure(f"bitcast {_ROUND_PAIR.result} {pair} to <{2 * _LANES} x i16>"), 2 * _LANES))
    return concatenate(text, parts, "i16")


def _words(of: DType) -> DType:
    return dtype("int32").with_lanes(of.lanes)


def _flag(of: DType) -> str:
    return register_type(dtype("bool").with_lanes(of.lanes))


_FLOATS = f"<{_LANES} x float>"
_CLASSIFY = LLVMIntrinsic("x86.avx512.fpclass.ps.512", f"<{_LANES} x i1>", (_FLOATS,), (f"i32 {_DENORMAL}",))
_ROUND_PAIR = LLVMIntrinsic("x86.avx512bf16.cvtne2ps2bf16.512", f"<{2 * _LANES} x bfloat>", (_FLOATS, _FLOATS))
_ANY = frozenset[str]()
_BFLOAT16 = frozenset({"avx512bf16", "avx512dq"})
_WIDEN = {
    "float": (
        Instruction("float32 of float16", "float16", 0, frozenset({"f16c"}), _extend_float),
        Instruction("float32 of float16", "float16", 0, frozenset({"neon"}), _extend_float),
        Instruction("float32 of float16", "float16", 0, _ANY, _widen_half_by_integers),
    ),
    "bfloat": (Instruction("float32 of bfloat16", "bfloat16", 0, _ANY, _widen_bfloat_by_shifting),),
}
_ROUND = {
    "float": (
        Instruction("float16 of float32", "float32", 0, frozenset({"f16c"}), _truncate_float),
        Instruction("float16 of float32", "float32", 0, frozenset({"neon"}), _truncate_float),
        Instruction("float16 of float32", "float32", 0, _ANY, _round_half_by_integers),
    ),
    # One branch covers all lanes: they are computed before it and stay in registers. LLVM would pass vectors of other
    # lengths than powers of two out of the branch lane by lane.
    "bfloat": (
        *[
            Instruction(
                "bfloat16 of float32", "float32", lanes, _BFLOAT16, _round_bfloat_by_pairs, (_ROUND_PAIR, _CLASSIFY)
            )
            for lanes in (16, 32, 64, 128)
        ],
        Instruction("bfloat16 of float32", "float32", 0, _ANY, _round_bfloat_by_integers),
    ),
}
INSTRUCTIONS = (*_WIDEN["float"], *_WIDEN["bfloat"], *_ROUND["float"], *_ROUND["bfloat"])
"""Conversions between float32 and 16-bit floats."""
