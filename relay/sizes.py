"""Arithmetic of dimensions: static sizes (int) and symbolic sizes (expressions over size variables).

Every size has one normal form, a polynomial written in a fixed order and interned: equal sizes are the same object.
Normal forms live as long as the size variables in them: a process may compile any number of models. Where a rule needs
two sizes to be equal and they are only not known to differ, an `assuming` scope records the equality, to be proved (by
the importer) or checked at run time (by the executor).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from math import isqrt
from typing import Any

from relayc.relay.argument_types import checked
from relayc.te.index import IndexMath
from relayc.te.ir import collect, post_order
from relayc.te.poly import Poly
from relayc.te.tir import Dim, FloorDiv, FloorMod, Max, Min, PrimExpr, SizeVar, Var, as_dim
from relayc.te.tir.ops import add, convert, floordiv, floormod, maximum, minimum, mul, sub
from relayc.te.tir.substitute import substitute

__all__ = [
    "LIKELY_SIDE", "Assumptions", "add_sizes", "assuming", "count_roundings", "dims_equal", "dims_match", "evaluate",
    "floor_divide", "is_one", "likely", "may_be_one", "normal", "one_or", "product", "quotient", "size_from_json",
    "size_variables", "unknown_size",
]  # fmt: skip

_serials = count()
_unknown = count()
_lock = threading.RLock()


@checked
def unknown_size() -> SizeVar:
    """A dimension whose size is known at run time only, equal to no other (TVM: `relay.Any`)."""
    return SizeVar(f"any_{next(_unknown)}")


class _Sizes(IndexMath):
    """The arithmetic and the normal forms of variables that have occurred together in a size.

    Each of these variables refers to it as its `memory`, so it lives as long as they do, that is, as their model.
    """

    def __init__(self) -> None:
        super().__init__(_serials)
        self._normal: dict[Any, PrimExpr] = {}
        self._known: dict[PrimExpr, Poly] = {}
        """the polynomial of each normal form: sums of hundreds of sizes are not taken apart at each use"""
        self.estimates: dict[tuple[PrimExpr, int], int] = {}

    def as_dim(self, p: Poly) -> Dim:
        if p.const is not None:
            return p.const
        key = p.key()
        found = self._normal.get(key)
        if found is None:
            found = self._normal[key] = self.expr(p)
            self._known[found] = p
        return found

    def dim(self, value: Dim) -> Poly:
        known = None if isinstance(value, int) else self._known.get(value)
        return super().dim(value) if known is None else known

    def knows(self, d: PrimExpr) -> bool:
        """Is `d` a normal form of this arithmetic?"""
        return d in self._known

    def join(self, other: _Sizes) -> None:
        """Merge the normal forms of `other`, for its variables too."""
        self._atoms.update(other._atoms)
        self._bounds.update(other._bounds)
        self._keep.extend(other._keep)
        self._normal.update(other._normal)
        self._known.update(other._known)
        self.estimates.update(other.estimates)
        for key in other._atoms:
            if isinstance(key, Var):
                key.memory = self

    def var(self, var: Var) -> Poly:
        var.memory = self
        return super().var(var)

    def floordiv(self, a: Poly, b: Poly) -> Poly:
        """(x // m + c) // b = (x + c * m) // (b * m): the length of an image after any number of strides."""
        terms = [(monomial, factor) for monomial, factor in a.terms.items() if monomial]
        if len(terms) == 1 and b.const is not None and b.const > 1:
            (monomial, factor), *_ = terms
            atom = monomial[0]
            if factor == 1 and len(monomial) == 1 and atom.kind == "//":
                x, m = atom.args
                if m.const is not None and m.const > 0:
                    return self.floordiv(x + a.constant_term * m.const, b.scale(m.const))
        return super().floordiv(a, b)


def _arithmetic_of(*dims: Dim) -> _Sizes:
    """The arithmetic shared by all variables of the sizes."""
    found: _Sizes | None = None
    for d in dims:
        if isinstance(d, int):
            continue
        for var in _variables(d):
            known: _Sizes | None = getattr(var, "memory", None)
            if found is None:
                found = known
            elif known is not None and known is not found:
                found.join(known)
    return _Sizes() if found is None else found


def _variables(d: PrimExpr) -> Iterable[Var]:
    """The variables of `d`; only one of them if they are known to share their arithmetic."""
    first = next((node for node in post_order(d) if isinstance(node, Var)), None)
    if first is None:
        return ()
    known: _Sizes | None = getattr(first, "memory", None)
    if first is d or (known is not None and known.knows(d)):
        return (first,)
    return collect(d, Var)


def normal(d: Dim) -> Dim:
    """The one object that stands for all sizes equal to `d`."""
    if isinstance(d, int | SizeVar):
        return d
    d = as_dim(d)
    if isinstance(d, int):
        return d
    with _lock:
        math = _arithmetic_of(d)
        return math.as_dim(math.dim(d))


def dims_equal(a: Dim, b: Dim) -> bool:
    """Are two sizes known to be equal?"""
    if a is b:
        return True
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    with _lock:
        math = _arithmetic_of(a, b)
        return math.as_dim(math.dim(a)) is math.as_dim(math.dim(b))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of sizes; 1 for no sizes."""
    dims = tuple(dims)
    with _lock:
        math = _arithmetic_of(*dims)
        total = math.dim(1)
        for d in dims:
            total = total * math.dim(d)
        return math.as_dim(total)


def add_sizes(*dims: Dim) -> Dim:
    """The sum of sizes."""
    with _lock:
        math = _arithmetic_of(*dims)
        total = math.dim(0)
        for d in dims:
            total = total + math.dim(d)
        return math.as_dim(math.merge(total))


def _computed(how: Callable[[_Sizes, Poly, Poly], Poly], a: Dim, b: Dim) -> Dim:
    with _lock:
        math = _arithmetic_of(a, b)
        return math.as_dim(how(math, math.dim(a), math.dim(b)))


def floor_divide(a: Dim, b: Dim) -> Dim:
    """a / b rounded down, for b > 0."""
    return _computed(_Sizes.floordiv, a, b)


def square_root(d: Dim) -> Dim | None:
    """The size whose square is `d`, where that is a number or a product of squares; else None."""
    if isinstance(d, int):
        return isqrt(d) if d >= 0 and isqrt(d) ** 2 == d else None
    with _lock:
        math = _arithmetic_of(d)
        root = math.dim(d).square_root()
        return math.as_dim(root) if root is not None and math.nonneg(root) else None


def is_at_least(a: Dim, b: Dim) -> bool:
    """Is a >= b known?"""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    with _lock:
        math = _arithmetic_of(a, b)
        return math.nonneg(math.dim(a) - math.dim(b))


def may_be_one(d: Dim) -> bool:
    """Is a size 1, or not known to differ from 1?"""
    if isinstance(d, int):
        return d == 1
    with _lock:
        math = _arithmetic_of(d)
        low, high = math.bounds(math.dim(d))
    return (low is None or low <= 1) and (high is None or high >= 1)


def is_one(d: Dim) -> Dim:
    """1 for a size of 1, 0 for others."""
    return add_sizes(smaller(d, 1), product((-1, smaller(floor_divide(d, 2), 1))))


def one_or(d: Dim, other: Dim) -> Dim:
    """`other` for a size d of 1, else d."""
    return add_sizes(d, product((is_one(d), add_sizes(other, -1))))


def smaller(a: Dim, b: Dim) -> Dim:
    """min(a, b)"""
    return _computed(IndexMath.minimum, a, b)


def larger(a: Dim, b: Dim) -> Dim:
    """max(a, b)"""
    return _computed(IndexMath.maximum, a, b)


def quotient(total: Sequence[Dim], parts: Sequence[Dim]) -> Dim | None:
    """The product of `total` divided by that of `parts`; None where it is known not to divide.

    Factors on both sides cancel first. In an `assuming` scope a remainder that may be zero is assumed to be.
    """
    above, below = [normal(d) for d in total], list[Dim]()
    for d in map(normal, parts):
        match = next((i for i, t in enumerate(above) if t is d or (t == d and isinstance(d, int))), None)
        if match is None:
            below.append(d)
        else:
            del above[match]
    a, b = product(above), product(below)
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return 1 if a == 0 else None
        return None if a % b else a // b
    if isinstance(b, int) and b == 0:
        return None
    result = floor_divide(a, b)
    return result if dims_match(product((result, b)), a) else None


def size_variables(dims: Iterable[Any]) -> dict[str, Var]:
    """The variables of sizes by name, in order of first use; other values are skipped."""
    found: dict[str, Var] = {}
    for d in dims:
        if isinstance(d, tuple | list):
            found.update(size_variables(d))
        elif isinstance(d, Var):
            found[d.name] = d
        elif isinstance(d, PrimExpr):
            found.update({v.name: v for v in collect(d, Var)})
    return found


def count_roundings(d: Dim) -> int:
    """Quotients, remainders, minima and maxima in a size as it is written, shared parts counted at each use.

    They are what proofs about sizes split into cases by: time and memory grow with their number, not with that of sums
    and products, which are polynomials.
    """
    found: dict[int, int] = {}
    for e in post_order(d) if isinstance(d, PrimExpr) else ():
        inside = sum(found[id(child)] for child in e.node_children() if id(child) in found)
        found[id(e)] = inside + isinstance(e, FloorDiv | FloorMod | Min | Max)
    return found.get(id(d), 0)


def evaluate(d: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """`d` with variables replaced by name."""
    if isinstance(d, int):
        return d
    return normal(as_dim(substitute(d, {v: convert(sizes[v.name]) for v in collect(d, Var) if v.name in sizes})))


LIKELY_SIZE = 128
"""Elements assumed for a size variable where only an estimate is needed."""


LIKELY_SIDE = 256
"""Rows or columns of an image assumed for a size variable where only an estimate is needed."""


_ENLARGEMENTS = (0, 4, 8)
"""Exponents of the powers of two by which variables are scaled until a size is positive."""


def likely(d: Dim, size: int = LIKELY_SIZE) -> int:
    """An estimate of a size, for choices that affect speed and not results: its value for variables of `size`.

    If that is not positive, as when an audio signal is shorter than a window, its value for larger variables.
    """
    if isinstance(d, int):
        return d
    with _lock:
        estimates = _arithmetic_of(d).estimates
        found = estimates.get((d, size))
        if found is None:
            values = (evaluate(d, dict.fromkeys(size_variables([d]), size << more)) for more in _ENLARGEMENTS)
            found = estimates[d, size] = next((v for v in values if isinstance(v, int) and v > 0), 0)
    return found


_MEANINGS: dict[str, Any] = {
    "+": add, "-": sub, "*": mul, "//": floordiv, "%": floormod, "min": minimum, "max": maximum,
}  # fmt: skip


def size_from_json(value: Any, variables: Mapping[str, Var]) -> Dim:
    """The size that `backend.size_json.size_to_json` wrote."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return variables[value]
    sign, a, b = value
    return normal(as_dim(_MEANINGS[sign](size_from_json(a, variables), size_from_json(b, variables))))


class Assumptions:
    """Equalities that were assumed, each once, in order, and the first places that needed them."""

    def __init__(self) -> None:
        self.equal: list[tuple[Dim, Dim]] = []
        self.required: list[bool] = []
        """of each: does an operator require it that does not broadcast?"""
        self.places: list[str] = []
        self.place = ""
        """the current place in the model, set by the caller"""

    def note(self, a: Dim, b: Dim, required: bool) -> None:
        """Record the assumption a == b."""
        for number, (x, y) in enumerate(self.equal):
            if {id(a), id(b)} == {id(x), id(y)}:
                self.required[number] |= required
                return
        self.equal.append((a, b))
        self.required.append(required)
        self.places.append(self.place)


_scope: ContextVar[Assumptions | None] = ContextVar("relayc_assumptions", default=None)


@contextmanager
def assuming() -> Generator[Assumptions]:
    """Within this scope sizes that must be equal are assumed to be, if they may be, in this thread; lists them."""
    scope = Assumptions()
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)


def dims_match(a: Dim, b: Dim, broadcast: bool = False) -> bool:
    """Are two sizes equal, or, in an `assuming` scope, not known to differ?

    With `broadcast` the operator takes sizes of 1 as well: if either may be 1, the assumption is not a requirement.
    """
    if dims_equal(a, b):
        return True
    scope = _scope.get()
    if scope is None or (isinstance(a, int) and isinstance(b, int)):
        return False
    with _lock:
        math = _arithmetic_of(a, b)
        low, high = math.bounds(math.dim(a) - math.dim(b))
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    scope.note(normal(a), normal(b), not broadcast or not (may_be_one(a) or may_be_one(b)))
    return True
