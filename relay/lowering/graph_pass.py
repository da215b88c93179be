"""The base class of passes over execution graphs."""

from __future__ import annotations

from abc import abstractmethod

from relayc.relay.lowering.graph import ExecutionGraph
from relayc.te.ir import IRModule, Pass, PassContext

__all__ = ["GraphPass"]


class GraphPass(Pass):
    """A pass over an execution graph, which is the "main" of its module.

    The graph is changed in place; if it was, the result is a new module of the same graph, so that instruments see a
    change as they do for other passes.
    """

    @abstractmethod
    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        """Change the graph; was anything changed?"""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.with_functions(module.functions) if self.arrange(module["main"], context) else module
