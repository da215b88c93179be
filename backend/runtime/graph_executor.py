"""The graph executor: runs a compiled model on one device. The API follows TVM's `graph_executor`.

Memory is allocated when the executor is created: one arena for intermediate tensors, a buffer for every output, a table
of addresses; buffers of inputs follow when values are first copied there. A run is then a single call of the model's
compiled entry function, or one call per node where the model has none. All executors of a model share its weights.
"""

from __future__ import annotations

import json
import operator
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from relayc.backend.runtime.arguments import check_placement, check_type
from relayc.backend.runtime.artifact import BoundModel, CompiledModel
from relayc.backend.runtime.checks import position_of, positive
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device, device
from relayc.backend.runtime.errors import (
    ArgumentError,
    ArtifactError,
    IndexRangeError,
    RunCancelledError,
    SizeMismatchError,
    raise_if_foreign,
)
from relayc.backend.runtime.html_text import facts_html
from relayc.backend.runtime.input_ports import InputPorts
from relayc.backend.runtime.layouts import bind_sizes, shapes_of
from relayc.backend.runtime.metadata import ModelMetadata
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray, from_dlpack
from relayc.backend.runtime.runners import CapturingRunner
from relayc.backend.runtime.sequences import Value
from relayc.backend.runtime.sizes import Size, size_text
from relayc.backend.runtime.static import StaticRunner
from relayc.backend.runtime.timing import BenchmarkResult, measure

if TYPE_CHECKING:
    from relayc.backend.runtime.dynamic import DynamicRunner
    from relayc.backend.runtime.profiler import NodeTiming, Report

__all__ = ["GraphModule", "create"]

_PROFILER = "relayc.backend.runtime.profiler"
"""Imported where it is used: it takes 3 ms, which running a model does without."""


def create(
    graph: str | dict[str, Any],
    lib: Module,
    where: Device | str,
    params: Mapping[str, npt.NDArray[Any]] | None = None,
    num_threads: int | None = None,
) -> GraphModule:
    """An executor from a graph (JSON text or values), the module of its kernels, and its weights.

    TVM: `graph_executor.create`. Raises `ArtifactError` for an invalid graph.
    """
    try:
        record = json.loads(graph) if isinstance(graph, str) else graph
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"graph is no JSON text: {error}. Pass what get_graph_json of a compiled model gave"
        ) from error
    model = CompiledModel(record, {} if params is None else params, lib)
    return GraphModule(model.bind(where), num_threads)


