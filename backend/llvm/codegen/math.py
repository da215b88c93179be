"""Mathematical functions: LLVM's intrinsics, the C library's functions, and instructions of processors."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.convert import computed, rounded
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic, available, legalized
from relayc.backend.llvm.codegen.vectors import call_overloaded, extract_lane, pack_lanes
from relayc.backend.llvm.types import compute_type, constant, register_type, suffix
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Call, Cast

__all__ = [
    "CONTRACTED",
    "C_FUNCTIONS",
    "INSTRUCTIONS",
    "LLVM_FUNCTIONS",
    "emit_c_math",
    "emit_contracted",
    "emit_fast_reciprocal",
    "emit_fast_rsqrt",
    "emit_fma",
    "emit_fmod",
    "emit_fraction",
    "emit_isfinite",
    "emit_isinf",
    "emit_isnan",
    "emit_llvm_math",
    "emit_round_to_int32",
    "emit_rsqrt",
    "emit_rsqrt_estimate",
    "emit_scale_by_power",
]  # fmt: skip

LLVM_FUNCTIONS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "fabs": "fabs",
    # Library functions, for what the legalisation pass leaves: scalar calls, as accurate as the C library's.
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "pow": "pow", "atan2": "atan2",
}  # fmt: skip
"""Intrinsic -> LLVM's intrinsic, for floats and vectors of floats."""
C_FUNCTIONS = ("expm1", "log1p", "asinh", "acosh", "atanh", "erf")
"""Intrinsics that are functions of the C library, for float64; those for float32 end in "f"."""
CONTRACTED = {
    "add_product": (True, False, False), "subtract_product": (True, True, False),
    "product_add": (False, False, False), "product_subtract": (False, False, True),
}  # fmt: skip
"""Contracted operation -> (is the term the first operand, is the product negated, is the term negated)."""
_ROUNDINGS, _HALF_ARITHMETIC = ("floor", "ceil", "trunc", "round"), ("avx512fp16", "fullfp16")
"""Roundings of a float16 in float32 whose result is exact in float16: LLVM would round again, lane by lane on
processors without float16 arithmetic. An arithmetic fence prevents that at no cost."""


def emit_llvm_math(e: Emitter, call: Call) -> str:
    """A function that LLVM has an intrinsic for; 16-bit floats are computed in float32."""
    operands = [computed(e, a) for a in call.args]
    of = compute_type(call.dtype)
    halves = isinstance(call.args[0], Cast) and call.args[0].value.dtype.bits == 16
    if call.op in _ROUNDINGS and halves and e.machine.features.isdisjoint(_HALF_ARITHMETIC):
        operands = [call_overloaded(e.text, "arithmetic.fence", of, x) for x in operands]
    return rounded(e, call_overloaded(e.text, LLVM_FUNCTIONS[call.op], of, *operands), call.dtype)


def emit_c_math(e: Emitter, call: Call) -> str:
    """Call a C library function, lane by lane."""
    of = compute_type(call.dtype)
    operands = [computed(e, a) for a in call.args]
    element = of.element
    name, kind = call.op + ("f" if element.bits == 32 else ""), register_type(element)
    e.text.module.declare(name, kind, ", ".join([kind] * len(operands)))
    results = []
    for i in range(of.lanes):
        lane = ", ".join([f"{kind} {extract_lane(e.text, x, of, i)}" for x in operands])
        results.append(e.text.pure(f"call {kind} @{name}({lane})"))
    return rounded(e, results[0] if of.lanes == 1 else pack_lanes(e.text, results, of), call.dtype)


def emit_rsqrt(e: Emitter, call: Call) -> str:
    """1 / sqrt(x), rounded twice."""
    of = compute_type(call.dtype)
    root = call_overloaded(e.text, "sqrt", of, computed(e, call.args[0]))
    one = constant(of, 1.0)
    return rounded(e, e.text.pure(f"fdiv {register_type(of)} {one}, {root}"), call.dtype)


def emit_fast_rsqrt(e: Emitter, call: Call) -> str:
    """A reciprocal square root whose flags let LLVM use the processor's estimate and a Newton step, where it has
    one."""
    of, flags = compute_type(call.dtype), "nsz arcp contract afn reassoc "
    root = call_overloaded(e.text, "sqrt", of, computed(e, call.args[0]), flags=flags)
    one = constant(of, 1.0)
    return rounded(e, e.text.pure(f"fdiv {flags}{register_type(of)} {one}, {root}"), call.dtype)


def emit_fast_reciprocal(e: Emitter, call: Call) -> str:
    """An estimate without refinement where the processor has one; elsewhere a division."""
    of, value = compute_type(call.dtype), computed(e, call.args[0])
    found = _by_registers(e, _RECIPROCAL, of, [value])
    if found is None:
        found = e.text.pure(f"fdiv {register_type(of)} {constant(of, 1.0)}, {value}")
    return rounded(e, found, call.dtype)


def emit_fraction(e: Emitter, call: Call) -> str:
    """The fraction of a float; this and the next two functions only where the processor has an instruction."""
    return _required(e, _FRACTION, call)


def emit_rsqrt_estimate(e: Emitter, call: Call) -> str:
    """An estimate of the reciprocal square root of float64."""
    return _required(e, _RSQRT, call)


def emit_scale_by_power(e: Emitter, call: Call) -> str:
    """A float times a power of two."""
    return _required(e, _SCALE, call)


