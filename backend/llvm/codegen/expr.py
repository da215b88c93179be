"""Values: every expression of the loop IR except memory accesses (memory.py) and calls (calls.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import floordiv, mod
from typing import Any

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.convert import ConvertEmitter, Machine
from relayc.backend.llvm.codegen.index import Index, is_nonnegative
from relayc.backend.llvm.types import compute_type, constant, register_type, suffix, vector_constant
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.ir import post_order
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Binary,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    Compare,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Logical,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    PrimExpr,
    Ramp,
    Select,
    Shuffle,
    Sub,
    Var,
)

__all__ = ["ExprEmitter"]

_FLOAT_OPS: dict[type, str] = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv", Mod: "frem"}
_INT_OPS: dict[type, str] = {Add: "add", Sub: "sub", Mul: "mul"}
_PREDICATES: dict[type, tuple[str, str, str]] = {
    EQ: ("oeq", "eq", "eq"), NE: ("une", "ne", "ne"), LT: ("olt", "slt", "ult"),
    LE: ("ole", "sle", "ule"), GT: ("ogt", "sgt", "ugt"), GE: ("oge", "sge", "uge"),
}  # fmt: skip


class ExprEmitter(ConvertEmitter):
    """Emits expressions; `visit` returns the operand that holds the value."""

    mask: tuple[str, int] | None = None
    """The mask of active lanes and their number, inside a side of a vector if_then_else. Loads touch no other lanes."""

    def __init__(self, text: FunctionText, machine: Machine) -> None:
        super().__init__(text, machine)
        self.fast = f"{machine.fast} " if machine.fast else ""

    def visit_default(self, node: Any) -> str:
        raise CompileError(f"the llvm target has no code for {type(node).__name__}: {node}; lower it first")

    # Leaves

    def visit_Var(self, var: Var) -> str:
        held = self.env.get(var)
        if held is not None:
            return held
        wide = self.wide.get(var)
        if wide is None:
            raise CompileError(f"variable {var.name} is used before it has a value")
        if wide.value is None:
            return str(wide.constant)
        value, kind = self.operand(wide), register_type(var.dtype)
        return value if kind == "i64" else self.text.pure(f"trunc i64 {value} to {kind}")

    def visit_IntImm(self, imm: IntImm) -> str:
        return constant(imm.dtype, imm.value)

    def visit_FloatImm(self, imm: FloatImm) -> str:
        return constant(imm.dtype, imm.value)

    # Vectors

    def splat(self, value: str, of: DType) -> str:
        """The vector of type `of` with the scalar operand `value` in every lane."""
        kind, vector = register_type(of.element), register_type(of)
        if value[0] != "%":
            return "zeroinitializer" if value == "0" else f"splat ({kind} {value})"
        one = self.text.pure(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.text.pure(
            f"shufflevector {vector} {one}, {vector} poison, <{of.lanes} x i32> zeroinitializer"
        )

    def visit_Broadcast(self, expr: Broadcast) -> str:
        return self.splat(self.visit(expr.value), expr.dtype)

    def visit_Ramp(self, expr: Ramp) -> str:
        of, kind = expr.dtype, register_type(expr.dtype)
        base = self.splat(self.visit(expr.base), of)
        if isinstance(expr.stride, IntImm):
            steps = vector_constant(of, [i * expr.stride.value for i in range(of.lanes)])
        else:
            stride = self.splat(self.visit(expr.stride), of)
            steps = self.text.pure(f"mul {kind} {stride}, {vector_constant(of, list(range(of.lanes)))}")
        return self.text.pure(f"add {kind} {base}, {steps}")

    def visit_Shuffle(self, expr: Shuffle) -> str:
        vectors = [(self.visit(v), v.dtype) for v in expr.vectors]
        lanes = [(value, of, i) for value, of in vectors for i in range(of.lanes)]
        if expr.dtype.lanes == 1:
            value, of, i = lanes[expr.indices[0]]
            return self.lane(value, of, i)
        if len(vectors) <= 2 and vectors[0][1].lanes > 1 and vectors[0][1] == vectors[-1][1]:
            kind = register_type(vectors[0][1])
            second = vectors[1][0] if len(vectors) == 2 else "poison"
            picks = ", ".join([f"i32 {i}" for i in expr.indices])
            mask = f"<{len(expr.indices)} x i32> <{picks}>"
            return self.text.pure(f"shufflevector {kind} {vectors[0][0]}, {kind} {second}, {mask}")
        return self.pack([self.lane(*lanes[i]) for i in expr.indices], expr.dtype)

    def lane(self, value: str, of: DType, i: int) -> str:
        """Lane `i` of a vector operand; a scalar has only itself."""
        return value if of.lanes == 1 else self.text.pure(f"extractelement {register_type(of)} {value}, i64 {i}")

    def pack(self, lanes: list[str], of: DType) -> str:
        """The vector of these scalar operands."""
        kind, element, vector = register_type(of), register_type(of.element), "poison"
        for i, value in enumerate(lanes):
            vector = self.text.pure(f"insertelement {kind} {vector}, {element} {value}, i64 {i}")
        return vector

    # Arithmetic

    def computed(self, expr: PrimExpr) -> str:
        """A value in the type that its arithmetic is done in."""
        return self.convert(self.visit(expr), expr.dtype, compute_type(expr.dtype))

    def rounded(self, value: str, of: DType) -> str:
        """A result of arithmetic on `of`, converted back to `of`."""
        return self.convert(value, compute_type(of), of)

    def visit_Binary(self, expr: Binary) -> str:
        if not expr.dtype.is_float:
            return self._int_binary(expr)
        operation = _FLOAT_OPS.get(expr.__class__)
        if operation is None:
            raise CompileError(f"{type(expr).__name__} is defined on integers, not on {expr.dtype}: {expr}")
        kind = register_type(compute_type(expr.dtype))
        if self.machine.fma and (expr.__class__ is Add or expr.__class__ is Sub):
            fused = self._contract(expr, kind)
            if fused is not None:
                return self.rounded(fused, expr.dtype)
        a, b = self.computed(expr.a), self.computed(expr.b)
        return self.rounded(self.text.pure(f"{operation} {self.fast}{kind} {a}, {b}"), expr.dtype)

    def _contract(self, expr: Any, kind: str) -> str | None:
        """Contract a * b + c, a * b - c or c - a * b to one fused instruction; None for another form.

        16-bit floats are not contracted: their product has to be rounded on its own.
        """
        if expr.dtype.bits == 16:
            return None
        if expr.b.__class__ is Mul:
            product, other, product_sign, other_sign = expr.b, expr.a, expr.__class__ is Add, True
        elif expr.a.__class__ is Mul:
            product, other, product_sign, other_sign = expr.a, expr.b, True, expr.__class__ is Add
        else:
            return None
        a, b, c = self.visit(product.a), self.visit(product.b), self.visit(other)
        if not product_sign:
            a = self.text.pure(f"fneg {kind} {a}")
        if not other_sign:
            c = self.text.pure(f"fneg {kind} {c}")
        return self.fused(expr.dtype, a, b, c)

    def fused(self, of: DType, a: str, b: str, c: str) -> str:
        """llvm.fma of operands of type `of`."""
        return self.intrinsic("fma", of, a, b, c, flags=self.fast)

    def intrinsic(self, name: str, of: DType, *operands: str, flags: str = "") -> str:
        """An LLVM intrinsic whose operands and result all have type `of`."""
        kind, full = register_type(of), f"llvm.{name}.{suffix(of)}"
        self.text.module.declare(full, kind, ", ".join([kind] * len(operands)))
        return self.text.pure(f"call {flags}{kind} @{full}({', '.join([f'{kind} {x}' for x in operands])})")

    def _int_binary(self, expr: Binary) -> str:
        operation, kind = _INT_OPS.get(expr.__class__), register_type(expr.dtype)
        if operation is not None:
            return self.text.pure(f"{operation} {kind} {self.visit(expr.a)}, {self.visit(expr.b)}")
        return self._int_division(expr)

    def _int_division(self, expr: Any) -> str:
        of, kind = expr.dtype, register_type(expr.dtype)
        divisor = self.splatted_int(expr.b)
        if divisor == 0:
            raise CompileError(f"division by the constant 0: {expr}")
        x, y = self.visit(expr.a), self.visit(expr.b)
        is_quotient, floors = isinstance(expr, FloorDiv | Div), isinstance(expr, FloorDiv | FloorMod)
        unsigned = of.is_uint or (
            is_nonnegative(expr.a, self.nonnegative) and is_nonnegative(expr.b, self.nonnegative)
        )  # fmt: skip
        if unsigned:
            name = "udiv" if is_quotient else "urem"
        elif floors and divisor is not None and divisor > 0:
            scalar_divisor = divisor if of.lanes == 1 else None
            return self.floor_division(kind, is_quotient, x, y, scalar_divisor)
        else:
            name = "sdiv" if is_quotient else "srem"
        if divisor is not None and divisor != -1:
            if floors and not unsigned:
                return self.floor_division(kind, is_quotient, x, y, None)
            return self.text.pure(f"{name} {kind} {x}, {y}")
        return self._guarded_division(of, is_quotient, floors and not unsigned, name, x, y)

    def _guarded_division(self, of: DType, is_quotient: bool, floors: bool, name: str, x: str, y: str) -> str:
        """Integer division by a variable, guarded against traps: x / 0 is 0, as in numpy, and min / -1 wraps."""
        pure, kind, flag = self.text.pure, register_type(of), register_type(dtype("bool").with_lanes(of.lanes))
        one, zero = ("1", "0") if of.lanes == 1 else (f"splat ({register_type(of.element)} 1)", "zeroinitializer")
        by_zero = pure(f"icmp eq {kind} {y}, {zero}")
        unsafe, negated = by_zero, None
        if name[0] == "s":
            minus_one = "-1" if of.lanes == 1 else f"splat ({register_type(of.element)} -1)"
            negated = pure(f"icmp eq {kind} {y}, {minus_one}")
            unsafe = pure(f"or {flag} {by_zero}, {negated}")
        safe = pure(f"select {flag} {unsafe}, {kind} {one}, {kind} {y}")

        def divided() -> str:
            if floors:
                return self.floor_division(kind, is_quotient, x, safe, None)
            return pure(f"{name} {kind} {x}, {safe}")

        if of.lanes > 1 and of.bits <= 32:
            result = self._divided_as_floats(of, is_quotient, floors, x, safe)
        elif of.lanes > 1:
            result = self._usually_divided_as_floats(of, is_quotient, floors, x, safe, divided)
        else:
            result = divided()
        if negated is not None and is_quotient:
            minus_x = pure(f"sub {kind} {zero}, {x}")
            result = pure(f"select {flag} {negated}, {kind} {minus_x}, {kind} {result}")
        return pure(f"select {flag} {by_zero}, {kind} {zero}, {kind} {result}")

    def _divided_as_floats(self, of: DType, is_quotient: bool, floors: bool, x: str, y: str) -> str:
        """Quotient or remainder of integer vectors, for which processors have no division instruction, by float
        division.

        Floats of more than twice the precision represent the operands exactly, and a non-integral quotient is too far
        from the next integer to be rounded to it.
        """
        through = dtype("float32" if of.bits <= 16 else "float64").with_lanes(of.lanes)
        result = self._divided(through, is_quotient, floors, self.convert(x, of, through), self.convert(y, of, through))
        return self.convert(result, through, of)

    def _divided(self, through: DType, is_quotient: bool, floors: bool, a: str, b: str) -> str:
        """Quotient or remainder of integral floats."""
        kind, pure = register_type(through), self.text.pure
        quotient = self.intrinsic("floor" if floors else "trunc", through, pure(f"fdiv {kind} {a}, {b}"))
        return quotient if is_quotient else pure(f"fsub {kind} {a}, {pure(f'fmul {kind} {quotient}, {b}')}")

    def _usually_divided_as_floats(
        self, of: DType, is_quotient: bool, floors: bool, x: str, y: str, otherwise: Callable[[], str]
    ) -> str:
        """Quotient or remainder of 64-bit integers, by float division if all operands have at most 51 bits.

        Non-integral quotients are then too far from the next integer to be rounded to it. Few processors convert such
        vectors; instead an integer is added to 1.5 2^52, which leaves it in the low bits.
        """
        text, pure, kind = self.text, self.text.pure, register_type(of)
        through = dtype("float64").with_lanes(of.lanes)
        lowest, floats = -(1 << 51) if of.is_int else 0, register_type(through)
        above = [pure(f"sub {kind} {v}, {self.splat(str(lowest), of)}") for v in (x, y)]
        beyond = self.splat(str(-1 << (52 if lowest else 51)), of)
        large = pure(f"and {kind} {pure(f'or {kind} {above[0]}, {above[1]}')}, {beyond}")
        name = f"llvm.vector.reduce.or.{suffix(of)}"
        text.module.declare(name, "i64", kind)
        is_small = pure(f"icmp eq i64 {pure(f'call i64 @{name}({kind} {large})')}, 0")
        magic, bits = self.splat(constant(through.element, 1.5 * 2.0**52), through), self.splat(str(0x4338 << 48), of)

        def as_floats(v: str) -> str:
            raised = self._cast("bitcast", pure(f"add {kind} {v}, {bits}"), of, through)
            return pure(f"fsub {floats} {raised}, {magic}")

        def short() -> str:
            result = self._divided(through, is_quotient, floors, as_floats(x), as_floats(y))
            raised = self._cast("bitcast", pure(f"fadd {floats} {result}, {magic}"), through, of)
            return pure(f"sub {kind} {raised}, {bits}")

        return self.one_of(is_small, kind, short, otherwise, likely=True)

    def splatted_int(self, expr: PrimExpr) -> int | None:
        """The value of an integer constant, scalar or broadcast; None when it is not constant."""
        if isinstance(expr, Broadcast):
            expr = expr.value
        if isinstance(expr, Var) and expr in self.wide and self.wide[expr].value is None:
            return self.wide[expr].constant
        return expr.value if isinstance(expr, IntImm) else None

    def visit_Min(self, expr: Min) -> str:
        return self._extremum(expr, "olt", "smin", "umin")

    def visit_Max(self, expr: Max) -> str:
        return self._extremum(expr, "ogt", "smax", "umax")

    def _extremum(self, expr: Binary, ordered: str, signed: str, unsigned: str) -> str:
        of = expr.dtype
        if not of.is_float:
            name = signed if of.is_int else unsigned
            return self.intrinsic(name, of, self.visit(expr.a), self.visit(expr.b))
        a, b = expr.a, expr.b
        if _never_nan(b):
            a, b = b, a
        return self.rounded(self.float_extremum(of, ordered, self.computed(a), self.computed(b), _never_nan(a)), of)

    def float_extremum(self, of: DType, ordered: str, a: str, b: str, a_is_number: bool) -> str:
        """The minimum or maximum of two floats, NaN if either is.

        A compare that fails on NaN selects b, which is the min and max instruction of x86: a NaN in b survives. A NaN
        in a has to be put back, which LLVM does for its own operation in a compare and a blend.
        """
        if not a_is_number:
            return self.intrinsic("maximum" if ordered == "ogt" else "minimum", compute_type(of), a, b, flags="nsz ")
        pure, kind = self.text.pure, register_type(compute_type(of))
        flag = register_type(dtype("bool").with_lanes(of.lanes))
        better = pure(f"fcmp {ordered} {kind} {a}, {b}")
        return pure(f"select {flag} {better}, {kind} {a}, {kind} {b}")

    # Conditions

    def visit_Compare(self, expr: Compare) -> str:
        ordered, signed, unsigned = _PREDICATES[expr.__class__]
        of = expr.a.dtype
        if of.is_int and of.lanes == 1 and self.is_index(expr.a) and self.is_index(expr.b):
            return self._compare_index(expr, signed)
        known = self._constant_compare(expr) if of.is_int and of.lanes > 1 else None
        if known is not None:
            return known
        counted = self._lanes_below(expr) if of.is_int and of.lanes > 1 else None
        if counted is not None:
            return counted
        kind = register_type(compute_type(of))
        if of.is_float:
            return self.text.pure(f"fcmp {ordered} {kind} {self.computed(expr.a)}, {self.computed(expr.b)}")
        predicate = signed if of.is_int else unsigned
        return self.text.pure(f"icmp {predicate} {kind} {self.visit(expr.a)}, {self.visit(expr.b)}")

    def _lanes_below(self, expr: Compare) -> str | None:
        """Compare a ramp of positions with a limit by counting the lanes below it; None for other comparisons.

        The count is compared with narrow lane numbers, as many as fit a register, where masks have no width of their
        own: one instruction for 64 bytes, where 32-bit lanes take four, and three to join the masks.
        """
        lanes, first, limit = expr.a.dtype.lanes, expr.a, expr.b
        bits = 1 << max(self.machine.vector_bits // lanes, 8).bit_length() - 1
        if "avx512bw" not in self.machine.features or bits >= expr.a.dtype.bits or lanes >= 1 << bits:
            return None
        if not isinstance(first, Ramp) or not isinstance(limit, Broadcast) or self.splatted_int(first.stride) != 1:
            return None
        if expr.__class__ not in _LANES_BELOW or not (self.is_index(first.base) and self.is_index(limit.value)):
            return None
        predicate, more = _LANES_BELOW[expr.__class__]
        difference = self.sum(self.index(limit.value), self.index(first.base), -1)
        positive = self.operand(Index(difference.value, difference.constant + more))
        for name, bound in (("smax", 0), ("smin", lanes)):
            positive = self.intrinsic(name, dtype("int64"), positive, str(bound))
        kind = dtype(f"int{bits}")
        numbers = ", ".join([f"i{bits} {lane}" for lane in range(lanes)])
        count = self.splat(self.text.pure(f"trunc i64 {positive} to i{bits}"), kind.with_lanes(lanes))
        return self.text.pure(f"icmp {predicate} <{lanes} x i{bits}> <{numbers}>, {count}")

    def _constant_compare(self, expr: Compare) -> str | None:
        """The constant result of a comparison of constant vectors, else None."""
        outcomes = self.known_outcomes(expr)
        return None if outcomes is None else flags_text(outcomes)

    def known_outcomes(self, expr: Compare) -> list[bool] | None:
        """The results of a comparison of constant signed vectors by lane; None for others."""
        a, b = self._known_lanes(expr.a), self._known_lanes(expr.b)
        return None if a is None or b is None else list(map(_COMPARE_INTS[_PREDICATES[expr.__class__][1]], a, b))

    def _known_lanes(self, expr: PrimExpr) -> list[int] | None:
        if isinstance(expr, Ramp):
            base, stride = self.splatted_int(expr.base), self.splatted_int(expr.stride)
            return None if base is None or stride is None else [base + i * stride for i in range(expr.lanes)]
        if isinstance(expr, FloorDiv | FloorMod):
            a, b = self._known_lanes(expr.a), self._known_lanes(expr.b)
            if a is None or b is None or 0 in b:
                return None
            return list(map(floordiv if isinstance(expr, FloorDiv) else mod, a, b))
        value = self.splatted_int(expr) if isinstance(expr, Broadcast) else None
        return None if value is None else [value] * expr.dtype.lanes

    def _compare_index(self, expr: Compare, predicate: str) -> str:
        a, b = self.index(expr.a), self.index(expr.b)
        if a.value == b.value:
            return "true" if _COMPARE_INTS[predicate](a.constant, b.constant) else "false"
        return self.text.pure(f"icmp {predicate} i64 {self.operand(a)}, {self.operand(b)}")

    def visit_Logical(self, expr: Logical) -> str:
        is_and, kind = isinstance(expr, And), register_type(expr.dtype)
        a = self.visit(expr.a)
        decided, neutral = (_FALSE, _TRUE) if is_and else (_TRUE, _FALSE)
        if a in decided:
            return a
        if a in neutral:
            return self.visit(expr.b)
        if expr.dtype.lanes > 1 or self.is_harmless(expr.b):
            b = self.visit(expr.b)
            if b in decided or b in neutral:
                return b if b in decided else a
            return self.text.pure(f"{'and' if is_and else 'or'} {kind} {a}, {b}")
        return self._short_circuit(expr.b, a, is_and)

    def one_of(
        self, condition: str, kind: str, then: Callable[[], str], otherwise: Callable[[], str], *, likely: bool = False
    ) -> str:
        """A value computed on only one side of a branch."""
        text = self.text
        labels, done = (text.label("then"), text.label("else")), text.label("join")
        text.branch(condition, *labels, likely=likely)
        arms: list[str] = []
        for label, side in zip(labels, (then, otherwise), strict=True):
            text.place(label)
            with text.region():
                value = side()
            arms.append(f"[ {value}, %{text.block} ]")
            text.goto(done)
        text.place(done)
        return text.value(f"phi {kind} {', '.join(arms)}")

    def _short_circuit(self, second: PrimExpr, a: str, is_and: bool) -> str:
        text = self.text
        before, more, done = text.block, text.label("more"), text.label("decided")
        text.branch(a, *((more, done) if is_and else (done, more)))
        text.place(more)
        with text.region():
            b = self.visit(second)
        last = text.block
        text.goto(done)
        text.place(done)
        return text.value(f"phi i1 [ {'false' if is_and else 'true'}, %{before} ], [ {b}, %{last} ]")

    def visit_Not(self, expr: Not) -> str:
        a = self.visit(expr.a)
        if a in ("true", "false"):
            return "false" if a == "true" else "true"
        ones = "true" if expr.dtype.lanes == 1 else "splat (i1 true)"
        return self.text.pure(f"xor {register_type(expr.dtype)} {a}, {ones}")

    def visit_Select(self, expr: Select) -> str:
        condition = self.visit(expr.condition)
        if condition in _TRUE or condition in _FALSE:
            return self.visit(expr.true_value if condition in _TRUE else expr.false_value)
        kind, flag = register_type(expr.dtype), register_type(expr.condition.dtype)
        a, b = self.visit(expr.true_value), self.visit(expr.false_value)
        of = expr.dtype
        if of.lanes > 1 and expr.condition.dtype.lanes == 1 and _reads(expr.condition):
            return self._blended(condition, a, b, of)
        return self.text.pure(f"select {flag} {condition}, {kind} {a}, {kind} {b}")

    def _blended(self, condition: str, a: str, b: str, of: DType) -> str:
        """A bitwise select between vectors by data. LLVM would branch, which processors can't predict."""
        pure, bits = self.text.pure, dtype(f"int{8 * of.element.nbytes}").with_lanes(of.lanes)
        kind, own = register_type(bits), register_type(of)
        there, back = ("zext", "trunc") if of.is_bool else ("bitcast", "bitcast")
        mask = self.splat(pure(f"sext i1 {condition} to {register_type(bits.element)}"), bits)
        first, second = (pure(f"{there} {own} {value} to {kind}") if own != kind else value for value in (a, b))
        chosen = pure(f"and {kind} {mask}, {first}")
        if b != "zeroinitializer":
            unmasked = pure(f"xor {kind} {mask}, splat ({register_type(bits.element)} -1)")
            chosen = pure(f"or {kind} {chosen}, {pure(f'and {kind} {unmasked}, {second}')}")
        return chosen if own == kind else pure(f"{back} {kind} {chosen} to {own}")

    def is_harmless(self, expr: PrimExpr) -> bool:
        """May this be evaluated speculatively? It has no memory access, no call and no division by data."""
        if isinstance(expr, BufferLoad | Call):
            return isinstance(expr, Call) and expr.op == "likely" and self.is_harmless(expr.args[0])
        if isinstance(expr, Div | Mod | FloorDiv | FloorMod) and not self.splatted_int(expr.b):
            return expr.dtype.is_float and self.is_harmless(expr.a) and self.is_harmless(expr.b)
        return all(self.is_harmless(child) for child in expr.node_children())  # type: ignore[arg-type]

    def visit_Let(self, expr: Let) -> str:
        self.bind(expr.var, expr.value)
        return self.visit(expr.body)

    def visit_Cast(self, expr: Cast) -> str:
        inner = expr.value
        of = (inner.dtype.element, expr.dtype.element)
        if isinstance(inner, Call) and inner.op == "round" and of == ("float32", "int32"):
            return self._rounded_to_int(self.visit(inner.args[0]), inner.dtype, expr.dtype)
        return self.convert(self.visit(expr.value), expr.value.dtype, expr.dtype)

    def _rounded_to_int(self, value: str, source: DType, target: DType) -> str:
        """The nearest integer, ties to even: one instruction on x86, where rounding and converting would be two."""
        name = f"llvm.lrint.{suffix(target)}.{suffix(source)}"
        self.text.module.declare(name, register_type(target), register_type(source))
        return self.text.pure(f"call {register_type(target)} @{name}({register_type(source)} {value})")


