"""Lowering of narrow types, those of up to 8 bits (float8, float4, int4, int2), to uint8 and bit arithmetic.

No supported processor computes in them, so every code generator for hardware runs this pass: memory and variables hold
a value's bits in the low bits of a uint8, conversions are written out, and arithmetic happens in float32 or int32 and
is rounded back after each step. Conversions follow `ml_dtypes` (as the interpreter does): to nearest, ties to even;
past the largest value to infinity or, without one, to NaN (float4: to the largest value); integers wrap. A float64 is
rounded once, to 16-bit floats as well.

Formats: OCP *8-bit Floating Point*, OCP *Microscaling Formats*, ONNX *Float stored in 8 bits* (the "fnuz" ones).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from relayc.te.dtype import FLOAT32, INT32, DType, dtype
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.analysis import contents_of
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import Binary, BufferLoad, Call, Cast, Compare, FloatImm, IntImm, Let, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, LetStmt
from relayc.te.tir.values import numpy_dtype

__all__ = ["LowerNarrowTypes", "decode", "encode", "is_narrow", "lower_narrow_types"]

_BYTE = dtype("uint8")
_MAGNITUDE, _INFINITY, _NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # of float32
_MOVES = frozenset({"if_then_else", "likely"})


@dataclass(frozen=True, slots=True)
class _Format:
    """A small float: exponent and mantissa bits, bias, the code of its largest value, and those past it.

    `overflow` and `nan` are codes without sign. "fnuz" formats have no -0: that code is their only NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    fnuz: bool = False

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa


