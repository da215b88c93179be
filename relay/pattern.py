"""Patterns over graphs (TVM: `relay.dataflow_pattern`).

    x, w, b = wildcard(), is_constant(), is_constant()
    conv_bias = is_op("add")(is_op(Conv2D)(x, w).has_attr({"groups": 1}), b)

    class Rule(PatternRule):
        pattern = conv_bias
        def replace(self, call, found): return ...found[x]...

    rewrite([Rule()], function)

A pattern object that occurs twice must meet the same expression twice. Calls of `add`, `multiply`, `maximum` and
`minimum` match in either order of their operands, those of `is_product` in any order of several factors. `rewrite`
looks rules up by the operator at their root.

While decisions are recorded (`te.ir.decisions`), `rewrite` notes which rules fired at which nodes. Where none did, it
notes near misses: patterns that several operators matched before one did not, and rules that refused what their pattern
matched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Generic, TypeVar, overload

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op.base import OpDef, expect_op, get_op
from relayc.relay.sizes import dims_equal
from relayc.relay.type import TensorType, Type, shapes_equal
from relayc.te.ir import collect
from relayc.te.ir.decisions import Decision, Refused, is_recording, note, record
from relayc.te.tir import Dim

__all__ = [
    "Found",
    "OperatorPattern",
    "Pattern",
    "PatternRule",
    "is_constant",
    "is_expr",
    "is_op",
    "is_product",
    "is_tuple",
    "is_tuple_get_item",
    "is_var",
    "match",
    "rewrite",
    "wildcard",
]

_O = TypeVar("_O", bound=OpDef)

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum"})
_MAX_REWRITES_OF_ONE_NODE = 16
_NEAR = 3
"""Operators, one inside of the other, that a pattern has to match to have missed nearly."""

Bindings = dict["Pattern", Expr]


class Found(Mapping["Pattern", Expr]):
    """The expression that each pattern of a match is bound to. A pattern under an `optional` that was absent has no
    entry.

    `shared(e)`: during a rewrite, is the expression `e` used outside of the match as well?
    """

    def __init__(self, bindings: Bindings, shared: Sharing | None = None) -> None:
        self._bindings = bindings
        self.shared = Sharing() if shared is None else shared

    def __getitem__(self, pattern: Pattern) -> Expr:
        return self._bindings[pattern]

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)

    def call(self, pattern: Pattern) -> Call:
        """The call that `pattern` is bound to."""
        found = self._bindings[pattern]
        assert isinstance(found, Call)
        return found

    def op(self, pattern: OperatorPattern[_O]) -> _O:
        """The operator that `pattern` is bound to a call of, with its attributes."""
        return expect_op(self._bindings[pattern], pattern.kind)


class Pattern(ABC):
    """Base of patterns. Compared by identity."""

    @abstractmethod
    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        """Every way to match `e`, consistent with the bindings so far."""

    def roots(self) -> frozenset[str] | None:
        """Names of the operators that a match can have at its root; None when there is no such restriction."""
        return None

    def may_match(self, e: Expr) -> bool:
        """A quick necessary condition for a match of `e`, which ignores the bindings."""
        return True

    @property
    def expected(self) -> str:
        """What matches, in a few words."""
        return "another expression"

    def attempt(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        """`solve`, with this pattern itself bound to one expression."""
        known = bound.get(self)
        if known is not None:
            if known is e:
                yield bound
            return
        for solution in self.solve(e, bound):
            yield {**solution, self: e}

    def match(self, e: Expr, shared: Sharing | None = None) -> Found | None:
        """The first match of `e`, or None."""
        return match(self, e, shared)

    def __or__(self, other: Pattern) -> Pattern:
        return _Either(self, other)

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """`wrap(self)` if it matches, else `self`."""
        return _Either(wrap(self), self)

    def has_attr(self, attrs: Mapping[str, Any]) -> Pattern:
        """A call whose operator has these attributes."""

        def check(e: Expr) -> bool:
            op = e.op if isinstance(e, Call) else None
            return isinstance(op, OpDef) and all(getattr(op, k, None) == v for k, v in attrs.items())

        return _Where(self, check, ", ".join(f"{name} {value}" for name, value in attrs.items()))

    def has_dtype(self, dtype: str) -> Pattern:
        """A tensor of this element type."""
        return _Where(self, lambda e: isinstance(e.ty, TensorType) and e.ty.dtype == dtype, dtype)

    def has_shape(self, shape: Sequence[Dim]) -> Pattern:
        """A tensor of this shape."""
        holds = lambda e: isinstance(e.ty, TensorType) and shapes_equal(e.ty.shape, shape)  # noqa: E731
        return _Where(self, holds, f"shape {tuple(shape)}")

    def has_type(self, ty: Type) -> Pattern:
        """A value of this type."""
        return _Where(self, lambda e: e.ty is ty, str(ty))

    def where(self, check: Callable[[Expr], bool], expected: str = "another expression") -> Pattern:
        """An expression for which `check` holds; `expected` says in a few words which these are."""
        return _Where(self, check, expected)

    def __call__(self, *args: Pattern) -> Pattern:
        raise TypeError("only is_op(...) takes argument patterns")


class _Leaf(Pattern):
    def __init__(self, check: Callable[[Expr], bool], expected: str) -> None:
        self.check, self._expected = check, expected

    @property
    def expected(self) -> str:
        return self._expected

    def may_match(self, e: Expr) -> bool:
        return self.check(e)

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        if self.check(e):
            yield bound


class _Anything(Pattern):
    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        yield bound


class OperatorPattern(Pattern, Generic[_O]):
    """A call of one of several operators, of classes whose base is `kind`; without `args`, with any arguments."""

    def __init__(self, names: tuple[str, ...], kind: type[_O], args: tuple[Pattern, ...] | None = None) -> None:
        self.names, self.kind = names, kind
        self.args = args

    def __call__(self, *args: Pattern) -> OperatorPattern[_O]:
        return OperatorPattern(self.names, self.kind, args)

    def roots(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def expected(self) -> str:
        return " or ".join(self.names)

    def may_match(self, e: Expr) -> bool:
        if not isinstance(e, Call) or not isinstance(e.op, OpDef) or e.op.name not in self.names:
            return False
        if self.args is None or _may_match_all(self.args, e.args):
            return True
        return e.op.name in COMMUTATIVE and _may_match_all(self.args, e.args[::-1])

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        if not isinstance(e, Call) or not isinstance(e.op, OpDef) or e.op.name not in self.names:
            return
        if self.args is None:
            yield bound
            return
        yield from _solve_all(self.args, e.args, bound)
        if e.op.name in COMMUTATIVE:
            yield from _solve_all(self.args, e.args[::-1], bound)


class _Chain(Pattern):
    """Calls of one associative and commutative operator on these operands, in any order.

    A division by a number is a product with its reciprocal.
    """

    def __init__(self, name: str, operands: tuple[Pattern, ...]) -> None:
        self.name, self.operands = name, operands

    def roots(self) -> frozenset[str]:
        return frozenset([self.name, "divide"] if self.name == "multiply" else [self.name])

    @property
    def expected(self) -> str:
        return f"{self.name} of {len(self.operands)} operands"

    def may_match(self, e: Expr) -> bool:
        return any(
            all(any(pattern.may_match(operand) for operand in operands) for pattern in self.operands)
            for operands in self.operands_of(e)
        )

    def operands_of(self, e: Expr) -> Iterator[tuple[Expr, ...]]:
        """Every way to see `e` as the operator's result on as many operands as this pattern has."""
        return _operands(self.name, e, len(self.operands))

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        for operands in self.operands_of(e):
            yield from _solve_in_any_order(self.operands, operands, bound)


