"""Steps of a reduction that read nothing but padding are skipped."""

from __future__ import annotations

from relayc.te.ir.structural import structural_equal
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.analysis import contains
from relayc.te.tir.expr import (
    Add,
    And,
    BufferLoad,
    Call,
    Cast,
    FloatImm,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Var,
)
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import BufferStore, For, IfThenElse, Stmt

__all__ = ["SKIPS_PADDING", "SkipPadding", "skip_padding"]

SKIPS_PADDING = "pragma_skip_padding"
_READS = frozenset((BufferLoad,))


class _Skipper(Mutator):
    """Guards the stores inside loops with the pragma."""

    def __init__(self) -> None:
        self.inside = False

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        outside, self.inside = self.inside, self.inside or bool(node.annotations.get(SKIPS_PADDING))
        new = node.rebuild(self.visit)
        self.inside = outside
        return new

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return _guarded(node) if self.inside else node


def _guarded(store: BufferStore) -> Stmt:
    """The store under the conditions that all results of a step share and without which it would change nothing."""
    total = store.value
    if not isinstance(total, Add | Max | Min) or not _is_previous(total.a, store):
        return store
    choice = _choice_of_padding(total.b, total)
    if choice is None:
        return store
    condition, read, padding = _parts(choice)
    own = {n for n in post_order(store.indices) if isinstance(n, Var)}
    shared: list[PrimExpr] = []
    others: list[PrimExpr] = []
    for conjunct in _conjuncts(condition):
        varies = contains(conjunct, _READS) or any(isinstance(n, Var) and n in own for n in post_order(conjunct))
        (others if varies else shared).append(conjunct)
    if not shared:
        return store
    if others:
        read = ops.if_then_else(ops.all(*others), read, padding)
    new = total.rebuild(lambda part: _replaced(part, choice, read))
    return IfThenElse(ops.all(*shared), store.replace(value=new), span=store.span)


def _is_previous(value: PrimExpr, store: BufferStore) -> bool:
    """Is it the element that is stored to?"""
    return isinstance(value, BufferLoad) and value.buffer is store.buffer and structural_equal(
        value.indices, store.indices, map_free=True
    )  # fmt: skip


def _choice_of_padding(term: PrimExpr, total: PrimExpr) -> Call | Select | None:
    """The choice between a value that is read and padding, in a term that changes nothing where it is padding."""
    if isinstance(term, Select) or (isinstance(term, Call) and term.op == "if_then_else"):
        padding = _parts(term)[2]
        unit = float("-inf") if isinstance(total, Max) else float("inf") if isinstance(total, Min) else 0
        return term if isinstance(padding, FloatImm | IntImm) and padding.value == unit else None
    if not isinstance(total, Add):
        return None
    factors = [term.a, term.b] if isinstance(term, Mul) else [term.value] if isinstance(term, Cast) else []
    return next((found for f in factors if (found := _choice_of_padding(f, total)) is not None), None)


def _parts(choice: Call | Select) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """The condition, the value where it holds, and the one where it does not."""
    if isinstance(choice, Select):
        return choice.condition, choice.true_value, choice.false_value
    condition, read, padding = choice.args
    return condition, read, padding


def _replaced(term: PrimExpr, old: PrimExpr, new: PrimExpr) -> PrimExpr:
    """The term with a part, `old`, of its products and conversions replaced."""
    if term is old:
        return new
    return term.rebuild(lambda part: _replaced(part, old, new)) if isinstance(term, Mul | Cast) else term


def _conjuncts(condition: PrimExpr) -> list[PrimExpr]:
    return [*_conjuncts(condition.a), *_conjuncts(condition.b)] if isinstance(condition, And) else [condition]


def skip_padding(func: PrimFunc) -> PrimFunc:
    """The function with reduction steps skipped that read padding: see `SkipPadding`."""
    return func.with_body(_Skipper().visit(func.body))


class SkipPadding(FunctionPass):
    """`sum += (y + ky inside ? x : 0) * w` becomes `if (y + ky inside): sum += x * w` in loops with the pragma.

    Only conditions that don't depend on which of the results is stored to: a branch decides for all results of a tile,
    where masks would be made for each read. Sums of zeros, products with zero and extrema of infinities are skipped; a
    product of padding and an infinite weight, which is not a number, counts as zero.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return skip_padding(func)
