"""Tied embeddings: rows of a table that is also the weight of a product are looked up in its packed panels.

Language models tie the embedding matrix to that of the last layer, a third of GPT-2's weights, which would be stored
twice otherwise. Each element of a row is in another cache line of the panels, but the product reads all rows for each
row looked up, which takes far longer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.dense import TakeFromPanels
from relayc.relay.stored import place_of

__all__ = ["PackedMatrix", "look_up_in_panels"]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix (N, K) of `rows` rows, packed in panels (ceil(N / NR), K, NR)."""

    panels: Constant
    rows: int


def look_up_in_panels(function: Function, packed: Mapping[Hashable, PackedMatrix]) -> Function:
    """`function` with rows of the matrices in `packed` (by place) looked up in panels, if nothing else uses the matrix.
    """
    needed = set(_used_as_they_are(function)) if packed else set()
    unneeded = {place: matrix for place, matrix in packed.items() if place not in needed}

    def rewrite(call: Call) -> Expr:
        table = call.args[0] if _takes_rows(call) else None
        matrix = unneeded.get(place_of(table)) if isinstance(table, Constant) else None
        if matrix is None or matrix.panels.dtype != call.dtype:
            return call
        assert isinstance(call.op, Take)
        op = TakeFromPanels(rows=matrix.rows, mode=call.op.mode)
        return Call(op, (matrix.panels, call.args[1]), span=call.span)

    return rewrite_calls(function, rewrite) if unneeded else function


def _takes_rows(call: Call) -> bool:
    return isinstance(call.op, Take) and call.op.axis == 0 and len(call.args[0].shape) == 2


def _used_as_they_are(function: Function) -> Iterator[Hashable]:
    """Places of constants with other uses than look-ups of rows."""
    for e in evaluation_order(function):
        children = e.args[1:] if isinstance(e, Call) and _takes_rows(e) else e.node_children()
        for child in children:
            if isinstance(child, Constant):
                yield place_of(child)