def _operands(name: str, e: Expr, count: int) -> Iterator[tuple[Expr, ...]]:
    if count == 1:
        yield (e,)
    elif isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.name == name:
        first, second = e.args
        for left in range(1, count):
            for operands in _operands(name, first, left):
                for others in _operands(name, second, count - left):
                    yield (*operands, *others)
    elif name == "multiply" and isinstance(e, Call) and (factor := _reciprocal(e)) is not None:
        for operands in _operands(name, e.args[0], count - 1):
            yield (*operands, factor)


def _reciprocal(e: Call) -> Constant | None:
    """The number that a quotient is a product with; None for other operators and divisors."""
    divisor = e.args[1] if isinstance(e.op, OpDef) and e.op.name == "divide" else None
    if not isinstance(divisor, Constant) or divisor.data.size != 1 or not divisor.dtype.is_float:
        return None
    value = divisor.data.astype(np.float64)
    return Constant((1.0 / value).astype(divisor.data.dtype)) if value.all() else None


def _solve_in_any_order(
    patterns: Sequence[Pattern], operands: tuple[Expr, ...], bound: Bindings
) -> Iterator[Bindings]:
    if not patterns:
        yield bound
    for i, operand in enumerate(operands):
        for solution in patterns[0].attempt(operand, bound):
            yield from _solve_in_any_order(patterns[1:], (*operands[:i], *operands[i + 1 :]), solution)


