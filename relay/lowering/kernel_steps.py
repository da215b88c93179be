"""Splits kernels into functions of single parallel steps, so that consecutive kernels can share a parallel region.

A kernel whose body is a sequence of parallel loops is a region of as many steps. Each of its loops becomes a function
that runs a range of the iterations; the kernel calls them in a region of its own, and a function that runs several
kernels calls them in one region for all (`relay.lowering.parallel_regions`). Nothing is compiled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayc.backend.target import Target
from relayc.te.dtype import INT32
from relayc.te.index import largest_extent
from relayc.te.ir import collect
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Evaluate,
    For,
    ForKind,
    IntImm,
    LetStmt,
    PrimExpr,
    PrimFunc,
    SeqStmt,
    SizeVar,
    Stmt,
    StringImm,
    Var,
    call_intrin,
    seq,
)  # fmt: skip

__all__ = ["KernelStep", "call_steps", "split_steps", "step_name"]


class KernelStep(NamedTuple):
    """A parallel loop of a kernel: its number of iterations, and the maximum number of threads that share them."""

    extent: int
    most_threads: int


def step_name(kernel: str, number: int) -> str:
    """The name of the function of a step, which takes the kernel's parameters and two bounds."""
    return f"{kernel}.step{number}"


def split_steps(function: PrimFunc, target: Target) -> tuple[PrimFunc, list[PrimFunc], list[KernelStep]]:
    """The kernel, the functions of its steps, and their descriptions; no steps if the kernel has other statements.

    A kernel with non-temporal stores, which it decides on as a whole, has no steps either.
    """
    loops = _loops(function)
    if target.kind.name != "llvm" or not loops or _is_large(function, target):
        return function, [], []
    steps = [_step(loop) for loop in loops]
    parts = [_part(function, number, loop) for number, loop in enumerate(loops)]
    whole = function.with_body(seq(call_steps(function.name, steps, function.params)))
    return whole, parts, steps


def call_steps(
    kernel: str, steps: Sequence[KernelStep], arguments: Sequence[PrimExpr], cycles: float = 0.0
) -> list[For]:
    """The parallel loops that run a kernel's steps, each of which takes `cycles` cycles."""
    made: list[For] = []
    for number, (extent, most) in enumerate(steps):
        i = Var("i", INT32)
        call = call_intrin("int32", "call_step", StringImm(step_name(kernel, number)), *arguments, i)
        pragma = {"pragma_most_threads": most}
        if cycles:
            pragma["pragma_cycles"] = max(round(cycles / extent), 1)
        made.append(For(i, IntImm(i.dtype, 0), IntImm(i.dtype, extent), ForKind.PARALLEL, Evaluate(call), pragma))
    return made


def _loops(function: PrimFunc) -> list[For]:
    """The parallel loops of constant extents that make up a function's body after its leading lets."""
    lets, body = _split_lets(function.body)
    parts = body.stmts if isinstance(body, SeqStmt) else (body,)
    loops = [part for part in parts if isinstance(part, For) and _is_step(part)]
    plain = all(param in function.buffer_map or _is_bounded(param) for param in function.params)
    return loops if plain and len(loops) == len(parts) and _is_pure(lets, body) else []


def _is_bounded(param: Var) -> bool:
    """Is it an extent that is data? Images of dynamic sizes, of which a kernel may have some too, share no regions."""
    return isinstance(param, SizeVar) and param.most is not None


def _is_pure(lets: Sequence[LetStmt], body: Stmt) -> bool:
    """May each thread compute these values itself, at any time?"""
    if not lets:
        return True
    written = {store.buffer.data for store in collect(body, BufferStore)}
    read = {load.buffer.data for let in lets for load in collect(let.value, BufferLoad)}
    return read.isdisjoint(written) and not any(collect(let.value, Call) for let in lets)


def _is_step(loop: For) -> bool:
    known = isinstance(loop.min, IntImm) and loop.min.value == 0 and isinstance(loop.extent, IntImm)
    return loop.kind is ForKind.PARALLEL and known and loop.extent.value > 1  # type: ignore[attr-defined]


def _split_lets(body: Stmt) -> tuple[list[LetStmt], Stmt]:
    """The leading lets of a body, and the rest."""
    lets: list[LetStmt] = []
    while isinstance(body, LetStmt):
        lets.append(body)
        body = body.body
    return lets, body


def _is_large(function: PrimFunc, target: Target) -> bool:
    """Does it access more memory than fits into the last-level cache?"""
    last = target.cache_bytes.l3
    return bool(last) and sum(map(_nbytes, function.buffer_map.values())) > last // 2


def _nbytes(buffer: Buffer) -> int:
    size = buffer.dtype.element.nbytes * buffer.dtype.lanes
    for extent in buffer.shape:
        size *= largest_extent(extent) or 0
    return size


def _step(loop: For) -> KernelStep:
    assert isinstance(loop.extent, IntImm)
    return KernelStep(loop.extent.value, loop.most_threads)


def _part(function: PrimFunc, number: int, loop: For) -> PrimFunc:
    """The function of a step: iterations `first` ... `last` - 1 of a loop, after the leading lets of the kernel."""
    kind = loop.loop_var.dtype
    first, last = SizeVar("first", kind), SizeVar("last", kind)
    body: Stmt = For(loop.loop_var, first, last - first, ForKind.SERIAL, loop.body)
    for let in reversed(_split_lets(function.body)[0]):
        body = LetStmt(let.var, let.value, body)
    attrs = {**function.attrs, "global_symbol": step_name(function.name, number)}
    return function.replace(params=(*function.params, first, last), body=body, attrs=attrs)
