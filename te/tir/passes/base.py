"""The base class of passes on loop functions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from relayc.te.ir.module import IRModule
from relayc.te.ir.transform import Pass, PassContext
from relayc.te.tir.function import PrimFunc

__all__ = ["FunctionPass"]


class FunctionPass(Pass):
    """A pass that transforms each loop function by itself; other functions of the module are left as they are."""

    @abstractmethod
    def function(self, func: PrimFunc) -> PrimFunc:
        """The transformed function; the very same object when nothing changed."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        def apply(func: Any) -> Any:
            return self.function(func) if isinstance(func, PrimFunc) else func

        return module.map_functions(apply)
