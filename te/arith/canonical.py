"""From expressions to canonical forms and back: the rewriting half of the analyzer.

Only int32 and int64 scalars have a linear form. Arithmetic on variables (loop indices, sizes) is taken not to
overflow; values read from memory may be anything, so quotients, comparisons and extrema look through arithmetic on
them only when its bounds fit the type. Everything else is rebuilt over simplified children.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, cast

from relayc.te.arith.division import sign_of_quotient
from relayc.te.arith.forms import Forms
from relayc.te.arith.linear import Bound, Linear
from relayc.te.dtype import BOOL, INT32, INT64, DType
from relayc.te.ir.visitor import post_order
from relayc.te.tir import ops
from relayc.te.tir.expr import (
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
    Or,
    PrimExpr,
    ProducerLoad,
    Ramp,
    Select,
    SizeVar,
    Sub,
    Var,
)  # fmt: skip
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.substitute import substitute

__all__ = ["Canonical"]


class Canonical(Forms):
    """Forms of expressions, memoised for as long as the facts stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[PrimExpr, Linear] = {}
        self._simple: dict[PrimExpr, PrimExpr] = {}
        self._shared: dict[tuple[Any, DType], PrimExpr] = {}  # key of a form and type -> the first simple expression
        self._keys: dict[tuple[Any, ...], int] = {}

    def linear(self, expr: PrimExpr) -> Linear:
        """The canonical form of an int32 or int64 scalar."""
        found = self._forms.get(expr)
        if found is None:
            rule = _FORM_RULES.get(expr.__class__)
            found = self._forms[expr] = self._opaque(expr) if rule is None else rule(self, expr)
        return found

    def simplify(self, expr: PrimExpr) -> PrimExpr:
        """An equal expression, usually smaller; the very same object when there is nothing to gain.

        Equal index expressions become one object, so that comparing them and walking over them is cheap.
        """
        found = self._simple.get(expr)
        if found is None:
            found = self._simplify(expr)
            self._simple[expr] = self._simple[found] = found
        return found

    def _simplify(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, _ATOMS):
            known = self._forms.get(expr)
            return expr if known is None else self._keep(expr, self.render(known, expr.dtype))
        if expr.dtype is INT32 or expr.dtype is INT64:
            form = self.linear(expr)
            key = (form.key, expr.dtype)
            found = self._shared.get(key)
            if found is None:
                found = self._shared[key] = self._keep(expr, self.render(form, expr.dtype))
            return found
        rule = _VALUE_RULES.get(expr.__class__)
        return expr.rebuild(self.simplify) if rule is None else rule(self, expr)

    def _keep(self, old: PrimExpr, new: PrimExpr) -> PrimExpr:
        return old if new is not old and same(old, new) else new

    # ---- what arithmetic can't look into

    def _opaque(self, expr: PrimExpr) -> Linear:
        """A load, a call, a cast, ... as one atom over simplified children."""
        simple = expr.rebuild(self.simplify)
        bounds, data = self._opaque_bounds(simple)
        nodes = list(post_order(simple))
        variables = frozenset([n for n in nodes if isinstance(n, Var)])
        data = data or any(isinstance(n, _LOADS) for n in nodes)
        return self.opaque(self.structural_key(simple), simple, bounds, variables, data)

    def _opaque_bounds(self, expr: PrimExpr) -> tuple[tuple[Bound, Bound], bool]:
        if isinstance(expr, Cast):
            source = expr.value.dtype
            if source is INT32 or source is INT64:
                form = self.linear(expr.value)
                low, high = self._exact_bounds(form, source)
                if not form.data or (expr.dtype.min_value() <= low and high <= expr.dtype.max_value()):
                    return (low, high), form.data
            if source.is_bool or (source.is_integral and source.bits < expr.dtype.bits):
                return (source.min_value(), source.max_value()), False
        if isinstance(expr, Select):
            a, b = self.linear(expr.true_value), self.linear(expr.false_value)
            (low, high), (low2, high2) = a.bounds(), b.bounds()
            return (min(low, low2), max(high, high2)), a.data or b.data
        if isinstance(expr, Min | Max) and (expr.dtype is INT32 or expr.dtype is INT64):
            choose = min if isinstance(expr, Min) else max
            (low, high), (low2, high2) = [self._exact_bounds(self.linear(e), expr.dtype) for e in (expr.a, expr.b)]
            return (choose(low, low2), choose(high, high2)), True
        if isinstance(expr, Call) and expr.op == "if_then_else":
            return self._opaque_bounds(Select(*expr.args))
        if isinstance(expr, Call) and expr.op == "likely":
            form = self.linear(expr.args[0])
            return form.bounds(), form.data
        return (expr.dtype.min_value(), expr.dtype.max_value()), True

    def structural_key(self, expr: PrimExpr) -> Any:
        """Equal for expressions that are equal when simplified; an impure call equals only itself."""
        return self._structural_key(expr, {})

    def _structural_key(self, expr: PrimExpr, done: dict[PrimExpr, Any]) -> Any:
        """The key of `expr`; `done` has those of shared operands, which as a tree are many times as large."""
        if isinstance(expr, Var) or (isinstance(expr, Call) and not INTRINSICS[expr.op].pure):
            return expr
        if expr.dtype is INT32 or expr.dtype is INT64:
            form = self._forms.get(expr)
            if form is not None:
                return form.key
        if expr not in done:
            data = [d if isinstance(d, _VALUES) else id(d) for d in [getattr(expr, n) for n in expr.data_fields]]
            children = [self._structural_key(cast(PrimExpr, child), done) for child in expr.node_children()]
            parts = (expr.__class__, expr.dtype, *data, *children)
            done[expr] = self._keys.setdefault(parts, len(self._keys))
        return done[expr]

    def _exact(self, form: Linear, dtype: DType) -> bool:
        """Does the form give the mathematical value, without overflow?"""
        if not form.data:
            return True
        low, high = form.bounds()
        return dtype.min_value() <= low and high <= dtype.max_value()

    def _exact_bounds(self, form: Linear, dtype: DType) -> tuple[Bound, Bound]:
        """Bounds of the value that arithmetic of `dtype` gives for the form."""
        return form.bounds() if self._exact(form, dtype) else (dtype.min_value(), dtype.max_value())

    # ---- forms

    def _form_const(self, expr: IntImm) -> Linear:
        return Linear({}, expr.value)

    def _form_var(self, expr: Var) -> Linear:
        return Linear({self.variable(expr): 1}, 0)

    def _form_add(self, expr: Add) -> Linear:
        if isinstance(expr.b, IntImm):
            return self.linear(expr.a).shifted(expr.b.value)
        return self.add(self.linear(expr.a), self.linear(expr.b))

    def _form_sub(self, expr: Sub) -> Linear:
        if isinstance(expr.b, IntImm):
            return self.linear(expr.a).shifted(-expr.b.value)
        return self.add(self.linear(expr.a), self.linear(expr.b), -1)

    def _form_mul(self, expr: Mul) -> Linear:
        if isinstance(expr.b, IntImm):
            return self.linear(expr.a).scaled(expr.b.value)
        return self.multiply(self.linear(expr.a), self.linear(expr.b))

    def _form_division(self, expr: Binary) -> Linear:
        """//, %, and C's division where it agrees: on operands that are not negative"""
        x, m = self.linear(expr.a), self.linear(expr.b)
        floor = isinstance(expr, _FLOORS)
        agrees = floor or (self.nonnegative(x) and self.nonnegative(m))
        if not agrees or not self._exact(x, expr.dtype) or not self._exact(m, expr.dtype):
            return self._opaque(expr)
        wants_quotient = isinstance(expr, FloorDiv | Div)
        if not m.terms and m.const:
            return self.floordiv(x, m.const) if wants_quotient else self.floormod(x, m.const)
        if not m.terms:
            return self._opaque(expr)
        return self.divmod_symbolic(x, m)[0 if wants_quotient else 1]

    def _form_extremum(self, expr: Binary) -> Linear:
        a, b = self.linear(expr.a), self.linear(expr.b)
        if not self._exact(a, expr.dtype) or not self._exact(b, expr.dtype):
            return self._opaque(expr)
        return self.extremum("min" if isinstance(expr, Min) else "max", (a, b))

    def _form_select(self, expr: Select) -> Linear:
        condition = self.simplify(expr.condition)
        if isinstance(condition, IntImm):
            return self.linear(expr.true_value if condition.value else expr.false_value)
        a, b = self.linear(expr.true_value), self.linear(expr.false_value)
        return a if a.key == b.key else self._opaque(expr)

    def _form_call(self, expr: Call) -> Linear:
        if expr.op == "if_then_else":
            condition = self.simplify(expr.args[0])
            if isinstance(condition, IntImm):
                return self.linear(expr.args[1 if condition.value else 2])
        if expr.op == "likely" and not self.linear(expr.args[0]).terms:
            return self.linear(expr.args[0])
        return self._opaque(expr)

    def _form_cast(self, expr: Cast) -> Linear:
        value = self.simplify(expr.value)
        if isinstance(value, IntImm):
            return Linear({}, cast(IntImm, ops.make_const(expr.dtype, value.value)).value)
        return self._opaque(expr)

    def _form_let(self, expr: Let) -> Linear:
        if expr.value.dtype is INT32 or expr.value.dtype is INT64:
            value = self.linear(expr.value)
            if not value.data:
                self._forms[expr.var] = value
                return self.linear(expr.body)
        return self._opaque(expr)

    # ---- values that are not index arithmetic

    def _value_compare(self, expr: Compare) -> PrimExpr:
        kind = expr.a.dtype
        if kind is not INT32 and kind is not INT64:
            truth = self._truth_of_lanes(expr)
            return self._folded(expr) if truth is None else ops.broadcast(IntImm(BOOL, int(truth)), kind.lanes)
        a, b = self.linear(expr.a), self.linear(expr.b)
        if not self._exact(a, kind) or not self._exact(b, kind):
            return self._folded(expr)
        difference = self.add(a, b, -1)
        truth = self.compare(expr.__class__, difference)
        if truth is not None:
            return IntImm(BOOL, int(truth))
        if difference.data:  # bringing terms to the other side might overflow
            return self._folded(expr)
        return self._keep(expr, self._comparison(expr.__class__, difference, kind))

    def _truth_of_lanes(self, expr: Compare) -> bool | None:
        """What an inequality of ramps and numbers is in all lanes: what it is in the first and in the last."""
        if isinstance(expr, EQ | NE) or expr.a.dtype.element not in (INT32, INT64):
            return None
        ends = [_ends(side) for side in (expr.a, expr.b)]
        if any(end is None for end in ends):
            return None
        kind, truths = expr.a.dtype.element, set[bool | None]()
        for a, b in zip(*filter(None, ends), strict=True):
            x, y = self.linear(a), self.linear(b)
            exact = self._exact(x, kind) and self._exact(y, kind)
            truths.add(self.compare(expr.__class__, self.add(x, y, -1)) if exact else None)
        return truths.pop() if len(truths) == 1 else None

    def compare(self, sign: type[Compare], d: Linear) -> bool | None:
        """The truth of `d sign 0` when it is known."""
        if sign is LT or sign is GE:
            less = self._less(d)
            return less if sign is LT or less is None else not less
        if sign is GT or sign is LE:
            more = self._less(d.scaled(-1))
            return more if sign is GT or more is None else not more
        if not d.terms:
            return (d.const == 0) == (sign is EQ)
        if self._less(d) or self._less(d.scaled(-1)) or self._parity_differs(d):
            return sign is NE
        return None

    def _parity_differs(self, d: Linear) -> bool:
        """g | every coefficient but not the constant  ==>  d != 0"""
        g = 0
        for c in d.terms.values():
            g = gcd(g, c)
        return d.const % g != 0

    def _less(self, d: Linear) -> bool | None:
        """Is d < 0?"""
        if self.nonnegative(d):
            return False
        if self.nonnegative(d.scaled(-1).shifted(-1)):
            return True
        return None

    def _comparison(self, sign: type[Compare], d: Linear, dtype: DType) -> PrimExpr:
        """`d sign 0` as a comparison of two sums with positive terms, with as little in them as decides it."""
        if sign is LE or sign is GT:
            sign, d = (LT if sign is LE else GE), d.shifted(-1)
        if sign is LT or sign is GE:
            d = sign_of_quotient(d)
        else:
            g = gcd(*d.terms.values())  # divides the constant too: _parity_differs has had its turn
            d = Linear({a: c // g for a, c in d.terms.items()}, d.const // g)
        if (sign is LT or sign is GE) and max(d.terms.values()) < 0:  # -x + c < 0  <=>  x - c - 1 >= 0
            sign, d = (GE if sign is LT else LT), d.scaled(-1).shifted(-1)
        elif sign is GE and d.const < 0 and min(d.terms.values()) < 0:
            sign, d = GT, d.shifted(1)
        left = Linear({a: c for a, c in d.terms.items() if c > 0}, max(d.const, 0))
        right = Linear({a: -c for a, c in d.terms.items() if c < 0}, max(-d.const, 0))
        if (sign is GT or sign is GE) and right.terms:
            left, right, sign = right, left, _SWAPPED[sign]
        return sign(self.render(left, dtype), self.render(right, dtype))

    def _folded(self, expr: Compare) -> PrimExpr:
        simple = expr.rebuild(self.simplify)
        folded = _COMPARISONS[expr.__class__](simple.a, simple.b)
        return folded if isinstance(folded, IntImm) else simple

    def _value_logical(self, expr: Logical) -> PrimExpr:
        a = self.simplify(expr.a)
        decided = isinstance(a, IntImm) and bool(a.value) == isinstance(expr, Or)
        b = a if decided else self.simplify(expr.b)
        if a is b:
            return a
        if isinstance(a, IntImm) or isinstance(b, IntImm):
            return ops.logical_and(a, b) if isinstance(expr, And) else ops.logical_or(a, b)
        return expr if a is expr.a and b is expr.b else expr.__class__(a, b)

    def _value_not(self, expr: Not) -> PrimExpr:
        a = self.simplify(expr.a)
        if isinstance(a, Compare) and not a.a.dtype.is_float:
            return self.simplify(_NEGATED[a.__class__](a.a, a.b))
        if isinstance(a, IntImm | Not):
            return ops.logical_not(a)
        return expr if a is expr.a else Not(a)

    def _value_select(self, expr: Select) -> PrimExpr:
        condition = self.simplify(expr.condition)
        decided = condition.value if isinstance(condition, Broadcast) else condition
        if isinstance(decided, IntImm):
            return self.simplify(expr.true_value if decided.value else expr.false_value)
        a, b = self.simplify(expr.true_value), self.simplify(expr.false_value)
        if condition is expr.condition and a is expr.true_value and b is expr.false_value:
            return expr
        return a if a is b else Select(condition, a, b)

    def _value_call(self, expr: Call) -> PrimExpr:
        args = tuple([self.simplify(a) for a in expr.args])
        if expr.op == "likely" and isinstance(args[0], IntImm):
            return args[0]
        if expr.op == "if_then_else" and isinstance(args[0], IntImm):
            return args[1] if args[0].value else args[2]
        for old, new in zip(expr.args, args, strict=True):
            if old is not new:
                return Call(expr.dtype, expr.op, args)
        return expr

    def _value_binary(self, expr: Binary) -> PrimExpr:
        a, b = self.simplify(expr.a), self.simplify(expr.b)
        fold = _ARITHMETIC.get(expr.__class__)
        if fold is not None and (_constant(a) or _constant(b)):
            return self._keep(expr, fold(a, b))
        return expr if a is expr.a and b is expr.b else expr.__class__(a, b)

    def _value_load(self, expr: BufferLoad) -> PrimExpr:
        indices = tuple([self.simplify(i) for i in expr.indices])
        predicate = None if expr.predicate is None else self.simplify(expr.predicate)
        if predicate is expr.predicate and all(a is b for a, b in zip(indices, expr.indices, strict=True)):
            return expr
        return BufferLoad(expr.buffer, indices, predicate)

    def _value_cast(self, expr: Cast) -> PrimExpr:
        value = self.simplify(expr.value)
        return self._keep(expr, ops.cast(expr.dtype, value))

    def _value_let(self, expr: Let) -> PrimExpr:
        value = self.simplify(expr.value)
        if isinstance(value, IntImm | FloatImm):
            return self.simplify(substitute(expr.body, {expr.var: value}))
        body = self.simplify(expr.body)
        return expr if value is expr.value and body is expr.body else Let(expr.var, value, body)

    def _value_ramp(self, expr: Ramp) -> PrimExpr:
        base, stride = self.simplify(expr.base), self.simplify(expr.stride)
        return expr if base is expr.base and stride is expr.stride else Ramp(base, stride, expr.lanes)


def _ends(vector: PrimExpr) -> tuple[PrimExpr, PrimExpr] | None:
    """The first and the last element of a vector that grows evenly."""
    if isinstance(vector, Broadcast):
        return vector.value, vector.value
    if isinstance(vector, Ramp):
        return vector.base, ops.add(vector.base, ops.mul(vector.stride, vector.lanes - 1))
    return None


def _constant(expr: PrimExpr) -> bool:
    return isinstance(expr, _NUMBERS) or (isinstance(expr, Broadcast) and _constant(expr.value))


def same(a: PrimExpr, b: PrimExpr) -> bool:
    """Are two expressions equal node by node?"""
    if a is b:
        return True
    node_class = a.__class__
    if node_class is not b.__class__ or node_class in _NAMES:
        return False
    if node_class in _PAIRS:
        return same(a.b, b.b) and same(a.a, b.a)  # type: ignore[attr-defined]
    for name in a.data_fields:
        if getattr(a, name) != getattr(b, name):
            return False
    if node_class is IntImm:
        return True
    mine, others = list(a.node_children()), list(b.node_children())
    pairs = zip(mine, others, strict=False)
    return len(mine) == len(others) and a.dtype == b.dtype and all(same(x, y) for x, y in pairs)  # type: ignore[arg-type]


_FORM_RULES: dict[type, Callable[[Canonical, Any], Linear]] = {
    IntImm: Canonical._form_const, Var: Canonical._form_var, SizeVar: Canonical._form_var,
    Add: Canonical._form_add, Sub: Canonical._form_sub, Mul: Canonical._form_mul,
    FloorDiv: Canonical._form_division, FloorMod: Canonical._form_division,
    Div: Canonical._form_division, Mod: Canonical._form_division,
    Min: Canonical._form_extremum, Max: Canonical._form_extremum, Select: Canonical._form_select,
    Call: Canonical._form_call, Cast: Canonical._form_cast, Let: Canonical._form_let,
}  # fmt: skip

_COMPARES = (EQ, NE, LT, LE, GT, GE)
_BINARIES = (Add, Sub, Mul, Div, Mod, FloorDiv, FloorMod, Min, Max)
_ATOMS = (Var, IntImm)
_FLOORS = (FloorDiv, FloorMod)
_LOADS = (BufferLoad, ProducerLoad)
_NUMBERS = (IntImm, FloatImm)
_VALUES = (str, int, float, tuple)
_PAIRS = frozenset((*_COMPARES, *_BINARIES, And, Or))
_NAMES = frozenset((Var, SizeVar, Let))  # equal only when they are the same object
_VALUE_RULES: dict[type, Callable[[Canonical, Any], PrimExpr]] = {
    **dict.fromkeys(_COMPARES, Canonical._value_compare),
    **dict.fromkeys(_BINARIES, Canonical._value_binary),
    And: Canonical._value_logical, Or: Canonical._value_logical, Not: Canonical._value_not,
    Select: Canonical._value_select, Call: Canonical._value_call, BufferLoad: Canonical._value_load,
    Cast: Canonical._value_cast, Let: Canonical._value_let, Ramp: Canonical._value_ramp,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], PrimExpr]] = {
    Add: ops.add, Sub: ops.sub, Mul: ops.mul, Min: ops.minimum, Max: ops.maximum,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], PrimExpr]] = {
    EQ: ops.equal, NE: ops.not_equal, LT: ops.less, LE: ops.less_equal, GT: ops.greater, GE: ops.greater_equal,
}  # fmt: skip
_SWAPPED: dict[type, type[Compare]] = {LT: GT, GT: LT, LE: GE, GE: LE}
_NEGATED: dict[type, type[Compare]] = {EQ: NE, NE: EQ, LT: GE, GE: LT, GT: LE, LE: GT}
