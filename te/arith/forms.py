"""`Forms`: makes and interns the atoms of one analyzer, and does arithmetic that keeps forms canonical.

Matching quotients and remainders fuse (x//c*c + x%c = x), minima and maxima lose operands that can't win, products are
expanded. `nonnegative` is the prover: bounds first, then symbolic bounds put in for variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, inf
from typing import Any

from relayc.te.arith import division
from relayc.te.arith.linear import UNBOUNDED, Atom, Bound, Linear
from relayc.te.dtype import INT32, DType
from relayc.te.tir.expr import Add, FloorDiv, FloorMod, IntImm, Max, Min, Mul, PrimExpr, SizeVar, Sub, Var

__all__ = ["Forms"]

_FUEL = 8  # substitutions that one proof may make; sums of more minima and maxima are not taken apart
_MOST_OPERANDS = 8  # of a minimum or maximum, with those inside it flattened: sizes inside each other double them
_MOST_STEPS = 256  # forms that one proof may look at: those of models' sizes take up to 64


class _Budget:
    """The steps left to one proof."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Forms:
    """Atoms, facts about variables, and arithmetic on linear forms."""

    def __init__(self) -> None:
        self._atoms: dict[Any, Atom] = {}
        self._next_uid = 0
        self._uids: dict[Var, int] = {}  # of the atoms of variables, which keep their order when facts change
        self._proved: dict[Any, bool] = {}
        self._searched: dict[Any, tuple[bool, int]] = {}  # (key of a form, fuel) -> what was found, in how many steps
        self._pairs: dict[Any, tuple[Linear, Linear]] = {}
        self._known: tuple[Linear, ...] = ()  # forms known to be >= 0

    # ---- atoms

    def _atom(
        self,
        key: Any,
        kind: str,
        args: tuple[Any, ...],
        expr: PrimExpr,
        bounds: tuple[Bound, Bound],
        variables: frozenset[Var],
        data: bool = False,
    ) -> Atom:
        atom = self._atoms[key] = Atom(self._next_uid, kind, args, expr, bounds, variables, data)
        self._next_uid += 1
        return atom

    def variable(self, var: Var) -> Atom:
        """The atom of a variable."""
        found = self._atoms.get(var)
        if found is None:
            bounds: tuple[Bound, Bound] = UNBOUNDED
            if isinstance(var, SizeVar):
                bounds = (0, inf if var.most is None else var.most)
            found = self._atom(var, "var", (), var, bounds, frozenset((var,)))
            found.uid = self._uids.setdefault(var, found.uid)
        return found

    def opaque(
        self, key: Any, expr: PrimExpr, bounds: tuple[Bound, Bound], variables: frozenset[Var], data: bool
    ) -> Linear:
        """The form of an expression that arithmetic can't look into."""
        found = self._atoms.get(key)
        if found is None:
            found = self._atom(key, "opaque", (), expr, bounds, variables, data)
        return Linear({found: 1}, 0)

    def division_atom(self, kind: str, x: Linear, divisor: Linear | int) -> Linear:
        """x // divisor or x % divisor as an atom, after all rewrite rules."""
        key = (kind, x.key, divisor if isinstance(divisor, int) else divisor.key)
        found = self._atoms.get(key)
        if found is None:
            node = FloorDiv if kind == "//" else FloorMod
            dtype = self.dtype_of(x, divisor)
            right = IntImm(dtype, divisor) if isinstance(divisor, int) else self.render(divisor, dtype)
            variables = x.vars if isinstance(divisor, int) else x.vars | divisor.vars
            bounds = _quotient_bounds(x, divisor) if kind == "//" else _remainder_bounds(x, divisor)
            found = self._atom(key, kind, (x, divisor), node(self.render(x, dtype), right), bounds, variables, x.data)
            if kind == "%" and isinstance(divisor, Linear) and divisor.bounds()[0] >= 0:  # a divisor is not 0
                found.upper = divisor.shifted(-1)
        return Linear({found: 1}, 0)

    def dtype_of(self, *forms: Linear | int) -> DType:
        """The integer type of the atoms in some forms; int32 when there are none."""
        for form in forms:
            if isinstance(form, Linear):
                for atom in form.terms:
                    return atom.expr.dtype
        return INT32

    # ---- arithmetic

    def add(self, a: Linear, b: Linear, factor: int = 1) -> Linear:
        """a + factor * b"""
        if not b.terms:
            return a.shifted(b.const * factor)
        total = a.plus(b, factor)
        for atom in total.terms:
            if atom.fuses:
                return self._fuse(total)
        return total

    def _fuse(self, total: Linear) -> Linear:
        """x//c*c + x%c = x, and x - x//c*c = x%c, k times over, the first also y times; repeated until nothing fits"""
        for atom, k in total.terms.items():
            if not atom.fuses:
                continue
            if atom.kind == "*":
                fused = self._fuse_product(total, atom, k)
                if fused is not None:
                    return fused
            elif atom.kind == "%":
                x, c = atom.args
                whole = self.floordiv(x, c).scaled(c) if isinstance(c, int) else self._symbolic_multiple(x, c)
                if _holds(total, whole, k):
                    return self.add(total.without(atom).plus(whole, -k), x, k)
            elif atom.kind == "//":
                x, c = atom.args
                if not isinstance(c, int) or k % c:
                    continue
                if _holds(total, x, -k // c):
                    rest = total.without(atom).plus(x, k // c)
                    return self.add(rest, self.floormod(x, c), -k // c)
                if any(a.kind == "%" for a in x.terms):  # the remainder may have been found without
                    part = self.floormod(x, c)
                    if _holds(total, part, k // c):
                        return self.add(total.without(atom).plus(part, -k // c), x, k // c)
        return total

    def _fuse_product(self, total: Linear, product: Atom, k: int) -> Linear | None:
        """x//c*c*y + x%c*y = x*y, k times over"""
        for n, atom in enumerate(product.args):
            if atom.kind != "%":
                continue
            x, c = atom.args
            y = Linear({self._product((*product.args[:n], *product.args[n + 1 :])): 1}, 0)
            whole = self.floordiv(x, c).scaled(c) if isinstance(c, int) else self._symbolic_multiple(x, c)
            whole = self.multiply(whole, y)
            if _holds(total, whole, k):
                return self.add(total.without(product).plus(whole, -k), self.multiply(x, y), k)
        return None

    def _symbolic_multiple(self, x: Linear, m: Linear) -> Linear:
        """x // m * m"""
        return self.multiply(self.divmod_symbolic(x, m)[0], m)

    def floordiv(self, x: Linear, c: int) -> Linear:
        """x // c for c != 0"""
        return division.quotient(self, x, c) if c > 0 else division.quotient(self, x.scaled(-1), -c)

    def floormod(self, x: Linear, c: int) -> Linear:
        """x % c for c != 0, with the sign of c"""
        return division.remainder(self, x, c) if c > 0 else division.remainder(self, x.scaled(-1), -c).scaled(-1)

    def divmod_symbolic(self, x: Linear, m: Linear) -> tuple[Linear, Linear]:
        """(x // m, x % m) for a divisor that is not constant"""
        key = ("divmod", x.key, m.key)
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = division.symbolic_division(self, x, m)
        return found

    def multiply(self, a: Linear, b: Linear) -> Linear:
        """a * b, expanded over the terms"""
        if not b.terms:
            return a.scaled(b.const)
        if not a.terms:
            return b.scaled(a.const)
        total = Linear({}, a.const * b.const)
        if b.const:
            total = total.plus(Linear(a.terms, 0), b.const)
        if a.const:
            total = total.plus(Linear(b.terms, 0), a.const)
        for x, c in a.terms.items():
            for y, d in b.terms.items():
                total = self.add(total, Linear({self._product((*_factors(x), *_factors(y))): 1}, 0), c * d)
        return total

    def _product(self, factors: Iterable[Atom]) -> Atom:
        ordered = tuple(sorted(factors, key=_uid))
        if len(ordered) == 1:
            return ordered[0]
        key = ("*", *ordered)
        found = self._atoms.get(key)
        if found is None:
            expr: PrimExpr = ordered[0].expr
            bounds, variables = (ordered[0].lo, ordered[0].hi), ordered[0].vars
            for factor in ordered[1:]:
                expr = Mul(expr, factor.expr)
                bounds = _product_bounds(bounds, (factor.lo, factor.hi))
                variables |= factor.vars
            found = self._atom(key, "*", ordered, expr, bounds, variables, any(f.data for f in ordered))
        return found

    def factors(self, form: Linear) -> tuple[Atom, ...] | None:
        """The factors of a form that is one product with coefficient 1."""
        if form.const == 0 and len(form.terms) == 1:
            ((atom, k),) = form.terms.items()
            return _factors(atom) if k == 1 else None
        return None

    def divide_product(self, atom: Atom, divisor: tuple[Atom, ...]) -> Linear | None:
        """The product `atom` less the factors `divisor`, when it has them all."""
        left = list(_factors(atom))
        for factor in divisor:
            if factor not in left:
                return None
            left.remove(factor)
        return Linear({self._product(left): 1}, 0) if left else Linear({}, 1)

    def extremum(self, kind: str, operands: Iterable[Linear]) -> Linear:
        """min or max of several forms: flattened, without operands that never win, common terms taken out."""
        flat: list[Linear] = []
        for operand in operands:
            inside = _extremum_operands(kind, operand)
            flat += inside if len(flat) + len(inside) <= _MOST_OPERANDS else [operand]
        sign = 1 if kind == "min" else -1
        kept: list[Linear] = []
        for x in flat:
            if any(self.nonnegative(x.plus(y, -1).scaled(sign)) for y in kept):
                continue
            kept = [y for y in kept if not self.nonnegative(y.plus(x, -1).scaled(sign))]
            kept.append(x)
        if len(kept) == 1:
            return kept[0]
        common = {a: c for a, c in kept[0].terms.items() if all(x.terms.get(a) == c for x in kept[1:])}
        shared = Linear(common, 0)
        kept = [x.plus(shared, -1) for x in kept] if common else kept
        key = (kind, frozenset([x.key for x in kept]))
        found = self._atoms.get(key)
        if found is None:
            dtype = self.dtype_of(*kept)
            expr = self.render(kept[0], dtype)
            for x in kept[1:]:
                expr = (Min if kind == "min" else Max)(expr, self.render(x, dtype))
            pick = min if kind == "min" else max
            ends = [x.bounds() for x in kept]
            bounds = pick([e[0] for e in ends]), pick([e[1] for e in ends])
            variables = frozenset[Var]().union(*[x.vars for x in kept])
            found = self._atom(key, kind, tuple(kept), expr, bounds, variables, any(x.data for x in kept))
        return shared.plus(Linear({found: 1}, 0))

    # ---- expressions of forms

    def render(self, form: Linear, dtype: DType) -> PrimExpr:
        """The expression of a form, atoms in the order in which they were first seen."""
        if form.expr is None or form.expr.dtype is not dtype:
            form.expr = self._render(self._settled(form), dtype)
        return form.expr

    def _settled(self, form: Linear) -> Linear:
        """A form with x moved into min(a, b) + x where x cancels against a or b."""
        extrema = [(a, c) for a, c in form.terms.items() if (a.kind == "min" or a.kind == "max") and abs(c) == 1]
        if len(extrema) != 1 or len(form.terms) == 1:
            return form
        atom, c = extrema[0]
        rest = form.without(atom)
        moved = [rest.plus(operand, c) for operand in atom.args]
        if sum([len(m.terms) for m in moved]) >= len(rest.terms) + sum([len(x.terms) for x in atom.args]):
            return form
        return self.extremum(atom.kind if c == 1 else {"min": "max", "max": "min"}[atom.kind], moved)

    def _render(self, form: Linear, dtype: DType) -> PrimExpr:
        terms = sorted(form.terms.items(), key=_term_order) if len(form.terms) > 1 else list(form.terms.items())
        total: PrimExpr | None = None
        for atom, c in terms:
            if c > 0:
                term = atom.expr if c == 1 else Mul(atom.expr, IntImm(dtype, c))
                total = term if total is None else Add(total, term)
        const = form.const
        if total is None and (const != 0 or not terms):
            total, const = IntImm(dtype, const), 0
        for atom, c in terms:
            if c < 0:
                if total is None:
                    total = Mul(atom.expr, IntImm(dtype, c))
                else:
                    total = Sub(total, atom.expr if c == -1 else Mul(atom.expr, IntImm(dtype, -c)))
        assert total is not None
        if const:
            total = Add(total, IntImm(dtype, const)) if const > 0 else Sub(total, IntImm(dtype, -const))
        return total

    # ---- proofs

    def nonnegative(self, form: Linear) -> bool:
        """Is the value known to be at least 0? False means "not proved"."""
        low, high = form.bounds()
        if low >= 0:
            return True
        if high < 0:
            return False
        found = self._proved.get(form.key)
        if found is None:
            few = sum(_is_extremum(atom) for atom in form.terms) <= _FUEL
            budget = _Budget(_MOST_STEPS)
            found = self._proved[form.key] = self._prove(form, _FUEL, budget) if few else self._follows(form)
            factor = gcd(*form.terms.values())
            if not found and factor > 1:  # 4 x + 3 >= 0 where x >= 0
                smaller = Linear({atom: c // factor for atom, c in form.terms.items()}, int(form.const // factor))
                found = self._proved[form.key] = self.nonnegative(smaller)
        return found

    def _follows(self, form: Linear) -> bool:
        """Is the value at least that of something known to be at least 0?"""
        for fact in self._known:
            shared = {1, *[form.terms[atom] // c for atom, c in fact.terms.items() if atom in form.terms]}
            if any(form.plus(fact, -times).bounds()[0] >= 0 for times in shared if times > 0):
                return True
        return False

    def _prove(self, form: Linear, fuel: int, budget: _Budget) -> bool:
        """`fuel` are the substitutions left on this path.

        Substitutions commute, so that several paths lead to a form: its search is kept with the steps that it took, and
        takes as many from the budget of the next proof that comes to it.
        """
        low, high = form.bounds()
        if low >= 0:
            return True
        if high < 0 or fuel == 0 or budget.left == 0:
            return False
        question, left = (form.key, fuel), budget.left
        found, taken = self._searched.get(question, (True, _MOST_STEPS + 1))
        if taken <= left or not found:
            budget.left = max(left - taken, 0)
            return found
        budget.left -= 1
        found = self._follows(form) or self._search(form, fuel - 1, budget)
        if budget.left:  # nothing was cut short
            self._searched[question] = found, left - budget.left
        return found

    def _search(self, form: Linear, fuel: int, budget: _Budget) -> bool:
        """Does it follow from a form that is at most `form`?"""
        for atom, c in form.terms.items():
            if _is_extremum(atom):
                rest = form.without(atom)
                every = all if (atom.kind == "min") == (c > 0) else any
                return every(self._prove(rest.plus(x, c), fuel, budget) for x in atom.args)
        return any(self._prove(candidate, fuel, budget) for candidate in self._weaker(form))

    def without_quotient(self, form: Linear) -> Linear | None:
        """A form that is >= 0 exactly when `form` is, with a quotient multiplied out; None when there is none to undo.

        r - x // m >= 0  <=>  (r + 1)*m - x - 1 >= 0, and r + x // m >= 0  <=>  r*m + x >= 0, for m > 0.
        """
        for atom, c in form.terms.items():
            if atom.kind == "//" and abs(c) == 1:
                x, m = atom.args
                m = Linear({}, m) if isinstance(m, int) else m
                if m.bounds()[0] >= 0:  # a divisor is not 0
                    rest = form.without(atom)
                    if c > 0:
                        return self.add(self.multiply(rest, m), x)
                    return self.add(self.multiply(rest.shifted(1), m), x, -1).shifted(-1)
        return None

    def _weaker(self, form: Linear) -> Iterable[Linear]:
        """Forms that are at most `form`: one symbolic bound put in, latest variable first; quotients undone."""
        undone = self.without_quotient(form)
        if undone is not None:
            yield undone
        for atom, c in sorted(form.terms.items(), key=_latest_first):
            if atom.kind == "//":
                x, d = atom.args
                if isinstance(d, int) and c % d == 0 and not x.vars.isdisjoint(form.without(atom).vars):
                    yield form.without(atom).plus(x, c // d).plus(self.floormod(x, d), -(c // d))
                yield from self._rounded_difference(form, atom, c)
            for factor in dict.fromkeys(_factors(atom)):
                bound = factor.lower if c > 0 else factor.upper
                others = list(_factors(atom))
                others.remove(factor)
                if bound is not None and all(o.lo >= 0 for o in others):
                    scale = Linear({self._product(others): 1}, 0) if others else Linear({}, 1)
                    yield self.add(form.without(atom), self.multiply(bound, scale), c)

    def _rounded_difference(self, form: Linear, atom: Atom, k: int) -> Iterable[Linear]:
        """x - y >= l  ==>  x // d - y // d >= l // d"""
        x, d = atom.args
        for other, c in form.terms.items():
            if c == -k and k > 0 and other.kind == "//" and other.args[1] == d and isinstance(d, int):
                low = x.plus(other.args[0], -1).bounds()[0]
                if low != -inf:
                    yield form.without(atom).without(other).shifted(k * int(low // d))


def _is_extremum(atom: Atom) -> bool:
    return atom.kind == "min" or atom.kind == "max"


def _uid(atom: Atom) -> int:
    return atom.uid


def _term_order(term: tuple[Atom, int]) -> int:
    return term[0].uid


def _latest_first(term: tuple[Atom, int]) -> int:
    return -term[0].uid


def _holds(total: Linear, part: Linear, factor: int) -> bool:
    """Does `total` contain factor * (the terms of part), coefficient by coefficient?"""
    if not factor or not part.terms:
        return False
    return all(total.terms.get(atom) == c * factor for atom, c in part.terms.items())


def _factors(atom: Atom) -> tuple[Atom, ...]:
    return atom.args if atom.kind == "*" else (atom,)


def _extremum_operands(kind: str, x: Linear) -> list[Linear]:
    """The operands of x when it is min(...) + terms; x itself otherwise"""
    for atom, c in x.terms.items():
        if atom.kind == kind and c == 1:
            rest = x.without(atom)
            return [rest.plus(operand) for operand in atom.args]
    return [x]


def _quotient_bounds(x: Linear, divisor: Linear | int) -> tuple[Bound, Bound]:
    low, high = x.bounds()
    if isinstance(divisor, int):
        return (low if low == -inf else low // divisor), (high if high == inf else high // divisor)
    if divisor.bounds()[0] >= 0:  # a divisor is not 0
        return (0 if low >= 0 else low), (high if high >= 0 else -1)
    return UNBOUNDED


def _remainder_bounds(x: Linear, divisor: Linear | int) -> tuple[Bound, Bound]:
    low, high = x.bounds()
    most: Bound = divisor if isinstance(divisor, int) else divisor.bounds()[1]
    if not isinstance(divisor, int) and divisor.bounds()[0] < 0:
        return UNBOUNDED
    return 0, min(most - 1, high) if low >= 0 else most - 1


def _product_bounds(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    ends = [x * y if x and y else 0 for x in a for y in b]
    return min(ends), max(ends)

