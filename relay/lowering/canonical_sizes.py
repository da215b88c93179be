"""Canonicalises symbolic dimensions: fused functions that differ only in the names of their size variables become
equal.

A detector that treats each class of objects separately has the same kernels for each, at sizes that are different
variables of the model. With canonical variables a kernel is compiled once, and gets the model's sizes at each call.

The sizes of a deep layer are long formulas of those of the input: ``(samples + 240) // 320 - 1``. If a function depends
on ``samples`` only through that formula, the formula becomes one variable of its kernel, which is shorter for it and
compiles in a fraction of the time. The levels of a pyramid are quotients of each other: a kernel that reads several of
them takes the size of the largest, and is the same one further down. Pixels of an image as rows of a product are a
product of its sides, which becomes one variable. Most kernels profit from knowing that a size is a multiple of a
number; convolutions, products, attention and norms over channels do not (`OpDef.ignores_factors`), so that the same
layer after one and after two upsamplings of the image is one kernel.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

from relayc.relay.analysis import body_order
from relayc.relay.bind_sizes import with_dims
from relayc.relay.expr import Call, Function
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import add_sizes, assuming, floor_divide, is_at_least, normal, product, size_variables
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.dtype import DType
from relayc.te.tir import (
    Add,
    Binary,
    Cast,
    Dim,
    FloorDiv,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    SizeVar,
    Sub,
    Var,
    as_dim,
    as_int,
    convert,
)

__all__ = ["CanonicalSizes", "sizes_of"]


class CanonicalSizes:
    """Replaces the sizes of a model in functions by variables "#0", "#1", ... in order of first use."""

    def __init__(self) -> None:
        self._variables: list[SizeVar] = []

    def rename(self, function: Function) -> tuple[Function, Mapping[str, Dim]]:
        """The function over canonical variables, and the model's size for each of them by name."""
        if not sizes_of(function):
            return function, {}
        function = _unified(function)
        mentioned = sizes_of(function)
        dtypes = {v.dtype for v in mentioned.values()}
        if len(dtypes) != 1:
            return function, mentioned
        terms = _Terms()
        lengths = list(_expressions(_dims(p.ty) for p in function.params))
        calls = [e for e in body_order(function) if isinstance(e, Call) and isinstance(e.op, OpDef)]
        multiples = any(e.operator.ignores_factors([a.ty for a in e.args]) for e in calls)
        if any(e.operator.takes_sizes_apart() for e in calls):
            sizes = list({terms.number(d): d for d in lengths}.values())
        else:
            sizes = _abstracted(lengths, [*lengths, *_attributes(function)], mentioned, terms, multiples)
        own = self._own(len(sizes), dtypes.pop())
        if own is None:
            return function, mentioned
        factors = [1 if multiples else _common_factor(size) for size in sizes]
        made = {terms.number(size): product((factor, variable))
                for size, factor, variable in zip(sizes, factors, own, strict=True)}  # fmt: skip
        renamed = with_dims(function, lambda d: terms.replaced(d, made))
        values = [floor_divide(size, factor) for size, factor in zip(sizes, factors, strict=True)]
        return renamed, {variable.name: value for variable, value in zip(own, values, strict=True)}

    def _own(self, count: int, dtype: DType) -> list[SizeVar] | None:
        while len(self._variables) < count:
            self._variables.append(SizeVar(f"#{len(self._variables)}", dtype))
        own = self._variables[:count]
        return own if all(v.dtype == dtype for v in own) else None


def _unified(function: Function) -> Function:
    """The function with sizes that operators require to be equal unified: the shortest expression replaces the others.

    A schedule cannot prove that operands of an addition have equally many rows. The equality is checked at run time.
    """
    with assuming() as assumed:
        for e in body_order(function):
            if isinstance(e, Call) and isinstance(e.op, OpDef):
                e.op.result_type([a.ty for a in e.args], e.span)
    terms, shortest = _Terms(), dict[int, Dim]()
    for pair in assumed.equal:
        if any(is_at_least(1, size) for size in pair):  # broadcasts
            continue
        known = [shortest.get(terms.number(convert(size)), size) for size in pair]
        short, long = sorted(known, key=lambda size: 0 if isinstance(size, int) else terms.length(size))
        replaced = terms.number(convert(long))
        for number, size in shortest.items():
            if terms.number(convert(size)) == replaced:
                shortest[number] = short
        shortest[replaced] = short
    return with_dims(function, lambda d: terms.replaced(d, shortest)) if shortest else function


