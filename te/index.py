"""Arithmetic of loop indices: polynomials with integer coefficients over variables, quotients and remainders.

Bound inference and loop generation need few facts about indices, thousands of times: exact differences, ranges of
sums of loop variables, quotients of split and fused axes. A `Poly` is a sum of products of atoms; an atom is a
variable, a floor quotient or remainder of polynomials, a minimum or maximum, or an expression nothing is known of.
`IndexMath` makes atoms, knows the ranges of variables, and answers.

Everything here is exact integer arithmetic: no index is assumed to wrap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, permutations
from typing import Any

from relayc.te.dtype import INT32, INT64, DType
from relayc.te.ir.visitor import post_order
from relayc.te.poly import Atom, Interval, Monomial, Poly, number, remove_factors, shared_divisors
from relayc.te.tir.expr import (
    Add,
    Call,
    Cast,
    Dim,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    SizeVar,
    Sub,
    Var,
)
from relayc.te.tir.ops import cast, make_const
from relayc.te.tir.substitute import substitute

__all__ = ["IndexMath", "largest_extent"]


_MOST_EXTREMA = 6
"""The most minima and maxima in a sum whose values are tried in all combinations."""

_MOST_DIVISOR = 1 << 16
"""The largest divisor that quotients of quotients are joined to: indices are int32, and up to as much is added to them.
"""


class IndexMath:
    """Makes polynomials and answers questions about them, given the extents of loop variables.

    A variable declared with `declare` lies in [0, extent). Other variables are symbolic sizes; those of class SizeVar
    and those declared by `declare_size` are at least 0. `serials` numbers the atoms: instances that share it can be
    merged.
    """

    def __init__(self, serials: Iterator[int] | None = None) -> None:
        self._serials = count() if serials is None else serials
        self._atoms: dict[Any, Atom] = {}
        self._extents: dict[Var, Poly] = {}
        self._sizes: set[Var] = set()
        self._bounds: dict[Atom, tuple[int | None, int | None]] = {}
        self._keep: list[Any] = []
        self.facts: list[Poly] = []
        """polynomials that are assumed to be at least 0"""
        self.may_assume = False
        self._factors = frozenset[Atom]()

    # -- facts ---------------------------------------------------------------------------------------------------

    def declare(self, var: Var, extent: Poly) -> None:
        """`var` lies in [0, extent)."""
        self._extents[var] = extent
        self._bounds.clear()

    def declare_size(self, var: Var) -> None:
        """`var` is at least 0."""
        self._sizes.add(var)

    def assume(self, p: Poly) -> None:
        """Assume p >= 0, if assumptions are allowed and p holds no loop variable."""
        sizes_only = all(v not in self._extents for atom in p.atoms() for v in atom.vars)
        if self.may_assume and sizes_only and not self.nonneg(p):
            self.facts.append(p)

    def declare_results(self, shapes: Iterable[Sequence[Dim]]) -> None:
        """All results have these shapes: there are none if a size that is a factor of each of them is 0."""
        sizes = [[self.dim(d) for d in shape] for shape in shapes]
        factors = [frozenset[Atom]().union(*[d.atoms() for d in dims if len(d.terms) == 1]) for dims in sizes]
        self._factors = factors[0].intersection(*factors[1:]) if factors else frozenset()

    def holds_for_results(self, p: Poly) -> bool:
        """Is p >= 0 if there are results: if no factor of all of them is 0?"""
        grows = all(c > 0 and self._factors.issuperset(monomial) for monomial, c in p.terms.items() if monomial)
        return grows and sum(p.terms.values()) >= 0

    def extent(self, var: Var) -> Poly | None:
        """The declared extent of a loop variable."""
        return self._extents.get(var)

    # -- making --------------------------------------------------------------------------------------------------

    def var(self, var: Var) -> Poly:
        """A variable as a polynomial."""
        atom = self._atoms.get(var)
        if atom is None:
            atom = self._new_atom(var, "var", (), var, frozenset((var,)))
        return Poly({(atom,): 1})

    def dim(self, value: Dim) -> Poly:
        """A size as a polynomial."""
        return number(value) if isinstance(value, int) else self.poly(value, {})

    def _new_atom(self, key: Any, kind: str, args: tuple[Any, ...], expr: PrimExpr, vars_: frozenset[Var]) -> Atom:
        atom = self._atoms[key] = Atom(kind, args, expr, vars_, next(self._serials))
        return atom

    def _binary_atom(self, kind: str, a: Poly, b: Poly) -> Poly:
        key = (kind, a.key(), b.key())
        atom = self._atoms.get(key)
        if atom is None:
            x, y = self.expr(a), self.expr(b)
            if x.dtype != y.dtype:
                x, y = cast(INT64, x), cast(INT64, y)
            expr = {"//": FloorDiv, "%": FloorMod, "min": Min, "max": Max}[kind](x, y)
            vars_ = frozenset().union(*[t.vars for t in a.atoms() | b.atoms()])
            atom = self._new_atom(key, kind, (a, b), expr, vars_)
        return Poly({(atom,): 1})

    def _opaque(self, expr: PrimExpr, kind: str = "opaque", args: tuple[Any, ...] = ()) -> Poly:
        atom = self._atoms.get(id(expr))
        if atom is None:
            vars_ = frozenset([v for v in post_order(expr) if isinstance(v, Var)])
            self._keep.append(expr)
            atom = self._new_atom(id(expr), kind, args, expr, vars_)
        return Poly({(atom,): 1})

    def poly(self, expr: PrimExpr, values: Mapping[Var, Poly]) -> Poly:
        """An integer expression as a polynomial, with variables standing for `values`."""
        cls = expr.__class__
        if cls is IntImm:
            return number(expr.value)  # type: ignore[attr-defined]
        if isinstance(expr, Var):
            known = values.get(expr)
            return self.var(expr) if known is None else known
        if cls in (Add, Sub, Mul, FloorDiv, FloorMod, Min, Max) and expr.dtype.lanes == 1:
            return self._binary(cls, self.poly(expr.a, values), self.poly(expr.b, values))  # type: ignore[attr-defined]
        return self._other(expr, values)

    def _binary(self, cls: type, a: Poly, b: Poly) -> Poly:
        if cls is Add:
            return self.merge(a + b)
        if cls is Sub:
            return self.merge(a - b)
        if cls is Mul:
            return a * b
        if cls is FloorDiv:
            return self.floordiv(a, b)
        if cls is FloorMod:
            return self.floormod(a, b)
        return self.minimum(a, b) if cls is Min else self.maximum(a, b)

    def _other(self, expr: PrimExpr, values: Mapping[Var, Poly]) -> Poly:
        if isinstance(expr, Cast) and expr.value.dtype.is_int and expr.dtype.is_int and expr.dtype.bits >= 32:
            inner = self.poly(expr.value, values)
            return inner if expr.dtype.bits >= expr.value.dtype.bits else self._opaque_of(expr, values)
        branches: tuple[PrimExpr, PrimExpr] | None = None
        if isinstance(expr, Select):
            branches = (expr.true_value, expr.false_value)
        elif isinstance(expr, Call) and expr.op == "if_then_else":
            branches = (expr.args[1], expr.args[2])
        if branches is not None:
            a, b = self.poly(branches[0], values), self.poly(branches[1], values)
            return self._opaque(self._substituted(expr, values), "select", (a, b))
        return self._opaque_of(expr, values)

    def _opaque_of(self, expr: PrimExpr, values: Mapping[Var, Poly]) -> Poly:
        return self._opaque(self._substituted(expr, values))

    def _substituted(self, expr: PrimExpr, values: Mapping[Var, Poly]) -> PrimExpr:
        used = {v: values[v] for v in post_order(expr) if isinstance(v, Var) and v in values}
        return substitute(expr, {v: cast(v.dtype, self.expr(p)) for v, p in used.items()})

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def merge(self, p: Poly) -> Poly:
        """Rewrite w * (x % m) + w * m * (x // m) as w * x, which fusing and splitting again produces, and
        w * min(a, b) + w * max(a + k, b + k) as w * (a + b + k): a tensor cut at a position and joined again.
        """
        for monomial, c in list(p.terms.items()):
            for i, atom in enumerate(monomial):
                if atom.kind == "min" and monomial in p.terms:
                    rest = monomial[:i] + monomial[i + 1 :]
                    for other, d in p.terms.items():
                        total = self._sum_of_extrema(atom, rest, other) if d == c else None
                        if total is not None:
                            return self.merge(p - Poly({monomial: c, other: c}) + Poly({rest: c}) * total)
                if atom.kind != "%" or monomial not in p.terms:
                    continue
                x, m = atom.args
                rest = Poly({monomial[:i] + monomial[i + 1 :]: c})
                quotient = rest * m * self._binary_or_known("//", x, m)
                if quotient.terms and all(p.terms.get(k) == v for k, v in quotient.terms.items()):
                    return self.merge(p - quotient - Poly({monomial: c}) + rest * x)
        return p

    def _sum_of_extrema(self, least: Atom, rest: Monomial, other: Monomial) -> Poly | None:
        """min(a, b) + max(c, d) = a + b + k where c, d are a + k, b + k in any order; None where `other` is no product
        of `rest` and such a maximum."""
        greatest = remove_factors(other, rest)
        if greatest is None or len(greatest) != 1 or greatest[0].kind != "max":
            return None
        (a, b), (c, d) = least.args, greatest[0].args
        for first, second in ((c, d), (d, c)):
            k = first - a
            if (second - b - k).const == 0:
                return a + second
        return None

    def _binary_or_known(self, kind: str, a: Poly, b: Poly) -> Poly:
        atom = self._atoms.get((kind, a.key(), b.key()))
        return Poly({}) if atom is None else Poly({(atom,): 1})

    def _divide(self, a: Poly, b: Poly) -> tuple[Poly, Poly]:
        """(q, r) with a = q * b + r, q taken from the terms that b divides."""
        k = b.const
        if k is not None:
            q = {m: c // k for m, c in a.terms.items() if (c % k == 0 or not m) and c // k}
            r = {m: c if m else c % k for m, c in a.terms.items() if c % k}
            return Poly(q), Poly(r)
        if len(b.terms) == 1:
            ((divisor, factor),) = b.terms.items()
            if factor > 0:
                q, r = Poly({}), Poly({})
                for m, c in a.terms.items():
                    rest = remove_factors(m, divisor)
                    whole = 0 if rest is None else c // factor
                    if rest is not None and whole:
                        q = q + Poly({rest: whole})
                    if c - whole * factor:
                        r = r + Poly({m: c - whole * factor})
                return q, r
        difference = (a - b).const
        return (number(1), number(0)) if difference == 0 else (number(0), a)

    def floordiv(self, a: Poly, b: Poly) -> Poly:
        """a // b, rounded down; b is taken to be positive unless it is a number."""
        k = b.const
        if k is not None and k <= 0:
            return self._binary_atom("//", a, b)
        if k == 1:
            return a
        q, r = self._divide(a, b)
        if not r.terms or (self.nonneg(r) and self.nonneg(b - r - 1)):
            return q
        if k is not None:
            for g in shared_divisors(r, k):
                high, low = self._divide(r, number(g))
                if self._within(low, g):
                    return q + self.floordiv(high, number(k // g))
            nested = self._quotient_of_sizes(r)
            if nested is not None and k * nested[1] <= _MOST_DIVISOR:
                x, divisor = nested
                return q + self.floordiv(x, number(k * divisor))
        return q + self._binary_atom("//", r, b)

    def _quotient_of_sizes(self, p: Poly) -> tuple[Poly, int] | None:
        """(x, k) with p = x // k, if p is such a quotient of sizes and a number: x // k + c is (x + c * k) // k.

        The sizes of parts of parts then become those of smaller parts: tiles of every third line are tiles.
        """
        added = p.constant_term
        rest = p - added
        if len(rest.terms) != 1:
            return None
        ((monomial, factor),) = rest.terms.items()
        if factor != 1 or len(monomial) != 1 or monomial[0].kind != "//" or monomial[0].vars & self._extents.keys():
            return None
        x, divisor = monomial[0].args
        k = divisor.const
        return (x + added * k, k) if k is not None and k > 0 else None

    def floormod(self, a: Poly, b: Poly) -> Poly:
        """a % b with the sign of b; b is taken to be positive unless it is a number."""
        k = b.const
        if k is not None and k <= 0:
            return self._binary_atom("%", a, b)
        if k == 1:
            return number(0)
        _, r = self._divide(a, b)
        if not r.terms or (self.nonneg(r) and self.nonneg(b - r - 1)):
            return r
        if k is not None:
            for g in shared_divisors(r, k):
                high, low = self._divide(r, number(g))
                if self._within(low, g):
                    return self.floormod(high, number(k // g)).scale(g) + low
        return self._binary_atom("%", r, b)

    def _within(self, p: Poly, limit: int) -> bool:
        lo, hi = self.bounds(p)
        return lo is not None and hi is not None and lo >= 0 and hi < limit

    def ceildiv(self, a: Poly, b: Poly) -> Poly:
        """a / b, rounded up, for positive b."""
        return self.floordiv(a + b - 1, b)

    def minimum(self, a: Poly, b: Poly) -> Poly:
        """The smaller."""
        if self.nonneg(b - a):
            return a
        return b if self.nonneg(a - b) else self._binary_atom("min", a, b)

    def maximum(self, a: Poly, b: Poly) -> Poly:
        """The larger."""
        if self.nonneg(a - b):
            return a
        return b if self.nonneg(b - a) else self._binary_atom("max", a, b)

    # -- questions -----------------------------------------------------------------------------------------------

    def bounds(self, p: Poly) -> tuple[int | None, int | None]:
        """Constants (lower, upper) that p lies between, None where none is known."""
        lo: int | None = 0
        hi: int | None = 0
        for monomial, c in p.terms.items():
            a, b = self._atom_bounds(monomial[0]) if len(monomial) == 1 else self._monomial_bounds(monomial)
            if c < 0:
                a, b = b, a
            lo = None if lo is None or a is None else lo + c * a
            hi = None if hi is None or b is None else hi + c * b
            if lo is None and hi is None:
                break
        return lo, hi

    def _monomial_bounds(self, monomial: Monomial) -> tuple[int | None, int | None]:
        lo: int | None = 1
        hi: int | None = 1
        for atom in monomial:
            a, b = self._atom_bounds(atom)
            if a is None or a < 0 or lo is None:
                return None, None
            lo, hi = lo * a, (None if hi is None or b is None else hi * b)
        return lo, hi

    def _atom_bounds(self, atom: Atom) -> tuple[int | None, int | None]:
        known = self._bounds.get(atom)
        if known is None:
            known = self._bounds[atom] = self._compute_bounds(atom)
        return known

    def _compute_bounds(self, atom: Atom) -> tuple[int | None, int | None]:
        if atom.kind == "var":
            extent = self._extents.get(atom.expr)  # type: ignore[arg-type]
            if extent is not None:
                hi = self.bounds(extent)[1]
                return 0, None if hi is None else max(hi - 1, 0)
            if isinstance(atom.expr, SizeVar):
                return 0, atom.expr.most
            return (0 if atom.expr in self._sizes else None), None
        if atom.kind == "opaque":
            return None, None
        (alo, ahi), (blo, bhi) = self.bounds(atom.args[0]), self.bounds(atom.args[1])
        if atom.kind == "//":
            return _quotient_bounds(alo, ahi, blo, bhi)
        if atom.kind == "%":
            if blo is None or blo < 0:
                return None, None
            return 0, None if bhi is None else bhi - 1
        lows, highs = (alo, blo), (ahi, bhi)
        if atom.kind == "min":
            known = [h for h in highs if h is not None]
            return _both(min, *lows), min(known) if known else None
        if atom.kind == "max":
            known = [low for low in lows if low is not None]
            return max(known) if known else None, _both(max, *highs)
        return _both(min, *lows), _both(max, *highs)

    def _nonneg_atoms(self, atoms: Iterable[Atom]) -> bool:
        lows = [self._atom_bounds(a)[0] for a in atoms]
        return all(low is not None and low >= 0 for low in lows)

    def nonneg(self, p: Poly) -> bool:
        """Is p proved to be at least 0?"""
        lo, hi = self.bounds(p)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        if p.const is not None:
            return False
        if self.facts and self._nonneg_by_facts(p):
            return True
        return self._symbolically_nonneg(p) or self._nonneg_by_quotients(p)

    def _nonneg_by_facts(self, p: Poly) -> bool:
        """Does p >= 0 follow from a fact, or from one of the values that an extremum in p may take?

        Of several extrema the one is taken whose value cancels most: the others may well be sizes.
        """
        for fact in self.facts:
            shared = {1, *[p.terms[m] // c for m, c in fact.terms.items() if m in p.terms]}
            lows = [self.bounds(p.plus(fact, -times))[0] for times in shared if times > 0]
            if any(low is not None and low >= 0 for low in lows):
                return True
        extrema = [m for m in p.terms if len(m) == 1 and m[0].kind in ("min", "max")]
        if not 0 < len(extrema) <= _MOST_EXTREMA:
            return False
        monomial = max(extrema, key=lambda m: _cancelled(p, m))
        c, rest = p.terms[monomial], p - Poly({monomial: p.terms[monomial]})
        enough = any if monomial[0].kind == ("max" if c > 0 else "min") else all
        return enough(self.nonneg(rest.plus(value, c)) for value in monomial[0].args)

    def _nonneg_by_quotients(self, p: Poly) -> bool:
        """Does p >= 0 follow from x // m - y // m >= (x - y) // m, where x - y has a lower bound?

        t * (x // (t * m)) counts as (x - t * m + m) // m, which is at most that.
        """
        quotients = [(m[0], c) for m, c in p.terms.items() if len(m) == 1 and m[0].kind == "//"]
        for (one, c), (other, d) in permutations(quotients, 2):
            (x, m), (y, n) = one.args, other.args
            if c <= 0 or d >= 0 or m.const is None or n.const is None or n.const <= 0 or m.const % n.const:
                continue
            ratio = m.const // n.const
            times = min(c // ratio, -d)
            least = self.bounds(x - y - (m.const - n.const))[0]
            if times > 0 and least is not None:
                apart = Poly({(one,): times * ratio, (other,): -times})
                if self.nonneg(p - apart + number(times * (least // n.const))):
                    return True
        return False

    def _symbolically_nonneg(self, p: Poly) -> bool:
        """Replace atoms by bounds of theirs, as their signs demand, until no term is negative.

        Loop variables first: their extents may cancel against quotients, whose bounds lose more. Then extrema, a value
        of which cancels other terms.
        """
        for _ in range(12):
            for find in (self._bound_by_extent, partial(_bound_that_cancels, p), self._bound_of):
                found = next(((m, c, b) for m, c in p.terms.items() if (b := find(m, c)) is not None), None)
                if found is not None:
                    break
            else:
                return False
            monomial, c, bound = found
            p = p - Poly({monomial: c}) + bound
            lo = self.bounds(p)[0]
            if lo is not None and lo >= 0:
                return True
        return False

    def _bound_by_extent(self, monomial: Monomial, c: int) -> Poly | None:
        """A polynomial not above c * monomial with a loop variable replaced by its last value, or None."""
        for i, atom in enumerate(monomial):
            extent = self._extents.get(atom.expr) if c < 0 and isinstance(atom.expr, Var) else None
            rest = monomial[:i] + monomial[i + 1 :]
            if extent is not None and self._nonneg_atoms(rest):
                return Poly({rest: c}) * (extent - 1)
        return None

    def _bound_of(self, monomial: Monomial, c: int) -> Poly | None:
        """A polynomial not above c * monomial with a quotient, remainder or extremum replaced, or None."""
        for i, atom in enumerate(monomial):
            rest = monomial[:i] + monomial[i + 1 :]
            if not self._nonneg_atoms(rest):
                continue
            if atom.kind == "//":
                x, m = atom.args
                k = m.const
                if k is not None and k > 0 and c > 0 and self._nonneg_atoms((atom,)):
                    return Poly({rest: c // k}) * (x - (k - 1))
                if k is not None and k > 0 and c % k == 0:
                    return Poly({rest: c // k}) * (x if c < 0 else x - (k - 1))
            if atom.kind == "%" and c < 0:
                return Poly({rest: c}) * (atom.args[1] - 1)
            if (atom.kind == "min" and c < 0) or (atom.kind == "max" and c > 0):
                return Poly({rest: c}) * atom.args[0]
        return None

    def relax(self, p: Poly, free: Iterable[Var] | frozenset[Var]) -> Interval | None:
        """The values p takes as the `free` loop variables run over their ranges; None when nothing is known.

        The other variables stay in `lo`.
        """
        loose = free if isinstance(free, frozenset) else frozenset(free)
        lo, span = Poly({}), Poly({})
        for monomial, c in p.terms.items():
            moving = [a for a in monomial if not a.vars.isdisjoint(loose)]
            if not moving:
                lo = lo + Poly({monomial: c})
                continue
            rest = [a for a in monomial if a.vars.isdisjoint(loose)]
            if len(moving) > 1 or not self._nonneg_atoms(rest):
                return None
            part = self._relax_atom(moving[0], loose)
            if part is None:
                return None
            weight = Poly({tuple(rest): c})
            lo = lo + weight * (part.lo if c > 0 else part.lo + part.span)
            span = span + Poly({tuple(rest): abs(c)}) * part.span
        return Interval(self.merge(lo), span)

    def _relax_atom(self, atom: Atom, loose: frozenset[Var]) -> Interval | None:
        if atom.kind == "var":
            extent = self._extents.get(atom.expr)  # type: ignore[arg-type]
            return None if extent is None else Interval(Poly({}), extent - 1)
        if atom.kind == "opaque":
            return None
        a, b = self.relax(atom.args[0], loose), self.relax(atom.args[1], loose)
        if atom.kind in ("//", "%"):
            if a is None or not atom.args[1].atoms().isdisjoint(_loose_atoms(atom.args[1], loose)):
                return self._remainder_range(atom)
            return self._relax_quotient(a, atom.args[1]) if atom.kind == "//" else self._relax_remainder(a, atom)
        if a is None or b is None:
            return None
        if atom.kind == "select":
            return self.union(a, b)
        choose = self.minimum if atom.kind == "min" else self.maximum
        lo, span = choose(a.lo, b.lo), self.maximum(a.span, b.span)
        between = choose(a.lo + a.span, b.lo + b.span) - lo
        return Interval(lo, between if between.const is not None and self.nonneg(span - between) else span)

    def _remainder_range(self, atom: Atom) -> Interval | None:
        return Interval(Poly({}), atom.args[1] - 1) if atom.kind == "%" and atom.args[1].const else None

    def _relax_quotient(self, a: Interval, m: Poly) -> Interval:
        _, r = self._divide(a.lo, m)
        offset = r.const
        slack = number(offset) if offset is not None else m - 1
        return Interval(self.floordiv(a.lo, m), self.floordiv(a.span + slack, m))

    def _relax_remainder(self, a: Interval, atom: Atom) -> Interval:
        m = atom.args[1]
        start = self.floormod(a.lo, m)
        if self.nonneg(m - 1 - start - a.span):
            return Interval(start, a.span)
        k, s = m.const, a.span.const
        if k is not None and s is not None:
            for g in shared_divisors(start, k):
                _, low = self._divide(start, number(g))
                if low.const == 0 and s < g:  # the start is a multiple of g and the run ends before the next one
                    return Interval(start, a.span)
        return Interval(Poly({}), m - 1)

    def union(self, a: Interval, b: Interval) -> Interval | None:
        """The smallest interval over both, or None when their order is not known."""
        if self.nonneg(b.lo - a.lo):
            lo = a.lo
        elif self.nonneg(a.lo - b.lo):
            lo = b.lo
        else:
            return None
        a_end, b_end = a.lo + a.span, b.lo + b.span
        if self.nonneg(a_end - b_end):
            return Interval(lo, self.merge(a_end - lo))
        return Interval(lo, self.merge(b_end - lo)) if self.nonneg(b_end - a_end) else None

    # -- back to expressions -------------------------------------------------------------------------------------

    def expr(self, p: Poly) -> PrimExpr:
        """The polynomial as an expression: products in order of their creation, the constant last."""
        wide = any(a.expr.dtype.bits > 32 for m in p.terms for a in m)
        to = INT64 if wide else INT32
        result: PrimExpr | None = None
        ordered = sorted(p.terms.items(), key=_print_order)
        for monomial, c in ordered:
            if not monomial:
                continue
            term = _product(monomial, abs(c) if result is not None else c, to)
            result = term if result is None else Add(result, term) if c > 0 else Sub(result, term)
        constant = p.constant_term
        if result is None:
            return make_const(to if -(1 << 31) <= constant < (1 << 31) else INT64, constant)
        if constant:
            sign = Add if constant > 0 else Sub
            return sign(result, make_const(to, abs(constant)))
        return result

    def as_dim(self, p: Poly) -> Dim:
        """The polynomial as a size."""
        k = p.const
        return self.expr(p) if k is None else k


def _cancelled(p: Poly, extremum: Monomial) -> int:
    """The most terms of p that vanish when the extremum, a term of p, takes one of its values."""
    c = p.terms[extremum]
    return max(_cancelled_by(p, value.scale(c)) for value in extremum[0].args)


def _bound_that_cancels(p: Poly, monomial: Monomial, c: int) -> Poly | None:
    """A polynomial not above c * monomial, an extremum, that cancels terms of p, or None."""
    if len(monomial) != 1 or monomial[0].kind != ("min" if c < 0 else "max"):
        return None
    value = max((value.scale(c) for value in monomial[0].args), key=lambda value: _cancelled_by(p, value))
    return value if _cancelled_by(p, value) else None


def _cancelled_by(p: Poly, other: Poly) -> int:
    """The terms of p that vanish in p + other."""
    return sum(p.terms.get(m, 0) == -c for m, c in other.terms.items())


def _print_order(item: tuple[Monomial, int]) -> tuple[bool, list[int]]:
    monomial, c = item
    return c < 0, [a.serial for a in monomial]


def _product(monomial: Monomial, c: int, to: DType) -> PrimExpr:
    result: PrimExpr | None = None
    for atom in monomial:
        factor = cast(to, atom.expr)
        result = factor if result is None else Mul(result, factor)
    assert result is not None
    return result if c == 1 else Mul(result, make_const(to, c))


def _quotient_bounds(
    alo: int | None, ahi: int | None, blo: int | None, bhi: int | None
) -> tuple[int | None, int | None]:
    """Bounds of a // b; a divisor known only to be at least 0 is not 0 where the quotient is used."""
    if blo is None or blo < 0:
        return None, None
    least = max(blo, 1)
    lo = None if alo is None else alo // least if alo < 0 else 0 if bhi is None else alo // max(bhi, 1)
    hi = None if ahi is None else ahi // least if ahi >= 0 else -1
    return lo, hi


def _both(choose: Any, a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else choose(a, b)


def _loose_atoms(p: Poly, loose: frozenset[Var]) -> set[Atom]:
    return {a for a in p.atoms() if not a.vars.isdisjoint(loose)}


def largest_extent(extent: Dim) -> int | None:
    """The largest value of a bounded size; None where it has no bound."""
    if isinstance(extent, int):
        return extent
    bounded = any(isinstance(v, SizeVar) and v.most is not None for v in post_order(extent))
    arithmetic = IndexMath()
    return arithmetic.bounds(arithmetic.dim(extent))[1] if bounded else None
