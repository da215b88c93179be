"""Symbolic intervals: the values that an expression takes while some of its variables run over ranges.

The result's ends are expressions of the other variables; an end is None where nothing is known. Where every variable
occurs once the interval is exact, otherwise it may be too wide, never too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from relayc.te.arith.forms import Forms
from relayc.te.arith.linear import Atom, Linear
from relayc.te.tir.expr import PrimExpr, Var

__all__ = ["Interval", "interval_of"]

Ends = tuple[Linear | None, Linear | None]


class Interval:
    """The integers from `min` to `max`, both included; None is no bound."""

    __slots__ = ("max", "min")

    def __init__(self, min: PrimExpr | None, max: PrimExpr | None) -> None:
        self.min = min
        self.max = max

    @property
    def is_bounded(self) -> bool:
        """Are both ends known?"""
        return self.min is not None and self.max is not None

    def __repr__(self) -> str:
        return f"[{self.min}, {self.max}]"


def interval_of(forms: Forms, form: Linear, domains: Mapping[Var, Ends]) -> Ends:
    """The least and the greatest value of `form` while the variables of `domains` run between their ends."""
    low, high = _relax(forms, form, domains, {})
    for _ in domains:  # the ends of one range may name another relaxed variable
        open_low = low is not None and not low.vars.isdisjoint(domains)
        open_high = high is not None and not high.vars.isdisjoint(domains)
        if open_low and low is not None:
            low = _relax(forms, low, domains, {})[0]
        if open_high and high is not None:
            high = _relax(forms, high, domains, {})[1]
        if not (open_low or open_high):
            break
    return low, high


def _relax(forms: Forms, form: Linear, domains: Mapping[Var, Ends], memo: dict[Atom, Ends]) -> Ends:
    fixed = {a: c for a, c in form.terms.items() if a.vars.isdisjoint(domains)}
    if len(fixed) == len(form.terms):
        return form, form
    low: Linear | None = Linear(fixed, form.const)
    high: Linear | None = low
    for atom, c in form.terms.items():
        if atom in fixed:
            continue
        ends = memo.get(atom)
        if ends is None:
            ends = memo[atom] = _relax_atom(forms, atom, domains, memo)
        least, most = ends if c > 0 else (ends[1], ends[0])
        low = None if low is None or least is None else forms.add(low, least, c)
        high = None if high is None or most is None else forms.add(high, most, c)
    return low, high


def _relax_atom(forms: Forms, atom: Atom, domains: Mapping[Var, Ends], memo: dict[Atom, Ends]) -> Ends:
    if atom.kind == "var":
        (var,) = atom.vars
        return domains[var]
    if atom.kind in ("//", "%"):
        return _relax_division(forms, atom, domains, memo)
    if atom.kind in ("min", "max"):
        lows, highs = zip(*[_relax(forms, x, domains, memo) for x in atom.args], strict=True)
        return _extremum(forms, atom.kind, lows), _extremum(forms, atom.kind, highs)
    if atom.kind == "*":
        return _relax_product(forms, atom, domains, memo)
    return _constant_ends(atom)


def _relax_division(forms: Forms, atom: Atom, domains: Mapping[Var, Ends], memo: dict[Atom, Ends]) -> Ends:
    x, divisor = atom.args
    low, high = _relax(forms, x, domains, memo)
    if not isinstance(divisor, int):
        if not divisor.vars.isdisjoint(domains) or divisor.bounds()[0] < 0:
            return _constant_ends(atom)
        if atom.kind == "//":
            ends = [None if e is None else forms.divmod_symbolic(e, divisor)[0] for e in (low, high)]
            return ends[0], ends[1]
        return Linear({}, 0), divisor.shifted(-1)
    if atom.kind == "//":
        return (None if low is None else forms.floordiv(low, divisor),
                None if high is None else forms.floordiv(high, divisor))  # fmt: skip
    if low is not None and high is not None:
        turn = forms.floordiv(low, divisor)
        if forms.floordiv(high, divisor).key == turn.key:
            return forms.add(low, turn, -divisor), forms.add(high, turn, -divisor)
    return _constant_ends(atom)


def _relax_product(forms: Forms, atom: Atom, domains: Mapping[Var, Ends], memo: dict[Atom, Ends]) -> Ends:
    ends = [_relax(forms, Linear({f: 1}, 0), domains, memo) for f in atom.args]
    low: Linear | None = Linear({}, 1)
    high: Linear | None = low
    for least, most in ends:
        if least is None or not forms.nonnegative(least):
            break
        low = None if low is None else forms.multiply(low, least)
        high = None if high is None or most is None else forms.multiply(high, most)
    else:
        return low, high
    moving = [i for i, f in enumerate(atom.args) if not f.vars.isdisjoint(domains)]
    others = Linear({}, 1)
    for i, factor in enumerate(atom.args):
        if i not in moving:
            others = forms.multiply(others, Linear({factor: 1}, 0))
    least, most = ends[moving[0]]
    if len(moving) > 1 or least is None or most is None:
        return _constant_ends(atom)
    if forms.nonnegative(others):
        return forms.multiply(least, others), forms.multiply(most, others)
    a, b = forms.multiply(least, others), forms.multiply(most, others)
    return forms.extremum("min", (a, b)), forms.extremum("max", (a, b))


def _extremum(forms: Forms, kind: str, ends: tuple[Linear | None, ...]) -> Linear | None:
    known = [e for e in ends if e is not None]
    return forms.extremum(kind, known) if len(known) == len(ends) else None


def _constant_ends(atom: Atom) -> Ends:
    return (Linear({}, int(atom.lo)) if isfinite(atom.lo) and not atom.data else None,
            Linear({}, int(atom.hi)) if isfinite(atom.hi) and not atom.data else None)  # fmt: skip
