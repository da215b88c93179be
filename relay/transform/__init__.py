"""Passes on graphs, one per file, and the frame they run in."""

from relay.transform.dead_code_elimination import DeadCodeElimination
from relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relay.transform.fold_constant import FoldConstant
from relay.transform.function_pass import FunctionPass, RewritePass
from relay.transform.fuse_ops import FuseOps
from te.ir import DumpInstrument, Pass, PassContext, PassInstrument, Sequential, TimingInstrument

__all__ = [
    "DeadCodeElimination",
    "DumpInstrument",
    "EliminateCommonSubexpr",
    "FoldConstant",
    "FunctionPass",
    "FuseOps",
    "Pass",
    "PassContext",
    "PassInstrument",
    "RewritePass",
    "Sequential",
    "TimingInstrument",
]
