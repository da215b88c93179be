"""Intrinsics and calls: a table from the name of a `tir.Call` to the method that emits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from relayc.backend.llvm.codegen.amx import TileEmitter
from relayc.backend.llvm.codegen.dots import DotEmitter
from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.lookups import LookupEmitter
from relayc.backend.llvm.types import compute_type, constant, element_bytes, memory_type, register_type, suffix
from relayc.te.dtype import INT32, DType, dtype
from relayc.te.errors import CompileError
from relayc.te.ir import collect
from relayc.te.tir import LT, BufferLoad, Call, Cast, PrimExpr, StringImm, as_int

__all__ = ["CTX_CALL_PACKED", "CTX_FREE", "CTX_PARALLEL", "CTX_SHORTAGE", "CTX_WORKSPACE", "CallEmitter"]

CTX_PARALLEL, CTX_WORKSPACE, CTX_FREE, CTX_CALL_PACKED, CTX_SHORTAGE, CTX_DRAWS = 0, 16, 24, 32, 40, 48
"""Byte offsets of the function pointers in the execution context (see backend/runtime/context.py)."""

DLPACK_FIELDS: dict[str, tuple[int, str]] = {
    "data": (0, "handle"), "device_type": (8, "int32"), "device_id": (12, "int32"), "ndim": (16, "int32"),
    "type_code": (20, "uint8"), "type_bits": (21, "uint8"), "type_lanes": (22, "uint16"), "shape": (24, "handle"),
    "strides": (32, "handle"), "byte_offset": (40, "uint64"),
}  # fmt: skip
"""DLPack's DLTensor: byte offset and type of each field."""

_LLVM_UNARY = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "fabs": "fabs",
    # Library functions, for what the legalisation pass leaves: scalar calls, as accurate as the C library's.
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
}  # fmt: skip
_ROUNDINGS, _HALF_ARITHMETIC = ("floor", "ceil", "trunc", "round"), ("avx512fp16", "fullfp16")
"""Roundings of a float16 in float32 whose result is exact in float16: LLVM would round again, lane by lane on
processors without float16 arithmetic. An arithmetic fence prevents that at no cost."""
_LLVM_BINARY = {"pow": "pow", "atan2": "atan2"}
_C_UNARY = ("expm1", "log1p", "asinh", "acosh", "atanh", "erf")
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "shift_left": "shl"}
_REGISTER = 16
"""Lanes of float32 in an AVX-512 register."""
_ALL_LANES = (f"<{_REGISTER} x float> zeroinitializer", f"i{_REGISTER} -1")
"""Trailing operands of masked AVX-512 intrinsics: pass-through value and all-ones mask."""
_FLOOR_NO_EXCEPTIONS, _ROUNDING = "i32 9", "i32 4"
"""Immediate operands: round down with exceptions suppressed; and the current rounding mode."""
_REDUCTIONS = {"vector_reduce_add": "add", "vector_reduce_max": "max", "vector_reduce_min": "min"}