def flags_text(flags: Sequence[bool]) -> str:
    """A constant vector of bools."""
    if len(set(flags)) == 1:
        return "splat (i1 true)" if flags[0] else "zeroinitializer"
    return f"<{', '.join([f'i1 {str(flag).lower()}' for flag in flags])}>"


def known_flags(value: str) -> list[bool] | None:
    """The bools of a constant that `flags_text` wrote with differing values; None for any other value."""
    return ["true" in flag for flag in value.split(",")] if value.startswith("<") else None


_LANES_BELOW = {LT: ("ult", 0), LE: ("ult", 1), GE: ("uge", 0), GT: ("uge", 1)}
"""Comparison -> (predicate between the lane number and the count of lanes below the limit, addend of the count)."""
_TRUE = ("true", "splat (i1 true)")
_FALSE = ("false", "splat (i1 false)", "zeroinitializer")
_COMPARE_INTS: dict[str, Any] = {
    "eq": int.__eq__, "ne": int.__ne__, "slt": int.__lt__, "sle": int.__le__, "sgt": int.__gt__, "sge": int.__ge__,
}  # fmt: skip


def _reads(expr: PrimExpr) -> bool:
    return any(isinstance(e, BufferLoad) for e in post_order(expr))


def _never_nan(expr: PrimExpr) -> bool:
    if isinstance(expr, Broadcast):
        expr = expr.value
    return isinstance(expr, FloatImm) and not math.isnan(expr.value)
