"""What passes over graphs share: one function at a time, rewriting bottom-up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import cast

from relay.expr import Call, Expr, Function
from te.ir import IRModule, Pass, PassContext, rewrite_dag

__all__ = ["FunctionPass", "RewritePass", "rewrite_calls"]


class FunctionPass(Pass):
    """A pass that transforms each function by itself."""

    @abstractmethod
    def transform(self, function: Function, context: PassContext) -> Function:
        """The transformed function; the very same object when nothing changed."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.map_functions(lambda f: self.transform(f, context) if isinstance(f, Function) else f)


class RewritePass(FunctionPass):
    """A pass that rewrites calls bottom-up, each seeing its rewritten operands."""

    @abstractmethod
    def rewrite(self, call: Call) -> Expr:
        """What replaces `call`, of the same type; `call` itself to keep it."""

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls(function, self.rewrite)


def rewrite_calls(function: Function, rewrite: Callable[[Call], Expr]) -> Function:
    """`function` with every call, operands first, replaced by `rewrite(call)`."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Call):
            return e
        result = rewrite(e)
        assert result.ty is e.ty, f"a rewrite changed the type of {e.op} from {e.ty} to {result.ty}"
        return result

    return cast(Function, rewrite_dag(function, visit))  # type: ignore[arg-type]
