"""Passes on graphs, one per file, and the frame they run in."""

from relay.transform.canonicalize_ops import CanonicalizeOps
from relay.transform.convert_layout import ConvertLayout
from relay.transform.dead_code_elimination import DeadCodeElimination
from relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relay.transform.fold_constant import FoldConstant
from relay.transform.function_pass import FunctionPass, RewritePass
from relay.transform.fuse_ops import FuseOps
from relay.transform.pipeline import default_pipeline
from te.ir import DumpInstrument, Pass, PassContext, PassInstrument, Sequential, TimingInstrument

__all__ = [
    "CanonicalizeOps",
    "ConvertLayout",
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
    "default_pipeline",
]
