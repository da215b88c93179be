"""Splits functions with thread axes into kernels, for devices that launch them.

Each loop nest at the root of a function that runs on thread axes is one kernel. Memory allocated around the nests lives
between launches in device memory, a *workspace*. A loop around nests launches them again for each of its iterations.
Of nests under conditions, those whose condition on sizes fails get a grid without blocks.
Everything else at the root must be free of loops; such a statement is a kernel of a single thread.

`function_record` builds the table entry by which a runtime without the compiler launches a function. A size in it is an
int, the name of a size variable or scalar parameter, or ``[op, a, b]`` with op one of ``+ - * // % min max``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relayc.backend.size_json import size_to_json
from relayc.te.errors import CompileError
from relayc.te.ir import collect
from relayc.te.tir import (
    GE,
    GT,
    LE,
    LT,
    Allocate,
    AttrStmt,
    Buffer,
    Call,
    Dim,
    For,
    IfThenElse,
    IterVar,
    LetStmt,
    Not,
    PrimExpr,
    PrimFunc,
    SeqStmt,
    Stmt,
    Var,
    While,
    as_dim,
    as_int,
)
from relayc.te.tir.analysis import free_variables
from relayc.te.tir.ops import is_no_op, logical_not, maximum, minimum

__all__ = ["DeviceFunction", "Kernel", "function_record", "split_kernels"]

AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch: `body` in `grid` blocks of `block` threads each, three extents in the order x, y, z.

    `arguments` are its free variables: pointers of parameters and workspaces, scalars and sizes. With `step` it is
    launched for every value of a variable from 0 up to an exclusive bound; adjacent kernels with the same variable are
    interleaved.
    """

    name: str
    body: Stmt
    grid: tuple[Dim, Dim, Dim]
    block: tuple[int, int, int]
    arguments: tuple[Var, ...]
    step: tuple[Var, Dim] | None = None

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function as its launches in order, and the workspaces that live between them.

    `signature` is the function as its callers know it; passes may have changed the types of `function`'s buffers.
    """

    signature: PrimFunc
    function: PrimFunc
    workspaces: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]


def split_kernels(function: PrimFunc, symbol: str, signature: PrimFunc | None = None) -> DeviceFunction:
    """The kernels of a lowered function, named ``<symbol>_kernel<i>``; `signature` defaults to the function itself.

    Raises CompileError, naming the buffers, for loops at the root that are not bound to thread axes.
    """
    splitter = _Splitter(function, symbol)
    splitter.walk(function.body, lambda body: body)
    known_as = function if signature is None else signature
    return DeviceFunction(known_as, function, tuple(splitter.workspaces), tuple(splitter.kernels))


class _Splitter:
    def __init__(self, function: PrimFunc, symbol: str) -> None:
        self.function = function
        self.symbol = symbol
        self.workspaces: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self.step: tuple[Var, Dim] | None = None
        self.conditions: list[PrimExpr] = []
        """what has to hold of sizes for the statement at hand to run"""

    def walk(self, stmt: Stmt, within: Callable[[Stmt], Stmt]) -> None:
        """Add the kernels of a statement at the root; `within` wraps them in the enclosing statements other than
        loops."""
        if isinstance(stmt, SeqStmt):
            for part in stmt.stmts:
                self.walk(part, within)
        elif isinstance(stmt, Allocate):
            name, scope = stmt.buffer.name, stmt.buffer.scope
            if scope != "global":
                raise CompileError(f"{self.function.name}: {name} lies in {scope!r} memory, which lives within a "
                                   "kernel only; compute it at a loop of its consumer")  # fmt: skip
            self.workspaces.append(stmt.buffer)
            self.walk(stmt.body, within)
        elif isinstance(stmt, LetStmt):
            self.walk(stmt.body, lambda body: within(LetStmt(stmt.var, stmt.value, body)))
        elif isinstance(stmt, IfThenElse) and (stmt.else_case is None or _thread_axes(stmt)):
            self._branch(stmt.condition, stmt.then_case, within)
            if stmt.else_case is not None:
                self._branch(logical_not(stmt.condition), stmt.else_case, within)
        elif isinstance(stmt, AttrStmt) and stmt.key != "thread_extent":
            self.walk(stmt.body, within)
        elif isinstance(stmt, For) and self.step is None and as_int(stmt.min) == 0 and _thread_axes(stmt.body):
            self.step = (stmt.loop_var, as_dim(stmt.extent))
            self.walk(stmt.body, within)
            self.step = None
        elif not is_no_op(stmt):
            self._add(stmt, within)

    def _branch(self, condition: PrimExpr, body: Stmt, within: Callable[[Stmt], Stmt]) -> None:
        self.conditions.append(condition)
        self.walk(body, lambda inner: within(IfThenElse(condition, inner)))
        self.conditions.pop()

    def _add(self, stmt: Stmt, within: Callable[[Stmt], Stmt]) -> None:
        if not isinstance(stmt, AttrStmt) and collect(stmt, (For, While)):
            raise CompileError(self._unbound(stmt))
        extents = self._extents(stmt)
        body = within(stmt)
        axes = {n.subject.var for n in _thread_axes(body)}
        arguments = [v for v in free_variables(body) if v not in axes]
        for extent in extents.values():
            arguments += [v for v in free_variables(extent) if v not in arguments]
        block = [self._constant(f"threadIdx.{axis}", extents) for axis in AXES]
        grid = [_dim(extents.get(f"blockIdx.{axis}")) for axis in AXES]
        for count in map(_one_if, self.conditions):
            grid[0] = grid[0] if count is None else _dim(grid[0] * count)
        name = f"{self.symbol}_kernel{len(self.kernels)}"
        self.kernels.append(Kernel(name, body, (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]),
                                   tuple(arguments), self.step))  # fmt: skip

    def _unbound(self, stmt: Stmt) -> str:
        loop = collect(stmt, (For, While))[-1]
        what = f"loop {loop.loop_var.name}" if isinstance(loop, For) else "a while loop"
        return (
            f"{self.function.name}: {what} runs on no thread axis, but a device function has no host code of its own, "
            "but for one loop from 0 that launches kernels. "
            f"Bind the loops of every stage at the root: s[stage].bind(loop, te.thread_axis(\"blockIdx.x\")).\n{stmt}"
        )

    def _extents(self, stmt: Stmt) -> dict[str, PrimExpr]:
        """Thread tag -> extent. A tag must have a single extent in a kernel."""
        extents: dict[str, PrimExpr] = {}
        for axis in _thread_axes(stmt):
            tag, extent = axis.subject.thread_tag, axis.value
            known = extents.setdefault(tag, extent)
            if known is not extent and as_int(known) != as_int(extent):
                raise CompileError(f"{self.function.name}: {tag} has {known} threads in one place and {extent} in "
                                   "another of the same kernel")  # fmt: skip
        return extents

    def _constant(self, tag: str, extents: dict[str, PrimExpr]) -> int:
        extent = extents.get(tag)
        size = 1 if extent is None else as_int(extent)
        if size is None:
            raise CompileError(f"{self.function.name}: {tag} has {extent} threads; the threads of a block are a "
                               "constant number: split the loop and bind its inner part")  # fmt: skip
        return size


def _thread_axes(stmt: Stmt) -> list[AttrStmt]:
    found = [n for n in collect(stmt, AttrStmt) if n.key == "thread_extent" and isinstance(n.subject, IterVar)]
    return list(reversed(found))


def _one_if(condition: PrimExpr) -> PrimExpr | None:
    """1 where a condition on sizes holds, else 0, in the operations of a size; None for conditions of other forms."""
    if isinstance(condition, Call) and condition.op == "likely":
        return _one_if(condition.args[0])
    if isinstance(condition, Not):
        count = _one_if(condition.a)
        return None if count is None else 1 - count
    if isinstance(condition, LT | LE | GT | GE):
        least, most = (condition.a, condition.b) if isinstance(condition, LT | LE) else (condition.b, condition.a)
        above = most - least + (1 if isinstance(condition, LE | GE) else 0)
        return minimum(maximum(above, 0), 1)
    return None


def _dim(extent: PrimExpr | None) -> Dim:
    if extent is None:
        return 1
    known = as_int(extent)
    return extent if known is None else known


class SizeTable:
    """Sizes of one function in table form; different variables of equal name are made distinct."""

    def __init__(self, function: PrimFunc) -> None:
        self.function = function
        self.names: dict[Var, str] = {}

    def name(self, var: Var) -> str:
        """The name in the table of a size variable or scalar parameter."""
        found = self.names.get(var)
        if found is None:
            taken, number = set(self.names.values()), 0
            found = var.name
            while found in taken:
                number += 1
                found = f"{var.name}_{number}"
            self.names[var] = found
        return found

    def size(self, of: Dim) -> Any:
        """A size as an int, a name or an operation. Raises CompileError for one that can't be computed from shapes."""
        try:
            return size_to_json(of, self.name)
        except CompileError as error:
            error.add_note(f"in the function {self.function.name}")
            raise

    def bytes(self, of: Buffer) -> Any:
        """The size of a buffer in bytes."""
        total: Any = of.dtype.element.nbytes * of.dtype.lanes
        for dim in of.shape:
            size = self.size(dim)
            total = total * size if isinstance(total, int) and isinstance(size, int) else ["*", total, size]
        return total


