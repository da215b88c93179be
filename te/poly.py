"""Polynomials with integer coefficients over atoms: what `te.index` computes with."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, isqrt
from typing import Any

from relayc.te.tir.expr import PrimExpr, Var

__all__ = ["Atom", "Interval", "Monomial", "Poly", "number", "remove_factors", "shared_divisors"]


class Atom:
    """An indivisible factor: kind "var", "//", "%", "min", "max", "select" or "opaque"."""

    __slots__ = ("args", "expr", "kind", "serial", "vars")

    def __init__(self, kind: str, args: tuple[Any, ...], expr: PrimExpr, vars_: frozenset[Var], serial: int) -> None:
        self.kind, self.args, self.expr, self.vars, self.serial = kind, args, expr, vars_, serial


Monomial = tuple[Atom, ...]


class Poly:
    """A sum of integer multiples of products of atoms; the empty product is 1."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms

    @property
    def const(self) -> int | None:
        """The value of a constant polynomial, or None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def constant_term(self) -> int:
        """The constant term of the sum."""
        return self.terms.get((), 0)

    def plus(self, other: Poly | int, factor: int = 1) -> Poly:
        """self + factor * other"""
        terms = dict(self.terms)
        for m, c in ({(): other} if isinstance(other, int) else other.terms).items():
            total = terms.get(m, 0) + c * factor
            if total:
                terms[m] = total
            else:
                terms.pop(m, None)
        return Poly(terms)

    __add__ = plus

    def scale(self, factor: int) -> Poly:
        """This polynomial times `factor`."""
        if factor == 1:
            return self
        return Poly({m: c * factor for m, c in self.terms.items()} if factor else {})

    def __sub__(self, other: Poly | int) -> Poly:
        return self.plus(other, -1)

    def __mul__(self, other: Poly) -> Poly:
        if (k := other.const) is not None:
            return self.scale(k)
        if (k := self.const) is not None:
            return other.scale(k)
        result = Poly({})
        for m, c in self.terms.items():
            result = result + Poly({tuple(sorted((*m, *n), key=_serial)): c * d for n, d in other.terms.items()})
        return result

    def square_root(self) -> Poly | None:
        """The polynomial with a positive factor whose square is this one, where it is one product; else None."""
        if len(self.terms) != 1:
            return None
        ((monomial, factor),) = self.terms.items()
        root = isqrt(max(factor, 0))
        if root * root != factor or monomial[::2] != monomial[1::2]:
            return None
        return Poly({monomial[::2]: root})

    def atoms(self) -> set[Atom]:
        """The atoms of all products."""
        return {atom for monomial in self.terms for atom in monomial}

    def key(self) -> tuple[Any, ...]:
        """A hashable key, equal for equal polynomials of one `IndexMath`."""
        return tuple(sorted([(tuple([a.serial for a in m]), c) for m, c in self.terms.items()]))


def _serial(atom: Atom) -> int:
    return atom.serial


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers lo, ..., lo + span: `span` is an upper bound, exact where the index allows it."""

    lo: Poly
    span: Poly


def number(value: int) -> Poly:
    """A constant polynomial."""
    return Poly({(): value} if value else {})


def remove_factors(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The product without the factors of another; None when it does not hold them all."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def shared_divisors(p: Poly, k: int) -> list[int]:
    """Proper divisors of k that some coefficients of p share with it, largest first."""
    found = {gcd(c, k) for m, c in p.terms.items() if m}
    return sorted([g for g in found if 1 < g < k or (g == k and k > 1)], reverse=True)
