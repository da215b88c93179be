"""Conversions between types.

16-bit floats are storage types: arithmetic on them is done in float32. bfloat16 is converted by integer arithmetic or
by the processor (see `bfloats`), float16 by integer arithmetic where the processor has no instruction for it (LLVM
would call a library that may be missing).
"""

from __future__ import annotations

from dataclasses import dataclass

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.index import IndexEmitter
from relayc.backend.llvm.types import compute_type, constant, register_type
from relayc.te.dtype import DType, dtype

__all__ = ["ConvertEmitter", "Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the target that the code generator depends on.

    `fma`: has fused multiply-add. `half`: has instructions to convert float16 to float32 and back. `fast`: LLVM's
    fast-math flags for every float operation, such as "nnan nsz". `caches`: bytes of the largest cache; results that
    exceed it use non-temporal stores; 0 if unknown. `features`: LLVM's names of the processor's features.
    `loads_early`: LLVM's scheduling model of the processor moves loads ahead of an unrolled step's multiply-adds.
    """

    fma: bool = False
    half: bool = False
    fast: str = ""
    caches: int = 0
    features: frozenset[str] = frozenset()
    loads_early: bool = False

    @property
    def vector_bits(self) -> int:
        """Width of a vector register in bits."""
        return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128

    @property
    def vector_constraint(self) -> str:
        """The inline-assembly constraint of a vector register; "" if unknown."""
        return "v" if "sse2" in self.features else "w" if "neon" in self.features else ""

    @property
    def pins_accumulators(self) -> bool:
        """Should accumulators pass through the barrier between unrolled steps in registers?

        With 512-bit vectors, 14 x 2 of them sometimes spill otherwise. Where LLVM schedules the loads of a step
        earlier they spill only if they pass through the barrier.
        """
        return self.vector_bits == 512 and not self.loads_early


class ConvertEmitter(IndexEmitter):
    """Emits conversions."""

    def __init__(self, text: FunctionText, machine: Machine) -> None:
        super().__init__(text)
        self.machine = machine

    def convert(self, value: str, source: DType, target: DType) -> str:
        """A value of type `source` as type `target`."""
        if source == target:
            return value
        if target.is_bool:
            return self._to_bool(value, source)
        if source.is_float:
            convert = self._float_to_float if target.is_float else self._to_int
            return convert(value, source, target)
        if target.is_float:
            through = compute_type(target)
            how = "sitofp" if source.is_int else "uitofp"
            return self.convert(self._cast(how, value, source, through), through, target)
        if source.is_handle != target.is_handle:
            return self._cast("ptrtoint" if source.is_handle else "inttoptr", value, source, target)
        if source.bits == target.bits:
            return value
        narrower = target.bits < source.bits
        return self._cast("trunc" if narrower else "sext" if source.is_int else "zext", value, source, target)

    def _cast(self, how: str, value: str, source: DType, target: DType) -> str:
        return self.text.pure(f"{how} {register_type(source)} {value} to {register_type(target)}")

    def _to_bool(self, value: str, source: DType) -> str:
        if source.is_float:
            through = compute_type(source)
            value = self.convert(value, source, through)
            return self.text.pure(f"fcmp une {register_type(through)} {value}, {self._floats(through, 0.0)}")
        zero = constant(source, 0) if source.lanes == 1 else "zeroinitializer"
        return self.text.pure(f"icmp ne {register_type(source)} {value}, {zero}")

    def _to_int(self, value: str, source: DType, target: DType) -> str:
        value, source = self.convert(value, source, compute_type(source)), compute_type(source)
        if target.bits < 32:  # values outside the narrow type wrap, as from int32
            through = dtype("int32").with_lanes(target.lanes)
            return self._cast("trunc", self._cast("fptosi", value, source, through), through, target)
        if target.element == "uint32":
            through = dtype("int64").with_lanes(target.lanes)
            return self._cast("trunc", self._cast("fptosi", value, source, through), through, target)
        if target.is_int:
            return self._cast("fptosi", value, source, target)
        negative = self.text.pure(f"fcmp olt {register_type(source)} {value}, {self._floats(source, 0.0)}")
        wrapped, whole = (self._cast(how, value, source, target) for how in ("fptosi", "fptoui"))
        flag, kind = register_type(dtype("bool").with_lanes(target.lanes)), register_type(target)
        return self.text.pure(f"select {flag} {negative}, {kind} {wrapped}, {kind} {whole}")

    def _float_to_float(self, value: str, source: DType, target: DType) -> str:
        if source.bits == 16 and self._is_soft(source):
            return self.convert(self._widen_16(value, source), compute_type(source), target)
        if target.bits == 16 and self._is_soft(target):
            through = compute_type(target)
            narrow = self._round_bfloat if target.code == "bfloat" else self._round_half
            return narrow(self.convert(value, source, through), through, target)
        if source.bits + target.bits == 80:  # float64 <-> float16: no instruction, LLVM would call a library
            through = dtype("float32").with_lanes(source.lanes)
            return self.convert(self.convert(value, source, through), through, target)
        return self._cast("fpext" if target.bits > source.bits else "fptrunc", value, source, target)

    def _is_soft(self, of: DType) -> bool:
        """Is this 16-bit float converted by integer arithmetic?"""
        return of.code == "bfloat" or not self.machine.half

    def _widen_16(self, value: str, source: DType) -> str:
        if source.code == "bfloat":
            return self._widen_bfloat(value, source)
        words, pure, target = self._words(source), self.text.pure, compute_type(source)
        kind, flag = register_type(words), self._flag(source)
        bits = self._half_bits(value, source)
        sign = pure(f"shl {kind} {pure(f'and {kind} {bits}, {self._ints(words, 0x8000)}')}, {self._ints(words, 16)}")
        size = pure(f"and {kind} {bits}, {self._ints(words, 0x7FFF)}")
        shifted = pure(f"shl {kind} {size}, {self._ints(words, 13)}")
        # The exponent biases differ by 112; the multiplication also normalises denormals.
        scale = self._floats(target, 2.0**112)
        scaled = pure(f"fmul {register_type(target)} {self._cast('bitcast', shifted, words, target)}, {scale}")
        special = pure(f"icmp uge {kind} {size}, {self._ints(words, 0x7C00)}")
        endless = pure(f"or {kind} {shifted}, {self._ints(words, 0x7F800000)}")
        finite = self._cast("bitcast", scaled, target, words)
        found = pure(f"select {flag} {special}, {kind} {endless}, {kind} {finite}")
        return self._cast("bitcast", pure(f"or {kind} {found}, {sign}"), words, target)

    def _half_bits(self, value: str, source: DType) -> str:
        words, shorts = self._words(source), dtype("uint16").with_lanes(source.lanes)
        return self._cast("zext", self._cast("bitcast", value, source, shorts), shorts, words)

    def _round_half(self, value: str, source: DType, target: DType) -> str:
        """Round to nearest, ties to even; overflow to infinity."""
        words, pure = self._words(source), self.text.pure
        kind, flag, floats = register_type(words), self._flag(source), register_type(source)

        def choose(condition: str, bound: int, then: str, otherwise: str) -> str:
            test = pure(f"icmp {condition} {kind} {size}, {self._ints(words, bound)}")
            return pure(f"select {flag} {test}, {kind} {then}, {kind} {otherwise}")

        bits = self._cast("bitcast", value, source, words)
        sign = pure(f"and {kind} {pure(f'lshr {kind} {bits}, {self._ints(words, 16)}')}, {self._ints(words, 0x8000)}")
        size = pure(f"and {kind} {bits}, {self._ints(words, 0x7FFFFFFF)}")
        last = pure(f"and {kind} {pure(f'lshr {kind} {size}, {self._ints(words, 13)}')}, {self._ints(words, 1)}")
        biased = pure(f"add {kind} {pure(f'add {kind} {size}, {last}')}, {self._ints(words, 0xFFF - (112 << 23))}")
        normal = pure(f"lshr {kind} {biased}, {self._ints(words, 13)}")
        # Denormals: adding 1/2 rounds at float16's last bit and leaves the result in the low bits.
        half = self._floats(source, 0.5)
        raised = pure(f"fadd {floats} {self._cast('bitcast', size, words, source)}, {half}")
        tiny = pure(f"sub {kind} {self._cast('bitcast', raised, source, words)}, {self._ints(words, 0x3F000000)}")
        found = choose("ult", 0x38800000, tiny, normal)
        found = choose("uge", 0x477FF000, self._ints(words, 0x7C00), found)
        found = choose("ugt", 0x7F800000, self._ints(words, 0x7E00), found)
        shorts = dtype("uint16").with_lanes(target.lanes)
        narrow = self._cast("trunc", pure(f"or {kind} {found}, {sign}"), words, shorts)
        return self._cast("bitcast", narrow, shorts, target)

    def _words(self, of: DType) -> DType:
        return dtype("int32").with_lanes(of.lanes)

    def _flag(self, of: DType) -> str:
        return register_type(dtype("bool").with_lanes(of.lanes))

    def _floats(self, of: DType, value: float) -> str:
        one = constant(of.element, value)
        return one if of.lanes == 1 else f"splat ({register_type(of.element)} {one})"

    def _widen_bfloat(self, value: str, source: DType) -> str:
        words, target = dtype("int32").with_lanes(source.lanes), compute_type(source)
        kind = register_type(words)
        wide = self.text.pure(f"zext {register_type(source)} {value} to {kind}")
        shifted = self.text.pure(f"shl {kind} {wide}, {self._ints(words, 16)}")
        return self._cast("bitcast", shifted, words, target)

    def _round_bfloat(self, value: str, source: DType, target: DType) -> str:
        """Round to nearest, ties to even, by integer arithmetic on the bits; NaN stays NaN."""
        words, pure = dtype("int32").with_lanes(source.lanes), self.text.pure
        kind, flag = register_type(words), register_type(dtype("bool").with_lanes(source.lanes))
        bits = self._cast("bitcast", value, source, words)
        upper = pure(f"lshr {kind} {bits}, {self._ints(words, 16)}")
        odd = pure(f"and {kind} {upper}, {self._ints(words, 1)}")
        bias = pure(f"add {kind} {odd}, {self._ints(words, 0x7FFF)}")
        biased = pure(f"add {kind} {bits}, {bias}")
        bad = pure(f"fcmp uno {register_type(source)} {value}, {value}")
        # All ones are a NaN. A select of another NaN would be applied after packing, with a packed mask.
        chosen = pure(f"or {kind} {biased}, {pure(f'sext {flag} {bad} to {kind}')}")
        rounded = pure(f"lshr {kind} {chosen}, {self._ints(words, 16)}")
        return pure(f"trunc {kind} {rounded} to {register_type(target)}")

    def _ints(self, of: DType, value: int) -> str:
        return str(value) if of.lanes == 1 else f"splat ({register_type(of.element)} {value})"
