"""The passes that `relay.build` runs, as a tuple: print it, cut it, extend it."""

from __future__ import annotations

from backend.target import Target
from relay.transform.dead_code_elimination import DeadCodeElimination
from relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relay.transform.fold_constant import FoldConstant
from relay.transform.fuse_ops import FuseOps
from te.ir import Pass

__all__ = ["default_pipeline"]


def default_pipeline(opt_level: int, target: Target) -> tuple[Pass, ...]:
    """Every pass from the imported graph to fused functions, for one target, in order.

    Passes above `opt_level` are left out; `PassContext` may force or disable more by name.
    """
    passes: tuple[Pass, ...] = (
        FoldConstant(),
        DeadCodeElimination(),
        EliminateCommonSubexpr(),
        FuseOps(),
    )
    return tuple([p for p in passes if p.opt_level <= opt_level])
