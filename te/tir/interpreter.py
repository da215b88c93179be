"""The interpreter: the reference semantics of the loop IR, in numpy.

Scalars are Python ints (wrapped to their type), bools and numpy floats; vectors are numpy arrays; handles are
`Pointer`s. Every loop kind runs in order, thread axes run as loops (a barrier among them is an error). Accesses
outside a buffer are errors, reads of uninitialised memory are too, on request; fresh memory is filled with
0xFF bytes (NaN, -1) so that a program that depends on it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from relayc.te.errors import CompileError
from relayc.te.ir.module import IRModule
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.visitor import Visitor
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    Binary,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    Compare,
    Dim,
    FloatImm,
    IntImm,
    IterVar,
    Let,
    Logical,
    Mul,
    Not,
    Or,
    PrimExpr,
    Ramp,
    Select,
    Shuffle,
    StringImm,
    Sub,
    Var,
)  # fmt: skip
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    While,
)  # fmt: skip
from relayc.te.tir.values import (
    Memory,
    Pointer,
    convert_array,
    memory_of,
    numpy_dtype,
    scalar,
    truncated_quotient,
    typed,
    wrapped,
)  # fmt: skip

__all__ = ["Interpreter", "InterpreterError", "interpret"]


class InterpreterError(CompileError):
    """The program left a buffer, read uninitialised memory, failed an assertion or called a missing function."""


class Interpreter(Visitor[Any]):
    """Runs functions of a module on numpy arrays.

    `functions` are what `call_extern` and `call_packed` may name; `call_kernel` names functions of the module.
    """

    def __init__(
        self,
        module: IRModule | Mapping[str, PrimFunc],
        functions: Mapping[str, Callable[..., Any]] | None = None,
        *,
        check_uninitialized: bool = False,
    ) -> None:
        self.module = module
        self.functions = dict(functions or {})
        self.check_uninitialized = check_uninitialized
        self.env: dict[Var, Any] = {}
        self._thread_index: dict[str, int] = {}
        self._selected: Any = None
        """which lanes of the expression being evaluated are selected; None for all"""
        self.draws: Counter[int] = Counter()

    # ---- calling

    def __call__(self, name: str, *args: Any) -> None:
        """Run function `name` on arrays (written in place), pointers and scalars."""
        self.call(self.module[name], args)

    def call(self, func: PrimFunc, args: tuple[Any, ...]) -> None:
        """Run a function; its symbolic sizes are taken from the arrays' shapes and checked against them."""
        if len(args) != len(func.params):
            raise InterpreterError(f"{func.name} takes {len(func.params)} arguments, got {len(args)}")
        outer, self.env = (self.env, self._selected), {}
        self._selected = None
        try:
            shapes: list[tuple[Buffer, tuple[int, ...]]] = []
            for param, arg in zip(func.params, args, strict=True):
                self._bind_argument(param, func.buffer_map.get(param), arg, shapes)
            self._match_shapes(func, shapes)
            with np.errstate(all="ignore"):
                self.visit(func.body)
        finally:
            self.env, self._selected = outer

    def _bind_argument(
        self, param: Var, buffer: Buffer | None, arg: Any, shapes: list[tuple[Buffer, tuple[int, ...]]]
    ) -> None:
        if isinstance(arg, np.ndarray):
            arg_pointer = Pointer(memory_of(arg))
            self.env[param] = arg_pointer
            if buffer is None:
                return
            if numpy_dtype(buffer.dtype) != arg.dtype:
                raise InterpreterError(f"argument {buffer.name} has dtype {arg.dtype}, expected {buffer.dtype}")
            self.env[buffer.data] = arg_pointer
            shapes.append((buffer, arg.shape))
        elif isinstance(arg, Pointer):
            self.env[param] = arg
            if buffer is not None:
                self.env[buffer.data] = arg
        else:
            self.env[param] = scalar(param.dtype, arg)

    def _match_shapes(self, func: PrimFunc, shapes: list[tuple[Buffer, tuple[int, ...]]]) -> None:
        for buffer, shape in shapes:
            if len(shape) != len(buffer.shape):
                raise InterpreterError(f"argument {buffer.name} of {func.name} has shape {shape}, "
                                       f"expected {len(buffer.shape)} axes")  # fmt: skip
            for size, dim in zip(shape, buffer.shape, strict=True):
                if isinstance(dim, Var):
                    self.env.setdefault(dim, size)
        for buffer, shape in shapes:
            expected = tuple([self._dim(dim) for dim in buffer.shape])
            if expected != shape:
                raise InterpreterError(f"argument {buffer.name} of {func.name} has shape {shape}, expected {expected}")

    def _dim(self, dim: Dim) -> int:
        return dim if isinstance(dim, int) else self.visit(dim)

    # ---- scalars and arithmetic

    def visit_Var(self, node: Var) -> Any:
        try:
            return self.env[node]
        except KeyError:
            raise InterpreterError(f"variable {node.name} has no value here") from None

    def visit_IntImm(self, node: IntImm) -> Any:
        return node.value

    def visit_FloatImm(self, node: FloatImm) -> Any:
        return numpy_dtype(node.dtype).type(node.value)

    def visit_StringImm(self, node: StringImm) -> str:
        return node.value

    def visit_Add(self, node: Add) -> Any:
        return wrapped(node.dtype, self.visit(node.a) + self.visit(node.b))

    def visit_Sub(self, node: Sub) -> Any:
        return wrapped(node.dtype, self.visit(node.a) - self.visit(node.b))

    def visit_Mul(self, node: Mul) -> Any:
        return wrapped(node.dtype, self.visit(node.a) * self.visit(node.b))

    def visit_Div(self, node: Binary) -> Any:
        a, b = self.visit(node.a), self.visit(node.b)
        return a / b if node.dtype.is_float else wrapped(node.dtype, truncated_quotient(a, b))

    def visit_Mod(self, node: Binary) -> Any:
        a, b = self.visit(node.a), self.visit(node.b)
        return np.fmod(a, b) if node.dtype.is_float else wrapped(node.dtype, a - b * truncated_quotient(a, b))

    def visit_FloorDiv(self, node: Binary) -> Any:
        return wrapped(node.dtype, self.visit(node.a) // self.visit(node.b))

    def visit_FloorMod(self, node: Binary) -> Any:
        return wrapped(node.dtype, self.visit(node.a) % self.visit(node.b))

    def visit_Min(self, node: Binary) -> Any:
        a, b = self.visit(node.a), self.visit(node.b)
        return min(a, b) if isinstance(a, int) else np.minimum(a, b)

    def visit_Max(self, node: Binary) -> Any:
        a, b = self.visit(node.a), self.visit(node.b)
        return max(a, b) if isinstance(a, int) else np.maximum(a, b)

    def visit_Compare(self, node: Compare) -> Any:
        return _COMPARISONS[node.__class__](self.visit(node.a), self.visit(node.b))

    def visit_Logical(self, node: Logical) -> Any:
        a = self.visit(node.a)
        if isinstance(a, np.ndarray):
            b = self.visit(node.b)
            return a | b if isinstance(node, Or) else a & b
        if bool(a) == isinstance(node, Or):
            return a
        return self.visit(node.b)

    def visit_Not(self, node: Not) -> Any:
        a = self.visit(node.a)
        return ~a if isinstance(a, np.ndarray) else not a

    def visit_Select(self, node: Select) -> Any:
        condition = self.visit(node.condition)
        a = self._visit_lanes(node.true_value, condition)
        b = self._visit_lanes(node.false_value, np.logical_not(condition))
        return np.where(condition, a, b) if isinstance(condition, np.ndarray) else (a if condition else b)

    def _visit_lanes(self, node: PrimExpr, lanes: Any) -> Any:
        """The value of an expression whose other lanes are not used: these may hold anything; None for all lanes."""
        outer = self._selected
        self._selected = lanes if lanes is None or outer is None else np.logical_and(outer, lanes)
        try:
            return self.visit(node)
        finally:
            self._selected = outer

    def visit_Cast(self, node: Cast) -> Any:
        value = self.visit(node.value)
        return convert_array(value, node.dtype) if isinstance(value, np.ndarray) else scalar(node.dtype, value)

    def visit_Let(self, node: Let) -> Any:
        self.env[node.var] = self.visit(node.value)
        return self.visit(node.body)

    # ---- vectors

    def visit_Ramp(self, node: Ramp) -> np.ndarray:
        base, stride = self.visit(node.base), self.visit(node.stride)
        return (base + stride * np.arange(node.lanes)).astype(numpy_dtype(node.dtype))

    def visit_Broadcast(self, node: Broadcast) -> np.ndarray:
        return np.full(node.lanes, self.visit(node.value), numpy_dtype(node.dtype))

    def visit_Shuffle(self, node: Shuffle) -> Any:
        vectors = [np.atleast_1d(self._visit_lanes(v, None)) for v in node.vectors]
        picked = np.concatenate(vectors).astype(numpy_dtype(node.dtype))[list(node.indices)]
        return picked if len(node.indices) > 1 else scalar(node.dtype, picked[0])

    # ---- memory

    def _place(self, buffer: Buffer, indices: tuple[PrimExpr, ...], mask: Any) -> tuple[Memory, Any]:
        """The memory behind a buffer and the positions of the elements in its typed view, checked."""
        pointer = self.visit_Var(buffer.data)
        shape = tuple([self._dim(dim) for dim in buffer.shape])
        if len(indices) != len(shape):
            raise InterpreterError(f"{buffer.name} has {len(shape)} axes and is accessed with {len(indices)} indices")
        strides = _compact_strides(shape) if buffer.strides is None else [self._dim(s) for s in buffer.strides]
        position = pointer.offset // numpy_dtype(buffer.dtype).itemsize + self._dim(buffer.elem_offset)
        for axis, index in enumerate(indices):
            value = self.visit(index)
            inside = 0 <= value < shape[axis] if isinstance(value, int) else (value >= 0) & (value < shape[axis])
            if inside is not True and not np.all(inside if mask is None else inside | ~np.asarray(mask)):
                raise InterpreterError(f"index {value} leaves axis {axis} of {buffer.name}, which has {shape[axis]} "
                                       f"elements: {buffer.name}[{', '.join(map(str, indices))}]")  # fmt: skip
            position = position + value * strides[axis]
        return pointer.memory, position

    def visit_BufferLoad(self, node: BufferLoad) -> Any:
        buffer = node.buffer
        mask = None if node.predicate is None else self.visit(node.predicate)
        if mask is not None and not np.any(mask):
            zeros = np.zeros(node.dtype.lanes, numpy_dtype(node.dtype))
            return zeros if node.dtype.lanes > 1 else scalar(node.dtype, 0)
        memory, position = self._place(buffer, node.indices, mask)
        view = memory.view(buffer.dtype)
        if isinstance(position, np.ndarray):
            touched = position if mask is None else position[mask]
            self._check_inside(buffer, view, touched)
            self.check_read(buffer, memory, view, touched, self._lanes_used(position.size, mask))
            if mask is None:
                return view[position]
            lanes = np.zeros(position.size, view.dtype)
            lanes[mask] = view[touched]
            return lanes
        self._check_inside(buffer, view, position)
        self.check_read(buffer, memory, view, np.array([position]), self._lanes_used(1, None))
        return scalar(buffer.dtype, view[position])

    def visit_BufferStore(self, node: BufferStore) -> None:
        node = _without_kept(node)
        mask = None if node.predicate is None else self.visit(node.predicate)
        if mask is not None and not np.any(mask):
            return
        value = self._visit_lanes(node.value, mask)
        memory, position = self._place(node.buffer, node.indices, mask)
        view = memory.view(node.buffer.dtype)
        if isinstance(position, np.ndarray) and mask is not None:
            position, value = position[mask], value[mask]
        self._check_inside(node.buffer, view, position)
        if memory.written is not None:
            _bytes_written(memory, view)[position] = True
        view[position] = value

    def _check_inside(self, buffer: Buffer, view: np.ndarray, position: Any) -> None:
        if not np.all((position >= 0) & (position < view.size)):
            raise InterpreterError(f"element {position} of {buffer.name} lies outside its {view.size} elements")

    def _lanes_used(self, lanes: int, mask: Any) -> Any:
        """Whether each lane of a load of so many is used; with `mask`, of the lanes in it."""
        used = np.ones(lanes, bool) if self._selected is None else self._selected
        used = np.broadcast_to(used if lanes > 1 else np.any(used), lanes)
        return used if mask is None else used[mask]

    def check_read(
        self, buffer: Buffer, memory: Memory, view: np.ndarray, position: np.ndarray, used: np.ndarray
    ) -> None:
        """Called for every load with the elements it reads and which of them are used: these must be written."""
        if memory.written is not None and not np.all(_bytes_written(memory, view)[position[used]]):
            raise InterpreterError(f"element {position} of {buffer.name} is read but was never written")

    # ---- calls

    def visit_Call(self, node: Call) -> Any:
        special = _CALLS.get(node.op)
        if special is not None:
            return special(self, node)
        reference = INTRINSICS[node.op].reference
        if reference is None:
            raise InterpreterError(f"the interpreter does not run {node.op}: {node}")
        alike = all(a.dtype.lanes == node.dtype.lanes for a in node.args)
        args = [typed(a.dtype, self.visit(a) if alike else self._visit_lanes(a, None)) for a in node.args]
        result = np.asarray(reference(*args)).astype(numpy_dtype(node.dtype))
        return result if node.dtype.lanes > 1 else scalar(node.dtype, result[()])

    def _call_if_then_else(self, node: Call) -> Any:
        condition = self.visit(node.args[0])
        if isinstance(condition, np.ndarray):
            a = self._visit_lanes(node.args[1], condition)
            return np.where(condition, a, self._visit_lanes(node.args[2], ~condition))
        return self.visit(node.args[1 if condition else 2])

    def _call_likely(self, node: Call) -> Any:
        return self.visit(node.args[0])

    def _call_reinterpret(self, node: Call) -> Any:
        value = typed(node.args[0].dtype, self._visit_lanes(node.args[0], None))
        bits = np.atleast_1d(value).view(numpy_dtype(node.dtype))
        return bits if node.dtype.lanes > 1 else scalar(node.dtype, bits[0])

    def _call_bits(self, node: Call) -> Any:
        kind = node.args[0].dtype
        mask = (1 << kind.bits) - 1
        count = (lambda v: (v & mask).bit_count()) if node.op == "popcount" else (
            lambda v: kind.bits - (v & mask).bit_length())  # fmt: skip
        value = self.visit(node.args[0])
        if isinstance(value, np.ndarray):
            return np.array([count(int(v)) for v in value], numpy_dtype(node.dtype))
        return count(int(value))

    def _call_address_of(self, node: Call) -> Pointer:
        load = node.args[0]
        assert isinstance(load, BufferLoad)
        memory, position = self._place(load.buffer, load.indices, True)
        return Pointer(memory, int(position) * numpy_dtype(load.buffer.dtype).itemsize)

    def _call_handle_add_byte_offset(self, node: Call) -> Pointer:
        pointer = self.visit(node.args[0])
        return Pointer(pointer.memory, pointer.offset + self.visit(node.args[1]))

    def _call_load_at(self, node: Call) -> Any:
        pointer, offset = self.visit(node.args[0]), self.visit(node.args[1])
        dtype = numpy_dtype(node.dtype)
        start = pointer.offset + offset
        lanes = pointer.memory.data[start : start + dtype.itemsize * node.dtype.lanes].view(dtype)
        return lanes.copy() if node.dtype.lanes > 1 else scalar(node.dtype, lanes[0])

    def _call_store_at(self, node: Call) -> int:
        pointer, offset, value = (self.visit(a) for a in node.args)
        start, dtype = pointer.offset + offset, numpy_dtype(node.args[2].dtype)
        pointer.memory.data[start : start + dtype.itemsize].view(dtype)[0] = value
        return 0

    def _call_copy_bytes(self, node: Call) -> int:
        to, source, count = (self.visit(a) for a in node.args)
        to.memory.data[to.offset :][:count] = source.memory.data[source.offset :][:count]
        return 0

    def _call_atomic(self, node: Call) -> Any:
        pointer, value = self.visit(node.args[0]), self.visit(node.args[1])
        kind = node.args[1].dtype
        view = pointer.memory.view(kind)
        position = pointer.offset // view.itemsize
        old = scalar(kind, view[position])
        view[position] = wrapped(kind, old + value) if node.op == "atomic_add" else max(old, value)
        return old

    def _call_kernel(self, node: Call) -> int:
        name, *args = [self.visit(a) for a in node.args]
        self.call(self.module[name], tuple(args))
        return 0

    def _call_step(self, node: Call) -> int:
        name, *args, i = [self.visit(a) for a in node.args]
        self.call(self.module[name], (*args, i, i + 1))
        return 0

    def _call_function(self, node: Call) -> Any:
        name, *args = [self.visit(a) for a in node.args]
        function = self.functions.get(name)
        if function is None:
            known = ", ".join(self.functions) or "none"
            raise InterpreterError(f"no function {name!r} for {node.op}; known are: {known}")
        result = function(*args)
        return 0 if result is None else result

    def barrier(self) -> None:
        """Wait for the other threads of the group."""
        if self._thread_index:
            raise InterpreterError("a barrier inside thread axes: threads run one after another here; "
                                   "use te.tir.block_interpreter")  # fmt: skip

    def _call_storage_sync(self, node: Call) -> int:
        self.barrier()
        return 0

    def _call_warp_shuffle_xor(self, node: Call) -> Any:
        mask, value, flip, width = [self.visit(a) for a in node.args]
        return self.shuffle(mask, value, flip, width)

    def shuffle(self, mask: int, value: Any, flip: int, width: int) -> Any:
        """The value that lane `lane ^ flip`, within `width` lanes, passes to this shuffle."""
        raise InterpreterError("a shuffle: threads run one after another here; use te.tir.block_interpreter")

    def _call_async_copy(self, node: Call) -> int:
        """Copy immediately; zeros where the condition fails, without reading the source."""
        target, size = self.visit(node.args[0]), self.visit(node.args[2])
        into = slice(target.offset, target.offset + size)
        source = self.visit(node.args[1]) if self.visit(node.args[3]) else None
        start = 0 if source is None else source.offset
        target.memory.data[into] = 0 if source is None else source.memory.data[start : start + size]
        if target.memory.written is not None:
            target.memory.written[into] = True
        return 0

    def _call_next_draw(self, node: Call) -> int:
        stream = int(self.visit(node.args[0]))
        self.draws[stream] += 1
        return self.draws[stream] - 1

    def _call_nothing(self, node: Call) -> int:
        return 0

    # ---- statements

    def visit_For(self, node: For) -> None:
        start, extent = self.visit(node.min), self.visit(node.extent)
        for i in range(start, start + extent):
            self.env[node.loop_var] = i
            self.visit(node.body)

    def visit_While(self, node: While) -> None:
        while self.visit(node.condition):
            self.visit(node.body)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        if self.visit(node.condition):
            self.visit(node.then_case)
        elif node.else_case is not None:
            self.visit(node.else_case)

    def visit_SeqStmt(self, node: SeqStmt) -> None:
        for stmt in node.stmts:
            self.visit(stmt)

    def visit_LetStmt(self, node: LetStmt) -> None:
        self.env[node.var] = self.visit(node.value)
        self.visit(node.body)

    def visit_Allocate(self, node: Allocate) -> None:
        self.env[node.buffer.data] = self.allocate(node.buffer)
        self.visit(node.body)

    def allocate(self, buffer: Buffer) -> Pointer:
        """Fresh memory for a buffer."""
        count = 1
        for dim in buffer.shape:
            count *= self._dim(dim)
        nbytes = count * numpy_dtype(buffer.dtype).itemsize
        written = np.zeros(nbytes, bool) if self.check_uninitialized else None
        return Pointer(Memory(np.full(nbytes, 0xFF, np.uint8), written))

    def visit_Evaluate(self, node: Evaluate) -> None:
        self.visit(node.value)

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if node.key not in ("thread_extent", "virtual_thread") or not isinstance(node.subject, IterVar):
            self.visit(node.body)
            return
        axis = node.subject
        tag = axis.thread_tag
        if tag in self._thread_index and node.key == "thread_extent":
            self.env[axis.var] = self._thread_index[tag]
            self.visit(node.body)
            return
        extent = self.visit(node.value)
        for i in range(extent):
            self.env[axis.var] = self._thread_index[tag] = i
            self.visit(node.body)
        self._thread_index.pop(tag, None)

    def visit_AssertStmt(self, node: AssertStmt) -> None:
        if not self.visit(node.condition):
            raise InterpreterError(node.message.format(*[self.visit(a) for a in node.args]))
        self.visit(node.body)

    def visit_default(self, node: Any) -> Any:
        raise InterpreterError(f"the interpreter does not run a {type(node).__name__}: {node}")


_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    EQ: lambda a, b: a == b, NE: lambda a, b: a != b, LT: lambda a, b: a < b, LE: lambda a, b: a <= b,
    GT: lambda a, b: a > b, GE: lambda a, b: a >= b,
}  # fmt: skip