class GraphModule:
    """An executor: `GraphModule(lib["default"](device("cpu", 0)))`.

    `num_threads` limits the threads of its runs (None: as many as the process may use). Any Python thread may call any
    method; calls on one executor are serialized. For concurrent runs, `clone` it. Calling the executor itself sets
    inputs, runs and fetches outputs atomically.

    An array from `get_output` keeps its values as long as it is referenced: later runs write to other memory.

    A model with dynamic shapes takes inputs of any consistent sizes; its output shapes are those of the last run.

    A model built with `caches` keeps its KV caches between runs: each run appends to them. `truncate_caches` shortens
    them; a clone starts with empty ones.

    `context` is for the executor's own use: its specialisations run in its context, so that a cancelled run ends
    whichever of them has it.
    """

    def __init__(self, bound: BoundModel, num_threads: int | None = None, context: Context | None = None) -> None:
        if not isinstance(bound, BoundModel):
            raise ArgumentError(
                f"GraphModule takes lib['default'](device), a model on a device; got {type(bound).__name__}"
            )
        graph, where = bound.model.graph, bound.device
        self._bound = bound
        self._graph = graph
        self._requested_threads = num_threads
        if context is None:
            context = Context(num_threads)
            context.find_function = bound.model.module.find_function
            context.user = f"a kernel of model {graph.name!r}"
        self._context = context
        self._lock = threading.RLock()
        outputs = reversed([*enumerate(graph.outputs)])  # of several with one name the first counts
        self._output_positions = {graph.tensors[index].name: position for position, index in outputs}
        self._inputs = InputPorts(graph, where)
        self._params = bound.model.params_on(where)
        self._positions = range(len(graph.outputs))
        sequences = {position for position, index in enumerate(graph.outputs) if graph.tensors[index].is_sequence}
        self._decoded = self._inputs.strings.outputs | graph.maps.keys() | sequences
        """outputs, by position, that are no arrays to users"""
        self._may_borrow = graph.keeps_no_inputs and where.api.host_accessible
        """may runs read the memory of callers?"""
        names = [tensor.name for tensor, _ in self._inputs.passed()]
        in_place = self._may_borrow and not (graph.caches and graph.variants)
        self._array_names = names if in_place and len({*names}) == len(names) else None
        """the inputs that users pass, in order, if compiled code can read numpy arrays in place"""
        self._runner: StaticRunner | DynamicRunner | None = None
        self._specials: dict[int, GraphModule] = {}
        self._special: GraphModule | None = None
        """executor of the specialisation that ran last, None if the model itself did"""
        self._last_special: GraphModule | None = None
        self._passed: list[Value] = []
        """the specialisation that has the inputs, if there is one, and these inputs"""
        self._output_memory: dict[int, NDArray] = {}
        """users' memory that outputs are written to, by position"""
        self._has_run = self._is_running = False
        """did the last run end without an error, and is one in progress?"""
        self._allocate()
        _executors.add(self)

    @classmethod
    def of(cls, model: CompiledModel, where: str | Device | None = None, num_threads: int | None = None) -> Self:
        """An executor of a model on the device `where`, by default on one of the kind that it was compiled for.

        Raises `DeviceError`, which says why, when there is no such device.
        """
        if not isinstance(model, CompiledModel):
            got = type(model).__name__
            raise ArgumentError(f"GraphModule.of got a {got}; expected a compiled model, such as load_model(path)")
        chosen = where if isinstance(where, Device) else device(model.graph.device if where is None else where)
        return cls(model["default"](chosen), num_threads)

    def _allocate(self) -> None:
        """Create the runner, with all memory whose size is known."""
        around = self._graph, self.module, self._context, self.device, self._params
        if self._graph.is_dynamic:
            # imported here: it takes 7 ms, which static shapes do without
            dynamic = import_module("relayc.backend.runtime.dynamic")
            self._runner = dynamic.DynamicRunner(*around, self._inputs.strings.table)
        else:
            self._runner = static = StaticRunner(*around, self._inputs)
            for position, memory in self._output_memory.items():
                static.use_output(position, memory)

    def release_memory(self) -> None:
        """Frees the memory of intermediate tensors and the executor's references to inputs and outputs.

        The next run allocates it again, and needs its inputs set. Outputs that you hold keep their values; weights,
        which executors share, and KV caches stay.
        """
        with self._lock:
            self._has_run, self._special = False, None
            self._runner = self._last_special = None
            self._passed = []
            self._specials.clear()
            self._inputs.release()

    # -- inputs and outputs

    def set_input(self, key: int | str | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copies values into inputs: `set_input("x", x)`, `set_input(0, x)`, `set_input(x=x, mask=m)`.

        A value is a numpy array, an NDArray, any DLPack object, or nested lists of numbers; for strings a numpy array
        of them (of dtype object or of numpy's own), or nested lists; for a sequence a list of these. Raises
        `ArgumentError` for an unknown input, one that is passed twice, or one of another shape or dtype.
        """
        with self._lock:
            if key is not None or value is not None:
                first: Any = key  # None is no input, and reported as such
                self._inputs.check_passed_once([self.get_input_index(first)], map(self.get_input_index, inputs))
                self._set_input(first, value)
            for name, passed in inputs.items():
                self._set_input(name, passed)

    def set_input_zero_copy(self, key: int | str, value: Any) -> None:
        """Makes runs read the input directly from `value`'s memory, which is kept alive until the input is set again.

        It must be contiguous and on the executor's device, aligned to its elements on a CPU and to 64 bytes elsewhere;
        otherwise `ArgumentError`.
        """
        with self._lock:
            self._inputs.set_zero_copy(self.get_input_index(key), value)

    def set_output_zero_copy(self, key: int | str, value: Any) -> None:
        """Makes runs write the output directly into `value`'s memory, which is kept alive; None ends that.

        It must be writable, contiguous, on the executor's device, aligned as that of `set_input_zero_copy`, and neither
        the memory of an input nor of another output. Raises `ArgumentError` for other memory, and for outputs without a
        fixed shape or that are no result of a kernel: `get_output(key, out=value)` copies those.
        """
        with self._lock:
            position = self._output_position(key)
            tensor = self._graph.tensors[self._graph.outputs[position]]
            name = f"output {tensor.name!r} of model {self._graph.name!r}"
            if self._runner is None:
                self._allocate()
            if value is None:
                self._output_memory.pop(position, None)
                if self._static is not None:
                    self._static.use_output(position, None)
                return
            memory = value if isinstance(value, NDArray) else from_dlpack(value)
            check_type(tensor, memory.shape, memory.dtype, self._graph.name)
            check_placement(memory, self.device, name, "get_output(out=), which copies")
            if memory.read_only:
                raise ArgumentError(f"{name}: the memory is read-only; expected memory that can be written")
            static = None if self._graph.variants else self._static
            if static is None or position in self._decoded or not static.use_output(position, memory):
                raise ArgumentError(
                    f"{name} can't be written in place: its shape is dynamic, or it is no array that a kernel writes; "
                    "use get_output(out=), which copies"
                )
            self._output_memory[position] = memory

    def get_input(self, key: int | str) -> NDArray:
        """The buffer that runs read the input from. Writing into it sets the input."""
        with self._lock:
            return self._inputs.buffer(self.get_input_index(key))

    def get_output(self, index: int | str, out: NDArray | npt.NDArray[Any] | None = None) -> Any:
        """An output of the last run by position or name; with `out`, copied into it, and `out` is returned.

        An NDArray; for strings a `StringArray`; for a sequence, or an optional value (a sequence of at most one
        element), a list of them; for maps a list of dictionaries. Raises `ArgumentError` for an unknown output, an
        `out` of another shape or dtype, before the first run, and after one that failed.
        """
        with self._lock:
            position = self._output_position(index)
            tensor = self._graph.tensors[self._graph.outputs[position]]
            if not self._has_run:
                raise ArgumentError(
                    f"output {tensor.name!r} of model {self._graph.name!r} has no value: the executor has not run yet, "
                    "or its last run failed; set the inputs and call run() first"
                )
            try:
                return self._fetch(position, out)
            except Exception as error:
                raise_if_foreign(error, f"fetching output {tensor.name!r} of model {self._graph.name!r}")
                raise

    def _fetch(self, position: int, out: NDArray | npt.NDArray[Any] | None) -> Any:
        """An output of the last run; strings and maps in the form for users."""
        if self._special is not None:
            return self._special._fetch(position, out)
        strings = self._inputs.strings
        if position in strings.outputs:
            if out is not None:
                name = self._graph.tensors[self._graph.outputs[position]].name
                raise ArgumentError(f"output {name!r} of model {self._graph.name!r} is of strings, no out=")
            return strings.strings(self._result(position, None))
        if position in self._graph.maps and out is None:
            return _as_maps(self._result(position, None).numpy(), self._graph.maps[position])
        return self._result(position, out)

    def _result(self, position: int, out: NDArray | npt.NDArray[Any] | None) -> Any:
        """An output of the last run as an array, or a list of arrays."""
        tensor = self._graph.tensors[self._graph.outputs[position]]
        if out is not None:
            if tensor.is_sequence:
                raise ArgumentError(f"output {tensor.name!r} of model {self._graph.name!r} is a list, no out=")
            target = out if isinstance(out, NDArray) else from_dlpack(out)
            check_type(tensor, target.shape, target.dtype, self._graph.name)
            self._allocated.array(self._graph.outputs[position]).copyto(target)
            return out
        return self._allocated.output(position)

    @property
    def _allocated(self) -> StaticRunner | DynamicRunner:
        """The runner of the last run."""
        assert self._runner is not None, "the executor has run"
        return self._runner

    @property
    def _static(self) -> StaticRunner | None:
        """The runner of a graph of static shapes."""
        return self._runner if isinstance(self._runner, StaticRunner) else None

    @property
    def _dynamic(self) -> DynamicRunner | None:
        """The runner of a graph with size variables."""
        return None if isinstance(self._runner, StaticRunner) else self._runner

    def get_num_inputs(self) -> int:
        """Number of inputs, weights and caches not counted."""
        return len(self._graph.inputs) - len(self._graph.caches)

    def get_num_outputs(self) -> int:
        return len(self._graph.outputs)

    def get_input_index(self, key: int | str) -> int:
        """The position of an input. Raises `ArgumentError` listing the inputs for an unknown one."""
        return self._inputs.index(key, self._bound.model.params)

    def get_input_info(self) -> tuple[dict[str, tuple[Size, ...]], dict[str, str]]:
        """(name -> shape, name -> dtype) of the inputs, in order; size variables by name. TVM: `get_input_info`."""
        passed = self._inputs.passed()
        return {t.name: t.shape for t, _ in passed}, {t.name: dtype for t, dtype in passed}

    def get_output_info(self) -> tuple[dict[str, tuple[Size, ...]], dict[str, str]]:
        """(name -> shape, name -> dtype) of the outputs, in order."""
        tensors = [self._graph.tensors[index] for index in self._graph.outputs]
        dtypes = ["string" if i in self._inputs.strings.outputs else t.dtype for i, t in enumerate(tensors)]
        return {t.name: t.shape for t in tensors}, dict(zip([t.name for t in tensors], dtypes, strict=True))

    def sequence_names(self) -> frozenset[str]:
        """The names of the inputs and outputs that are sequences or optional values."""
        tensors = [self._graph.tensors[index] for index in (*self._graph.inputs, *self._graph.outputs)]
        return frozenset(tensor.name for tensor in tensors if tensor.is_sequence)

    # -- running

    def run(self, /, *args: Any, **inputs: Any) -> None:
        """Sets `inputs`, then runs the model: `run(x=x)`, or with a dictionary of them `run({"x": x})`.

        Raises `ArgumentError` naming inputs that were never set.
        """
        with self._lock:
            for name, value in (self._named(args, inputs) if args else inputs).items():
                self._set_input(name, value)
            self._run()
            self._inputs.caches.keep()

    def cancel(self) -> None:
        """Ends the run in progress, from another thread: it raises `RunCancelledError`.

        Nothing happens if there is none. A loop ends within 10 ms or one iteration, anything else when the call of
        compiled code that is in progress returns. The executor can be used again.
        """
        if self._is_running:
            self._context.fail(RunCancelledError(f"the run of model {self._graph.name!r} was cancelled"))

    @property
    def has_caches(self) -> bool:
        """Does the executor keep KV caches?"""
        return bool(self._inputs.caches)

    @property
    def cache_names(self) -> list[str]:
        """The names of the inputs that the executor keeps as KV caches."""
        return self._inputs.caches.names

    @property
    def cache_length(self) -> int:
        """Number of positions in the KV caches, appended by the runs since the last truncation."""
        return self._inputs.caches.length

    def truncate_caches(self, length: int = 0) -> None:
        """Keeps only the first `length` positions of the KV caches: for a new prompt, or to roll tokens back."""
        with self._lock:
            self._inputs.caches.truncate(length)

    def reserve_caches(self, rows: int) -> None:
        """Gives the KV caches room for so many positions, so that they are not moved until there are more."""
        with self._lock:
            self._inputs.caches.reserve(rows)

    def cache_values(self) -> dict[str, Any]:
        """A copy of the KV caches by input name, as numpy arrays: to save them, or to share a prefix."""
        with self._lock:
            return self._inputs.caches.values()

    def set_caches(self, values: Mapping[str, Any]) -> None:
        """Makes the KV caches hold these positions, as `cache_values` of this or another executor gives them.

        Raises `ArgumentError` for other names, shapes, or element types, and for caches of different lengths.
        """
        with self._lock:
            self._inputs.caches.set(values)

    def reorder_caches(self, entries: Sequence[int]) -> None:
        """Makes entry i of the batch in the KV caches what entry `entries[i]` was: beams, or another batch size."""
        with self._lock:
            self._inputs.caches.reorder(entries)

    def __call__(self, /, *args: Any, **inputs: Any) -> list[Any]:
        """Sets inputs by position and by name, or from a dictionary, runs, and returns all outputs, atomically."""
        with self._lock:
            if len(args) == 1 and isinstance(args[0], Mapping):
                inputs, args = self._named(args, inputs), ()
            if args and inputs:
                self._inputs.check_passed_once(range(len(args)), map(self.get_input_index, inputs))
            for position, value in enumerate(args):
                self._set_input(position, value)
            self.run(**inputs)
            return [self.get_output(index) for index in range(len(self._graph.outputs))]

    def infer(self, inputs: Mapping[str, Any], outputs: Sequence[int | str] | None = None) -> list[Any]:
        """Sets inputs by name, runs, and returns outputs as numpy arrays, atomically (ONNX Runtime: `run`).

        `outputs` are positions or names; None: all. Strings are object arrays, sequences lists of arrays, maps lists of
        dictionaries. The arrays are the caller's; later runs do not change them. The shortest way through an executor:
        small models take little longer than their kernels, and large arrays are not copied. Dense inputs are read in
        place, so no other thread may change them during the call; set all inputs again for a later `run`.
        """
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            raise ArgumentError(f"the inputs are a {type(inputs).__name__}; expected a dictionary of arrays by name")
        with self._lock:
            if self._run_on_arrays(inputs):
                return self._numpy_outputs(outputs)
            borrowed = self._run_on_inputs(inputs)
            try:
                return self._numpy_outputs(outputs)
            finally:
                if borrowed:
                    self._drop(borrowed)

    @property
    def reads_in_place(self) -> bool:
        """Are there arrays that `infer_in_place` takes?"""
        return self._array_names is not None

    def infer_in_place(
        self, inputs: Mapping[str, Any], outputs: Sequence[int | str] | None = None
    ) -> list[Any] | None:
        """Like `infer`, with numpy arrays that compiled code can read in place; None, and nothing is done, for others.

        It is for those who have checks of their own for what it does not take.
        """
        with self._lock:
            return self._numpy_outputs(outputs) if self._run_on_arrays(inputs) else None

    def set_num_threads(self, num_threads: int | None) -> None:
        """Limits the threads of later runs; None: as many as the process may use."""
        with self._lock:
            self._context.set_num_threads(num_threads)
            self._requested_threads = num_threads

    @property
    def num_threads(self) -> int:
        """Threads that the next run may use."""
        return self._context.num_threads

    @property
    def multiplied_types(self) -> frozenset[str]:
        """The element types that kernels multiply, to measure a machine's ceilings for them."""
        return frozenset(node.multiplied for part in self._graph.parts() for node in part.nodes)

    @property
    def metadata(self) -> ModelMetadata:
        """The metadata of the imported model, and its declared shapes."""
        return self._graph.metadata

    @property
    def device(self) -> Device:
        return self._bound.device

    @property
    def module(self) -> Module:
        """The module of the kernels."""
        return self._bound.model.module

    def clone(self, num_threads: int | None = None) -> GraphModule:
        """A new executor of the same model, with its own inputs and outputs and shared weights."""
        return GraphModule(self._bound, self._requested_threads if num_threads is None else num_threads)

    def benchmark(
        self,
        dev: Device | None = None,
        func_name: str = "run",
        /,
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float = 0,
        end_to_end: bool = False,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Times `run` (see `timing.measure`); with `end_to_end`, with setting the inputs and fetching the outputs.

        `dev` and `func_name`, from TVM's method, may only be the executor's device and "run". Inputs that are named
        like one of the other options are set by `set_input` before.
        """
        if func_name != "run" or (dev is not None and dev != self.device):
            raise ArgumentError(f"benchmark of {func_name!r} on {dev}: expected 'run' on {self.device}")
        with self._lock:
            self.set_input(**inputs)

            def everything() -> None:
                for result in self(**inputs):
                    if isinstance(result, NDArray):  # all else is on the host already, or fetched with it
                        result.numpy()

            if self._static is not None and isinstance(self._static.runner, CapturingRunner):
                self._run()  # and once more to warm up, which records
            length = self._inputs.caches.length
            result = measure(
                everything if end_to_end else self._run,
                [self.device],
                number=number,
                repeat=repeat,
                min_repeat_ms=min_repeat_ms,
                cooldown_interval_ms=cooldown_interval_ms,
                repeats_to_cooldown=repeats_to_cooldown,
            )
            self._inputs.caches.truncate(length)
            return result

    def profile(self, /, repeat: int = 5, **inputs: Any) -> Report:
        """Runs node by node, `repeat` times after a warm-up, and reports the median time of every node.

        Slower than `run`: every node is followed by a synchronisation or, where devices have events, by an event.
        """
        positive(repeat, "repeat")
        with self._lock:
            self.set_input(**inputs)
            if self._graph.variants:
                self._run()
                if self._special is not None:
                    return self._special.profile(repeat)
            self._has_run, self._special = False, None
            self._prepare()
            self._context.begin()
            calls = self._time_nodes(repeat)
            self._context.check()
            self._has_run = True
        graph = self._graph
        facts = {"model": graph.name, "target": graph.target, "device": str(self.device), "threads": self.num_threads}
        return import_module(_PROFILER).Report(calls, facts)

    def _time_nodes(self, repeat: int) -> list[NodeTiming]:
        """The median time of each node in `repeat` runs after a warm-up."""
        profiler = import_module(_PROFILER)
        if self._static is not None:
            return profiler.node_timings(self._graph, self._static.time_nodes(repeat))
        assert self._dynamic is not None
        inputs = self._inputs.values
        runs = [profiler.Executions() for _ in range(repeat + 1)]
        for run in runs:
            self._dynamic.run(inputs, self._inputs.kept_sizes, run.add)
        return profiler.dynamic_timings(self._graph, runs[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its model, weights included, and KV caches; inputs and outputs stay behind."""
        return _revive, (self._bound.model, self._bound.device, self._requested_threads, self.cache_values())

    def __repr__(self) -> str:
        return f"<GraphModule {self._graph.name!r} on {self.device}({self._inputs.signature()})>"

    def _repr_html_(self) -> str:
        """The executor in a notebook: device, threads, inputs and outputs."""
        facts = [("device", str(self.device)), ("threads", str(self.num_threads))]
        for kind, (shapes, dtypes) in (("input", self.get_input_info()), ("output", self.get_output_info())):
            facts += [(kind, f"{n}: {dtypes[n]}[{', '.join(map(size_text, shapes[n]))}]") for n in shapes]
        return facts_html(f"GraphModule {self._graph.name}", facts)

    # -- inner workings; the lock is held

    def _named(self, args: Sequence[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by name, of which some may be in a dictionary, the only one of `args`."""
        if len(args) > 1 or not isinstance(args[0], Mapping):
            got = ", ".join(type(value).__name__ for value in args)
            raise ArgumentError(
                f"run of model {self._graph.name!r} got ({got}); expected inputs by name, run(x=x) or "
                'run({"x": x}). As run(outputs, {"x": x}) of ONNX Runtime: infer({"x": x}, outputs)'
            )
        passed: Mapping[str, Any] = args[0]
        self._inputs.check_passed_once(map(self.get_input_index, passed), map(self.get_input_index, inputs))
        return {**passed, **inputs}

    def _set_input(self, key: int | str, value: Any) -> None:
        if not self._inputs.copy_array(key, value):
            self._inputs.set(self.get_input_index(key), value)

    def _run_on_arrays(self, inputs: Mapping[str, Any]) -> bool:
        """Run on numpy arrays in one call of compiled code; false, and nothing is done, where it can't read them."""
        names = self._array_names
        if names is None or len(inputs) != len(names) or self._output_memory:
            return False
        try:
            arrays = [inputs[name] for name in names]
        except KeyError:
            return False
        caches = self._graph.caches
        if caches:
            arrays = self._inputs.with_caches(arrays)
        if arrays is None or not self._run(arrays):
            return False
        if caches:
            self._inputs.caches.keep()
        if self._inputs.are_set:
            self._drop(range(len(arrays)))
        return True

    def _run_on_inputs(self, inputs: Mapping[str, Any]) -> list[int]:
        """Run on values that are set or, large ones if possible, read in place; returns the positions of these."""
        borrowed: list[int] = []
        may_borrow = self._may_borrow and not self._output_memory
        try:
            for name, value in inputs.items():
                position = self._inputs.borrow(name, value) if may_borrow else None
                if position is not None:
                    borrowed.append(position)
                elif not self._inputs.copy_array(name, value):
                    self._set_input(name, value)
            self._run()
            self._inputs.caches.keep()
        except BaseException:
            self._drop(borrowed)
            raise
        return borrowed

    def _drop(self, positions: Sequence[int]) -> None:
        """Forget the values of inputs."""
        self._inputs.drop(positions)
        self._passed = []
        if self._dynamic is not None:
            self._dynamic.release()
        for special in self._specials.values():
            special._drop(positions)

    def _output_position(self, key: int | str) -> int:
        position = position_of(key, self._output_positions)
        if not 0 <= position < len(self._graph.outputs):
            names = [self._graph.tensors[index].name for index in self._graph.outputs]
            raise ArgumentError(
                f"model {self._graph.name!r} has no output {key!r}; its outputs are: {', '.join(names)}"
            )
        return position

    def _numpy_outputs(self, outputs: Sequence[int | str] | None) -> list[Any]:
        """Outputs of the last run as `infer` returns them."""
        positions = self._positions if outputs is None else [*map(self._output_position, outputs)]
        holder = self if self._special is None else self._special
        runner, decoded = holder._runner, self._decoded
        assert runner is not None, "the executor has run"
        fetch = runner.numpy
        if not decoded:
            return [*map(fetch, positions)]
        maps = self._graph.maps
        return [
            _as_maps(fetch(p), maps[p]) if p in maps
            else _as_numpy(self.get_output(p)) if p in decoded
            else fetch(p)
            for p in positions
        ]  # fmt: skip

    def _prepare(self) -> None:
        """Complete the inputs, and have memory to run."""
        if self._runner is None:
            self._allocate()
        self._inputs.prepare()

    def _run(self, arrays: list[Any] | None = None) -> bool:
        """Run the model, or the specialisation for the inputs, on the values that are set; until it ends, `cancel`
        reaches it.

        With `arrays`, on these; false, and nothing is done, where they can't be read in place.
        """
        self._context.begin()
        self._has_run, self._is_running = False, True
        try:
            if arrays is None:
                self._run_on_values()
            else:
                chosen = self._last_special if self._graph.variants else self
                self._special = None if chosen is self else chosen
                runner = None if chosen is None else chosen._runner
                if runner is None or not runner.run_arrays(arrays, self._inputs.kept_sizes):
                    return False
        except SizeMismatchError:
            if arrays is None:
                raise
            return False  # another specialisation may take these sizes
        except IndexRangeError as error:  # of a dynamic graph, which checks after each call of compiled code
            raise self._located(error) from error
        except Exception as error:
            raise_if_foreign(error, f"running model {self._graph.name!r}")
            raise
        finally:
            self._is_running = False
        try:
            self._context.check()
        except IndexRangeError as error:
            raise self._located(error) from error
        self._has_run = True
        return True

    def _run_on_values(self) -> None:
        self._prepare()
        self._special = self._run_special() if self._graph.variants else None
        if self._special is not None:
            return
        if self._dynamic is not None:
            self._dynamic.run(self._inputs.values, self._inputs.kept_sizes)
        elif self._static is not None:
            self._inputs.check_sizes()
            self._static.run()

    def _located(self, error: IndexRangeError) -> IndexRangeError:
        """The error with the name of the model."""
        return IndexRangeError(f"model {self._graph.name!r}: {error}")

    def _run_special(self) -> GraphModule | None:
        """Run the first specialisation that takes the inputs; None if there is none.

        The one that ran last is tried first where the inputs are in the same memory.
        """
        values, last = self._inputs.values, self._last_special
        same = len(self._passed) == len(values) and all(map(operator.is_, self._passed, values))
        if same and last is not None and self._takes_inputs(last):
            return last
        for model in self._bound.model.variants(self._sizes_of(values)):
            if id(model) not in self._specials:
                bound = model.bind(self.device)
                self._specials[id(model)] = GraphModule(bound, self._requested_threads, self._context)
            special = self._specials[id(model)]
            if not (same and special is last) and self._takes_inputs(special):
                self._last_special, self._passed = special, values
                return special
        self._last_special, self._passed = None, []
        return None

    def _sizes_of(self, values: Sequence[Value]) -> dict[str, int]:
        """The sizes of the model for these inputs; none if it rejects them, as versions of it may not, and if no
        specialisation is for certain ones."""
        if not any(wanted for wanted, _ in self._graph.variants):
            return {}
        try:
            return bind_sizes(self._graph, shapes_of(values))
        except SizeMismatchError:
            return {}

    def _takes_inputs(self, special: GraphModule) -> bool:
        """Run a specialisation on the inputs; False if it rejects their sizes."""
        try:
            special._inputs.share(self._inputs)
            special._run_on_values()
        except SizeMismatchError:
            return False
        return True


def _as_numpy(value: Any) -> Any:
    """An output as numpy, a sequence as a list of arrays."""
    return [_as_numpy(item) for item in value] if isinstance(value, list) else value.numpy()


def _as_maps(rows: npt.NDArray[Any], keys: Sequence[Any]) -> list[dict[Any, Any]]:
    """Maps from the keys to the elements of each row."""
    return [*map(dict, map(zip, repeat(keys), rows.tolist()))]


_executors: weakref.WeakSet[GraphModule] = weakref.WeakSet()


def _revive(
    model: CompiledModel, where: Device, num_threads: int | None, caches: Mapping[str, Any]
) -> GraphModule:
    executor = GraphModule(model.bind(where), num_threads)
    executor.set_caches(caches)
    return executor


def _unlock_after_fork() -> None:
    """Replace the locks of executors in a forked child, where the threads that may have held them do not exist."""
    for executor in list(_executors):
        executor._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_after_fork)
