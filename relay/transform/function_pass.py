"""Base classes of passes that transform one function at a time, or rewrite calls bottom-up."""

from __future__ import annotations

from abc import abstractmethod

from relayc.relay.expr import Call, Expr, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.te.ir import IRModule, Pass, PassContext

__all__ = ["FunctionPass", "RewritePass"]


class FunctionPass(Pass):
    """A pass that transforms each function independently."""

    @abstractmethod
    def transform(self, function: Function, context: PassContext) -> Function:
        """The transformed function; the very same object if nothing changed."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.map_functions(lambda f: self.transform(f, context) if isinstance(f, Function) else f)


class RewritePass(FunctionPass):
    """A pass that rewrites calls bottom-up, each seeing its rewritten operands."""

    @abstractmethod
    def rewrite(self, call: Call) -> Expr:
        """The replacement of `call`, of the same type; `call` itself to keep it."""

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls(function, self.rewrite)