def function_record(
    device: DeviceFunction, dynamic_shared: Sequence[int], alignments: Mapping[Var, int] | None = None
) -> dict[str, Any]:
    """The function's entry in the table.

    `dynamic_shared` has the bytes of dynamic shared memory of each kernel, `alignments` the required address alignment
    of buffers in bytes where it exceeds the size of an element.
    """
    function = device.function
    table = SizeTable(function)
    places: dict[Var, list[Any]] = {}
    params: list[dict[str, Any]] = []
    for i, (var, known_as) in enumerate(zip(function.params, device.signature.params, strict=True)):
        places[var] = ["param", i]
        buffer, seen = function.buffer_map.get(var), device.signature.buffer_map.get(known_as)
        if buffer is None or seen is None:
            params.append({"name": table.name(var), "kind": "scalar", "dtype": str(var.dtype)})
        else:
            places[buffer.data] = ["param", i]
            shape = [table.size(dim) for dim in buffer.shape]
            param = {"name": buffer.name, "kind": "buffer", "dtype": str(seen.dtype), "shape": shape}
            align = (alignments or {}).get(buffer.data, 1)
            params.append({**param, "align": align} if align > buffer.dtype.element.nbytes else param)
    for i, workspace in enumerate(device.workspaces):
        places[workspace.data] = ["workspace", i]
    return {
        "params": params,
        "workspaces": [table.bytes(workspace) for workspace in device.workspaces],
        "kernels": [
            {
                "name": kernel.name,
                "grid": [table.size(extent) for extent in kernel.grid],
                "block": list(kernel.block),
                "dynamic_shared": shared,
                "arguments": [places.get(v, ["size", table.name(v), str(v.dtype)]) for v in kernel.arguments],
                **({} if kernel.step is None else {"step": [table.name(kernel.step[0]), table.size(kernel.step[1])]}),
            }
            for kernel, shared in zip(device.kernels, dynamic_shared, strict=True)
        ],
    }