_CALLS: dict[str, Callable[[Interpreter, Call], Any]] = {
    "if_then_else": Interpreter._call_if_then_else, "likely": Interpreter._call_likely,
    "reinterpret": Interpreter._call_reinterpret, "popcount": Interpreter._call_bits, "clz": Interpreter._call_bits,
    "address_of": Interpreter._call_address_of, "handle_add_byte_offset": Interpreter._call_handle_add_byte_offset,
    "load_at": Interpreter._call_load_at, "store_at": Interpreter._call_store_at,
    "copy_bytes": Interpreter._call_copy_bytes, "atomic_add": Interpreter._call_atomic,
    "atomic_max": Interpreter._call_atomic, "call_kernel": Interpreter._call_kernel,
    "call_step": Interpreter._call_step,
    "call_extern": Interpreter._call_function, "call_packed": Interpreter._call_function,
    "warp_shuffle_xor": Interpreter._call_warp_shuffle_xor, "storage_sync": Interpreter._call_storage_sync,
    "prefetch": Interpreter._call_nothing, "next_draw": Interpreter._call_next_draw,
    "async_copy": Interpreter._call_async_copy, "async_commit": Interpreter._call_nothing,
    "async_wait": Interpreter._call_nothing, "assume": Interpreter._call_nothing,
}  # fmt: skip


def _without_kept(node: BufferStore) -> BufferStore:
    """A store that selects between new values and what is there already as one of the new values under a mask."""
    value = node.value
    if not isinstance(value, Select) or node.predicate is not None or value.dtype.lanes == 1:
        return node
    kept = value.false_value
    if not isinstance(kept, BufferLoad) or kept.buffer is not node.buffer or kept.predicate is not None:
        return node
    if not all(map(structural_equal, kept.indices, node.indices)):
        return node
    return BufferStore(node.buffer, value.true_value, node.indices, value.condition)


def _bytes_written(memory: Memory, view: np.ndarray) -> np.ndarray:
    """Which bytes of each element of a view were written."""
    assert memory.written is not None
    return memory.written.reshape(-1)[: view.size * view.itemsize].reshape(view.size, view.itemsize)


@lru_cache(maxsize=256)
def _compact_strides(shape: tuple[int, ...]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def interpret(func: PrimFunc, *args: Any, check_uninitialized: bool = False) -> None:
    """Run one function on arrays and scalars; results are written into the arrays."""
    Interpreter({func.name: func}, check_uninitialized=check_uninitialized).call(func, args)
