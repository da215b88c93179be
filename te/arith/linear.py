"""The canonical form of index arithmetic: an integer combination of atoms plus a constant.

An `Atom` is an indivisible term: a variable, a quotient or remainder, a minimum or maximum, a product, or an
opaque expression. Atoms are interned per analyzer, so a `Linear` is a dictionary keyed by identity and sums, scalings
and differences cost as much as their few terms. Bounds are Python ints or floats `-inf`/`inf`.
"""

from __future__ import annotations

from math import inf
from typing import Any

from relayc.te.tir.expr import PrimExpr, Var

__all__ = ["Atom", "Bound", "Linear"]

Bound = int | float
"""An int, `-inf` or `inf`."""


class Atom:
    """One indivisible integer value.

    `kind` is "var", "//", "%", "min", "max", "*" or "opaque"; `args` are the operands: (dividend, divisor) as Linear
    (divisor an int when constant), the operands of a minimum, the factors of a product. `data` marks values read from
    memory, whose arithmetic may overflow. `fuses` marks what may combine with other terms of a sum: quotients,
    remainders and products with a remainder. `lower` and `upper` are symbolic bounds of a variable, when it has any.
    """

    __slots__ = ("args", "data", "expr", "fuses", "hi", "kind", "lo", "lower", "uid", "upper", "vars")

    def __init__(
        self,
        uid: int,
        kind: str,
        args: tuple[Any, ...],
        expr: PrimExpr,
        bounds: tuple[Bound, Bound],
        variables: frozenset[Var],
        data: bool = False,
    ) -> None:
        self.uid, self.kind, self.args, self.expr = uid, kind, args, expr
        self.lo, self.hi = bounds
        self.vars = variables
        self.data = data
        self.fuses = kind == "//" or kind == "%" or (kind == "*" and any(factor.kind == "%" for factor in args))
        self.lower: Linear | None = None
        self.upper: Linear | None = None

    def __repr__(self) -> str:
        return f"Atom({self.expr})"


class Linear:
    """sum(coefficient * atom) + const. Immutable; the bounds and the key are computed on first use."""

    __slots__ = ("_bounds", "_key", "const", "expr", "terms")

    def __init__(self, terms: dict[Atom, int], const: int) -> None:
        self.terms = terms
        self.const = const
        self.expr: PrimExpr | None = None
        self._bounds: tuple[Bound, Bound] | None = None
        self._key: tuple[Any, ...] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable key, equal for equal forms of one analyzer."""
        if self._key is None:
            self._key = (frozenset(self.terms.items()), self.const)
        return self._key

    @property
    def vars(self) -> frozenset[Var]:
        """The variables that the value depends on."""
        found: frozenset[Var] = frozenset()
        for atom in self.terms:
            found |= atom.vars
        return found

    @property
    def data(self) -> bool:
        """Does a value read from memory take part?"""
        return any(atom.data for atom in self.terms)

    def scaled(self, factor: int) -> Linear:
        """factor * self"""
        if factor == 1:
            return self
        if factor == 0:
            return Linear({}, 0)
        return Linear({atom: c * factor for atom, c in self.terms.items()}, self.const * factor)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other, without looking for quotients and remainders that belong together."""
        if not factor:
            return self
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            c = terms.get(atom, 0) + c * factor
            if c:
                terms[atom] = c
            else:
                del terms[atom]
        return Linear(terms, self.const + other.const * factor)

    def shifted(self, offset: int) -> Linear:
        """self + offset"""
        return Linear(self.terms, self.const + offset) if offset else self

    def without(self, atom: Atom) -> Linear:
        """self less the term of `atom`"""
        return Linear({a: c for a, c in self.terms.items() if a is not atom}, self.const)

    def bounds(self) -> tuple[Bound, Bound]:
        """Constants that the value lies between."""
        if self._bounds is None:
            self._bounds = _exact_over_extrema(self) if len(self.terms) > 1 else _interval_sum(self)
        return self._bounds

    def __repr__(self) -> str:
        return " + ".join([f"{c}*{a.expr}" for a, c in self.terms.items()] + [str(self.const)])


def _interval_sum(form: Linear) -> tuple[Bound, Bound]:
    low: Bound = form.const
    high: Bound = form.const
    for atom, c in form.terms.items():
        if c > 0:
            low, high = low + c * atom.lo, high + c * atom.hi
        else:
            low, high = low + c * atom.hi, high + c * atom.lo
    return low, high


def _exact_over_extrema(form: Linear) -> tuple[Bound, Bound]:
    """min(a, b) + x lies between the bounds of a + x and b + x taken together: x may cancel against a or b."""
    low, high = _interval_sum(form)
    extrema = [atom for atom in form.terms if atom.kind in _EXTREMA]
    if len(extrema) not in (1, 2):
        return low, high
    atom, c = extrema[0], form.terms[extrema[0]]
    rest = form.without(atom)
    if len(extrema) == 1 and not any(_may_cancel(operand, rest) for operand in atom.args):
        ends = [_sum_of(_interval_sum(rest), _interval_sum(operand), c) for operand in atom.args]
    else:
        ends = [rest.plus(operand, c).bounds() for operand in atom.args]
    pick = min if (atom.kind == "min") == (c > 0) else max
    return max(low, pick([e[0] for e in ends])), min(high, pick([e[1] for e in ends]))


def _may_cancel(a: Linear, b: Linear) -> bool:
    """Might the bounds of a + b be closer than the sum of their bounds? False says no."""
    return any(atom in b.terms or atom.kind in _EXTREMA for atom in a.terms)


def _sum_of(a: tuple[Bound, Bound], b: tuple[Bound, Bound], factor: int) -> tuple[Bound, Bound]:
    """The bounds of x + factor * y for x in `a` and y in `b`."""
    (low, high) = b if factor > 0 else b[::-1]
    return a[0] + factor * low, a[1] + factor * high


_EXTREMA = frozenset(("min", "max"))
UNBOUNDED: tuple[Bound, Bound] = (-inf, inf)
