"""Lifts scratch memory out of kernels.

A kernel that allocates a large buffer outside its loops (the padded copy of a convolution's input, packed panels) would
call the runtime for it at every run. Instead the buffer becomes one more parameter, and the graph places it in the
arena for just that step.
"""

from __future__ import annotations

from relayc.relay.sizes import product
from relayc.te.dtype import dtype
from relayc.te.ir import Mutator
from relayc.te.tir import Allocate, Buffer, Dim, For, PrimFunc, Stmt, While

__all__ = ["Workspace", "lift_workspaces"]

_SMALLEST = 4096
"""Minimum bytes of a lifted buffer: smaller ones stay on the stack."""


Workspace = tuple[Dim, str]
"""Number of elements and element type of a scratch buffer."""


def _workspace(buffer: Buffer) -> Workspace:
    """The elements of a buffer."""
    return product((*buffer.shape, buffer.dtype.lanes)), str(buffer.dtype.element)


class _Lifter(Mutator):
    """Removes large allocations that stand outside all loops."""

    def __init__(self) -> None:
        self.lifted: list[tuple[Buffer, Workspace]] = []

    def visit_Allocate(self, node: Allocate) -> Stmt:
        count, element = workspace = _workspace(node.buffer)
        large = not isinstance(count, int) or count * dtype(element).nbytes >= _SMALLEST
        if node.buffer.scope == "global" and large:
            self.lifted.append((node.buffer, workspace))
            return self.visit(node.body)
        return self.visit_default(node)

    def visit_For(self, node: For) -> Stmt:
        return node

    def visit_While(self, node: While) -> Stmt:
        return node


def lift_workspaces(function: PrimFunc) -> tuple[PrimFunc, list[Workspace]]:
    """The function with large scratch buffers as last parameters, and their sizes and types."""
    lifter = _Lifter()
    body = lifter.visit(function.body)
    if not lifter.lifted:
        return function, []
    params = tuple(buffer.data for buffer, _ in lifter.lifted)
    buffer_map = {**function.buffer_map, **{buffer.data: buffer for buffer, _ in lifter.lifted}}
    lifted = function.replace(params=(*function.params, *params), body=body, buffer_map=buffer_map)
    return lifted, [workspace for _, workspace in lifter.lifted]