def _required(e: Emitter, rows: tuple[Instruction, ...], call: Call) -> str:
    found = _by_registers(e, rows, call.dtype, [e.value(a) for a in call.args])
    if found is None:
        raise CompileError(f"no instruction is {call.op!r} of {call.dtype} on this processor: {call}")
    return found


def _by_registers(e: Emitter, rows: tuple[Instruction, ...], of: DType, values: Sequence[str]) -> str | None:
    """An operator of floats, by an instruction for each register; None where there is none or registers are not full.
    """
    found = available(tuple([row for row in rows if of.element == row.element]), e.machine)
    if not found or of.lanes % min(found):
        return None
    return legalized(e.text, found, of.lanes, values, register_type(of.element))


def emit_fma(e: Emitter, call: Call) -> str:
    """a * b + c, rounded once where the processor fuses them."""
    of = compute_type(call.dtype)
    a, b, c = (computed(e, x) for x in call.args)
    if e.machine.fma:
        return rounded(e, call_overloaded(e.text, "fma", of, a, b, c, flags=e.machine.fast), call.dtype)
    kind = register_type(of)
    product = e.text.pure(f"fmul {e.machine.fast}{kind} {a}, {b}")
    return rounded(e, e.text.pure(f"fadd {e.machine.fast}{kind} {product}, {c}"), call.dtype)


def emit_contracted(e: Emitter, call: Call) -> str:
    """A product and a sum or difference, rounded once."""
    (x, y, z), (first, negates_product, negates_other) = call.args, CONTRACTED[call.op]
    a, b, other = (y, z, x) if first else (x, y, z)
    kind, text = register_type(call.dtype), e.text
    values = [e.value(a), e.value(b), e.value(other)]
    if negates_product:
        values[0] = text.pure(f"fneg {kind} {values[0]}")
    if negates_other:
        values[2] = text.pure(f"fneg {kind} {values[2]}")
    return call_overloaded(text, "fma", call.dtype, *values, flags=e.machine.fast)


def emit_round_to_int32(e: Emitter, call: Call) -> str:
    """The nearest integer, ties to even."""
    value, source, target = e.value(call.args[0]), call.args[0].dtype, call.dtype
    name = f"llvm.lrint.{suffix(target)}.{suffix(source)}"
    e.text.module.declare(name, register_type(target), register_type(source))
    return e.text.pure(f"call {register_type(target)} @{name}({register_type(source)} {value})")


def emit_fmod(e: Emitter, call: Call) -> str:
    """The remainder of a division rounded to zero, with the sign of the dividend."""
    of = compute_type(call.dtype)
    a, b = computed(e, call.args[0]), computed(e, call.args[1])
    return rounded(e, e.text.pure(f"frem {register_type(of)} {a}, {b}"), call.dtype)


def emit_isnan(e: Emitter, call: Call) -> str:
    """Is a float not a number?"""
    x, of = computed(e, call.args[0]), compute_type(call.args[0].dtype)
    return e.text.pure(f"fcmp uno {register_type(of)} {x}, {x}")


def emit_isinf(e: Emitter, call: Call) -> str:
    """Is a float one of the infinities?"""
    return _compare_magnitude(e, call, "oeq")


def emit_isfinite(e: Emitter, call: Call) -> str:
    """Is a float neither infinite nor NaN?"""
    return _compare_magnitude(e, call, "olt")


def _compare_magnitude(e: Emitter, call: Call, predicate: str) -> str:
    x, of = computed(e, call.args[0]), compute_type(call.args[0].dtype)
    size = call_overloaded(e.text, "fabs", of, x)
    return e.text.pure(f"fcmp {predicate} {register_type(of)} {size}, {constant(of, float('inf'))}")


def _call(text: FunctionText, row: Instruction, *values: str) -> str:
    return row.intrinsics[0].call(text, *values)


def _avx512(
    operator: str, feature: str, name: str, element: str, operands: int, before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Instruction:  # fmt: skip
    """The row of an instruction of 16 float32 or 8 float64, whose LLVM intrinsic has constants `before` and `after` its
    pass-through value and mask, which selects all lanes."""
    of, suffix, mask = ("<16 x float>", "ps", "i16 -1") if element == "float32" else ("<8 x double>", "pd", "i8 -1")
    constants = (*before, f"{of} zeroinitializer", mask, *after)
    intrinsic = LLVMIntrinsic(f"x86.avx512.{name}.{suffix}.512", of, (of,) * operands, constants)
    return Instruction(operator, element, 512 // dtype(element).bits, frozenset({feature}), _call, (intrinsic,))


_FLOOR_NO_EXCEPTIONS, _ROUNDING = ("i32 9",), ("i32 4",)
"""Immediate operands: round down with exceptions suppressed; and the current rounding mode."""
_RECIPROCAL = (_avx512("fast_reciprocal", "avx512f", "rcp14", "float32", 1),)
_FRACTION = (_avx512("fraction", "avx512dq", "mask.reduce", "float32", 1, _FLOOR_NO_EXCEPTIONS, _ROUNDING),)
_SCALE = tuple([
    _avx512("scale_by_power", "avx512dq", "mask.scalef", element, 2, after=_ROUNDING)
    for element in ("float32", "float64")
])  # fmt: skip
_RSQRT = (_avx512("rsqrt_estimate", "avx512f", "rsqrt14", "float64", 1),)
INSTRUCTIONS = (*_RECIPROCAL, *_FRACTION, *_SCALE, *_RSQRT)
"""Functions for which processors have instructions that LLVM does not select."""