class _Either(Pattern):
    def __init__(self, first: Pattern, second: Pattern) -> None:
        self.first, self.second = first, second

    def roots(self) -> frozenset[str] | None:
        a, b = self.first.roots(), self.second.roots()
        return None if a is None or b is None else a | b

    @property
    def expected(self) -> str:
        return f"{self.first.expected} or {self.second.expected}"

    def may_match(self, e: Expr) -> bool:
        return self.first.may_match(e) or self.second.may_match(e)

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        yield from self.first.attempt(e, bound)
        yield from self.second.attempt(e, bound)


class _Where(Pattern):
    def __init__(self, inner: Pattern, check: Callable[[Expr], bool], expected: str) -> None:
        self.inner, self.check, self._expected = inner, check, expected

    @property
    def expected(self) -> str:
        return self._expected

    def roots(self) -> frozenset[str] | None:
        return self.inner.roots()

    def __call__(self, *args: Pattern) -> Pattern:
        return _Where(self.inner(*args), self.check, self._expected)

    def may_match(self, e: Expr) -> bool:
        return self.inner.may_match(e)

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        if self.check(e):
            yield from self.inner.attempt(e, bound)


class _TuplePattern(Pattern):
    def __init__(self, fields: Sequence[Pattern]) -> None:
        self.fields = tuple(fields)

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        if isinstance(e, Tuple):
            yield from _solve_all(self.fields, e.fields, bound)


class _Field(Pattern):
    def __init__(self, of: Pattern, index: int | None) -> None:
        self.of, self.index = of, index

    def solve(self, e: Expr, bound: Bindings) -> Iterator[Bindings]:
        if isinstance(e, TupleGetItem) and self.index in (None, e.index):
            yield from self.of.attempt(e.tuple_value, bound)


def _solve_all(patterns: Sequence[Pattern], parts: Sequence[Expr], bound: Bindings) -> Iterator[Bindings]:
    if len(patterns) != len(parts):
        return
    if not patterns:
        yield bound
        return
    for solution in patterns[0].attempt(parts[0], bound):
        yield from _solve_all(patterns[1:], parts[1:], solution)


def _may_match_all(patterns: Sequence[Pattern], parts: Sequence[Expr]) -> bool:
    if len(patterns) != len(parts):
        return False
    for pattern, part in zip(patterns, parts, strict=True):  # noqa: SIM110 - takes half the time of `all`
        if not pattern.may_match(part):
            return False
    return True


def wildcard() -> Pattern:
    """Anything."""
    return _Anything()


