"""Infrastructure of the IRs: nodes, visitors, modules and passes, shared by every IR of the project."""

from relayc.te.ir.abstract import Abstract
from relayc.te.ir.depth import deep_trees
from relayc.te.ir.module import IRModule
from relayc.te.ir.node import Node, node
from relayc.te.ir.span import Span
from relayc.te.ir.structural import first_difference, structural_equal
from relayc.te.ir.transform import DumpInstrument, Pass, PassContext, PassInstrument, Sequential, TimingInstrument
from relayc.te.ir.visitor import Mutator, Visitor, collect, post_order, rebuilt, rewrite_dag

__all__ = [
    "Abstract",
    "DumpInstrument",
    "IRModule",
    "Mutator",
    "Node",
    "Pass",
    "PassContext",
    "PassInstrument",
    "Sequential",
    "Span",
    "TimingInstrument",
    "Visitor",
    "collect",
    "deep_trees",
    "first_difference",
    "node",
    "post_order",
    "rebuilt",
    "rewrite_dag",
    "structural_equal",
]
