"""Finds the inputs that a kernel may overwrite with its result.

A kernel works in place if every element of the input is read only to compute the same element of the output, once. Of
the finished loops it is verified that each load of the input occurs in the value of a store to the output, at the same
index. Whether overlapping tiles compute elements twice, the schedule's loops tell: the attribute "recomputes".
"""

from __future__ import annotations

from relayc.te.ir import Visitor, collect, structural_equal
from relayc.te.tir import BufferLoad, BufferStore, Call, PrimExpr, PrimFunc, Var, While

__all__ = ["in_place_inputs"]


class _Accesses(Visitor[None]):
    """Finds the candidate inputs that are read only where `output` is written."""

    def __init__(self, output: Var, candidates: set[Var]) -> None:
        self.output = output
        self.safe = set(candidates)
        self.unsure = False

    def visit_BufferStore(self, node: BufferStore) -> None:
        if node.buffer.data is not self.output:
            self.visit_default(node)
            return
        for load in collect(node.value, BufferLoad):
            if load.buffer.data is self.output:
                self.unsure = True
            elif not _same(load.indices, node.indices):
                self.safe.discard(load.buffer.data)
        for index in node.indices:
            self.visit(index)

    def visit_BufferLoad(self, node: BufferLoad) -> None:
        self.safe.discard(node.buffer.data)
        self.visit_default(node)

    def visit_Call(self, node: Call) -> None:
        if node.op == "prefetch":  # the memory may hold anything by then
            return
        self.unsure = self.unsure or node.op in ("address_of", "call_extern", "call_packed", "call_kernel")
        self.visit_default(node)

    def visit_While(self, node: While) -> None:
        self.unsure = True


def _same(a: tuple[PrimExpr, ...], b: tuple[PrimExpr, ...]) -> bool:
    return len(a) == len(b) and all(structural_equal(x, y) for x, y in zip(a, b, strict=True))


def in_place_inputs(function: PrimFunc, num_inputs: int) -> tuple[int, ...]:
    """Positions of the inputs whose memory the first result may take: of its type and size, and safe to overwrite."""
    if len(function.params) <= num_inputs or function.attrs.get("recomputes", False):
        return ()
    result = function.buffer_map.get(function.params[num_inputs])
    inputs = [function.buffer_map.get(p) for p in function.params[:num_inputs]]
    if result is None:
        return ()
    alike = {
        b.data: i
        for i, b in enumerate(inputs)
        if b is not None and b.dtype == result.dtype and b.shape == result.shape and b.strides == result.strides
    }
    if not alike:
        return ()
    accesses = _Accesses(result.data, set(alike))
    accesses.visit(function.body)
    return () if accesses.unsure else tuple(sorted(alike[data] for data in accesses.safe))