_FORMATS: dict[str, _Format] = {
    "float8_e4m3fn": _Format(4, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": _Format(4, 3, 8, 0x7F, 0x80, 0x80, fnuz=True),
    "float8_e5m2": _Format(5, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": _Format(5, 2, 16, 0x7F, 0x80, 0x80, fnuz=True),
    "float4_e2m1fn": _Format(2, 1, 1, 0x7, 0x7, 0x8),
}


@cache
def is_narrow(of: DType) -> bool:
    """Is this one of the types that the pass lowers?"""
    return (of.is_float and of.bits <= 8) or (of.is_integral and of.bits < 8)


def decode(of: DType, code: PrimExpr) -> PrimExpr:
    """The value of the uint8 `code` of the narrow type `of`: float32, or int8 and uint8 for integers."""
    if of.is_uint:
        return code
    if of.is_int:
        byte = dtype("int8").with_lanes(of.lanes)
        unused = ops.make_const(byte, 8 - of.bits)
        return ops.right_shift(ops.left_shift(_reinterpret(byte, code), unused), unused)
    return _let(ops.cast(_words(of), code), lambda bits: _decode_float(of, bits))


def _decode_float(of: DType, code: PrimExpr) -> PrimExpr:
    """float32 of the int32 `code`. Small floats are scaled by multiplication, which handles denormals, too."""
    if of.element == "float8_e8m0fnu":
        value = ops.select(code == 0, ops.make_const(code.dtype, 1 << 22), code << 23)
        return _float(ops.select(code == 255, ops.make_const(code.dtype, _NAN), value))
    form = _FORMATS[of.element]
    sign_at = form.width - 1
    sign = (code & (1 << sign_at)) << (31 - sign_at)
    size = code & ((1 << sign_at) - 1)
    shifted = size << (23 - form.mantissa)
    scaled = _bits(ops.mul(_float(shifted), ops.make_const(FLOAT32.with_lanes(of.lanes), 2.0 ** (127 - form.bias))))
    if form.fnuz:
        scaled = ops.select(code == form.nan, ops.make_const(code.dtype, _NAN), scaled)
    elif of.element == "float8_e4m3fn":
        scaled = ops.select(size == form.nan, ops.make_const(code.dtype, _NAN), scaled)
    elif of.element == "float8_e5m2":
        scaled = ops.select(size > form.largest, shifted | _INFINITY, scaled)
    return _float(scaled | sign)


def encode(of: DType, value: PrimExpr) -> PrimExpr:
    """`value`, of any type, as uint8 that encodes the narrow type `of`."""
    bytes_ = _BYTE.with_lanes(of.lanes)
    if of.is_integral:
        whole = ops.cast(INT32.with_lanes(of.lanes), value) if value.dtype.is_float else value
        return ops.bitwise_and(ops.cast(bytes_, whole), ops.make_const(bytes_, (1 << of.bits) - 1))
    single = _round_to_odd(value) if value.dtype.element == "float64" else ops.cast(FLOAT32.with_lanes(of.lanes), value)
    make = _encode_e8m0 if of.element == "float8_e8m0fnu" else _encode_float
    return _let(_bits(single), lambda bits: ops.cast(bytes_, make(of, bits)))


def _encode_e8m0(of: DType, bits: PrimExpr) -> PrimExpr:
    """The exponent of the nearest power of two, ties up; NaN for values that are not positive or too large."""
    half = 1 << 22  # of the last place of an exponent; as float32, the smallest power, 2^-127
    code = ops.select(bits <= half, ops.make_const(bits.dtype, 0), (bits + half) >> 23)
    is_number = ops.all(bits > 0, bits < _INFINITY - half)
    return ops.select(is_number, code, ops.make_const(bits.dtype, 255))


def _encode_float(of: DType, bits: PrimExpr) -> PrimExpr:
    form, words = _FORMATS[of.element], bits.dtype
    sign = (bits >> (32 - form.width)) & (1 << (form.width - 1))
    return _let(bits & _MAGNITUDE, lambda size: _encode_size(form, words, size, sign))


def _encode_size(form: _Format, words: DType, size: PrimExpr, sign: PrimExpr) -> PrimExpr:
    dropped = 23 - form.mantissa
    odd = (size >> dropped) & 1
    normal = ((size + odd + ((1 << (dropped - 1)) - 1)) >> dropped) - ((127 - form.bias) << form.mantissa)
    # Denormals: adding a number whose last bit is the smallest denormal rounds there and leaves the code at the bottom.
    raiser = 2.0 ** (24 - form.bias - form.mantissa)
    raised = ops.add(_float(size), ops.make_const(FLOAT32.with_lanes(words.lanes), raiser))
    tiny = _bits(raised) - ((127 + 24 - form.bias - form.mantissa) << 23)

    def finished(code: PrimExpr) -> PrimExpr:
        past = ops.select(code > form.largest, ops.make_const(words, form.overflow), code)
        found = ops.select(size > _INFINITY, ops.make_const(words, form.nan), past)
        if form.fnuz:  # neither zero nor NaN has a sign
            return ops.select((found & 0x7F) == 0, found, found | sign)
        return ops.bitwise_xor(found, sign)  # as ml_dtypes has it, a NaN becomes -0 of float4, and a negative one 0

    smallest_normal = (128 - form.bias) << 23
    return _let(ops.select(size < smallest_normal, tiny, normal), finished)


def _round_to_odd(value: PrimExpr) -> PrimExpr:
    """float64 to float32 rounded to odd, so that a second rounding is correct: inexact results end in a 1 bit.

    (Boldo, Melquiond, *Emulation of FMA and correctly rounded sums*.)
    """
    lanes = value.dtype.lanes
    single = ops.cast(FLOAT32.with_lanes(lanes), value)

    def settled(bits: PrimExpr) -> PrimExpr:
        back = ops.cast(value.dtype, _float(bits))
        sizes = [Call(value.dtype, "fabs", (x,)) for x in (back, value)]
        one = ops.make_const(bits.dtype, 1)
        step = ops.select(sizes[0] < sizes[1], one, ops.neg(one))
        fix = ops.all(ops.not_equal(back, value), ops.equal(bits & 1, 0))
        return _float(ops.select(fix, bits + step, bits))

    return _let(_bits(single), settled)


def _words(of: DType) -> DType:
    return INT32.with_lanes(of.lanes)


def _reinterpret(to: DType, value: PrimExpr) -> PrimExpr:
    return value if value.dtype == to else Call(to, "reinterpret", (value,))


def _bits(value: PrimExpr) -> PrimExpr:
    return _reinterpret(_words(value.dtype), value)


def _float(bits: PrimExpr) -> PrimExpr:
    return _reinterpret(FLOAT32.with_lanes(bits.dtype.lanes), bits)


def _let(value: PrimExpr, body: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    """`body(value)`, with the value bound to a variable."""
    var = Var("bits", value.dtype)
    return Let(var, value, body(var))


class _Lowering(Mutator):
    """Rewrites a function. Expressions of a narrow type come out as uint8."""

    def __init__(self) -> None:
        self.buffers: dict[Buffer, Buffer] = {}
        self.vars: dict[Var, Var] = {}

    def buffer(self, old: Buffer) -> Buffer:
        """The uint8 buffer that `old` becomes; `old` itself when its type is not narrow."""
        if not is_narrow(old.dtype):
            return old
        return self.buffers.setdefault(old, old.with_(dtype=_BYTE))

    def _wide(self, expr: PrimExpr) -> PrimExpr:
        """The rewritten `expr` in the type that arithmetic on it happens in."""
        new = self.visit(expr)
        if not is_narrow(expr.dtype):
            return new
        value = decode(expr.dtype, new)
        return value if expr.dtype.is_float else ops.cast(INT32.with_lanes(expr.dtype.lanes), value)

    def visit_Cast(self, node: Cast) -> PrimExpr:
        source, target = node.value.dtype, node.dtype
        value = self._wide(node.value)
        if source.element == "float64" and target.is_float and target.bits == 16:
            value = _round_to_odd(value)  # processors go by way of float32, too
        if is_narrow(target):
            return encode(target, value)
        return node if value is node.value else ops.cast(target, value)

    def visit_FloatImm(self, node: FloatImm) -> PrimExpr:
        if not is_narrow(node.dtype):
            return node
        return IntImm(_BYTE, int(numpy_dtype(node.dtype).type(node.value).view("uint8")))

    def visit_IntImm(self, node: IntImm) -> PrimExpr:
        return IntImm(_BYTE, node.value & ((1 << node.dtype.bits) - 1)) if is_narrow(node.dtype) else node

    def visit_Binary(self, node: Binary) -> PrimExpr:
        if not is_narrow(node.dtype):
            return node.rebuild(self.visit)
        return encode(node.dtype, node.__class__(self._wide(node.a), self._wide(node.b)))

    def visit_Compare(self, node: Compare) -> PrimExpr:
        if not is_narrow(node.a.dtype):
            return node.rebuild(self.visit)
        return node.__class__(self._wide(node.a), self._wide(node.b))

    def visit_Call(self, node: Call) -> PrimExpr:
        narrow = [is_narrow(a.dtype) for a in node.args]
        if not is_narrow(node.dtype) and not any(narrow):
            return node.rebuild(self.visit)
        kind = _BYTE.with_lanes(node.dtype.lanes) if is_narrow(node.dtype) else node.dtype
        if node.op == "reinterpret":
            return _reinterpret(kind, _reinterpret(_BYTE.with_lanes(kind.lanes), self.visit(node.args[0])))
        if node.op in _MOVES or INTRINSICS[node.op].reference is None:
            return Call(kind, node.op, tuple([self.visit(a) for a in node.args]), span=node.span)
        args = tuple([self._wide(a) for a in node.args])
        if not is_narrow(node.dtype):
            return Call(node.dtype, node.op, args, span=node.span)
        return encode(node.dtype, Call(args[0].dtype, node.op, args, span=node.span))

    def visit_Var(self, node: Var) -> PrimExpr:
        if not is_narrow(node.dtype):
            return node
        return self.vars.setdefault(node, node.__class__(node.name, _BYTE.with_lanes(node.dtype.lanes)))

    def visit_Let(self, node: Let) -> PrimExpr:
        new = node.rebuild(self.visit)
        return Let(self.visit(node.var), new.value, new.body, span=node.span) if is_narrow(node.var.dtype) else new

    def visit_LetStmt(self, node: LetStmt) -> LetStmt:
        new = node.rebuild(self.visit)
        return LetStmt(self.visit(node.var), new.value, new.body, span=node.span) if is_narrow(node.var.dtype) else new

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        new = node.rebuild(self.visit)
        buffer = self.buffer(node.buffer)
        return new if buffer is node.buffer else BufferLoad(buffer, new.indices, new.predicate, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        new = node.rebuild(self.visit)
        buffer = self.buffer(node.buffer)
        if buffer is node.buffer:
            return new
        return BufferStore(buffer, new.value, new.indices, new.predicate, span=node.span)

    def visit_Allocate(self, node: Allocate) -> Allocate:
        new = node.rebuild(self.visit)
        buffer = self.buffer(node.buffer)
        return new if buffer is node.buffer else Allocate(buffer, new.body, span=node.span)

    def visit_AttrStmt(self, node: AttrStmt) -> AttrStmt:
        new = node.rebuild(self.visit)
        return new.replace(subject=self.buffer(node.subject)) if isinstance(node.subject, Buffer) else new


def lower_narrow_types(func: PrimFunc) -> PrimFunc:
    """The function on uint8 wherever it had values of a narrow type: see `LowerNarrowTypes`."""
    arguments = [argument.dtype for argument in (*func.params, *func.buffer_map.values())]
    if not any(is_narrow(of) or of.element == "float64" for of in (*arguments, *contents_of(func.body).dtypes)):
        return func
    lowering = _Lowering()
    body = lowering.visit(func.body)
    buffers = {var: lowering.buffer(buffer) for var, buffer in func.buffer_map.items()}
    params = tuple([lowering.visit(p) for p in func.params])
    same = params == func.params and all(buffers[var] is buffer for var, buffer in func.buffer_map.items())
    return func.with_body(body) if same else func.replace(params=params, buffer_map=buffers, body=body)


class LowerNarrowTypes(FunctionPass):
    """Values of float8, float4 and sub-byte integers become bytes, operations on them bit arithmetic.

    Buffers of these types become buffers of uint8, parameters included: a code generator runs this after the function
    that checks arguments has been made. (TVM: `FP8StorageLegalize`, `FP8ComputeLegalize`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return lower_narrow_types(func)
