"""Execution of graphs with dynamic (symbolic) shapes: binds size variables, plans memory, calls compiled code.

A run executes the pieces of the graph's plan (`backend.runtime.plan_frame`). On CPUs a compiled function executes
them, and returns for those that need the executor. Elsewhere, and in runs that are profiled, the executor executes all
pieces: consecutive kernels are one call of compiled code, which takes the addresses of all tensors and the values of
all size variables from two tables; memory layouts are computed once per assignment of sizes and cached.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relayc.backend.runtime.compiled_loop import CompiledLoop
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.control import Record, run_if, run_loop, tensor_of
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArgumentError, IndexRangeError, ModuleError, SizeMismatchError
from relayc.backend.runtime.execution_plan import (
    Bind,
    Check,
    HostStep,
    IfStep,
    LoopStep,
    RunNodes,
    SequenceStep,
    results_of,
)
from relayc.backend.runtime.graph import Graph, GraphNode
from relayc.backend.runtime.host_action import Prepared
from relayc.backend.runtime.host_actions import HOST_ACTIONS, prepared
from relayc.backend.runtime.layouts import bind_sizes, owner_of, shapes_of, tensor_bytes
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.native_plan import NativePlan
from relayc.backend.runtime.ndarray import C_TYPES, NDArray, array, empty, wrap_numpy
from relayc.backend.runtime.packed_func import BufferWord, KernelFunc, PackedFunc, takes_pointers
from relayc.backend.runtime.plan_frame import Piece, PlanFrame, TurnsFrame
from relayc.backend.runtime.runners import OutputBuffer, Recordings
from relayc.backend.runtime.sequences import ArraySequence, Value, run_sequence_action
from relayc.backend.runtime.sizes import MAX_ELEMENTS, SizeValues, evaluate, variables
from relayc.backend.runtime.strings import StringTable
from relayc.backend.runtime.turning_loop import TurningLoop

__all__ = ["DynamicRunner"]

_MAX_RECORDINGS = 16  # by sizes and addresses
_NOTHING = ArraySequence()
_WORD = 8  # bytes of an address

class _Result(NamedTuple):
    """A tensor that holds a result of an instruction: its number, type, shape if it is static, and that of its views,
    which have its address."""

    number: int
    dtype: str
    shape: tuple[int, ...] | None
    places: tuple[int, ...]


class DynamicRunner:
    """Runs one graph with size variables. `run` takes the input arrays; `output` returns results."""

    def __init__(
        self,
        graph: Graph,
        module: Module,
        context: Context,
        where: Device,
        params: dict[str, NDArray],
        string_table: StringTable,
        around: frozenset[str] = frozenset(),
        carried: int = 0,
    ) -> None:
        """`around` are the size variables of the graphs around this one; a body that compiled code runs in turns has
        `carried` values."""
        self._graph, self._module, self._context, self._device = graph, module, context, where
        self._params, self._string_table = params, string_table
        self._host_actions: dict[int, Prepared] = {
            id(step): prepared(step.action, step.settings)
            for step in graph.steps if isinstance(step, HostStep)
        }  # fmt: skip
        frame = PlanFrame.of(graph, around)
        self.turns = TurnsFrame(frame, carried)
        words = np.zeros(self.turns.words, np.int64)
        self._addresses, self._size_table = words[: frame.sizes], words[frame.sizes : frame.shapes[0]]
        self._tables = context.address, int(words.ctypes.data), int(words.ctypes.data) + frame.sizes * words.itemsize
        self._stages, self._around = frame.stages, around
        self._plan: NativePlan | None = None
        if graph.entry is not None:
            self._plan = NativePlan(frame, words, self._kernel(graph.entry, pointers=1), context)
        self._stage_of = {i: stage for stage in self._stages.values() for i in stage.tensors}
        self._owners = [i if graph.has_own_memory(position) and not graph.tensors[i].is_sequence else None
                        for position, i in enumerate(graph.outputs)]  # fmt: skip
        """for each output the tensor that owns its buffer, if it has one"""
        self._lent: set[int] = set()
        """buffers that were lent since the last run"""
        self._inputs: list[Value] = []
        self._lying_in: dict[int, list[int]] = {}
        for index, tensor in enumerate(graph.tensors):
            if tensor.storage in ("output", "own"):
                self._lying_in.setdefault(owner_of(graph, tensor), []).append(index)
        self._buffers: dict[int, OutputBuffer] = {}
        """buffers of outputs and of arrays that sequences may reference, by owning tensor"""
        self._functions: dict[str, PackedFunc] = {}
        self._recordings = Recordings(where, _MAX_RECORDINGS)
        self._calls: dict[int, tuple[SizeValues, list[Callable[[], object] | None]]] = {}
        """what queues the nodes of a step, None for those that are bound anew each time, and the sizes that it reads:
        other steps may have sizes that are not computed yet"""
        self._static_shapes = [tensor.static_shape if tensor.is_static else None for tensor in graph.tensors]
        kept = {int(graph.tensors[i].place) for i in graph.outputs if graph.tensors[i].storage == "value"}
        self._dropped_values = [i for step in graph.steps for i in results_of(step) if i not in kept]
        """results of instructions that are no outputs"""
        self._sizes: dict[str, int] = {}
        self._unread: tuple[int, int] = (0, 0)
        """the pieces whose sizes are in the table and not yet in `_sizes`"""
        self._inherited: Mapping[str, int] | None = None
        self._noted: dict[str, int] = {}
        """the sizes in the table"""
        self._last_bound: tuple[list[tuple[int, ...]], dict[str, int] | None, dict[str, int]] | None = None
        self._values: dict[int, Value] = {}
        """results of control flow and of sequence operations, by tensor"""
        self._runners: dict[int, list[DynamicRunner]] = {}
        self._compiled_loops: dict[int, CompiledLoop | TurningLoop] = {}
        self._shown: dict[int, list[int]] = {}
        """reshaped views of such results, by the result's tensor"""
        self._in_inputs: list[tuple[int, int]] = []
        """tensors that alias inputs, with the input's position"""
        for index, tensor in enumerate(graph.tensors):
            if tensor.storage == "param":
                self._addresses[index] = params[str(tensor.place)].handle
            elif tensor.storage == "input":
                self._in_inputs.append((index, int(tensor.place)))
            elif tensor.storage == "value" and int(tensor.place) != index:
                self._shown.setdefault(int(tensor.place), []).append(index)
        self._instructions = [self._instruction(piece) for piece in frame.pieces]

    def _entry(self, name: str, pointers: int = 2) -> Any:
        return self._kernel(name, pointers).raw

    def _kernel(self, name: str, pointers: int) -> KernelFunc:
        entry = self._module.get_function(name, query_imports=True)
        if not takes_pointers(entry, pointers):
            expected = f"a kernel of {pointers} pointers"
            raise ModuleError(f"entry {name!r} of model {self._graph.name!r} is {entry!r}; expected {expected}")
        return entry

    # -- a run

    def run(
        self,
        inputs: Sequence[Value],
        inherited: Mapping[str, int] | None = None,
        record: Record | None = None,
    ) -> None:
        """Run on input arrays or sequences; with `record`, node by node, passing it the time of each.

        `inherited` are sizes of the graph around this one. Raises `ArgumentError` for sizes that contradict each other
        or the model.
        """
        self._inputs, self._inherited = list(inputs), inherited
        if self._plan is None or record is not None:
            for instruction in self._instructions:
                instruction(self, record)
        else:
            self._run_plan(self._plan)
        for index in self._dropped_values:
            self._values.pop(index, None)

    def run_arrays(self, arrays: list[Any], inherited: Mapping[str, int]) -> bool:
        """Run on numpy arrays, one for each input; false, and nothing is done, where they can't be read in place.

        `inherited` are the lengths of KV caches.
        """
        plan = self._plan
        if plan is None or not plan.takes_arrays:
            return False
        if self._lent:
            self._renew_lent()
        if self._inputs or self._values:
            self.release()
        at = plan.call_with_arrays(arrays, inherited)
        if at is None:
            return False
        self._sizes, self._unread = dict(inherited), (0, at)
        if at != plan.end:
            self._context.check()
            self._inputs, self._inherited = [wrap_numpy(values) for values in arrays], inherited
            try:
                self._do_rest(plan, at)
            finally:
                self.release()
        return True

    def _run_plan(self, plan: NativePlan) -> None:
        """Run the compiled plan, and the pieces that it leaves."""
        inherited = {} if self._inherited is None else self._inherited
        self._sizes, self._unread, self._values = dict(inherited), (0, 0), {}
        self._renew_lent()
        self._do_rest(plan, self._call(plan, 0) if plan.begin(self._inputs, inherited) else 0)

    def _renew_lent(self) -> None:
        """Replace the buffers that users still reference."""
        while self._lent:
            index = self._lent.pop()
            buffer = self._buffers[index]
            if buffer.is_lent and buffer.renew_memory(buffer.array.shape):
                self._set_buffer(index, buffer)

    def _call(self, plan: NativePlan, at: int) -> int:
        """Let compiled code run the pieces from `at` on that it can run; returns the first that is left."""
        if not plan.is_compiled[at]:
            return at
        left = plan.call(at)
        self._context.check()
        self._read_sizes()
        self._unread = at, left
        return left

    def _do_rest(self, plan: NativePlan, at: int) -> None:
        """Execute the piece `at`, which compiled code left, and all after it."""
        while at != plan.end:
            self._instructions[at](self, None)
            at += 1
            if at != plan.end:
                at = self._call(plan, at)

    def do_piece(self, number: int, inputs: Sequence[Value], inherited: Mapping[str, int]) -> None:
        """Execute a piece that compiled code left, which did all before it."""
        self._inputs, self._inherited = list(inputs), inherited
        self.sizes_before(number, inherited)
        self._instructions[number](self, None)

    def sizes_before(self, number: int, inherited: Mapping[str, int]) -> dict[str, int]:
        """The sizes that are bound before a piece, where compiled code did all before it."""
        self._sizes, self._unread = dict(inherited), (0, number)
        return self.sizes

    def hold_buffer(self, tensor: int) -> NDArray:
        """Hold the memory of a buffer, so that it gets other memory when it is placed again."""
        return self._buffers[tensor].hold()

    @property
    def sizes(self) -> dict[str, int]:
        """The values of the size variables that are bound."""
        self._read_sizes()
        return self._sizes

    def _read_sizes(self) -> None:
        """Complete `_sizes` by those that the compiled plan bound."""
        first, last = self._unread
        if first != last and self._plan is not None:
            self._sizes |= self._plan.sizes_bound(first, last)
            self._unread = last, last

    def _bind_inputs(self) -> None:
        """Bind the size variables from the shapes of the inputs."""
        inputs = self._inputs
        self._sizes, self._unread = self._bound_sizes(shapes_of(inputs), self._inherited), (0, 0)
        for index, position in self._in_inputs:
            passed = inputs[position]
            self._addresses[index] = passed.handle if isinstance(passed, NDArray) else 0
        self._note_sizes()

    def _instruction(self, piece: Piece) -> Instruction:
        """The function that executes a piece."""
        if piece.kind == "inputs":
            return lambda runner, record: runner._bind_inputs()
        if piece.kind == "place":
            return lambda runner, record: runner._place(piece.number)
        step = self._graph.steps[piece.number]
        if isinstance(step, RunNodes):
            return self._kernels(step)
        if isinstance(step, Bind):
            return lambda runner, record: runner._bind(step)
        if isinstance(step, Check):
            return lambda runner, record: runner._check(step)
        facts = [_Result(i, self._graph.tensors[i].dtype, self._static_shapes[i], (i, *self._shown.get(i, ())))
                 for i in results_of(step)]  # fmt: skip
        return lambda runner, record: runner._store_results(facts, runner._results(step, record), step.source)

    def _kernels(self, step: RunNodes) -> Instruction:
        entry = None if step.entry is None else self._entry(step.entry)
        check, tables = self._context.check, self._tables

        def run(runner: DynamicRunner, record: Record | None) -> None:
            if entry is None or record is not None:
                runner._run_nodes(step, record)
            else:
                entry(*tables)
                check()

        return run

    def _results(
        self, step: SequenceStep | HostStep | IfStep | LoopStep, record: Record | None
    ) -> Sequence[Value]:
        if isinstance(step, SequenceStep):
            return (run_sequence_action(step, self.read, self._device),)
        return self._run_host_action(step) if isinstance(step, HostStep) else self._control(step, record)

    def _bound_sizes(self, shapes: list[tuple[int, ...]], inherited: Mapping[str, int] | None) -> dict[str, int]:
        """`bind_sizes` with the last result cached, as the shapes of loop-carried values seldom change."""
        known = self._last_bound
        if known is None or known[0] != shapes or known[1] != inherited:
            sizes = bind_sizes(self._graph, shapes, inherited)
            known = self._last_bound = (shapes, None if inherited is None else dict(inherited), sizes)
        return dict(known[2])

    def release(self) -> None:
        """Drop references to the last run's inputs and results; `value` and `output` are invalid until the next run."""
        self._inputs, self._values = [], {}
        if self._plan is not None:
            self._plan.forget()

    def _note_sizes(self) -> None:
        if self._plan is not None or self._noted != self.sizes:
            self._size_table[: len(self._graph.sizes)] = [self.sizes.get(name, 0) for name in self._graph.sizes]
            self._noted = dict(self.sizes)

    def _place(self, number: int) -> None:
        """Assign memory to the tensors of a stage."""
        stage, plan = self._stages[number], self._plan
        if plan is None and stage.placed == self.sizes:
            for index in stage.owners:
                self._renew(index)
            return
        offsets, total = stage.layout(self.sizes)
        if stage.arena is None or stage.arena.nbytes < total:
            grown = 0 if stage.arena is None else stage.arena.nbytes + stage.arena.nbytes // 4
            stage.arena = empty((max(total, grown),), "uint8", self._device)
            if plan is not None:
                plan.set_arena(number, stage.arena)
        self._addresses[stage.numbers] = offsets + stage.arena.handle
        for index in stage.owners:
            self._place_buffer(index)
        stage.placed = dict(self.sizes)

    def _renew(self, index: int) -> None:
        """Let a buffer that was lent have memory that nobody holds."""
        buffer = self._buffers[index]
        if buffer.is_lent and buffer.renew():
            self._set_buffer(index, buffer)

    def _place_buffer(self, index: int) -> None:
        home, shape = self._graph.tensors[index], self._shape(index)
        buffer = self._buffers.get(index)
        if buffer is None or buffer.array.shape != shape:
            tensor_bytes(shape, home.dtype, self.sizes)
        if buffer is None:
            buffer = self._buffers[index] = OutputBuffer(shape, home.dtype, self._device, index, self._lent)
        else:
            buffer.renew(shape)
        self._set_buffer(index, buffer)

    def _set_buffer(self, index: int, buffer: OutputBuffer) -> None:
        """Note the address of a buffer for the tensors that lie in it."""
        for inside in self._lying_in[index]:
            self._addresses[inside] = buffer.array.handle
        if self._plan is not None:
            self._plan.set_buffer(index, buffer.nbytes, buffer.array.shape)

    def _shown_buffer(self, owner: int) -> OutputBuffer:
        """A buffer that a tensor owns, showing the shape that the tensor has in this run."""
        buffer = self._buffers[owner]
        words = None if self._plan is None else self._plan.buffer_shapes.get(owner)
        if words is not None:
            shape = tuple(words)
            if shape != buffer.array.shape:
                buffer.show(shape)
        return buffer

    def _bind(self, step: Bind) -> None:
        count = math.prod(self._shape(step.tensor))
        if step.element >= count:
            raise ArgumentError(
                f"model {self._graph.name!r}: {step.source} gives {count} sizes, expected over {step.element}"
            )
        value = self._element(step.tensor, step.element)
        if not 0 <= value <= MAX_ELEMENTS:
            among = f" among {self.array(step.tensor).numpy().reshape(-1).tolist()}" if count > 1 else ""
            raise ArgumentError(
                f"model {self._graph.name!r}: {step.source} computes the size {value}{among}; expected 0 to "
                f"{MAX_ELEMENTS}"
            )
        self.sizes[step.name] = value
        self._note_sizes()

    def _element(self, index: int, element: int) -> int:
        """An element of a tensor of integers or bools by its position in memory."""
        kind = C_TYPES.get(self._graph.tensors[index].dtype)
        if kind is not None and self._device.api.host_accessible:
            return int(kind.from_address(int(self._addresses[index]) + element * ctypes.sizeof(kind)).value)
        return int(self.array(index).numpy().reshape(-1)[element])

    def _control(self, step: IfStep | LoopStep, record: Record | None) -> list[Value]:
        """The results of a branch or a loop."""
        self._context.check()  # a loop of steps that compile to nothing can be cancelled, too
        if isinstance(step, IfStep):
            return run_if(step, self._runners_of(step, step.graphs), self.read, self.sizes, record)
        compiled = None if record is not None else self._run_compiled(step)
        return self._run_loop(step, record) if compiled is None else compiled

    def _run_loop(self, step: LoopStep, record: Record | None) -> list[Value]:
        (runner,) = self._runners_of(step, (step.graph,))
        return run_loop(step, runner, self.read, self.sizes, self._device, self._empty, record)

    def _run_compiled(self, step: LoopStep) -> list[Value] | None:
        """The results of a loop by its compiled function; None if it has none, or can't for these sizes."""
        if step.entry is None and step.turns is None:
            return None
        trips, begins = (tensor_of(self.read(i)).first() for i in (step.trips, step.condition))
        if trips <= 0 or not begins:
            return None
        loop = self._compiled_loops.get(id(step))
        if loop is None:
            loop = self._compiled_loops[id(step)] = self._compiled_loop(step)
        values = [self.read(i) for i in (*step.carried, *step.outside)]
        if isinstance(loop, TurningLoop):
            return loop.run(trips, values, self.sizes)
        return loop.run(trips, [tensor_of(value) for value in values], self.sizes)

    def _compiled_loop(self, step: LoopStep) -> CompiledLoop | TurningLoop:
        if step.turns is None:
            entry = self._entry(str(step.entry), pointers=1)
            return CompiledLoop(step, entry, self._context, self._params, self._device)
        body = self._runner_of(step.graph, len(step.carried))
        entry = self._entry(step.turns, pointers=1)
        if body._plan is None or not TurnsFrame.can_run(body.turns.plan, len(step.carried)):
            raise ModuleError(f"model {self._graph.name!r}: {step.source} is no loop that compiled code can run")
        return TurningLoop(body.turns, body._plan, body, entry, self._context, self._device)

    def _run_host_action(self, step: HostStep) -> list[Value]:
        """The results of a host action; strings are passed as positions in the string table."""
        action, string_table = HOST_ACTIONS[step.action], self._string_table
        arrays = [self.array(index).numpy() for index in step.inputs]
        values = [string_table.strings(x) if kind == "t" else x for x, kind in zip(arrays, action.takes, strict=True)]
        try:
            results = self._host_actions[id(step)](*values)
        except IndexRangeError as error:
            raise IndexRangeError(f"{step.source}: {error}") from error
        except ArgumentError as error:
            raise ArgumentError(f"model {self._graph.name!r}: {step.source}: {error}") from error
        pairs = zip(results, action.returns, strict=True)
        return [array(string_table.numbers(x) if kind == "t" else x, self._device) for x, kind in pairs]

    def _store_results(self, outputs: Sequence[_Result], results: Sequence[Value], source: str) -> None:
        """Store the results of an instruction and bind sizes from their shapes."""
        for (index, dtype, shape, places), result in zip(outputs, results, strict=True):
            self._values[index] = result
            if isinstance(result, ArraySequence):
                continue
            if result.shape != shape or result.dtype != dtype:
                self._bind_result(index, result, source)
            for place in places:
                self._addresses[place] = result.handle

    def _bind_result(self, index: int, result: NDArray, source: str) -> None:
        """Bind sizes from the shape of a result. Raises `ArgumentError` for another type or shape than the graph's."""
        tensor, known = self._graph.tensors[index], len(self.sizes)
        if len(result.shape) != len(tensor.shape) or result.dtype != tensor.dtype:
            kind = SizeMismatchError if result.dtype == tensor.dtype else ArgumentError
            raise kind(
                f"model {self._graph.name!r}: {source} gives {result.dtype} of shape {result.shape}; "
                f"expected {tensor.dtype} of shape {tensor.shape_text}"
            )
        for d, n in zip(tensor.shape, result.shape, strict=True):
            if isinstance(d, str):
                self.sizes.setdefault(d, n)
        wanted = self._shape(index)
        if wanted != result.shape:
            raise ArgumentError(f"model {self._graph.name!r}: {source} gives shape {result.shape}; expected {wanted}")
        if len(self.sizes) > known:
            self._note_sizes()

    def _empty(self, index: int) -> NDArray:
        """The stacked output of zero iterations: 0 along sizes that only an iteration would bind."""
        tensor = self._graph.tensors[index]
        known = [all(name in self.sizes for name in variables(d)) for d in tensor.shape]
        shape = [evaluate(d, self.sizes) if k else 0 for d, k in zip(tensor.shape, known, strict=True)]
        return empty((0, *shape[1:]), tensor.dtype, self._device)

    def _runners_of(self, step: IfStep | LoopStep, graphs: Sequence[Graph]) -> list[DynamicRunner]:
        found = self._runners.get(id(step))
        if found is None:
            found = self._runners[id(step)] = [self._runner_of(graph) for graph in graphs]
        return found

    def _runner_of(self, graph: Graph, carried: int = 0) -> DynamicRunner:
        """A runner of a graph inside of this one."""
        around = self._around | set(self._graph.sizes)
        shared = self._module, self._context, self._device, self._params, self._string_table
        return DynamicRunner(graph, *shared, around, carried)

    def _check(self, step: Check) -> None:
        left, right = evaluate(step.left, self.sizes), evaluate(step.right, self.sizes)
        if left != right:
            raise SizeMismatchError(
                f"model {self._graph.name!r}: {step.source} needs two equal sizes and gets {left} and {right}, with "
                f"{', '.join(f'{name} = {value}' for name, value in self.sizes.items())}"
            )

    # -- kernels

    def _run_nodes(self, step: RunNodes, record: Record | None) -> None:
        nodes = self._graph.nodes[step.first : step.last]

        def submit() -> None:
            size_values, calls = self._queued_calls(step)
            size_values.evaluate(self.sizes)
            for node, call in zip(nodes, calls, strict=True):
                (self._bind_node(node) if call is None else call)()

        if record is not None:
            self._time_nodes(nodes, record)
        elif all(self._function(node.func).is_queued for node in nodes):
            key = step, self._addresses.tobytes(), self._size_table.tobytes()
            self._recordings.find(key, submit)()
        else:
            for node in nodes:
                self._bind_node(node)()

    def _time_nodes(self, nodes: Sequence[GraphNode], record: Record) -> None:
        api = self._device.api
        for node in nodes:
            call = self._bind_node(node)
            start = api.record_mark(self._device)
            call()
            record(node, api.seconds_between(self._device, start, api.record_mark(self._device)), self.sizes)

    def _queued_calls(self, step: RunNodes) -> tuple[SizeValues, list[Callable[[], object] | None]]:
        """What queues each node of a step with the addresses in the table and the values of the sizes, which come
        first."""
        known = self._calls.get(id(step))
        if known is None:
            values = SizeValues()
            calls = [self._queued_call(node, values) for node in self._graph.nodes[step.first : step.last]]
            known = self._calls[id(step)] = values, calls
        return known

    def _queued_call(self, node: GraphNode, values: SizeValues) -> Callable[[], object] | None:
        words, tensors = self._tables[1], self._graph.tensors
        buffers = [BufferWord(words + _WORD * i, tensors[i].shape, tensors[i].storage in ("input", "value"))
                   for i in (*node.inputs, *node.outputs, *node.scratch)]  # fmt: skip
        return self._function(node.func).bind_words([*buffers, *node.sizes], values, self._device)

    def _bind_node(self, node: GraphNode) -> Callable[[], object]:
        arrays = [self.array(i) for i in (*node.inputs, *node.outputs, *node.scratch)]
        sizes = [evaluate(size, self.sizes) for size in node.sizes]
        return self._function(node.func).bind(*arrays, *sizes, context=self._context)

    def _function(self, name: str) -> PackedFunc:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._module.get_function(name, query_imports=True)
        return found

    # -- arrays

    def read(self, index: int) -> Value:
        """The value of a tensor or sequence in this run, not overwritten while it is referenced.

        Intermediate results are the exception: a later run overwrites them.
        """
        tensor = self._graph.tensors[index]
        if tensor.is_sequence:
            return self._inputs[int(tensor.place)] if tensor.storage == "input" else self._values[int(tensor.place)]
        if tensor.storage not in ("output", "own"):
            return self.array(index)
        owner = owner_of(self._graph, tensor)
        lent = self._shown_buffer(owner).hold()
        return lent if owner == index else lent._create_view(self._shape(index), tensor.dtype)

    def _shape(self, index: int) -> tuple[int, ...]:
        """The shape of a tensor in this run."""
        static = self._static_shapes[index]
        return tuple([evaluate(d, self.sizes) for d in self._graph.tensors[index].shape]) if static is None else static

    def array(self, index: int) -> NDArray:
        """The array of a tensor of the graph in this run."""
        tensor, shape = self._graph.tensors[index], self._shape(index)
        if tensor.storage == "slot":
            stage = self._stage_of[index]
            assert stage.arena is not None, "tensors are placed before they are used"
            offset = int(self._addresses[index]) - stage.arena.handle
            return stage.arena._create_view(shape, tensor.dtype, offset)
        home: Value
        if tensor.storage == "param":
            home = self._params[str(tensor.place)]
        elif tensor.storage == "input":
            home = self._inputs[int(tensor.place)]
        elif tensor.storage == "value":
            home = self._values.get(int(tensor.place), _NOTHING)
            if home is _NOTHING and self._plan is not None:  # an element that compiled code took of a sequence
                return NDArray(int(self._addresses[index]), shape, tensor.dtype, self._device, self._plan.stacks)
        else:
            home = self._shown_buffer(owner_of(self._graph, tensor)).array
        assert isinstance(home, NDArray), "kernels take no lists"
        return home if (home.shape, home.dtype) == (shape, tensor.dtype) else home._create_view(shape, tensor.dtype)

    def output(self, position: int) -> Any:
        """An output of the last run, owned by the caller; a copy where it aliases an input or a weight.

        A sequence is a list of such arrays.
        """
        index = self._graph.outputs[position]
        tensor = self._graph.tensors[index]
        if tensor.is_sequence:
            return self._own_copies(self.read(index))
        owner = self._owners[position]
        return self.array(index).copyto(self._device) if owner is None else self._shown_buffer(owner).lend()

    def numpy(self, position: int) -> Any:
        """An output of the last run that is no sequence, as a numpy array of the user's."""
        owner = self._owners[position]
        if owner is None:
            return self.array(self._graph.outputs[position]).numpy()
        return self._shown_buffer(owner).numpy()

    def _own_copies(self, value: Value) -> Any:
        """A sequence as a list of arrays that nothing else aliases."""
        if isinstance(value, NDArray):
            return value.copyto(self._device)
        return [self._own_copies(item) for item in value]

    def flag(self, position: int) -> bool:
        """A bool that is an output of the last run."""
        return bool(self._element(self._graph.outputs[position], 0))

    def value(self, position: int) -> Value:
        """An output of the last run, read-only: not copied where it aliases an input or a weight."""
        index = self._graph.outputs[position]
        found = self.read(index)
        intermediate = self._graph.tensors[index].storage == "slot"
        return found.copyto(self._device) if intermediate and isinstance(found, NDArray) else found


Instruction = Callable[[DynamicRunner, Record | None], None]
"""Executes an instruction of a runner; a profiling run passes a callback, too. It holds no reference to the runner."""
