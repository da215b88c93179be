"""Scratch memory of kernels, taken out of them.

A kernel that allocates a large buffer outside its loops (the bordered copy of a convolution's input, packed panels)
would call the runtime for it at every run. Instead the buffer becomes one more parameter, and the graph gives it a
place in the arena for just that step.
"""

from __future__ import annotations

from te.dtype import DType
from te.ir import Mutator
from te.tir import Allocate, Buffer, For, PrimFunc, Stmt, While

__all__ = ["lift_workspaces"]

_SMALLEST = 4096
"""Bytes: smaller buffers stay inside, on the stack."""


def _nbytes(buffer: Buffer) -> int | None:
    elements = 1
    for extent in buffer.shape:
        if not isinstance(extent, int):
            return None
        elements *= extent
    element: DType = buffer.dtype
    return elements * element.nbytes


class _Lifter(Mutator):
    """Removes large allocations that stand outside all loops."""

    def __init__(self) -> None:
        self.lifted: list[tuple[Buffer, int]] = []

    def visit_Allocate(self, node: Allocate) -> Stmt:
        nbytes = _nbytes(node.buffer)
        if node.buffer.scope == "global" and nbytes is not None and nbytes >= _SMALLEST:
            self.lifted.append((node.buffer, nbytes))
            return self.visit(node.body)
        return self.visit_default(node)

    def visit_For(self, node: For) -> Stmt:
        return node

    def visit_While(self, node: While) -> Stmt:
        return node


def lift_workspaces(function: PrimFunc) -> tuple[PrimFunc, list[int]]:
    """The function with large scratch buffers as last parameters, and their sizes in bytes."""
    lifter = _Lifter()
    body = lifter.visit(function.body)
    if not lifter.lifted:
        return function, []
    params = tuple(buffer.data for buffer, _ in lifter.lifted)
    buffer_map = {**function.buffer_map, **{buffer.data: buffer for buffer, _ in lifter.lifted}}
    lifted = function.replace(params=(*function.params, *params), body=body, buffer_map=buffer_map)
    return lifted, [nbytes for _, nbytes in lifter.lifted]
