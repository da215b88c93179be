"""`te.lower`: from a schedule and its arguments to a function of the loop IR."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from relayc.te.arith import Analyzer
from relayc.te.bounds import Bounds
from relayc.te.errors import LoweringError
from relayc.te.ir.depth import deep_trees
from relayc.te.ir.module import IRModule
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.transform import Pass, Sequential
from relayc.te.ir.visitor import collect, post_order
from relayc.te.nest import schedule_to_loops
from relayc.te.schedule import Schedule
from relayc.te.tensor import Tensor
from relayc.te.tir.analysis import free_variables
from relayc.te.tir.buffer import Buffer, decl_buffer
from relayc.te.tir.expr import Dim, IterVar, Min, PrimExpr, SizeVar, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.ops import likely, logical_and, seq
from relayc.te.tir.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from relayc.te.tir.passes.flatten import Flatten
from relayc.te.tir.passes.fuse_loops import FuseLoops
from relayc.te.tir.passes.hoist_allocations import HoistAllocations
from relayc.te.tir.passes.hoist_if_then_else import HoistIfThenElse
from relayc.te.tir.passes.inject_double_buffer import InjectDoubleBuffer
from relayc.te.tir.passes.inject_software_pipeline import InjectSoftwarePipeline
from relayc.te.tir.passes.inject_virtual_thread import InjectVirtualThread
from relayc.te.tir.passes.loop_partition import LoopPartition
from relayc.te.tir.passes.overlap_iterations import OverlapIterations
from relayc.te.tir.passes.remove_no_op import RemoveNoOp
from relayc.te.tir.passes.rewrite_unsafe_select import RewriteUnsafeSelect
from relayc.te.tir.passes.simplify import Simplify
from relayc.te.tir.passes.skip_padding import SkipPadding
from relayc.te.tir.passes.storage_rewrite import StorageRewrite
from relayc.te.tir.passes.unroll import Unroll
from relayc.te.tir.passes.vectorize import Vectorize
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, IfThenElse, SeqStmt, Stmt
from relayc.te.tir.substitute import Substitution, fresh_copy, substitute

__all__ = ["lower", "lowering_passes", "schedule_to_function"]

Argument = Tensor | Var | Buffer


def schedule_to_function(
    schedule: Schedule,
    args: Sequence[Argument],
    name: str = "main",
    binds: Mapping[Tensor, Buffer] | None = None,
) -> PrimFunc:
    """The scheduled loops over multi-dimensional buffers, before any pass.

    Raises LoweringError for arguments that occur twice or are no tensor, variable or buffer, and for variables without
    a value.
    """
    params: list[Var] = []
    buffer_map: dict[Var, Buffer] = {}
    buffers: dict[Tensor, Buffer] = {}
    for argument in args:
        if isinstance(argument, Var):
            params.append(argument)
            continue
        buffer = _argument_buffer(argument, binds or {})
        if buffer.data in buffer_map or argument in buffers:
            raise LoweringError(f"argument {buffer.name} is given twice; name each argument once")
        if isinstance(argument, Tensor):
            buffers[argument] = buffer
        params.append(buffer.data)
        buffer_map[buffer.data] = buffer
    body = _loops(schedule, buffers)
    func = _with_sizes(PrimFunc(tuple(params), body, buffer_map, {"global_symbol": name, "noalias": True}))
    if _recomputes(body, buffer_map.values()):
        func = func.with_attr("recomputes", True)
    _check_variables(func, name)
    return func


def _recomputes(body: Stmt, arguments: Iterable[Buffer]) -> bool:
    """Whether elements of the results may be computed twice: tiles that are moved back begin at a minimum.

    This is known only before the passes: an unrolled loop has folded the minimum.
    """
    results = {buffer.data for buffer in arguments}
    stores = [store for store in collect(body, BufferStore) if store.buffer.data in results]
    return any(collect(index, Min) for store in stores for index in store.indices)


def _check_variables(func: PrimFunc, name: str) -> None:
    """Raise LoweringError for a variable without a value. Sizes may become parameters later."""
    known = set(func.params)
    unknown = [v for v in free_variables(func.body) if v not in known and not isinstance(v, SizeVar)]
    threads = [a.subject for a in collect(func.body, AttrStmt) if isinstance(a.subject, IterVar)] if unknown else []
    known |= {axis.var for axis in threads}
    for v in unknown:
        if v not in known:
            raise LoweringError(
                f"{name}: nothing gives variable {v.name} a value. A reduce axis has one in a reduction over it only: "
                f"te.sum(..., axis={v.name}); other variables are named among the arguments"
            )


def _loops(schedule: Schedule, arguments: Mapping[Tensor, Buffer]) -> Stmt:
    """The loop nest; where splits assume large symbolic extents, a guard chooses between it and a safe nest."""
    normalized = schedule.normalize()
    buffers: dict[Tensor, Buffer] = {}
    for argument, buffer in arguments.items():
        tensor = normalized.current(argument) if argument.op in normalized.stage_map else argument
        buffers[tensor] = buffer
        if tensor.op in normalized.stage_map:
            normalized[tensor].is_output = True
    bounds = Bounds(normalized)
    body = schedule_to_loops(bounds, buffers)
    large = [bounds.math.expr(fact) >= 0 for fact in bounds.math.facts]
    if schedule.large_if is not None:
        large = [*_unless_implied(large, schedule.large_if), schedule.large_if]
    if not large:
        return body
    condition = likely(functools.reduce(logical_and, large))
    if schedule.large_if is None and all(map(bounds.math.holds_for_results, bounds.math.facts)):
        return IfThenElse(condition, body)
    if schedule.small is not None:
        small = _loops(schedule.small, arguments)
    else:
        small = schedule_to_loops(Bounds(normalized, assume_large=False), buffers)
    return _either(condition, body, small)


def _unless_implied(facts: Sequence[PrimExpr], condition: PrimExpr) -> list[PrimExpr]:
    """The facts that a condition does not imply. Where it alone decides, the others know that it is false."""
    analyzer = Analyzer()
    with analyzer.constraint(condition):
        return [fact for fact in facts if not analyzer.can_prove(fact)]


def _either(condition: PrimExpr, large: Stmt, small: Stmt) -> Stmt:
    """`large` where the condition holds, else `small`; their common first statements run once, before the test."""
    (buffers, first, rest), (others, begin, end) = _beginning(large), _beginning(small)
    if not rest or not end or not structural_equal(_allocated(buffers, first), _allocated(others, begin)):
        return IfThenElse(condition, large, fresh_copy(small))
    same = dict(zip(others, buffers, strict=True))
    end = substitute(seq(end), {other.data: buffer.data for other, buffer in same.items()}, same)
    return _allocated(buffers, seq(first, _either(condition, seq(rest), end)))


def _beginning(stmt: Stmt) -> tuple[list[Buffer], Stmt, list[Stmt]]:
    """Split a program into its allocations, its first statement and the rest."""
    buffers: list[Buffer] = []
    while isinstance(stmt, Allocate):
        buffers.append(stmt.buffer)
        stmt = stmt.body
    first, *rest = stmt.stmts if isinstance(stmt, SeqStmt) else (stmt,)
    return buffers, first, rest


def _allocated(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def _with_sizes(func: PrimFunc) -> PrimFunc:
    """Replace variables in the shapes of arguments by `SizeVar`s, which passes know to be at least 0."""
    dims = [d for buffer in func.buffer_map.values() for d in buffer.shape if isinstance(d, PrimExpr)]
    plain = [v for v in post_order(dims) if isinstance(v, Var) and not isinstance(v, SizeVar)]
    if not plain:
        return func
    sizes: dict[Var, Var] = {v: SizeVar(v.name, v.dtype) for v in plain}
    replaced: dict[Buffer, Buffer] = {}
    for buffer in func.buffer_map.values():
        shape, strides = _replaced(buffer.shape, sizes), buffer.strides and _replaced(buffer.strides, sizes)
        replaced[buffer] = buffer.with_(shape=shape, strides=strides)
    body = Substitution(sizes, replaced, fresh=True).visit(func.body)
    params = tuple([sizes.get(p, p) for p in func.params])
    return func.replace(params=params, body=body, buffer_map={v: replaced[b] for v, b in func.buffer_map.items()})


def _replaced(dims: Sequence[Dim], sizes: Mapping[Var, Var]) -> list[Dim]:
    return [substitute(d, sizes) if isinstance(d, PrimExpr) else d for d in dims]


def _argument_buffer(argument: Argument, binds: Mapping[Tensor, Buffer]) -> Buffer:
    if isinstance(argument, Buffer):
        return argument
    if not isinstance(argument, Tensor):
        kind = type(argument).__name__
        raise LoweringError(f"argument {argument!r} is a {kind}; expected a tensor, variable or buffer")
    bound = binds.get(argument)
    return bound if bound is not None else decl_buffer(argument.shape, argument.dtype, argument.name)


def lowering_passes() -> tuple[Pass, ...]:
    """The passes from scheduled loops to flat loops, in order."""
    return (
        EliminateCommonSubexpr(),
        Flatten(),
        Simplify(),
        RewriteUnsafeSelect(),
        InjectVirtualThread(),
        InjectDoubleBuffer(),
        InjectSoftwarePipeline(),
        FuseLoops(),
        OverlapIterations(),
        SkipPadding(),
        LoopPartition(),
        HoistIfThenElse(),
        Vectorize(),
        Unroll(),
        Simplify(),
        RemoveNoOp(),
        HoistAllocations(),
        StorageRewrite(),
    )


@deep_trees()
def lower(
    schedule: Schedule,
    args: Sequence[Argument],
    name: str = "main",
    binds: Mapping[Tensor, Buffer] | None = None,
    simple_mode: bool = False,
) -> IRModule:
    """A module with the one function `name` that computes a schedule. (TVM: `tvm.lower`.)

    `args` are the function's parameters: tensors, variables or buffers; `binds` gives tensors a buffer of your own.
    `simple_mode` stops at the loop nest, before any pass, for reading.
    """
    module = IRModule({name: schedule_to_function(schedule, args, name, binds)})
    if simple_mode:
        return module
    return Sequential(lowering_passes(), "lower")(module)