@overload
def is_op(*operators: str) -> OperatorPattern[OpDef]: ...
@overload
def is_op(*operators: type[_O]) -> OperatorPattern[_O]: ...
def is_op(*operators: str | type[OpDef]) -> OperatorPattern[Any]:
    """A call of one of the operators, given by name or class; call the pattern to give patterns for the arguments.

    `Found.op` of a pattern of classes is an instance of them, with its attributes.
    """
    classes = [get_op(operator) if isinstance(operator, str) else operator for operator in operators]
    kind = next(base for base in classes[0].__mro__ if all(issubclass(other, base) for other in classes))
    return OperatorPattern(tuple([operator.name for operator in classes]), kind)


def is_product(*factors: Pattern) -> Pattern:
    """A product of these factors, multiplied in any order; quickest if the rarest come first.

    Divisions by a number are factors, too: its reciprocal.
    """
    return _Chain("multiply", factors)


def is_constant(check: Callable[[Constant], bool] | None = None, expected: str = "a constant") -> Pattern:
    """A constant (for which `check` holds; `expected` says in a few words which these are)."""
    return _Leaf(lambda e: isinstance(e, Constant) and (check is None or check(e)), expected)


def is_var(name: str | None = None) -> Pattern:
    """A variable (of this name)."""
    return _Leaf(lambda e: isinstance(e, Var) and name in (None, e.name), f"the variable {name or ''}")


def is_expr(expr: Expr) -> Pattern:
    """This very expression."""
    return _Leaf(lambda e: e is expr, "a certain expression")


def is_tuple(fields: Sequence[Pattern]) -> Pattern:
    """A tuple with these fields."""
    return _TuplePattern(fields)


def is_tuple_get_item(of: Pattern, index: int | None = None) -> Pattern:
    """A field of a tuple."""
    return _Field(of, index)


def match(pattern: Pattern, e: Expr, shared: Sharing | None = None) -> Found | None:
    """The first way in which `pattern` matches `e`, or None."""
    if not pattern.may_match(e):
        return None
    for bindings in pattern.attempt(e, {}):
        return Found(bindings, shared)
    return None


class PatternRule(ABC):
    """A pattern and its replacement."""

    pattern: Pattern

    @abstractmethod
    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        """The replacement of the matched `call`, of the same type; a refusal with its reason, or None, to leave it."""


def rewrite(rules: Sequence[PatternRule], function: Function) -> Function:
    """`function` with the rules applied bottom-up, at each call until none fits any more."""
    table = index_rules(rules)
    if None not in table and not any(e.op.name in table for e in collect(function, Call) if isinstance(e.op, OpDef)):
        return function
    return rewrite_calls_knowing_uses(function, lambda call, shared: apply_rules(table, call, shared))


RuleTable = dict[str | None, list[PatternRule]]


def index_rules(rules: Sequence[PatternRule]) -> RuleTable:
    """Rules by the operator at their root; those that fit any operator under None."""
    table: RuleTable = {}
    for rule in rules:
        roots = rule.pattern.roots()
        for name in (None,) if roots is None else sorted(roots):
            table.setdefault(name, []).append(rule)
    return table


def apply_rules(table: RuleTable, call: Call, shared: Sharing) -> Expr:
    """`call` rewritten by the first rule that fits, and the result likewise, a bounded number of times."""
    current: Expr = call
    for _ in range(_MAX_REWRITES_OF_ONE_NODE):
        replaced = _apply_once(table, current, shared)
        if replaced is None:
            break
        current = replaced
    return current


