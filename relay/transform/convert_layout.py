"""ConvertLayout: images get the layout that kernels prefer, and transposes move to where they cost least.

Every value is known as a pair (e, perm): ``e == transpose(value, perm)``. A `transpose` only changes the pair;
operators that have a transposed form (`OpDef.transposed`) work on the arrangement of their inputs; views are rewritten
for it where possible; convolutions and pooling require channels last. A transposition is computed only where an
operator needs an arrangement that its input does not have. So a network of convolutions, with its residual additions,
concatenations, padding and pooling, keeps one transposition at its input, and pairs of transposes cancel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.transform import Transpose
from relayc.relay.sizes import dims_equal, likely, product
from relayc.relay.transform.builders import reshaped, transposed
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.ir import PassContext, post_order
from relayc.te.tir import Dim

__all__ = ["ConvertLayout"]

Permutation = tuple[int, ...]


class ConvertLayout(FunctionPass):
    """Operators with a `data_layout` work on channels last; transposes around them are moved and cancelled."""

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return _Converter().convert(function)


@dataclass(frozen=True, slots=True)
class _Arranged:
    """`expr` is the value transposed by `perm` (each field, for a tuple)."""

    expr: Expr
    perm: Permutation


class _Converter:
    def __init__(self) -> None:
        self.known: dict[int, _Arranged] = {}
        self.moved: dict[tuple[int, Permutation], Expr] = {}

    def convert(self, function: Function) -> Function:
        for e in cast("list[Expr]", list(post_order(function))):
            self.known[id(e)] = self._visit(e)
        return cast(Function, self.plain(function))

    def _visit(self, e: Expr) -> _Arranged:
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            arranged = self._visit_operator(e, e.op)
            if arranged is not None:
                return arranged
        if isinstance(e, TupleGetItem) and id(e.tuple_value) in self.known:
            of = self.known[id(e.tuple_value)]
            return _Arranged(e.rebuild(lambda _: of.expr), of.perm)
        return _plain(e.rebuild(self.plain))

    def _visit_operator(self, call: Call, op: OpDef) -> _Arranged | None:
        if isinstance(op, Transpose):
            of, axes = self.known[id(call.args[0])], op.axes
            return _Arranged(of.expr, tuple([axes.index(a) for a in _full(of, len(axes))]))
        if op.name == "reshape":
            return self._visit_reshape(call)
        perm = self._choose(call, op)
        return None if perm is None else self._in_arrangement(call, op, perm)

    def plain(self, e: Expr) -> Expr:
        """The converted expression in the program's own arrangement."""
        return self._as(e, tuple(range(_rank(e.ty))))

    def _as(self, e: Expr, perm: Permutation) -> Expr:
        """The converted expression, transposed by `perm`; made once for each arrangement."""
        known = self.known[id(e)]
        current = _full(known, len(perm))
        if current == perm:
            return known.expr
        key = (id(e), perm)
        found = self.moved.get(key)
        if found is None:
            axes = [current.index(a) for a in perm]
            found = self.moved[key] = _transposed_fields(known.expr, axes)
        return found

    def _choose(self, call: Call, op: OpDef) -> Permutation | None:
        """The arrangement in which to evaluate `call`; None for the plain one."""
        rank = _rank(call.args[0].ty if op.pattern == OpPattern.COMM_REDUCE else call.ty)
        layout: str | None = getattr(op, "data_layout", None)
        if layout is not None:
            wanted = _channels_last(rank)
            return wanted if layout.startswith("NC") and layout.isupper() and len(layout) == rank else None
        votes: Counter[Permutation] = Counter()
        for e in _data_inputs(call, op):
            if not isinstance(e, Constant) and _rank(e.ty) == rank:
                votes[_full(self.known[id(e)], rank)] += _size(e.ty)
        if not votes:
            return None
        last, identity = _channels_last(rank), tuple(range(rank))
        best = max(votes, key=lambda p: (votes[p], p == last, p == identity))
        movable = op.pattern <= OpPattern.INJECTIVE or best == last
        return best if movable and best != identity else None

    def _in_arrangement(self, call: Call, op: OpDef, perm: Permutation) -> _Arranged | None:
        """`call` evaluated on inputs transposed by `perm`; None when the operator has no such form."""
        data = set(map(id, _data_inputs(call, op)))
        args: list[Expr] = []
        for e in call.args:
            arg = self._argument(e, perm, op) if id(e) in data else self.plain(e)
            if arg is None:
                return None
            args.append(arg)
        keepdims = _with_kept_dimensions(call, op)
        moved = (op if keepdims is None else keepdims).transposed(perm, [a.ty for a in args])
        if moved is None:
            return None
        result = Call(moved, tuple(args), span=call.span)
        if keepdims is None:
            return _Arranged(result, perm)
        kept = cast(TensorType, keepdims.result_type([a.ty for a in call.args]))
        return self._reshape(_Arranged(result, perm), kept, cast(TensorType, call.ty))

    def _argument(self, e: Expr, perm: Permutation, op: OpDef) -> Expr | None:
        """A data input in the arrangement `perm`; one of lower rank gets leading dimensions if it broadcasts."""
        rank = _rank(e.ty)
        if rank == len(perm):
            return self._as(e, perm)
        if rank == 0:
            return self.plain(e)
        if op.pattern > OpPattern.BROADCAST or rank > len(perm) or not isinstance(e.ty, TensorType):
            return None
        return transposed(reshaped(self.plain(e), (*[1] * (len(perm) - rank), *e.ty.shape)), perm)

    def _visit_reshape(self, call: Call) -> _Arranged | None:
        source = call.args[0]
        of = self.known[id(source)]
        before, after = source.ty, call.ty
        if not isinstance(before, TensorType) or not isinstance(after, TensorType):
            return None
        if any(isinstance(d, int) and d == 0 for d in before.shape):
            return None
        return self._reshape(_Arranged(of.expr, _full(of, before.ndim)), before, after)

    def _reshape(self, of: _Arranged, before: TensorType, after: TensorType) -> _Arranged | None:
        """A view of an arranged value: groups of dimensions that correspond to each other keep their places.

        If a group is not contiguous and in order, a transposition is needed: to the order of the program, unless only
        the channels are out of order and channels last can be kept.
        """
        groups = _dimension_groups(before.shape, after.shape)
        if groups is None:
            return None
        place = {axis: i for i, axis in enumerate(of.perm)}
        ordered = sorted(groups, key=lambda g: min(place[a] for a in g.before))
        ones = [a for a in of.perm if _is_one(before.shape[a])]
        pieces = [a for g in ordered for a in g.before]
        perm = _with_ones([a for g in ordered for a in g.after], after.shape)
        in_place = pieces == [a for a in of.perm if a not in ones]
        if not in_place and (after.ndim < 4 or perm != _channels_last(after.ndim)):
            pieces, perm = sorted(pieces), tuple(range(after.ndim))
        arranged = transposed(of.expr, [of.perm.index(a) for a in (*ones, *pieces)])
        return _Arranged(reshaped(arranged, [after.shape[a] for a in perm]), perm)