class CallEmitter(TileEmitter):
    """Emits `Call` expressions."""

    def visit_Call(self, call: Call) -> str:
        emit = _TABLE.get(call.op)
        if emit is None:
            raise CompileError(f"the llvm target does not know the intrinsic {call.op!r}: {call}")
        return emit(self, call)

    def emit_if_then_else(self, call: Call) -> str:
        condition = self.visit(call.args[0])
        if condition in ("true", "false", "splat (i1 true)"):
            return self.visit(call.args[2 if condition == "false" else 1])
        if call.args[0].dtype.lanes > 1:
            return self._choose_lanes(call, condition)
        if self.is_harmless(call.args[1]) and self.is_harmless(call.args[2]):
            kind = register_type(call.dtype)
            a, b = self.visit(call.args[1]), self.visit(call.args[2])
            return self.text.pure(f"select i1 {condition}, {kind} {a}, {kind} {b}")
        then, otherwise = (partial(self.visit, side) for side in call.args[1:])
        is_likely = isinstance(call.args[0], Call) and call.args[0].op == "likely"
        return self.one_of(condition, register_type(call.dtype), then, otherwise, likely=is_likely)

    def _choose_lanes(self, call: Call, condition: str) -> str:
        """A select in which both sides are evaluated, with memory accesses masked to the lanes that take the side."""
        lanes, outer, kind = call.dtype.lanes, self.mask, register_type(call.dtype)
        flag, pure = f"<{lanes} x i1>", self.text.pure
        values: list[str] = []
        for side, wanted in ((call.args[1], True), (call.args[2], False)):
            if self.is_harmless(side):
                values.append(self.visit(side))
                continue
            mask = condition if wanted else pure(f"xor {flag} {condition}, splat (i1 true)")
            if outer is not None and outer[1] == lanes:
                mask = pure(f"and {flag} {mask}, {outer[0]}")
            self.mask = (mask, lanes)
            values.append(self.visit(side))
            self.mask = outer
        return pure(f"select {flag} {condition}, {kind} {values[0]}, {kind} {values[1]}")

    # Math

    def emit_llvm_math(self, call: Call) -> str:
        name = _LLVM_UNARY.get(call.op) or _LLVM_BINARY[call.op]
        operands = [self.computed(a) for a in call.args]
        of = compute_type(call.dtype)
        halves = isinstance(call.args[0], Cast) and call.args[0].value.dtype.bits == 16
        if call.op in _ROUNDINGS and halves and self.machine.features.isdisjoint(_HALF_ARITHMETIC):
            operands = [self.intrinsic("arithmetic.fence", of, x) for x in operands]
        return self.rounded(self.intrinsic(name, of, *operands), call.dtype)

    def emit_c_math(self, call: Call) -> str:
        """Call a C library function, lane by lane."""
        of = compute_type(call.dtype)
        operands = [self.computed(a) for a in call.args]
        element = of.element
        name, kind = call.op + ("f" if element.bits == 32 else ""), register_type(element)
        self.text.module.declare(name, kind, ", ".join([kind] * len(operands)))
        results = []
        for i in range(of.lanes):
            lane = ", ".join([f"{kind} {self.lane(x, of, i)}" for x in operands])
            results.append(self.text.pure(f"call {kind} @{name}({lane})"))
        return self.rounded(results[0] if of.lanes == 1 else self.pack(results, of), call.dtype)

    def emit_rsqrt(self, call: Call) -> str:
        of = compute_type(call.dtype)
        root = self.intrinsic("sqrt", of, self.computed(call.args[0]))
        one = self._constant(of, 1.0)
        return self.rounded(self.text.pure(f"fdiv {register_type(of)} {one}, {root}"), call.dtype)

    def emit_fast_rsqrt(self, call: Call) -> str:
        """A reciprocal square root whose flags let LLVM use the processor's estimate and a Newton step, where it has
        one."""
        of, flags = compute_type(call.dtype), "nsz arcp contract afn reassoc "
        root = self.intrinsic("sqrt", of, self.computed(call.args[0]), flags=flags)
        one = self._constant(of, 1.0)
        return self.rounded(self.text.pure(f"fdiv {flags}{register_type(of)} {one}, {root}"), call.dtype)

    def emit_fast_reciprocal(self, call: Call) -> str:
        """AVX-512's reciprocal estimate without refinement; elsewhere a division."""
        of, value = compute_type(call.dtype), self.computed(call.args[0])
        if not self._fills_registers(of, "avx512f"):
            quotient = self.text.pure(f"fdiv {register_type(of)} {self._constant(of, 1.0)}, {value}")
            return self.rounded(quotient, call.dtype)
        return self.rounded(self._by_registers("rcp14.ps.512", of, [value], _ALL_LANES), call.dtype)

    def emit_fraction(self, call: Call) -> str:
        return self._by_scaling(call, "mask.reduce.ps.512", (_FLOOR_NO_EXCEPTIONS, *_ALL_LANES, _ROUNDING))

    def emit_scale_by_power(self, call: Call) -> str:
        return self._by_scaling(call, "mask.scalef.ps.512", (*_ALL_LANES, _ROUNDING))

    def _by_scaling(self, call: Call, name: str, constants: Sequence[str]) -> str:
        of = call.dtype
        if not self._fills_registers(of, "avx512dq"):
            raise CompileError(f"no instruction is {call.op!r} of {of} on this processor: {call}")
        return self._by_registers(name, of, [self.visit(a) for a in call.args], constants)

    def _fills_registers(self, of: DType, feature: str) -> bool:
        """Does the type fill whole AVX-512 registers of float32, on a processor with the feature?"""
        return of.element == "float32" and of.lanes % _REGISTER == 0 and feature in self.machine.features

    def _by_registers(self, name: str, of: DType, values: Sequence[str], constants: Sequence[str]) -> str:
        """Call an AVX-512 intrinsic with values and trailing constants for each register of float32."""
        name, kind = f"llvm.x86.avx512.{name}", f"<{_REGISTER} x float>"
        types = [kind] * len(values) + [constant.rsplit(" ", 1)[0] for constant in constants]
        self.text.module.declare(name, kind, ", ".join(types))

        def instruction(_: int, *parts: str) -> str:
            operands = ", ".join([*[f"{kind} {x}" for x in parts], *constants])
            return self.text.pure(f"call {kind} @{name}({operands})")

        return self.legalize(of.lanes, (_REGISTER,), values, instruction, "float")

    def emit_fma(self, call: Call) -> str:
        of = compute_type(call.dtype)
        a, b, c = (self.computed(x) for x in call.args)
        if self.machine.fma:
            return self.rounded(self.fused(of, a, b, c), call.dtype)
        kind = register_type(of)
        product = self.text.pure(f"fmul {self.fast}{kind} {a}, {b}")
        return self.rounded(self.text.pure(f"fadd {self.fast}{kind} {product}, {c}"), call.dtype)

    def emit_fmod(self, call: Call) -> str:
        of = compute_type(call.dtype)
        a, b = self.computed(call.args[0]), self.computed(call.args[1])
        return self.rounded(self.text.pure(f"frem {register_type(of)} {a}, {b}"), call.dtype)

    def emit_isnan(self, call: Call) -> str:
        x, of = self.computed(call.args[0]), compute_type(call.args[0].dtype)
        return self.text.pure(f"fcmp uno {register_type(of)} {x}, {x}")

    def emit_isinf(self, call: Call) -> str:
        return self._compare_magnitude(call, "oeq")

    def emit_isfinite(self, call: Call) -> str:
        return self._compare_magnitude(call, "olt")

    def _compare_magnitude(self, call: Call, predicate: str) -> str:
        x, of = self.computed(call.args[0]), compute_type(call.args[0].dtype)
        size = self.intrinsic("fabs", of, x)
        return self.text.pure(f"fcmp {predicate} {register_type(of)} {size}, {self._constant(of, float('inf'))}")

    def _constant(self, of: DType, value: float) -> str:
        return self.splat(constant(of.element, value), of) if of.lanes > 1 else constant(of, value)

    # Bits

    def emit_bitwise(self, call: Call) -> str:
        kind = register_type(call.dtype)
        a, b = self.visit(call.args[0]), self.visit(call.args[1])
        return self.text.pure(f"{_BITWISE[call.op]} {kind} {a}, {b}")

    def emit_shift_right(self, call: Call) -> str:
        name, kind = "ashr" if call.dtype.is_int else "lshr", register_type(call.dtype)
        return self.text.pure(f"{name} {kind} {self.visit(call.args[0])}, {self.visit(call.args[1])}")

    def emit_bitwise_not(self, call: Call) -> str:
        ones = self._constant(call.dtype, -1) if not call.dtype.is_bool else self._constant(call.dtype, 1)
        return self.text.pure(f"xor {register_type(call.dtype)} {self.visit(call.args[0])}, {ones}")

    def emit_popcount(self, call: Call) -> str:
        of = call.args[0].dtype
        return self.convert(self.intrinsic("ctpop", of, self.visit(call.args[0])), of, call.dtype)

    def emit_clz(self, call: Call) -> str:
        of = call.args[0].dtype
        kind, name = register_type(of), f"llvm.ctlz.{suffix(of)}"
        self.text.module.declare(name, kind, f"{kind}, i1 immarg")
        return self.convert(
            self.text.pure(f"call {kind} @{name}({kind} {self.visit(call.args[0])}, i1 false)"), of, call.dtype
        )

    def emit_reinterpret(self, call: Call) -> str:
        value, source, target = self.visit(call.args[0]), register_type(call.args[0].dtype), register_type(call.dtype)
        if source == target:
            return value
        if "ptr" in (source, target):
            return self.text.pure(f"{'ptrtoint' if source == 'ptr' else 'inttoptr'} {source} {value} to {target}")
        return self.text.pure(f"bitcast {source} {value} to {target}")

    def emit_vector_reduce(self, call: Call) -> str:
        of, operation = call.args[0].dtype, _REDUCTIONS[call.op]
        if of.lanes == 1:
            return self.visit(call.args[0])
        through = compute_type(of)
        value = self.computed(call.args[0])
        if through.is_float and operation != "add":
            return self.rounded(self._reduce_floats(value, through, operation), of.element)
        kind, element = register_type(through), register_type(through.element)
        start = f"{element} {constant(through.element, -0.0)}, " if through.is_float else ""
        sign = "" if operation == "add" else "s" if of.is_int else "u"
        name = f"llvm.vector.reduce.{'f' if through.is_float else sign}{operation}.{suffix(through)}"
        self.text.module.declare(name, element, f"{element}, {kind}" if start else kind)
        flags = "reassoc " if through.is_float else ""
        return self.rounded(
            self.text.pure(f"call {flags}{element} @{name}({start}{kind} {value})"), of.element
        )

    def _reduce_floats(self, value: str, of: DType, operation: str) -> str:
        """The extreme lane by tree reduction; a NaN in any lane is the result."""
        ordered = "ogt" if operation == "max" else "olt"
        while of.lanes > 1:
            half = of.lanes // 2
            part = of.element.with_lanes(half)
            low = self._slice(value, of, 0, half)
            high = self._slice(value, of, half, half)
            merged = self.float_extremum(part, ordered, low, high, False)
            if of.lanes % 2:
                rest = self.lane(value, of, of.lanes - 1)
                first = self.float_extremum(of.element, ordered, self.lane(merged, part, 0), rest, False)
                kind = register_type(part)
                merged = first if half == 1 else self.text.pure(
                    f"insertelement {kind} {merged}, {register_type(of.element)} {first}, i64 0"
                )  # fmt: skip
            value, of = merged, part
        return value

    def _slice(self, value: str, of: DType, start: int, count: int) -> str:
        if count == 1:
            return self.lane(value, of, start)
        return self.part(value, register_type(of.element), of.lanes, start, count)

    # Memory and addresses

    def emit_address_of(self, call: Call) -> str:
        load = call.args[0]
        if not isinstance(load, BufferLoad):
            raise CompileError(f"address_of takes an element of a buffer, not {load}")
        return self.address(load.buffer, self.locate(load.buffer, load.indices))

    def emit_handle_add_byte_offset(self, call: Call) -> str:
        return self.byte_offset(self.visit(call.args[0]), self.operand(self.index(call.args[1])))

    def byte_offset(self, pointer: str, offset: str | int) -> str:
        """A pointer offset by bytes."""
        return pointer if offset in ("0", 0) else self.text.pure(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def emit_load_at(self, call: Call) -> str:
        address = self.byte_offset(self.visit(call.args[0]), self.operand(self.index(call.args[1])))
        align = element_bytes(call.dtype)
        value = self.text.value(f"load {memory_type(call.dtype)}, ptr {address}, align {align}")
        return self.from_memory(value, call.dtype)

    def emit_store_at(self, call: Call) -> str:
        of, value = call.args[2].dtype, self.visit(call.args[2])
        address = self.byte_offset(self.visit(call.args[0]), self.operand(self.index(call.args[1])))
        self.text.effect(f"store {register_type(of)} {value}, ptr {address}, align {element_bytes(of)}")
        return "0"

    def emit_copy_bytes(self, call: Call) -> str:
        self.text.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1 immarg")
        to, source = self.visit(call.args[0]), self.visit(call.args[1])
        count = self.operand(self.index(call.args[2]))
        self.text.effect(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {count}, i1 false)")
        return "0"

    def emit_dlpack_field(self, call: Call) -> str:
        offset, dtype_name = DLPACK_FIELDS[_string(call.args[1], call)]
        stored = dtype(dtype_name)
        address = self.byte_offset(self.visit(call.args[0]), offset)
        value = self.text.value(f"load {memory_type(stored)}, ptr {address}, align {element_bytes(stored)}")
        return self.convert(value, stored, call.dtype)

    def emit_prefetch(self, call: Call) -> str:
        if any(load.buffer.data in self.streamed for load in collect(call.args[0], BufferLoad)):
            return "0"
        address = self.visit(call.args[0])
        locality, write = (as_int(a) for a in call.args[1:])
        self.text.module.declare("llvm.prefetch.p0", "void", "ptr, i32 immarg, i32 immarg, i32 immarg")
        self.text.effect(f"call void @llvm.prefetch.p0(ptr {address}, i32 {write}, i32 {locality}, i32 1)")
        return "0"

    def emit_atomic_add(self, call: Call) -> str:
        return self._atomic(call, "fadd" if call.args[1].dtype.is_float else "add")

    def emit_atomic_max(self, call: Call) -> str:
        of = call.args[1].dtype
        return self._atomic(call, "fmax" if of.is_float else "max" if of.is_int else "umax")

    def _atomic(self, call: Call, operation: str) -> str:
        pointer, value, kind = self.visit(call.args[0]), self.visit(call.args[1]), register_type(call.args[1].dtype)
        return self.text.value(f"atomicrmw {operation} ptr {pointer}, {kind} {value} monotonic")

    def emit_likely(self, call: Call) -> str:
        test = call.args[0]
        highest = test.a if isinstance(test, LT) and test.a.dtype.is_integral else None
        if isinstance(highest, Call) and highest.op == "vector_reduce_max" and "sse2" in self.machine.features:
            assert isinstance(test, LT)
            return self._all_below(highest.args[0], test.b)
        return self.visit(test)

    def _all_below(self, values: PrimExpr, limit: PrimExpr) -> str:
        """Are all lanes of integers below a limit? Maxima of halves, then a comparison to a bit mask: half of the
        instructions of a full maximum reduction on x86."""
        value, of = self.visit(values), values.dtype
        while of.lanes % 2 == 0 and of.bits * of.lanes > self.machine.vector_bits:
            half = of.element.with_lanes(of.lanes // 2)
            low, high = self._slice(value, of, 0, half.lanes), self._slice(value, of, half.lanes, half.lanes)
            value, of = self.intrinsic("smax" if of.is_int else "umax", half, low, high), half
        bound = self.splat(self.visit(limit), of) if of.lanes > 1 else self.visit(limit)
        below = self.text.pure(f"icmp {'slt' if of.is_int else 'ult'} {register_type(of)} {value}, {bound}")
        if of.lanes == 1:
            return below
        word = self.text.pure(f"bitcast <{of.lanes} x i1> {below} to i{of.lanes}")
        return self.text.pure(f"icmp eq i{of.lanes} {word}, -1")

    def emit_assume(self, call: Call) -> str:
        self.text.module.declare("llvm.assume", "void", "i1")
        self.text.effect(f"call void @llvm.assume(i1 {self.visit(call.args[0])})")
        return "0"

    def emit_next_draw(self, call: Call) -> str:
        stream = as_int(call.args[0])
        assert stream is not None, "streams are constants"
        place = self.byte_offset("%ctx", CTX_DRAWS + 4 * stream)
        drawn = self.text.value(f"load i32, ptr {place}, align 4")
        after = self.text.pure(f"add i32 {drawn}, 1")
        self.text.effect(f"store i32 {after}, ptr {place}, align 4")
        return drawn

    # Calls of functions

    def emit_call_extern(self, call: Call) -> str:
        return self._call(call.dtype, _name(call), [self._typed(a) for a in call.args[1:]])

    def emit_call_kernel(self, call: Call) -> str:
        """Call a kernel. Kernels return nothing and can't fail: the call's value is 0."""
        self._call(dtype("void"), _name(call), [("ptr", "%ctx"), *[self._typed(a) for a in call.args[1:]]])
        return "0"

    def emit_call_step(self, call: Call) -> str:
        one = self.index(call.args[-1])
        self.call_range(call, one, self.sum(one, Index(None, 1, 0)))
        return "0"

    def may_exhaust(self, call: Call) -> bool:
        """May the kernel that is called run out of workspace? One of another module may."""
        return _name(call) not in self.text.module.finishing

    def call_range(self, call: Call, first: Index, last: Index) -> None:
        """Run the iterations [first, last) of the function that a "call_step" names."""
        kind = register_type(call.args[-1].dtype)
        bounds = [(kind, self.text.pure(f"trunc i64 {self.operand(b)} to {kind}")) for b in (first, last)]
        arguments = [self._typed(a) for a in call.args[1:-1]]
        self._call(dtype("void"), _name(call), [("ptr", "%ctx"), *arguments, *bounds])

    def _typed(self, expr: PrimExpr) -> tuple[str, str]:
        if isinstance(expr, StringImm):
            return "ptr", self.text.module.string(expr.value)
        return register_type(expr.dtype), self.visit(expr)

    def _call(self, of: DType, name: str, args: list[tuple[str, str]]) -> str:
        result = register_type(of)
        self.text.module.declare(name, result, ", ".join([kind for kind, _ in args]))
        line = f"call {result} @{name}({', '.join([f'{kind} {value}' for kind, value in args])})"
        if result == "void":
            self.text.effect(line)
            return "0"
        return self.text.value(line)

    def emit_call_packed(self, call: Call) -> str:
        """Emit `ctx->call_packed(ctx, name, args, type_codes, n)`: each argument in 8 bytes, with a type code each."""
        values, count = call.args[1:], len(call.args) - 1
        slots = self.text.alloca(f"[{max(count, 1)} x i64]", 8)
        codes = self.text.alloca(f"[{max(count, 1)} x i32]", 4)
        for i, value in enumerate(values):
            kind, operand, code = self._packed_argument(value)
            self.text.effect(f"store {kind} {operand}, ptr {self.byte_offset(slots, 8 * i)}, align 8")
            self.text.effect(f"store i32 {code}, ptr {self.byte_offset(codes, 4 * i)}, align 4")
        return self._call_python(call, slots, codes, str(count))

    def emit_call_packed_args(self, call: Call) -> str:
        """Call a packed function with the caller's argument arrays: (name, args, type_codes, count)."""
        slots, codes, count = (self.visit(a) for a in call.args[1:])
        return self._call_python(call, slots, codes, count)

    def _call_python(self, call: Call, slots: str, codes: str, count: str) -> str:
        target = self.text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_CALL_PACKED)}, align 8")
        name = self.text.module.string(_name(call))
        result = self.text.value(f"call i32 {target}(ptr %ctx, ptr {name}, ptr {slots}, ptr {codes}, i32 {count})")
        return self.convert(result, INT32, call.dtype) if call.dtype.is_integral else result

    def _packed_argument(self, value: PrimExpr) -> tuple[str, str, int]:
        of = value.dtype
        if isinstance(value, StringImm):
            return "ptr", self.text.module.string(value.value), TYPE_CODE_STRING
        if of.is_handle:
            return "ptr", self.visit(value), TYPE_CODE_HANDLE
        if of.is_float:
            return "double", self.convert(self.visit(value), of, dtype("float64")), TYPE_CODE_FLOAT
        return "i64", self.convert(self.visit(value), of, dtype("int64")), TYPE_CODE_INT


TYPE_CODE_INT, TYPE_CODE_FLOAT, TYPE_CODE_HANDLE, TYPE_CODE_STRING = 0, 2, 3, 11


def _name(call: Call) -> str:
    return _string(call.args[0], call)


def _string(expr: PrimExpr, call: Call) -> str:
    if not isinstance(expr, StringImm):
        raise CompileError(f"{call.op} takes a name here, not {expr}")
    return expr.value


_TABLE: dict[str, Callable[[CallEmitter, Call], str]] = {
    name.removeprefix("emit_"): emit
    for part in (DotEmitter, LookupEmitter, TileEmitter, CallEmitter)
    for name, emit in vars(part).items()
    if name.startswith("emit_")
}
_TABLE.update(dict.fromkeys((*_LLVM_UNARY, *_LLVM_BINARY), CallEmitter.emit_llvm_math))
_TABLE.update(dict.fromkeys(_C_UNARY, CallEmitter.emit_c_math))
_TABLE.update(dict.fromkeys(_BITWISE, CallEmitter.emit_bitwise))
_TABLE.update(dict.fromkeys(_REDUCTIONS, CallEmitter.emit_vector_reduce))
