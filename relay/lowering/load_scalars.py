"""Loads scalar arguments before all loops.

Constants that a kernel gets as data (`relay.lowering.share_kernels`) are the same for all iterations. LLVM hoists their
loads out of loops only if it can prove that no store aliases them: not in kernels that overwrite an input.
"""

from __future__ import annotations

from dataclasses import dataclass

from relayc.te.ir import IRModule, Mutator, Pass, PassContext
from relayc.te.tir import Buffer, BufferLoad, LetStmt, PrimExpr, PrimFunc, Var

__all__ = ["LoadScalars"]


class _Loads(Mutator):
    """Replaces loads of certain buffers by variables."""

    def __init__(self, scalars: dict[Var, Var]) -> None:
        self.scalars = scalars
        self.first: dict[Var, BufferLoad] = {}

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        variable = self.scalars.get(node.buffer.data)
        if variable is None or node.dtype != variable.dtype:
            return self.visit_default(node)
        self.first.setdefault(variable, node)
        return variable


@dataclass(frozen=True)
class LoadScalars(Pass):
    """Every scalar among the first `num_inputs` parameters is loaded into a variable at the beginning of a kernel."""

    num_inputs: int

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.map_functions(lambda f: _with_loads(f, self.num_inputs) if isinstance(f, PrimFunc) else f)


def _with_loads(function: PrimFunc, num_inputs: int) -> PrimFunc:
    scalars = {b.data: Var(b.name, b.dtype) for b in map(function.buffer_map.get, function.params[:num_inputs])
               if isinstance(b, Buffer) and not b.shape}  # fmt: skip
    if not scalars:
        return function
    loads = _Loads(scalars)
    body = loads.visit(function.body)
    for variable, load in loads.first.items():
        body = LetStmt(variable, load, body)
    return function.replace(body=body)