def _plain(e: Expr) -> _Arranged:
    return _Arranged(e, ())


def _full(of: _Arranged, rank: int) -> Permutation:
    """The permutation written out; the empty one stands for the identity of any rank."""
    return of.perm if of.perm else tuple(range(rank))


def _rank(ty: Type) -> int:
    """Dimensions of a tensor, or of all tensors of a tuple; 0 for anything else."""
    if isinstance(ty, TupleType):
        ranks = {_rank(t) for t in ty.fields}
        return ranks.pop() if len(ranks) == 1 else 0
    return ty.ndim if isinstance(ty, TensorType) else 0


def _size(ty: Type) -> int:
    return max(math.prod(map(likely, ty.shape)), 1) if isinstance(ty, TensorType) else 1


def _channels_last(rank: int) -> Permutation:
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def _data_inputs(call: Call, op: OpDef) -> Sequence[Expr]:
    return call.args[: op.num_data_inputs]


def _transposed_fields(e: Expr, axes: Sequence[int]) -> Expr:
    if isinstance(e.ty, TupleType):
        return Tuple(tuple([transposed(TupleGetItem(e, i), axes) for i in range(len(e.ty.fields))]), span=e.span)
    return transposed(e, axes)


def _with_kept_dimensions(call: Call, op: OpDef) -> OpDef | None:
    """A reduction that drops its dimensions, rewritten to keep them; None for everything else."""
    drops = op.pattern == OpPattern.COMM_REDUCE and getattr(op, "keepdims", True) is False
    return op.replace(keepdims=True) if drops else None


@dataclass(slots=True)
class _Group:
    """Dimensions of a shape and the corresponding ones of another shape."""

    before: list[int]
    after: list[int]


def _dimension_groups(before: Sequence[Dim], after: Sequence[Dim]) -> list[_Group] | None:
    """The smallest runs of dimensions with products known to be equal; dimensions of size 1 belong to none.

    None where there is a remainder, as when a symbolic size is divided.
    """
    sources = [a for a, d in enumerate(before) if not _is_one(d)]
    results = [a for a, d in enumerate(after) if not _is_one(d)]
    leading = [product([after[a] for a in results[:j]]) for j in range(1, 1 + len(results))]
    groups: list[_Group] = []
    i = j = 0
    for k in range(1, 1 + len(sources)):
        so_far = product([before[a] for a in sources[:k]])
        end = next((e for e, total in enumerate(leading, start=1) if dims_equal(total, so_far)), None)
        if end is not None:
            groups.append(_Group(sources[i:k], results[j:end]))
            i, j = k, end
    return groups if (i, j) == (len(sources), len(results)) else None


def _is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


def _with_ones(order: Sequence[int], shape: Sequence[Dim]) -> Permutation:
    """`order` completed by the dimensions of size 1, each behind its predecessor."""
    result = list(order)
    for axis, d in enumerate(shape):
        if _is_one(d):
            result.insert(result.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(result)


