"""The accesses of a kernel: their bounds, their order in time, and the record of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayc.te.errors import CompileError
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import post_order
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, IterVar, PrimExpr, Var
from relayc.te.tir.simt_checker.faults import ExternAccess, SimtFault
from relayc.te.tir.simt_checker.lockstep import Lockstep, Mask
from relayc.te.tir.simt_checker.shadow import NEVER, Access, Conflict, Moment, Shadow
from relayc.te.tir.simt_checker.steering import find_steering
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, Stmt
from relayc.te.tir.values import numpy_dtype

__all__ = ["Context", "Event", "Frame", "Memory", "Recorder", "WrittenTwice", "first_line"]

Grid = tuple[int, int, int]


@dataclass(slots=True)
class Context:
    """State across the kernels of a function: pointers that were written, and `contents` that later kernels need.
    """

    parameters: tuple[Buffer, ...]
    workspaces: tuple[Buffer, ...]
    sizes: Mapping[str, int]
    arrays: Mapping[str, np.ndarray]
    initialized: frozenset[str]
    externs: Mapping[str, Sequence[ExternAccess]]
    max_iterations: int
    filled: set[Var] = field(default_factory=set)
    contents: dict[Var, np.ndarray | None] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """The memory behind one pointer."""

    buffer: Buffer
    unit: int  # bytes of a cell
    cells: int
    shadow: Shadow | None  # None: read-only and initialised
    values: np.ndarray | None
    private: bool  # private to each thread: cell = element * threads + thread
    registers: set[int] = field(default_factory=set)  # private elements that every thread has written


@dataclass(slots=True)
class Frame:
    """A loop evaluated in one step; `length` is the time of one iteration, known at its end."""

    axis: int
    length: int = 0


@dataclass(slots=True)
class Event:
    """An access that is ordered in time when the surrounding loops end."""

    memory: Memory
    index: Any  # in cells
    width: int  # cells
    mask: Mask
    statement: int
    offset: int
    frames: tuple[Frame, ...]
    writes: bool
    atomic: bool
    values: Any = None
    undefined: bool = False  # the start of an asynchronous copy: the element is written but not readable yet


class WrittenTwice(Exception):
    """Raised when a statement writes an element that another thread or block wrote, and values are not tracked."""

    def __init__(self, statement: int, blocks: list[Grid]) -> None:
        super().__init__()
        self.statement = statement
        self.blocks = blocks


class Recorder(Lockstep):
    """Evaluates expressions for one block at a time and keeps the record of memory; a subclass walks the statements."""

    def __init__(
        self, context: Context, name: str, body: Stmt, everything: bool, allowed: set[int],
        needed: frozenset[Var] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(_depth(body))
        self.context, self.name, self.body = context, name, body
        self.everything, self.allowed = everything, allowed
        self.steering = find_steering(body, everything, needed)
        self.statements: list[Node] = []
        self.numbers: dict[int, int] = {}
        nodes = list(post_order(body))
        self.units = _units(nodes)
        self.memories: dict[Var, Memory] = {}
        extents = self._thread_extents(nodes)
        self.grid: Grid = (extents.get("blockIdx.x", 1), extents.get("blockIdx.y", 1), extents.get("blockIdx.z", 1))
        self.dims: Grid = (extents.get("threadIdx.x", 1), extents.get("threadIdx.y", 1), extents.get("threadIdx.z", 1))
        self.threads = self.dims[0] * self.dims[1] * self.dims[2]
        self.tid = self.along(0, self.threads)
        self.block: Grid = (0, 0, 0)
        self.blocks: list[Grid] = []
        self.block_number = self.phase = self.step = self.clock = 0
        self.statement = -1
        self.frames: tuple[Frame, ...] = ()
        self.events: list[Event] = []

    def visit_Var(self, node: Var) -> Any:
        if node not in self.env and node.name in self.context.sizes:
            self.env[node] = self.context.sizes[node.name]
        return super().visit_Var(node)

    def _thread_extents(self, nodes: list[Node]) -> dict[str, int]:
        extents: dict[str, int] = {}
        for node in nodes:
            if isinstance(node, AttrStmt) and node.key == "thread_extent" and isinstance(node.subject, IterVar):
                extents[node.subject.thread_tag] = int(self.visit(node.value))
        return extents

    def bind_parameters(self) -> None:
        known = self.context
        for buffer in (*known.parameters, *known.workspaces):
            written = buffer.data in self.steering.written
            workspace = buffer in known.workspaces
            fresh = buffer.name not in known.initialized and buffer.data not in known.filled
            self.memories[buffer.data] = self.memory(
                buffer, initialized=not (fresh and (written or workspace)), record=written or (workspace and fresh)
            )

    def memory(self, buffer: Buffer, initialized: bool, record: bool) -> Memory:
        size = 1
        for dim in buffer.shape:
            size *= int(self.visit(dim)) if isinstance(dim, PrimExpr) else dim
        unit = self.units.get(buffer.data, buffer.dtype.element.nbytes)
        per_element = max(1, buffer.dtype.element.nbytes * buffer.dtype.lanes // unit)
        private = buffer.scope == "local"
        count = size * per_element * (self.threads if private else 1)
        shadow = Shadow(count, initialized, across_blocks=buffer.scope == "global") if record else None
        values = self._contents(buffer, count) if buffer.data in self.steering.memory else None
        if shadow is not None:
            shadow.values = values if self.everything else None
        return Memory(buffer, unit, size * per_element, shadow, values, private)

    def _contents(self, buffer: Buffer, count: int) -> np.ndarray:
        """The values of a buffer at the start."""
        kind = numpy_dtype(buffer.dtype.element)
        kept = self.context.contents.get(buffer.data)
        if kept is not None:
            return kept.copy()
        passed = self.context.arrays.get(buffer.name)
        if passed is not None:
            return np.resize(passed.astype(kind).reshape(-1), count)
        if buffer in self.context.workspaces and kind.kind in "iub":
            return np.zeros(count, kind)
        if buffer.scope == "global" and kind.kind in "iu":
            last = buffer.shape[-1] if buffer.shape else 1
            period = int(self.visit(last)) if isinstance(last, PrimExpr) else last
            return (np.arange(count) % max(1, min(period, 127))).astype(kind)
        if buffer.scope == "global" and kind.kind == "b":
            return np.arange(count) % 2 == 1
        return np.random.default_rng(count).standard_normal(count).astype(kind)

    # -- accesses

    def begin(self, node: Node) -> None:
        """Make `node` the statement that accesses belong to from here on."""
        number = self.numbers.get(id(node))
        if number is None:
            number = self.numbers[id(node)] = len(self.statements)
            self.statements.append(node)
        self.statement = number

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def access(
        self, node: Node, buffer: Buffer, index: Any, writes: bool, atomic: bool = False, values: Any = None,
        width: int | None = None,
    ) -> Memory:  # fmt: skip
        if values is not None:
            values = self.typed(buffer.dtype, values)
        elif self._is_register(buffer, index, writes):
            return self.memories[buffer.data]
        event = self.event_of(node, buffer, index, writes, atomic, values, width)
        memory = event.memory
        if event.mask is not False:
            if values is not None and writes and not self.everything:
                self._assign(event)
            if memory.shadow is not None:
                self.queue(event)
        return memory

    def _is_register(self, buffer: Buffer, index: Any, writes: bool) -> bool:
        """Is it an element of private memory that all threads have written before, or write now?

        Most accesses are such. Their index is the same in all threads; only their bounds need a check.
        """
        memory = self.memories.get(buffer.data)
        if memory is None or not memory.private or buffer.elem_offset != 0 or memory.values is not None:
            return False
        if isinstance(index, int):
            places = [index]
        elif isinstance(index, np.ndarray) and index.size == index.shape[-1]:
            places = index.reshape(-1).tolist()
        else:
            return False
        if not writes:
            return memory.registers.issuperset(places)
        if self.mask is not True or self.frames or min(places) < 0 or max(places) >= memory.cells:
            return False
        if not memory.registers.issuperset(places) and memory.shadow is not None:
            memory.registers.update(places)
            clock = self.tick()
            for place in places:
                cells = memory.shadow.first_write[place * self.threads : (place + 1) * self.threads]
                np.minimum(cells, clock, out=cells)
        return True

    def event_of(
        self, node: Node, buffer: Buffer, index: Any, writes: bool, atomic: bool, values: Any, width: int | None
    ) -> Event:
        """An access, with its bounds checked. `width` counts bytes; without, it is one element."""
        memory = self.memories.get(buffer.data)
        if memory is None:
            raise CompileError(f"kernel {self.name}: {buffer.name} is neither a parameter nor allocated, in {node}")
        size = buffer.dtype.element.nbytes
        elements = 1 if width is None else -(-width // size)
        offset = buffer.elem_offset
        self._check_bounds(buffer, index, elements)
        place = index + (self.visit(offset) if isinstance(offset, PrimExpr) else offset)
        scale = max(1, size // memory.unit)
        return Event(memory, place * scale, elements * scale, self.mask, self.statement, self.tick(), self.frames,
                      writes, atomic, values)  # fmt: skip

    def _check_bounds(self, buffer: Buffer, index: Any, elements: int) -> None:
        limit = 1
        for dim in buffer.shape:
            limit *= int(self.visit(dim)) if isinstance(dim, PrimExpr) else dim
        limit -= elements - 1
        if not isinstance(index, np.ndarray):
            if 0 <= index < limit or self.mask is False:
                return
        elif index.min() >= 0 and index.max() < limit:
            return
        outside = (np.asarray(index) < 0) | (np.asarray(index) >= limit)
        bad = outside if self.mask is True else outside & self.mask
        if not bad.any():
            return
        bad = np.broadcast_to(bad, np.broadcast_shapes(bad.shape or (1,) * self.dimensions, self.tid.shape))
        first = tuple(np.argwhere(bad)[0])
        where = int(np.broadcast_to(index, bad.shape)[first])
        raise SimtFault("bounds", self.text(
            f"{buffer.name}[{where}] lies outside its {limit + elements - 1} elements "
            f"({buffer.scope} memory), for thread {self.position(int(first[0]))}"))  # fmt: skip

    def queue(self, event: Event) -> None:
        if self.frames:
            self.events.append(event)
        else:
            self.settle([event])

    def _assign(self, event: Event) -> None:
        memory = event.memory
        assert memory.values is not None
        cells, _, values, _ = self._flatten(event)
        assert values is not None
        memory.values[cells] = values

    def settle(self, events: list[Event]) -> None:
        """Record accesses in their memory, and raise the faults that they cause."""
        flat = [(e, *self._flatten(e, timed=True)) for e in events]
        for event, cells, _, _, times in flat:
            if event.undefined and event.memory.shadow is not None:
                event.memory.shadow.first_write[cells] = NEVER
            elif event.writes and event.memory.shadow is not None:
                event.memory.shadow.write_times(cells, times)
        for event, cells, threads, _, times in flat:
            shadow = event.memory.shadow
            if shadow is not None and not event.writes:
                early = shadow.first_write[cells] >= times
                if early.any():
                    self._uninitialized(event, cells[early][0], threads[early][0])
        for event, cells, threads, values, _ in flat:
            shadow = event.memory.shadow
            if shadow is None or event.memory.private:
                if event.writes and values is not None and self.everything and event.memory.values is not None:
                    event.memory.values[cells] = values
                continue
            moment = Moment(self.block_number, self.phase, self.step, event.statement)
            access = Access(cells, threads, moment, event.atomic, values)
            conflict = shadow.write(access) if event.writes else shadow.read(access)
            if conflict is not None:
                self._race(event, conflict)

    def _flatten(self, event: Event, timed: bool = False) -> tuple[Any, ...]:
        """(cells, threads, values, times) of an event, one element per cell and active thread and iteration.

        The time is a number where it is the same for all of them.
        """
        arrays = [x for x in (event.index, event.mask, event.values) if isinstance(x, np.ndarray)]
        shape = self.tid.shape
        if any(x.shape != shape for x in arrays):
            shape = np.broadcast_shapes(shape, *[x.shape for x in arrays])
        index = event.index * self.threads + self.tid if event.memory.private else event.index
        parts: list[Any] = [index, self.tid, event.values]
        times: Any = event.offset
        for frame in event.frames if timed else ():
            if shape[frame.axis] > 1:
                times = times + frame.length * self.along(frame.axis, shape[frame.axis])
        if isinstance(times, np.ndarray):
            parts.append(times)
        mask = None if event.mask is True else _expanded(event.mask, shape)
        flat: list[Any] = []
        for part in parts:
            full = None if part is None else _expanded(part, shape)
            flat.append(None if full is None else full.reshape(-1) if mask is None else full[mask])
        if event.width > 1:
            stride = self.threads if event.memory.private else 1
            steps = np.arange(event.width) * stride
            rest = [None if p is None else np.repeat(p, event.width) for p in flat[1:]]
            flat = [(flat[0][:, None] + steps).reshape(-1), *rest]
        return (*flat[:3], flat[3] if len(flat) > 3 else times)

    # -- messages

    def position(self, thread: int) -> tuple[int, int, int]:
        x, y, _ = self.dims
        return thread % x, thread // x % y, thread // (x * y)

    def text(self, what: str, *others: str) -> str:
        statement = first_line(self.statements[self.statement])
        return "\n".join([f"kernel {self.name}, block {self.block}: {what}", f"  in {statement}", *others])

    def _element(self, memory: Memory, cell: int) -> str:
        if memory.private:
            cell //= self.threads
        scale = max(1, memory.buffer.dtype.element.nbytes // memory.unit)
        return f"{memory.buffer.name}[{cell // scale}]"

    def _uninitialized(self, event: Event, cell: int, thread: int) -> None:
        self.statement = event.statement
        raise SimtFault("uninitialized", self.text(
            f"{self._element(event.memory, int(cell))} ({event.memory.buffer.scope} memory) is read by thread "
            f"{self.position(int(thread))} before anything has written it"))  # fmt: skip

    def _race(self, event: Event, conflict: Conflict) -> None:
        self.statement = event.statement
        twice = event.writes and not conflict.other_reads
        if twice and event.statement in self.allowed:
            return
        if twice and not self.everything and not event.atomic:
            numbers = [self.block_number] if conflict.other_block is None else [conflict.other_block, self.block_number]
            raise WrittenTwice(event.statement, [self.blocks[n] for n in numbers])
        verb = "writes" if event.writes else "reads"
        verbs = "read" if conflict.other_reads else "wrote"
        if conflict.other_block is not None:
            whom = f"another block {verbs}" if conflict.other_block < 0 else (
                f"block {self.blocks[conflict.other_block]} {verbs}")  # fmt: skip
            why = "blocks run in any order"
        else:
            other = conflict.other_thread
            whom = f"other threads {verbs}" if other < 0 else f"thread {self.position(other)} {verbs}"
            why = "no barrier stands between them"
        raise SimtFault("race", self.text(
            f"race on {self._element(event.memory, conflict.cell)} ({event.memory.buffer.scope} memory): thread "
            f"{self.position(conflict.thread)} {verb} what {whom}, and {why}"
            + (", with another value" if twice and not event.atomic else ""),
            f"  and {first_line(self.statements[conflict.other_statement])}"))  # fmt: skip


def _expanded(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A value with all its axes at full length."""
    return value if isinstance(value, np.ndarray) and value.shape == shape else np.broadcast_to(value, shape)


def _depth(stmt: Node) -> int:
    """How deep loops nest."""
    below = max([_depth(c) for c in stmt.node_children()], default=0) if not isinstance(stmt, PrimExpr) else 0
    return below + isinstance(stmt, For)


def _units(nodes: list[Node]) -> dict[Var, int]:
    """The size in bytes of the smallest element of the buffers that share a pointer, or that are copied by bytes."""
    units: dict[Var, int] = {}
    for node in nodes:
        if isinstance(node, BufferLoad | BufferStore | Allocate):
            data, size = node.buffer.data, node.buffer.dtype.element.nbytes
            units[data] = min(size, units.get(data, size))
    return units


def first_line(node: Node) -> str:
    """The first line of the text of a statement, for a message."""
    text = str(node).strip().splitlines()
    return text[0] if text else type(node).__name__