def sizes_of(function: Function) -> dict[str, Var]:
    """The size variables of a primitive function by name: of its parameters, then of its results and attributes."""
    dims = [d for p in function.params for d in _dims(p.ty)]
    for e in body_order(function):
        dims += _dims(e.ty)
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            dims += e.op.attributes().values()
    return size_variables(dims)


def _dims(ty: Type) -> list[Dim]:
    if isinstance(ty, TupleType):
        return [d for f in ty.fields for d in _dims(f)]
    return list(ty.shape) if isinstance(ty, TensorType) and not ty.is_static else []


def _attributes(function: Function) -> Iterator[PrimExpr]:
    """The sizes in attributes of operators. The sizes of results follow from these and from the parameters'."""
    for e in body_order(function):
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            yield from _expressions(e.op.attributes().values())


def _expressions(values: Iterable[Any]) -> Iterator[PrimExpr]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _expressions(value)
        elif isinstance(value, PrimExpr):
            yield value


def _abstracted(
    lengths: Sequence[PrimExpr], sizes: Sequence[PrimExpr], variables: Mapping[str, Var], terms: _Terms, multiples: bool
) -> list[PrimExpr]:
    """The sizes to abstract: for each variable the largest formula that contains all of its occurrences.

    `lengths` are the sizes of the parameters, which are not negative, `sizes` these and all other sizes that determine
    the function. With `multiples`, a multiple of a size may be such a formula too.
    """
    at_least_zero = {terms.number(d) for d in lengths}
    sizes = list({terms.number(d): d for d in sizes}.values())
    found: list[PrimExpr] = []
    covered: set[str] = set()
    for name, variable in variables.items():
        if name not in covered:
            formulas = _formulas(name, sizes, at_least_zero, terms, multiples)
            whole = next((size for size in formulas if terms.cover(size, sizes)), variable)
            covered |= terms.names(whole)
            found.append(whole)
    return found


def _formulas(
    name: str, sizes: Sequence[PrimExpr], at_least_zero: Container[int], terms: _Terms, multiples: bool
) -> Iterator[PrimExpr]:
    """Candidate formulas of a variable, larger ones first: subexpressions of each size that mentions it."""
    mentioning = [d for d in sizes if name in terms.names(d)]
    if mentioning:
        stack = [min(mentioning, key=lambda size: (terms.length(size), _divisor(size)))]
        while stack:
            part = stack.pop()
            suits = _is_opaque(part) or (multiples and _is_multiple(part))
            suits = suits and not is_at_least(1, part)  # which broadcasts
            if suits and (terms.number(part) in at_least_zero or is_at_least(part, 0)):
                yield part
            stack += [child for child in _operands(part) if name in terms.names(child)]


def _operands(size: PrimExpr) -> tuple[PrimExpr, ...]:
    if isinstance(size, Binary):
        return (size.a, size.b)
    return (size.value,) if isinstance(size, Cast) else ()


def _is_opaque(size: PrimExpr) -> bool:
    """Is it an extremum, a quotient by a number, a sum or a product of sizes?

    Replaced by a variable, times the common factor of a sum, it is known to be a multiple of the same number.
    """
    if isinstance(size, Mul):
        return not isinstance(size.b, IntImm)
    return isinstance(size, Max | Min | Add | Sub) or (isinstance(size, FloorDiv) and isinstance(size.b, IntImm))


def _common_factor(size: PrimExpr) -> int:
    """The greatest number that is known to divide a sum."""
    if isinstance(size, Add | Sub):
        return gcd(_common_factor(size.a), _common_factor(size.b))
    if isinstance(size, Mul) and isinstance(size.b, IntImm):
        return abs(size.b.value)
    return abs(size.value) if isinstance(size, IntImm) else 1