def _apply_once(table: RuleTable, e: Expr, shared: Sharing) -> Expr | None:
    if not isinstance(e, Call) or not isinstance(e.op, OpDef):
        return None
    explains, misses = is_recording(), list[Decision]()
    for rule in (*table.get(e.op.name, ()), *table.get(None, ())):
        found = rule.pattern.match(e, shared)
        replaced = None if found is None else _of_type(e.ty, rule.replace(e, found))
        if replaced is not None and replaced is not e and not isinstance(replaced, Refused):
            if explains:
                note(type(rule).__name__, "fired", node=_node_text(e))
            return replaced
        if explains and (reason := _reason(rule, e, found, replaced)):
            misses.append(Decision(type(rule).__name__, "", [(_node_text(e), reason)]))
    for miss in misses:
        record(miss)
    return None


def _of_type(ty: Type, replaced: Expr | Refused | None) -> Expr | Refused | None:
    """`replaced`, refused where its symbolic sizes are written in another way than those of the type `ty`, so that
    nothing tells that they are equal."""
    if not isinstance(replaced, Expr) or replaced.ty is ty:
        return replaced
    new = replaced.ty
    if isinstance(ty, TensorType) and isinstance(new, TensorType) and ty.dtype == new.dtype:
        pairs = [(a, b) for a, b in zip(ty.shape, new.shape, strict=False) if not dims_equal(a, b)]
        if len(ty.shape) == len(new.shape) and not any(isinstance(a, int) and isinstance(b, int) for a, b in pairs):
            return Refused(f"sizes of {new} are not known to be those of {ty}")
    return replaced


def _reason(rule: PatternRule, e: Call, found: Found | None, replaced: Expr | Refused | None) -> str:
    """Why a rule that nearly fired did not; "" for others."""
    if isinstance(replaced, Refused):
        return replaced.reason
    return _Misses().of(rule.pattern, e) if found is None else ""


def _node_text(e: Expr) -> str:
    """A node by its name in the model; by its operator and type without one."""
    return str(e.span) if e.span is not None else f"{_kind_of(e)} {e.ty}"


def _kind_of(e: Expr) -> str:
    if isinstance(e, Call) and isinstance(e.op, OpDef):
        return e.op.name
    return f"the number {e.data.item():g}" if isinstance(e, Constant) and e.data.size == 1 else type(e).__name__.lower()


class _Misses:
    """How far a pattern matches an expression: the operators on the longest path from the root that match."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.reason = ""

    def of(self, pattern: Pattern, e: Expr) -> str:
        """Where the match of `e` ends, "" unless it is a near miss."""
        self._follow(pattern, e, [])
        return self.reason if len(self.path) >= _NEAR else ""

    def _follow(self, pattern: Pattern, e: Expr, path: list[str]) -> bool:
        """Does `pattern` match, regardless of what else the same patterns met? Notes the deepest place where not."""
        match pattern:
            case _Either():
                return self._follow(pattern.first, e, path) or self._follow(pattern.second, e, path)
            case _Where():
                return self._follow(pattern.inner, e, path) and (pattern.check(e) or self._ends(pattern, e, path))
            case OperatorPattern() if isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.name in pattern.names:
                if pattern.args is None:
                    return True
                if len(pattern.args) != len(e.args):
                    return self._ends(pattern, e, path)
                orders = (e.args, e.args[::-1]) if e.op.name in COMMUTATIVE else (e.args,)
                inside = [*path, e.op.name]
                return any(
                    all(self._follow(p, a, inside) for p, a in zip(pattern.args, args, strict=True)) for args in orders
                )
            case _Chain():
                inside = [*path, pattern.name]
                return any(
                    all(self._follow(p, a, inside) for p, a in zip(pattern.operands, order, strict=True))
                    for operands in pattern.operands_of(e) for order in permutations(operands)
                ) or self._ends(pattern, e, path)  # fmt: skip
            case OperatorPattern() | _Leaf():
                return pattern.may_match(e) or self._ends(pattern, e, path)
            case _:
                return True

    def _ends(self, pattern: Pattern, e: Expr, path: list[str]) -> bool:
        if len(path) > len(self.path):
            self.path = path
            self.reason = f"{' of '.join(reversed(path))}: expected {pattern.expected}, found {_kind_of(e)}"
        return False
