"""Fused functions with size variables of their own: those that differ only in whose sizes they are about become equal.

A detector that treats each class of objects apart has the same kernels for each, at sizes that are different variables
of the model. As one kernel of its own variables it is compiled once, and is given the model's sizes at each call.

The sizes of a deep layer are long formulas of those of the input: ``(samples + 240) // 320 - 1``. Where a function is
about nothing else of ``samples``, the formula is one variable of its kernel, which is shorter for it and compiles in a
fraction of the time. For most kernels it matters that a size is a multiple of a number; to convolutions it does not, so
that the same layer after one and after two enlargements of the image is one kernel.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from relayc.relay.analysis import evaluation_order
from relayc.relay.bind_sizes import with_dims
from relayc.relay.expr import Call, Function
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.sizes import is_at_least, normal, size_variables
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
    convert,
)

__all__ = ["CanonicalSizes", "sizes_of"]


class CanonicalSizes:
    """Gives functions variables "#0", "#1", ... for the sizes of a model, in the order they are mentioned."""

    def __init__(self) -> None:
        self._variables: list[SizeVar] = []

    def rename(self, function: Function) -> tuple[Function, Mapping[str, Dim]]:
        """The function of its own variables, and the model's size for each of those by name."""
        if not sizes_of(function):
            return function, {}
        if not sizes_of(function):
            return function, {}
        function = _united(function)
        mentioned = sizes_of(function)
        dtypes = {v.dtype for v in mentioned.values()}
        if len(dtypes) != 1:
            return function, mentioned
        terms = _Terms()
        lengths = list(_expressions(_dims(p.ty) for p in function.params))
        sizes = _meant(lengths, [*lengths, *_attributes(function)], mentioned, terms, _tiles_pixels(function))
        own = self._own(len(sizes), dtypes.pop())
        if own is None:
            return function, mentioned
        made = {terms.number(size): variable for size, variable in zip(sizes, own, strict=True)}
        renamed = with_dims(function, lambda d: terms.replaced(d, made))
        return renamed, {variable.name: size for variable, size in zip(own, sizes, strict=True)}

    def _own(self, count: int, dtype: DType) -> list[SizeVar] | None:
        while len(self._variables) < count:
            self._variables.append(SizeVar(f"#{len(self._variables)}", dtype))
        own = self._variables[:count]
        return own if all(v.dtype == dtype for v in own) else None


def _united(function: Function) -> Function:
    """The function with sizes that operators take to be equal made one: the shorter expression of both.

    A schedule can't see that rows are as many as those of what is added to them. That they are is checked when the
    model runs.
    """
    terms, shorter = _Terms(), dict[int, Dim]()
    for e in evaluation_order(function.body):
        if isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.pattern <= OpPattern.BROADCAST:
            for d, other in _met(e):
                short, long = sorted((d, other), key=lambda size: terms.length(convert(size)))
                if isinstance(long, PrimExpr) and terms.number(long) != terms.number(convert(short)):
                    shorter[terms.number(long)] = short
    return with_dims(function, lambda d: terms.replaced(d, shorter)) if shorter else function


def _met(call: Call) -> Iterator[tuple[Dim, Dim]]:
    """The dimensions of an operator's data that meet those of its result, but not those that are repeated."""
    result = call.ty
    for arg in call.args[: call.operator.num_data_inputs]:
        if isinstance(arg.ty, TensorType) and isinstance(result, TensorType):
            pairs = zip(reversed(arg.ty.shape), reversed(result.shape), strict=False)
            yield from ((d, other) for d, other in pairs if not is_at_least(1, d))


def sizes_of(function: Function) -> dict[str, Var]:
    """The size variables of a primitive function by name: of its parameters, then of what it computes and how."""
    dims = [d for p in function.params for d in _dims(p.ty)]
    for e in evaluation_order(function.body):
        dims += _dims(e.ty)
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            dims += e.op.attributes().values()
    return size_variables(dims)


def _dims(ty: Type) -> list[Dim]:
    if isinstance(ty, TupleType):
        return [d for f in ty.fields for d in _dims(f)]
    return list(ty.shape) if isinstance(ty, TensorType) and not ty.is_static else []


def _attributes(function: Function) -> Iterator[PrimExpr]:
    """The sizes that operators are given. Those of what they compute follow from these and from the parameters'."""
    for e in evaluation_order(function.body):
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            yield from _expressions(e.op.attributes().values())