def _is_multiple(size: PrimExpr) -> bool:
    """Is it a multiple of a variable, or of a formula that is replaced by one?"""
    return isinstance(size, Mul) and isinstance(size.b, IntImm) and (isinstance(size.a, Var) or _is_opaque(size.a))


class _Terms:
    """Numbers expressions (hash-consing): equal ones have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._sizes: dict[int, PrimExpr] = {}
        self._known: dict[PrimExpr, int] = {}
        self._names: dict[int, frozenset[str]] = {}
        self._lengths: dict[int, int] = {}

    def number(self, size: PrimExpr) -> int:
        """The number of an expression."""
        known = self._known.get(size)
        if known is None:
            operands = _operands(size)
            parts = [self.number(part) for part in operands]
            key = (size.__class__, size.dtype, *parts) if parts else _leaf(size)
            known = self._known[size] = self._numbers.setdefault(key, len(self._numbers))
            self._sizes.setdefault(known, size)
            own = frozenset((size.name,)) if isinstance(size, Var) else frozenset[str]()
            self._names[known] = own.union(*[self.names(part) for part in operands])
            self._lengths[known] = 1 + sum([self.length(part) for part in operands])
        return known

    def names(self, size: PrimExpr) -> frozenset[str]:
        """The variables of an expression."""
        return self._names[self.number(size)]

    def length(self, size: PrimExpr) -> int:
        """The number of nodes of the expression as a tree."""
        return self._lengths[self.number(size)]

    def cover(self, part: PrimExpr, sizes: Sequence[PrimExpr]) -> bool:
        """Do the variables of `part` occur only inside of it, or in quotients of it, in all of `sizes`?"""
        return not any(self._occur_outside(size, part, self.names(part)) for size in sizes)

    def _occur_outside(self, size: PrimExpr, part: PrimExpr, names: frozenset[str]) -> bool:
        number = self.number(size)
        if number == self.number(part) or names.isdisjoint(self._names[number]) or _as_quotient(size, part):
            return False
        operands = _operands(size)
        return not operands or any(self._occur_outside(child, part, names) for child in operands)

    def replaced(self, size: PrimExpr, made: Mapping[int, Dim]) -> Dim:
        """The normal form of an expression with the subexpressions in `made`, by number, and quotients of them
        replaced."""

        def put_in(part: PrimExpr) -> PrimExpr:
            found = made.get(self.number(part))
            if found is not None:
                return convert(found)
            for number, new in made.items() if _divisor(part) else ():
                quotient = _as_quotient(part, self._sizes[number])
                if quotient is not None:
                    return convert(floor_divide(add_sizes(new, quotient.added), quotient.divisor))
            return part.rebuild(put_in)

        return normal(as_dim(put_in(size)))


class _Quotient(NamedTuple):
    """What to add to a size before it is divided, and by what."""

    added: int
    divisor: int


def _as_quotient(size: PrimExpr, whole: PrimExpr) -> _Quotient | None:
    """How the quotient `size` by a number is one of the quotient `whole`; None if it is not known to be.

    The sizes of a pyramid are formulas of that of the image, but each is half of the one before it:
    ``(n + 3) // 4`` is ``((n + 1) // 2 + 1) // 2``.
    """
    outer, inner = _divisor(size), _divisor(whole)
    if not inner or outer <= inner or outer % inner:
        return None
    assert isinstance(size, FloorDiv) and isinstance(whole, FloorDiv)
    added = as_int(add_sizes(as_dim(size.a), product((-1, as_dim(whole.a)))))
    return None if added is None or added % inner else _Quotient(added // inner, outer // inner)


def _divisor(size: PrimExpr) -> int:
    """The number by which a size is a quotient; 0 for sizes of other forms."""
    return size.b.value if isinstance(size, FloorDiv) and isinstance(size.b, IntImm) else 0


def _leaf(size: PrimExpr) -> Any:
    if isinstance(size, Var):
        return size.name
    return (IntImm, size.value) if isinstance(size, IntImm) else id(size)
