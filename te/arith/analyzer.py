"""`Analyzer`: what a pass knows about the integers of a program, and what follows from it.

    analyzer = Analyzer()
    analyzer.bind(i, Range(0, 16))
    analyzer.simplify((i * 4 + 3) // 4)            # i
    analyzer.can_prove(i < 16)                     # True
    with analyzer.constraint(i < n): ...           # facts that hold inside

Results are memoised as long as the facts stay. Division by 0 and overflow of index arithmetic are taken not to happen.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, isfinite

from relayc.te.arith.canonical import Canonical
from relayc.te.arith.interval import Ends, Interval, interval_of
from relayc.te.arith.linear import Atom, Bound, Linear
from relayc.te.dtype import INT32, INT64
from relayc.te.tir import ops
from relayc.te.tir.expr import EQ, GE, GT, LE, LT, And, Call, Compare, Dim, IntImm, Not, PrimExpr, Range, Var

__all__ = ["Analyzer"]


@dataclass(frozen=True, slots=True)
class _Stale:
    """The least and the greatest value of a variable, to be put into form when it is asked for."""

    low: PrimExpr
    high: PrimExpr


class Analyzer(Canonical):
    """Facts about variables, simplification, proofs and symbolic intervals."""

    def __init__(self) -> None:
        super().__init__()
        self._ranges: dict[Var, tuple[Linear, Linear] | _Stale] = {}  # var -> least and greatest value
        self._substitutes: dict[Var, PrimExpr] = {}

    # ---- facts

    def bind(self, var: Var, value: Range | Dim) -> None:
        """Declare the range of a variable, or the value that it stands for.

        Binding a variable again with another range or value replaces the fact.
        """
        if not isinstance(value, Range):
            expr = ops.cast(var.dtype, value)
            known = self._forms.get(var)
            if known is None or known.key != self.linear(expr).key:
                self._forget_if_seen(var)
                self._substitutes[var] = expr
                self._forms[var] = self.linear(expr)
            return
        low = self._dim(value.min)
        high = self.add(low, self._dim(value.extent)).shifted(-1)
        known_range = self._range(var)
        if known_range is not None and known_range[0].key == low.key and known_range[1].key == high.key:
            return
        self._forget_if_seen(var)
        self._ranges[var] = (low, high)
        self.variable(var)

    def _dim(self, value: Dim) -> Linear:
        return Linear({}, value) if isinstance(value, int) else self.linear(value)

    def _forget_if_seen(self, var: Var) -> None:
        self._ranges.pop(var, None)
        self._substitutes.pop(var, None)
        if var in self._atoms or var in self._forms:
            self._forget()

    def _forget(self) -> None:
        """Drop everything derived; facts stay."""
        for var, bound in self._ranges.items():
            low, high = ((bound.low, bound.high) if isinstance(bound, _Stale)
                         else (self.render(bound[0], var.dtype), self.render(bound[1], var.dtype)))  # fmt: skip
            self._ranges[var] = _Stale(low, high)
        known = [self.render(fact, self.dtype_of(fact)) for fact in self._known]
        self._atoms, self._proved, self._searched, self._pairs, self._forms, self._simple = {}, {}, {}, {}, {}, {}
        self._shared = {}
        for var, expr in self._substitutes.items():
            self._forms[var] = self.linear(expr)
        self._known = tuple([self.linear(fact) for fact in known])
        for fact in self._known:
            self._tighten(fact)

    def variable(self, var: Var) -> Atom:
        """The atom of a variable, with the bounds that its range gives."""
        found = self._atoms.get(var)
        if found is not None:
            return found
        bound = self._range(var)
        atom = super().variable(var)
        if bound is not None:
            low, high = bound
            atom.lo = max(atom.lo, low.bounds()[0])
            atom.hi = min(atom.hi, high.bounds()[1])
            atom.lower = low if low.terms else None
            atom.upper = high if high.terms else None
        return atom

    def _range(self, var: Var) -> tuple[Linear, Linear] | None:
        """The least and the greatest value of a variable."""
        bound = self._ranges.get(var)
        if isinstance(bound, _Stale):
            bound = self._ranges[var] = self.linear(bound.low), self.linear(bound.high)
        return bound

    @contextmanager
    def constraint(self, condition: PrimExpr) -> Generator[None]:
        """Take `condition` (scalar bool) to hold inside the `with` block."""
        facts = [f for f in self._facts_of(condition) if not f.data]
        if not facts:
            yield
            return
        facts += [undone for fact in facts if (undone := self.without_quotient(fact)) is not None]
        saved = (self._atoms, self._proved, self._searched, self._pairs, self._forms, self._simple, self._shared,
                 self._ranges, self._known)  # fmt: skip
        self._ranges = dict(self._ranges)
        self._known = (*self._known, *facts)
        self._forget()
        try:
            yield
        finally:
            (self._atoms, self._proved, self._searched, self._pairs, self._forms, self._simple, self._shared,
             self._ranges, self._known) = saved  # fmt: skip

    def _tighten(self, fact: Linear) -> None:
        """Narrow the bounds of the only atom, a variable, a quotient or a remainder, of `fact` >= 0."""
        if len(fact.terms) != 1:
            return
        ((atom, c),) = fact.terms.items()
        if c > 0:
            atom.lo = max(atom.lo, -(fact.const // c))
        else:
            atom.hi = min(atom.hi, fact.const // -c)
        if atom.lo == atom.hi and isinstance(atom.expr, Var):
            self._forms[atom.expr] = Linear({}, int(atom.lo))

    def _facts_of(self, condition: PrimExpr) -> list[Linear]:
        """Forms that are >= 0 when the condition holds."""
        if isinstance(condition, Call) and condition.op == "likely":
            return self._facts_of(condition.args[0])
        if isinstance(condition, And):
            return self._facts_of(condition.a) + self._facts_of(condition.b)
        if isinstance(condition, Not):
            false = condition.a
            if isinstance(false, Call) and false.op == "likely":
                condition = Not(false.args[0])
            simple = self.simplify(condition)
            return [] if isinstance(simple, Not) else self._facts_of(simple)
        if not isinstance(condition, Compare) or condition.a.dtype not in (INT32, INT64):
            return []
        d = self.add(self.linear(condition.a), self.linear(condition.b), -1)
        if isinstance(condition, LT):
            return [d.scaled(-1).shifted(-1)]
        if isinstance(condition, LE):
            return [d.scaled(-1)]
        if isinstance(condition, GT):
            return [d.shifted(-1)]
        if isinstance(condition, GE):
            return [d]
        return [d, d.scaled(-1)] if isinstance(condition, EQ) else []

    # ---- questions

    def can_prove(self, condition: PrimExpr) -> bool:
        """Is the condition known to hold? False means "not proved"."""
        simple = self.simplify(condition)
        if isinstance(simple, Call) and simple.op == "likely":
            simple = simple.args[0]
        if isinstance(simple, And):
            return self.can_prove(simple.a) and self.can_prove(simple.b)
        return isinstance(simple, IntImm) and bool(simple.value)

    def can_prove_equal(self, a: Dim, b: Dim) -> bool:
        """Is a == b known? Works on ints and index expressions."""
        difference = self.add(self._dim(a), self._dim(b), -1)
        if not difference.terms:
            return difference.const == 0
        return self.nonnegative(difference) and self.nonnegative(difference.scaled(-1))

    def can_prove_less(self, a: Dim, b: Dim) -> bool:
        """Is a < b known?"""
        return self.nonnegative(self.add(self._dim(b), self._dim(a), -1).shifted(-1))

    def can_prove_less_equal(self, a: Dim, b: Dim) -> bool:
        """Is a <= b known?"""
        return self.nonnegative(self.add(self._dim(b), self._dim(a), -1))

    def const_bounds(self, expr: Dim) -> tuple[Bound, Bound]:
        """Constants that an index expression lies between; `-inf` and `inf` where there are none."""
        return self._dim(expr).bounds()

    def const_upper(self, expr: Dim) -> int | None:
        """The least constant known to be at least `expr`, or None; symbolic bounds are put in for variables."""
        form = self._dim(expr)
        for _ in range(4):
            high = form.bounds()[1]
            if isfinite(high):
                return int(high)
            larger = self._larger(form)
            if larger is None:
                return None
            form = larger
        return None

    def _larger(self, form: Linear) -> Linear | None:
        for atom, c in sorted(form.terms.items(), key=lambda term: -term[0].uid):
            bound = atom.upper if c > 0 else atom.lower
            if bound is not None:
                return self.add(form.without(atom), bound, c)
        return None

    def modular(self, expr: Dim) -> tuple[int, int]:
        """(coefficient, base) with expr = base (mod coefficient); coefficient 0 for the constant `base`."""
        form = self._dim(expr)
        coefficient = gcd(*form.terms.values())
        return coefficient, form.const % coefficient if coefficient else form.const

    # ---- intervals and equations

    def int_set(self, expr: Dim, domains: Mapping[Var, Range | Interval]) -> Interval:
        """The interval of `expr` as the variables of `domains` run over their ranges and the others stay fixed."""
        low, high = interval_of(self, self._dim(expr), self._ends(domains))
        dtype = INT32 if isinstance(expr, int) else expr.dtype
        return Interval(None if low is None else self.render(low, dtype),
                        None if high is None else self.render(high, dtype))  # fmt: skip

    def _ends(self, domains: Mapping[Var, Range | Interval]) -> dict[Var, Ends]:
        ends: dict[Var, Ends] = {}
        for var, domain in domains.items():
            if isinstance(domain, Range):
                low = self._dim(domain.min)
                ends[var] = low, self.add(low, self._dim(domain.extent)).shifted(-1)
            else:
                ends[var] = (None if domain.min is None else self.linear(domain.min),
                             None if domain.max is None else self.linear(domain.max))  # fmt: skip
        return ends

    def union(self, intervals: Sequence[Interval]) -> Interval:
        """The smallest interval that contains all of `intervals`."""
        lows = [i.min for i in intervals]
        highs = [i.max for i in intervals]
        return Interval(self._extreme("min", lows), self._extreme("max", highs))

    def _extreme(self, kind: str, ends: Sequence[PrimExpr | None]) -> PrimExpr | None:
        known = [e for e in ends if e is not None]
        if len(known) != len(ends):
            return None
        return self.render(self.extremum(kind, [self.linear(e) for e in known]), known[0].dtype)

    def detect_linear(self, expr: PrimExpr, variables: Sequence[Var]) -> tuple[list[PrimExpr], PrimExpr] | None:
        """Coefficients and base with expr = sum(coefficient * variable) + base, both free of the variables; or None."""
        form = self.linear(expr)
        left = dict(form.terms)
        coefficients: list[PrimExpr] = []
        for var in variables:
            atom = self.variable(var)
            coefficient = Linear({}, left.pop(atom, 0))
            for term, c in list(left.items()):
                if term.kind == "*" and term.args.count(atom) == 1:
                    quotient = self.divide_product(term, (atom,))
                    assert quotient is not None
                    if quotient.vars.isdisjoint(variables):
                        coefficient = coefficient.plus(quotient, c)
                        del left[term]
            coefficients.append(self.render(coefficient, expr.dtype))
        base = Linear(left, form.const)
        return (coefficients, self.render(base, expr.dtype)) if base.vars.isdisjoint(variables) else None

    def deduce_bound(
        self, condition: PrimExpr, var: Var, domains: Mapping[Var, Range | Interval] | None = None
    ) -> Interval | None:
        """Values of `var` for which `condition` holds whatever the variables of `domains` are in their ranges.

        The condition is a conjunction of comparisons; None when it can't be solved for `var`.
        """
        ends = self._ends(domains or {})
        lows: list[Linear] = []
        highs: list[Linear] = []
        for fact in self._conjuncts(condition):
            worst = None if fact is None else interval_of(self, fact, ends)[0]
            if worst is None or not self._solve(worst, var, lows, highs):
                return None
        low = self.extremum("max", lows) if lows else None
        high = self.extremum("min", highs) if highs else None
        return Interval(None if low is None else self.render(low, var.dtype),
                        None if high is None else self.render(high, var.dtype))  # fmt: skip

    def worst_case(self, condition: PrimExpr, domains: Mapping[Var, Range | Interval]) -> PrimExpr | None:
        """A condition free of the variables of `domains` that implies `condition` wherever they are in their ranges.

        None when there is none to be found.
        """
        ends = self._ends(domains)
        result = ops.convert(True)
        for fact in self._conjuncts(condition):
            worst = None if fact is None else interval_of(self, fact, ends)[0]
            if worst is None or not worst.vars.isdisjoint(domains):
                return None
            zero = ops.make_const(self.dtype_of(worst), 0)
            holds = ops.greater(self.render(worst.shifted(1), zero.dtype), zero)
            result = ops.logical_and(result, self.simplify(holds))
        return result

    def _conjuncts(self, condition: PrimExpr) -> list[Linear | None]:
        if isinstance(condition, Call) and condition.op == "likely":
            return self._conjuncts(condition.args[0])
        if isinstance(condition, And):
            return self._conjuncts(condition.a) + self._conjuncts(condition.b)
        if isinstance(condition, IntImm) and condition.value:
            return []
        facts = self._facts_of(condition) if isinstance(condition, LT | LE | GT | GE) else []
        return list(facts) if facts else [None]

    def _solve(self, fact: Linear, var: Var, lows: list[Linear], highs: list[Linear]) -> bool:
        """k*var + rest >= 0  <=>  var >= ceil(-rest / k) for k > 0, var <= rest // -k for k < 0"""
        atom = self.variable(var)
        k = fact.terms.get(atom, 0)
        rest = fact.without(atom)
        if var in rest.vars:
            for extremum, c in rest.terms.items():
                if extremum.kind in ("min", "max") and var in extremum.vars:
                    parts = [fact.without(extremum).plus(x, c) for x in extremum.args]
                    if (extremum.kind == "min") == (c > 0):
                        return all(self._solve(part, var, lows, highs) for part in parts)
                    parts.sort(key=lambda part: var not in part.vars)  # one of them is enough
                    return self._solve(parts[0], var, lows, highs)
            undone = None if k else self.without_quotient(fact)
            return undone is not None and self._solve(undone, var, lows, highs)
        if k > 0:
            lows.append(self.floordiv(rest.scaled(-1).shifted(k - 1), k))
        elif k < 0:
            highs.append(self.floordiv(rest, -k))
        else:
            return self.nonnegative(rest)
        return True

