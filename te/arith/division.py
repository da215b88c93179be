"""Rules for quotients and remainders by a constant or a symbolic divisor.

Each rule takes the canonical dividend and divisor and gives the result, or None when it does not apply; its docstring
is the equation, which the tests evaluate on random integers; a, c, d and g are positive. `Forms` (te.arith.forms)
makes the atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING

from relayc.te.arith.linear import Atom, Linear

if TYPE_CHECKING:
    from relayc.te.arith.forms import Forms

__all__ = ["QUOTIENT_RULES", "REMAINDER_RULES", "quotient", "remainder", "sign_of_quotient", "symbolic_division"]


def split_multiples(x: Linear, c: int) -> tuple[Linear, Linear]:
    """x = c*q + r, with q taking every term that c divides: (q, r), 0 <= r.const < c"""
    q: dict[Atom, int] = {}
    r: dict[Atom, int] = {}
    for atom, k in x.terms.items():
        if k % c == 0:
            q[atom] = k // c
        else:
            r[atom] = k
    return Linear(q, x.const // c), Linear(r, x.const % c)


def _common_factor(x: Linear, c: int) -> int:
    for k in x.terms.values():
        c = gcd(c, k)
    return c


def quotient_in_range(forms: Forms, x: Linear, c: int) -> Linear | None:
    """k*c <= x < (k+1)*c  ==>  x // c = k"""
    low, high = x.bounds()
    if high - low < c and low // c == high // c:
        return Linear({}, int(low // c))
    return None


def quotient_of_quotient(forms: Forms, x: Linear, c: int) -> Linear | None:
    """(y // a + k) // c = (y + k*a) // (a*c)"""
    if len(x.terms) == 1:
        ((atom, k),) = x.terms.items()
        if k == 1 and atom.kind == "//" and isinstance(atom.args[1], int):
            y, a = atom.args
            return forms.floordiv(y.shifted(x.const * a), a * c)
    return None


def quotient_common_factor(forms: Forms, x: Linear, c: int) -> Linear | None:
    """(g*y + k) // (g*c) = (y + k // g) // c"""
    g = _common_factor(x, c)
    if g == 1:
        return None
    return forms.floordiv(Linear({a: k // g for a, k in x.terms.items()}, x.const // g), c // g)


def quotient_small_part(forms: Forms, x: Linear, c: int) -> Linear | None:
    """0 <= s < g  ==>  (g*y + s) // (g*c) = y // c"""
    for g, big, _small in _big_and_small(x, c):
        return forms.floordiv(_exact_div(big, g), c // g)
    return None


def _exact_div(x: Linear, g: int) -> Linear:
    return Linear({a: k // g for a, k in x.terms.items()}, x.const // g)


def _big_and_small(x: Linear, c: int) -> list[tuple[int, Linear, Linear]]:
    """Splits x = big + small with g | big, g | c, 0 <= small < g, 1 < g < c; at most one, with the largest g."""
    if len(x.terms) < 2 and not (x.const and x.terms):
        return []
    for g in sorted({gcd(k, c) for k in x.terms.values()} - {1}, reverse=True):
        quotient_part, small = split_multiples(x, g)
        low, high = small.bounds()
        if low >= 0 and high < g and quotient_part.terms:
            return [(g, quotient_part.scaled(g), small)]
    return []


def remainder_in_range(forms: Forms, x: Linear, c: int) -> Linear | None:
    """k*c <= x < (k+1)*c  ==>  x % c = x - k*c"""
    low, high = x.bounds()
    if high - low < c and low // c == high // c:
        return x.shifted(-int(low // c) * c)
    return None


def remainder_of_remainder(forms: Forms, x: Linear, c: int) -> Linear | None:
    """k*a % c == 0  ==>  (k*(y % a) + z) % c = (k*y + z) % c"""
    for atom, k in x.terms.items():
        if atom.kind == "%" and isinstance(atom.args[1], int) and k * atom.args[1] % c == 0:
            return forms.floormod(forms.add(x.without(atom), atom.args[0], k), c)
    return None


def remainder_common_factor(forms: Forms, x: Linear, c: int) -> Linear | None:
    """0 <= k < g  ==>  (g*y + k) % (g*c) = g * (y % c) + k"""
    g = _common_factor(x, c)
    if g == 1:
        return None
    k = x.const % g
    return forms.floormod(_exact_div(x.shifted(-k), g), c // g).scaled(g).shifted(k)


def remainder_small_part(forms: Forms, x: Linear, c: int) -> Linear | None:
    """0 <= s < g  ==>  (g*y + s) % (g*c) = g * (y % c) + s"""
    for g, big, small in _big_and_small(x, c):
        return forms.add(forms.floormod(_exact_div(big, g), c // g).scaled(g), small)
    return None


def sign_of_quotient(x: Linear) -> Linear:
    """0 <= s < g  ==>  (g*y + s < 0) = (y < 0)"""
    coefficients = [abs(k) for k in x.terms.values()]
    for g in sorted({gcd(a, b) for a in coefficients for b in coefficients} - {1}, reverse=True):
        y, small = split_multiples(x, g)
        low, high = small.bounds()
        if y.terms and high - low < g and low // g == high // g:
            return sign_of_quotient(y.shifted(int(low // g)))
    return x


Rule = Callable[["Forms", Linear, int], Linear | None]

QUOTIENT_RULES: tuple[Rule, ...] = (
    quotient_in_range, quotient_of_quotient, quotient_common_factor, quotient_small_part,
)  # fmt: skip
REMAINDER_RULES: tuple[Rule, ...] = (
    remainder_in_range, remainder_of_remainder, remainder_common_factor, remainder_small_part,
)  # fmt: skip


def quotient(forms: Forms, x: Linear, c: int) -> Linear:
    """(c*q + r) // c = q + r // c"""
    if c == 1:
        return x
    q, r = split_multiples(x, c)
    if not r.terms:
        return q
    for rule in QUOTIENT_RULES:
        found = rule(forms, r, c)
        if found is not None:
            return forms.add(q, found)
    return forms.add(q, forms.division_atom("//", r, c))


def remainder(forms: Forms, x: Linear, c: int) -> Linear:
    """(c*q + r) % c = r % c"""
    if c == 1:
        return Linear({}, 0)
    _, r = split_multiples(x, c)
    if not r.terms:
        return r
    for rule in REMAINDER_RULES:
        found = rule(forms, r, c)
        if found is not None:
            return found
    return forms.division_atom("%", r, c)


def symbolic_division(forms: Forms, x: Linear, m: Linear) -> tuple[Linear, Linear]:
    """(x // m, x % m) by (m*q + r) // m = q + r // m and (m*q + r) % m = r % m; 0 <= r < m gives q and r."""
    q, r = Linear({}, 0), Linear({}, x.const)
    factors = forms.factors(m)
    for atom, k in x.terms.items():
        part = forms.divide_product(atom, factors) if factors is not None else None
        if part is None:
            r = r.plus(Linear({atom: k}, 0))
        else:
            q = q.plus(part, k)
    whole = _whole_multiple(r, m)
    if whole:
        q, r = q.shifted(whole), r.plus(m, -whole)
    if forms.nonnegative(r) and forms.nonnegative(m.plus(r, -1).shifted(-1)):
        return q, r
    return forms.add(q, forms.division_atom("//", r, m)), forms.division_atom("%", r, m)


def _whole_multiple(r: Linear, m: Linear) -> int:
    """k with r = k*m + (terms that m has none of), 0 when m's terms are not all there in proportion"""
    ratios = {r.terms.get(atom, 0) // c if r.terms.get(atom, 0) % c == 0 else 0 for atom, c in m.terms.items()}
    return ratios.pop() if len(ratios) == 1 else 0