def _expressions(values: Iterable[Any]) -> Iterator[PrimExpr]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _expressions(value)
        elif isinstance(value, PrimExpr):
            yield value


def _meant(
    lengths: Sequence[PrimExpr], given: Sequence[PrimExpr], variables: Mapping[str, Var], terms: _Terms, multiples: bool
) -> list[PrimExpr]:
    """The sizes that a function is about: for each variable the largest formula outside of which it does not occur.

    `lengths` are those of its parameters, which are not negative, `given` these and all others that decide what it is.
    With `multiples`, a multiple of a size may be such a formula too.
    """
    at_least_zero = {terms.number(d) for d in lengths}
    given = list({terms.number(d): d for d in given}.values())
    found: list[PrimExpr] = []
    covered: set[str] = set()
    for name, variable in variables.items():
        if name not in covered:
            formulas = _formulas(name, given, at_least_zero, terms, multiples)
            whole = next((size for size in formulas if terms.cover(size, given)), variable)
            covered |= terms.names(whole)
            found.append(whole)
    return found


def _formulas(
    name: str, given: Sequence[PrimExpr], at_least_zero: Container[int], terms: _Terms, multiples: bool
) -> Iterator[PrimExpr]:
    """Formulas of a variable that may be taken for one size, larger ones first: parts of each size that mentions it."""
    mentioning = [d for d in given if name in terms.names(d)]
    if mentioning:
        stack = [min(mentioning, key=terms.length)]
        while stack:
            part = stack.pop()
            suits = _has_no_factor(part) or (multiples and _is_multiple(part))
            if suits and (terms.number(part) in at_least_zero or is_at_least(part, 0)):
                yield part
            stack += [child for child in _operands(part) if name in terms.names(child)]


def _operands(size: PrimExpr) -> tuple[PrimExpr, ...]:
    if isinstance(size, Binary):
        return (size.a, size.b)
    return (size.value,) if isinstance(size, Cast) else ()


def _has_no_factor(size: PrimExpr) -> bool:
    """A quotient or extremum, or one with a number added: as a variable it loses nothing that matters.

    Of a product it would be lost that loops over it can be split without a rest.
    """
    if isinstance(size, Add | Sub) and isinstance(size.b, IntImm):
        return _has_no_factor(size.a) or isinstance(size.a, Var)
    if isinstance(size, FloorDiv):
        return isinstance(size.b, IntImm)
    return isinstance(size, Max | Min)


def _is_multiple(size: PrimExpr) -> bool:
    return isinstance(size, Mul) and isinstance(size.b, IntImm) and (isinstance(size.a, Var) or _has_no_factor(size.a))


def _tiles_pixels(function: Function) -> bool:
    """Does a convolution of it go over all pixels by register tiles?"""
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    return any(isinstance(call.op, OpDef) and call.op.tiles_pixels for call in calls)


class _Terms:
    """Numbers expressions: equal ones have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
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
            own = frozenset((size.name,)) if isinstance(size, Var) else frozenset[str]()
            self._names[known] = own.union(*[self.names(part) for part in operands])
            self._lengths[known] = 1 + sum([self.length(part) for part in operands])
        return known

    def names(self, size: PrimExpr) -> frozenset[str]:
        """The variables in it."""
        return self._names[self.number(size)]

    def length(self, size: PrimExpr) -> int:
        """How many nodes it has as a tree."""
        return self._lengths[self.number(size)]

    def cover(self, part: PrimExpr, sizes: Sequence[PrimExpr]) -> bool:
        """Do the variables of `part` occur inside of it only, in all of `sizes`?"""
        return not any(self._occur_outside(size, self.number(part), self.names(part)) for size in sizes)

    def _occur_outside(self, size: PrimExpr, part: int, names: frozenset[str]) -> bool:
        number = self.number(size)
        if number == part or names.isdisjoint(self._names[number]):
            return False
        operands = _operands(size)
        return not operands or any(self._occur_outside(child, part, names) for child in operands)

    def replaced(self, size: PrimExpr, made: Mapping[int, Dim]) -> Dim:
        """The normal form of an expression with others put in by number."""

        def put_in(part: PrimExpr) -> PrimExpr:
            found = made.get(self.number(part))
            return part.rebuild(put_in) if found is None else convert(found)

        return normal(as_dim(put_in(size)))


def _leaf(size: PrimExpr) -> Any:
    if isinstance(size, Var):
        return size.name
    return (IntImm, size.value) if isinstance(size, IntImm) else id(size)
