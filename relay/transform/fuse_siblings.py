"""FuseSiblings: kernels that read the same large tensor become one, with several results.

Fusion by post-dominators does not merge siblings without a common reader: the sine and the cosine of one tensor, two
gates, a tensor in two other types. Each kernel would read the tensor anew; one loop reads it once and stores all
results. It iterates over one shape, common to all results, each of which depends only on the element at the same index;
or, for column slices that are shorter than cache lines (a tensor split along its last axis), on the same row.

No sibling may depend on another's result, directly or not, or the merged call would depend on itself. So the transitive
dependencies of each call are kept as a set, and merged kernels have the union of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from relayc.backend.target import Target
from relayc.relay.analysis import body_order, outer_operands, outer_order
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.transform import StridedSlice
from relayc.relay.sizes import likely, product
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, shapes_equal
from relayc.te.ir import PassContext
from relayc.topi.cpu.prefetch import LINE_BYTES

__all__ = ["FuseSiblings"]

_NEARBY = 64
"""How many of the next readers of a tensor are looked at to join one of them: the time is linear in their number."""

_MOST_TENSORS = 8
"""Maximum number of tensors that one loop reads and writes: the ways of small first-level caches, since tensors of one
size tend to begin at the same offset in a page."""


@dataclass(frozen=True)
class FuseSiblings(FunctionPass):
    """Merges calls of fused functions that read the same tensor; see the module's docstring.

    Tensors that fit into the first-level cache are left alone, since reading them again is free.
    """

    target: Target
    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        if context.option("relay.FuseOps.max_size") <= 1:
            return function
        siblings = _Siblings(function.body, larger_than=self.target.cache_bytes.l1)
        return function.with_body(siblings.rewritten()) if siblings.groups else function


class _Siblings:
    """The expressions of a body by position, and the groups of calls among them to merge."""

    def __init__(self, body: Expr, larger_than: int) -> None:
        self.nodes = list(outer_order(body))
        self.index = {id(e): i for i, e in enumerate(self.nodes)}
        self.groups: list[list[int]] = []
        self.grouped: set[int] = set()
        plain = all(isinstance(e, Call | Constant | Tuple | TupleGetItem | Var) for e in self.nodes)
        families = self._families(larger_than) if plain else []
        if families:
            self.needs = self._closures()
            for family in families:
                self._group(family)

    def _families(self, larger_than: int) -> list[list[int]]:
        """The calls that read the same large tensor, all of it or the same rows, if there are several."""
        readers: dict[int, list[int]] = {}
        for i, e in enumerate(self.nodes):
            is_part = _is_column_slice(e)
            if is_part or _is_elementwise(e):
                for arg in {id(a): a for a in e.args}.values():
                    if (is_part or shapes_equal(arg.shape, e.shape)) and _nbytes(arg.tensor_type) > larger_than:
                        readers.setdefault(id(arg), []).append(i)
        return [found for found in readers.values() if len(found) > 1]

    def _closures(self) -> list[int]:
        """The transitive dependencies of each expression, including itself: a bit for each position."""
        needs: list[int] = []
        for i, e in enumerate(self.nodes):
            needed = 1 << i
            for child in outer_operands(e):
                needed |= needs[self.index[id(child)]]
            needs.append(needed)
        return needs

    def _group(self, family: Sequence[int]) -> None:
        """Group the members of a family that fit together and are in no group yet."""
        for position, first in enumerate(family):
            if first in self.grouped:
                continue
            group = [first]
            for i in family[position + 1 : position + _NEARBY]:
                if i not in self.grouped and self._fits(group, i):
                    group.append(i)
            if len(group) > 1:
                self.groups.append(group)
                self.grouped.update(group)
                self._unite(group)

    def _fits(self, group: Sequence[int], other: int) -> bool:
        """May a call join the group: they are independent, and one loop computes them all?"""
        if len(group) + 1 >= _MOST_TENSORS or not shapes_equal(self.nodes[group[0]].shape, self.nodes[other].shape):
            return False
        independent = not any(self.needs[i] >> other & 1 or self.needs[other] >> i & 1 for i in group)
        read = {id(a) for i in (*group, other) for a in outer_operands(self.nodes[i])}
        return independent and len(read) + len(group) + 1 <= _MOST_TENSORS

    def _unite(self, group: Sequence[int]) -> None:
        """Update dependencies: whatever depends on one call of a group depends on all of them."""
        members, dependencies = sum(1 << i for i in group), 0
        for i in group:
            dependencies |= self.needs[i]
        self.needs = [needed | dependencies if needed & members else needed for needed in self.needs]

    def rewritten(self) -> Expr:
        """The body with each group merged into one call."""
        group_of = {i: group for group in self.groups for i in group}
        done: dict[int, Expr] = {}
        for i in sorted(range(len(self.nodes)), key=lambda i: self.needs[i].bit_count()):  # dependencies come first
            e = self.nodes[i]
            if i not in group_of:
                done[id(e)] = _rebuilt(e, done)
            elif id(e) not in done:
                calls = [call for j in group_of[i] if isinstance(call := self.nodes[j], Call)]
                whole = _merged_call(calls, done)
                done |= {id(call): TupleGetItem(whole, place) for place, call in enumerate(calls)}
        return done[id(self.nodes[-1])]


def _rebuilt(e: Expr, done: Mapping[int, Expr]) -> Expr:
    return e.rebuild(lambda child: done.get(id(child), child))


def _is_elementwise(e: Expr) -> TypeGuard[Call]:
    """Is it a call of a fused function that is one loop over the elements of one shape?"""
    if not isinstance(e, Call) or not isinstance(e.op, Function) or not isinstance(e.ty, TensorType):
        return False
    inside = body_order(e.op)
    return all(isinstance(x, Var | Constant) or (isinstance(x, Call) and _follows(x)) for x in inside)


def _is_column_slice(e: Expr) -> TypeGuard[Call]:
    """Is it a call of a fused function that reads a slice of columns, of less than a cache line, of each row of a
    tensor?

    Each cache line of the tensor has elements of several such slices.
    """
    if not isinstance(e, Call) or not isinstance(e.op, Function) or not isinstance(e.ty, TensorType):
        return False
    body, sizes = e.op.body, e.shape
    if not isinstance(body, Call) or not isinstance(body.op, StridedSlice) or not isinstance(body.args[0], Var):
        return False
    whole = body.args[0].shape
    narrow = len(sizes) > 1 and isinstance(sizes[-1], int) and 0 < sizes[-1] * e.ty.dtype.nbytes < LINE_BYTES
    return narrow and shapes_equal(whole[:-1], sizes[:-1]) and not shapes_equal(whole[-1:], sizes[-1:])


def _follows(call: Call) -> bool:
    return isinstance(call.op, OpDef) and call.op.pattern <= OpPattern.BROADCAST and not call.op.has_side_effect


def _nbytes(ty: TensorType) -> int:
    return likely(product(ty.shape)) * ty.dtype.nbytes


def _merged_call(calls: Sequence[Call], done: Mapping[int, Expr]) -> Call:
    """One call with the results of all of them, as a tuple; equal arguments are passed once."""
    params: dict[int, Var] = {}
    args: list[Expr] = []
    results: list[Expr] = []
    for call in calls:
        assert isinstance(call.op, Function)
        made: dict[int, Expr] = {}
        for param, arg in zip(call.op.params, call.args, strict=True):
            if id(arg) not in params:
                params[id(arg)] = Var(f"p{len(params)}", param.ty)
                args.append(done[id(arg)])
            made[id(param)] = params[id(arg)]
        for e in body_order(call.op):
            made.setdefault(id(e), _rebuilt(e, made))
        results.append(made[id(call.op.body)])
    function = Function(tuple(params.values()), Tuple(tuple(results)), {"primitive": True})
    return Call(function, tuple(args), span=calls[0].span)
