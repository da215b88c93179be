"""The graph executor: runs a compiled model on one device. The API follows TVM's `graph_executor`.

Memory is allocated when the executor is created: one arena for intermediate tensors, a buffer for every input and
output, a table of their addresses. A run is then a single call of the model's compiled entry function, or one call per
node where the model has none. Weights are shared by all executors of the model.
"""

from __future__ import annotations

import json
import operator
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.arguments import as_argument, as_sequence, as_string_arrays, check_type
from relayc.backend.runtime.artifact import BoundModel, CompiledModel
from relayc.backend.runtime.checks import position_of, positive
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT
from relayc.backend.runtime.dynamic import DynamicRunner
from relayc.backend.runtime.errors import ArgumentError, ArtifactError, SizeMismatchError, raise_if_foreign
from relayc.backend.runtime.graph import GraphTensor
from relayc.backend.runtime.kv_cache import KVCaches
from relayc.backend.runtime.layouts import bind_sizes, shapes_of
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray, empty, from_dlpack
from relayc.backend.runtime.profiler import NodeTiming, Report, dynamic_timings, node_timings
from relayc.backend.runtime.runners import CapturingRunner, EntryRunner, NodeRunner, OutputBuffer
from relayc.backend.runtime.sequences import ArraySequence, Value
from relayc.backend.runtime.sizes import Size, size_text
from relayc.backend.runtime.string_ports import StringPorts
from relayc.backend.runtime.timing import BenchmarkResult, measure

__all__ = ["GraphModule", "create"]

_Runner = EntryRunner | NodeRunner | CapturingRunner


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
    except ValueError as error:
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
    """

    def __init__(self, bound: BoundModel, num_threads: int | None = None) -> None:
        if not isinstance(bound, BoundModel):
            raise ArgumentError(
                f"GraphModule takes lib['default'](device), a model on a device; got {type(bound).__name__}"
            )
        graph, where = bound.model.graph, bound.device
        self._bound = bound
        self._graph = graph
        self._requested_threads = num_threads
        self._context = Context(num_threads)
        self._context.find_function = bound.model.module.find_function
        self._context.user = f"a kernel of model {graph.name!r}"
        self._lock = threading.RLock()
        self._positions = {graph.tensors[index].name: position for position, index in enumerate(graph.inputs)}
        outputs = reversed([*enumerate(graph.outputs)])  # of several with one name the first counts
        self._output_positions = {graph.tensors[index].name: position for position, index in outputs}
        self._tensors_in: dict[tuple[str, int | str], list[int]] = defaultdict(list)
        for index, tensor in enumerate(graph.tensors):
            self._tensors_in[tensor.storage, tensor.place].append(index)
        self._own_inputs = [_buffer(graph.tensors[i], where) for i in graph.inputs]
        self._inputs = list(self._own_inputs)
        self._strings = StringPorts(graph)
        self._caches = KVCaches(graph, where)
        self._kept_sizes: dict[str, int] = {}
        """the sizes of the KV caches"""
        self._unset = {position for position in range(len(graph.inputs)) if position not in self._caches}
        self._params = bound.model.params_on(where)
        self._node_runner: NodeRunner | None = None
        self._dynamic: DynamicRunner | None = None
        self._specials: dict[int, GraphModule] = {}
        self._special: GraphModule | None = None
        """executor of the specialisation that ran last, None if the model itself did"""
        self._last_special: GraphModule | None = None
        self._passed: list[Value] = []
        """the specialisation that has the inputs, if there is one, and these inputs"""
        self._has_run = False
        """did the last run end without an error?"""
        if graph.is_dynamic:
            self._dynamic = DynamicRunner(graph, self.module, self._context, where, self._params, self._strings.table)
        else:
            self._outputs = [self._output_buffer(position) for position in range(len(graph.outputs))]
            self._arena = empty((max(graph.arena_bytes, 1),), "uint8", where)
            self._runner: _Runner = self._make_runner()
        _executors.add(self)

    # -- inputs and outputs

    def set_input(self, key: int | str | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copies values into inputs: `set_input("x", x)`, `set_input(0, x)`, `set_input(x=x, mask=m)`.

        A value is a numpy array, an NDArray, any DLPack object, or nested lists of numbers; for strings a numpy array
        of them (of dtype object or of numpy's own), or nested lists; for a sequence a list of these. Raises
        `ArgumentError` for an unknown input, one that is passed twice, or one of another shape or dtype.
        """
        with self._lock:
            if key is not None or value is not None:
                self._check_passed_once([key], inputs)
                self._set_input(key, value)
            for name, passed in inputs.items():
                self._set_input(name, passed)

    def set_input_zero_copy(self, key: int | str, value: Any) -> None:
        """Makes runs read the input directly from `value`'s memory, which is kept alive until the input is set again.

        It must be contiguous, aligned to 64 bytes and on the executor's device; otherwise `ArgumentError`.
        """
        with self._lock:
            position = self.get_input_index(key)
            tensor = self._input_tensor(position)
            if tensor.is_sequence or position in self._strings.inputs:
                kind = "a sequence" if tensor.is_sequence else "of strings"
                raise ArgumentError(f"input {tensor.name!r} of model {self._graph.name!r} is {kind}; use set_input")
            passed = value if isinstance(value, NDArray) else from_dlpack(value)
            self._check_input(tensor, passed)
            misplaced = passed.device != self._bound.device or not passed.is_contiguous
            if misplaced or (passed.device.api.addressable and passed.handle % ALLOC_ALIGNMENT):
                raise ArgumentError(
                    f"input {tensor.name!r} of model {self._graph.name!r}: memory on {passed.device} with strides "
                    f"{passed.strides} at {passed.handle:#x} can't be used in place; expected contiguous memory on "
                    f"{self._bound.device} aligned to {ALLOC_ALIGNMENT} bytes. Use set_input, which copies"
                )
            self._place_input(position, passed)

    def get_input(self, key: int | str) -> NDArray:
        """The buffer that runs read the input from. Writing into it sets the input."""
        with self._lock:
            position = self.get_input_index(key)
            passed = self._inputs[position]
            if not isinstance(passed, NDArray) or position in self._strings.inputs:
                name = self._input_tensor(position).name
                kind = "of strings" if isinstance(passed, NDArray) else "a sequence"
                raise ArgumentError(f"input {name!r} of model {self._graph.name!r} is {kind}, which has no buffer")
            self._unset.discard(position)
            return passed

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
            return self._special.get_output(position, out)
        if position in self._strings.outputs:
            if out is not None:
                name = self._graph.tensors[self._graph.outputs[position]].name
                raise ArgumentError(f"output {name!r} of model {self._graph.name!r} is of strings, no out=")
            return self._strings.strings(self._result(position, None))
        if position in self._graph.maps and out is None:
            keys = self._graph.maps[position]
            rows = self._result(position, None).numpy().tolist()
            return [dict(zip(keys, row, strict=True)) for row in rows]
        return self._result(position, out)

    def _result(self, position: int, out: NDArray | npt.NDArray[Any] | None) -> Any:
        """An output of the last run as an array, or a list of arrays."""
        tensor = self._graph.tensors[self._graph.outputs[position]]
        if out is not None:
            if tensor.is_sequence:
                raise ArgumentError(f"output {tensor.name!r} of model {self._graph.name!r} is a list, no out=")
            target = out if isinstance(out, NDArray) else from_dlpack(out)
            check_type(tensor, target.shape, target.dtype, self._graph.name)
            index = self._graph.outputs[position]
            (self._array_of(index) if self._dynamic is None else self._dynamic.array(index)).copyto(target)
            return out
        if self._dynamic is not None:
            return self._dynamic.output(position)
        buffer = self._outputs[position]
        if buffer is not None:
            return buffer.lend()
        return self._array_of(self._graph.outputs[position]).copyto(self.device)

    def get_num_inputs(self) -> int:
        """Number of inputs, weights and caches not counted."""
        return len(self._graph.inputs) - len(self._graph.caches)

    def get_num_outputs(self) -> int:
        return len(self._graph.outputs)

    def get_input_index(self, key: int | str) -> int:
        """The position of an input. Raises `ArgumentError` listing the inputs for an unknown one."""
        position = position_of(key, self._positions)
        if position in self._caches:
            raise ArgumentError(
                f"input {self._input_tensor(position).name!r} of model {self._graph.name!r} is a cache, which the "
                "executor keeps; truncate_caches() makes it shorter"
            )
        if not 0 <= position < len(self._graph.inputs):
            is_weight = isinstance(key, str) and key in self._bound.model.params
            hint = f"; {key!r} is a weight, bound when the model was compiled" if is_weight else ""
            raise ArgumentError(
                f"model {self._graph.name!r} has no input {key!r}{hint}. Its inputs are: {self._signature()}"
            )
        return position

    def get_input_info(self) -> tuple[dict[str, tuple[Size, ...]], dict[str, str]]:
        """(name -> shape, name -> dtype) of the inputs, in order; size variables by name. TVM: `get_input_info`."""
        passed = self._passed_inputs()
        return {t.name: t.shape for t, _ in passed}, {t.name: dtype for t, dtype in passed}

    def get_output_info(self) -> tuple[dict[str, tuple[Size, ...]], dict[str, str]]:
        """(name -> shape, name -> dtype) of the outputs, in order."""
        tensors = [self._graph.tensors[index] for index in self._graph.outputs]
        dtypes = ["string" if i in self._strings.outputs else t.dtype for i, t in enumerate(tensors)]
        return {t.name: t.shape for t in tensors}, dict(zip([t.name for t in tensors], dtypes, strict=True))

    # -- running

    def run(self, /, **inputs: Any) -> None:
        """Sets `inputs`, then runs the model. Raises `ArgumentError` naming inputs that were never set."""
        with self._lock:
            for name, value in inputs.items():
                self._set_input(name, value)
            self._run()
            self._caches.keep()

    @property
    def cache_length(self) -> int:
        """Number of positions in the KV caches, appended by the runs since the last truncation."""
        return self._caches.length

    def truncate_caches(self, length: int = 0) -> None:
        """Keeps only the first `length` positions of the KV caches: for a new prompt, or to roll tokens back."""
        with self._lock:
            self._caches.truncate(length)

    def __call__(self, /, *args: Any, **inputs: Any) -> list[Any]:
        """Sets inputs by position and by name, runs, and returns all outputs, atomically."""
        with self._lock:
            if args and inputs:
                self._check_passed_once(range(len(args)), inputs)
            for position, value in enumerate(args):
                self._set_input(position, value)
            self.run(**inputs)
            return [self.get_output(index) for index in range(len(self._graph.outputs))]

    def set_num_threads(self, num_threads: int | None) -> None:
        """Limits the threads of later runs; None: as many as the process may use."""
        with self._lock:
            self._context.set_num_threads(num_threads)
            for special in self._specials.values():
                special.set_num_threads(num_threads)
            self._requested_threads = num_threads

    @property
    def num_threads(self) -> int:
        """Threads that the next run may use."""
        return self._context.num_threads

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

            if self._dynamic is None and isinstance(self._runner, CapturingRunner):
                self._run()  # and once more to warm up, which records
            length = self._caches.length
            result = measure(
                everything if end_to_end else self._run,
                [self.device],
                number=number,
                repeat=repeat,
                min_repeat_ms=min_repeat_ms,
                cooldown_interval_ms=cooldown_interval_ms,
                repeats_to_cooldown=repeats_to_cooldown,
            )
            self._caches.truncate(length)
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
            calls = self._time_nodes(repeat)
            self._context.check()
            self._has_run = True
        graph = self._graph
        facts = {"model": graph.name, "target": graph.target, "device": str(self.device), "threads": self.num_threads}
        return Report(calls, facts)

    def _time_nodes(self, repeat: int) -> list[NodeTiming]:
        """The median time of each node in `repeat` runs after a warm-up."""
        if self._dynamic is None:
            seconds = self._by_node().time(self.device, repeat)
            medians = np.median(np.array(seconds).reshape(repeat, len(self._graph.nodes)), axis=0)
            return node_timings(self._graph, medians.tolist())
        runs: list[dict[int, list[float]]] = []
        for _ in range(repeat + 1):
            run: dict[int, list[float]] = defaultdict(list)
            self._dynamic.run(
                self._inputs, self._kept_sizes, lambda node, seconds, run=run: run[id(node)].append(seconds)
            )
            runs.append(run)
        return dynamic_timings(self._graph, runs[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its model, weights included; inputs and outputs stay behind."""
        return _revive, (self._bound.model, self._bound.device, self._requested_threads)

    def __repr__(self) -> str:
        return f"<GraphModule {self._graph.name!r} on {self.device}({self._signature()})>"

    # -- inner workings; the lock is held

    def _check_passed_once(self, keys: Iterable[int | str], named: Mapping[str, Any]) -> None:
        """Raise `ArgumentError` if one of `keys` is an input that is passed by its name, too."""
        twice = {self.get_input_index(key) for key in keys} & {self.get_input_index(name) for name in named}
        if twice:
            names = [self._input_tensor(position).name for position in sorted(twice)]
            raise ArgumentError(f"model {self._graph.name!r}: inputs {names} are passed twice; expected one value")

    def _set_input(self, key: int | str, value: Any) -> None:
        position = self.get_input_index(key)
        tensor = self._input_tensor(position)
        try:
            if position in self._strings.inputs:
                self._strings.set(position, as_string_arrays(tensor, value, self._graph.name))
                self._unset.discard(position)
            else:
                self._copy_input(position, tensor, value)
        except Exception as error:
            raise_if_foreign(error, f"setting input {tensor.name!r} of model {self._graph.name!r}")
            raise

    def _copy_input(self, position: int, tensor: GraphTensor, value: Any) -> None:
        if tensor.is_sequence:
            self._inputs[position] = as_sequence(tensor, value, self._graph.name, self.device)
            self._unset.discard(position)
            return
        passed = as_argument(tensor, value, self._graph.name)
        self._check_input(tensor, passed)
        own = self._own_inputs[position]
        assert isinstance(own, NDArray)
        if own.shape != passed.shape:
            own = self._own_inputs[position] = empty(passed.shape, tensor.dtype, self.device)
        own.copyfrom(passed)
        if self._inputs[position] is not own:
            self._place_input(position, own)
        self._unset.discard(position)

    def _check_input(self, tensor: GraphTensor, passed: Any, any_sizes: bool | None = None) -> None:
        """Check the type of an input. Its sizes are those of the model or of a version, which a run finds out."""
        lenient = bool(self._graph.variants) if any_sizes is None else any_sizes
        check_type(tensor, passed.shape, passed.dtype, self._graph.name, lenient)

    def _place_input(self, position: int, array: NDArray) -> None:
        self._inputs[position] = array
        self._unset.discard(position)
        self._moved("input", position)

    def _output_position(self, key: int | str) -> int:
        position = position_of(key, self._output_positions)
        if not 0 <= position < len(self._graph.outputs):
            names = [self._graph.tensors[index].name for index in self._graph.outputs]
            raise ArgumentError(
                f"model {self._graph.name!r} has no output {key!r}. Its {len(names)} outputs are: {names}"
            )
        return position

    def _output_buffer(self, position: int) -> OutputBuffer | None:
        """The buffer of an output; None for one that aliases other memory."""
        tensor = self._graph.tensors[self._graph.outputs[position]]
        own = (tensor.storage, tensor.place) == ("output", position)
        return OutputBuffer(tensor.static_shape, tensor.dtype, self.device) if own else None

    def _make_runner(self) -> _Runner:
        graph = self._graph
        if graph.entry is None:
            nodes = NodeRunner(graph, self.module, self._context)
            runner = CapturingRunner(nodes, self.device) if nodes.is_queued else nodes
            self._node_runner = nodes
        else:
            runner = EntryRunner(graph, self.module, self._context, self._arena)
        for index, tensor in enumerate(graph.tensors):
            if graph.entry is None or tensor.storage != "arena":  # the entry knows the places in the arena
                runner.move(index, self._array_of(index))
        return runner

    def _by_node(self) -> NodeRunner:
        """The node-by-node runner, created on first use."""
        if self._node_runner is None:
            self._node_runner = NodeRunner(self._graph, self.module, self._context)
            for index in range(len(self._graph.tensors)):
                self._node_runner.move(index, self._array_of(index))
        return self._node_runner

    def _array_of(self, index: int) -> NDArray:
        """The array that currently holds a tensor of the graph."""
        tensor = self._graph.tensors[index]
        if tensor.storage == "arena":
            return self._arena._create_view(tensor.static_shape, tensor.dtype, int(tensor.place))
        if tensor.storage == "param":
            home = self._params[str(tensor.place)]
        elif tensor.storage == "input":
            home = self._inputs[int(tensor.place)]
        else:
            buffer = self._outputs[int(tensor.place)]
            assert buffer is not None, "a graph's output buffers are those of its outputs"
            home = buffer.array
        assert isinstance(home, NDArray), "a graph with lists has a runner of its own"
        same = (home.shape, home.dtype) == (tensor.shape, tensor.dtype)
        return home if same else home._create_view(tensor.static_shape, tensor.dtype)

    def _moved(self, storage: str, place: int) -> None:
        """Notifies the runners that an input or output has another buffer."""
        if self._dynamic is not None:
            return  # it is given the inputs at every run
        runners = [runner for runner in dict.fromkeys((self._runner, self._node_runner)) if runner is not None]
        for index in self._tensors_in[storage, place]:
            for runner in runners:
                runner.move(index, self._array_of(index))

    def _prepare(self) -> None:
        """Checks that all inputs are set, and replaces output buffers that users still reference."""
        if self._unset:
            missing = [self._input_tensor(position).name for position in sorted(self._unset)]
            raise ArgumentError(
                f"model {self._graph.name!r}: inputs {missing} were never set. Its inputs are: {self._signature()}"
            )
        for position, numbers in self._strings.numbers().items():
            self._copy_input(position, self._input_tensor(position), numbers)
        self._kept_sizes = self._caches.lay_out(self._inputs) if self._caches else {}
        for position, buffer in enumerate(() if self._dynamic is not None else self._outputs):
            if buffer is not None and buffer.renew():
                self._moved("output", position)
        self._context.refresh()

    def _run(self) -> None:
        self._has_run = False
        try:
            self._prepare()
            self._special = self._run_special() if self._graph.variants else None
            if self._special is None:
                self._run_model()
        except Exception as error:
            raise_if_foreign(error, f"running model {self._graph.name!r}")
            raise
        self._context.check()
        self._has_run = True

    def _run_model(self) -> None:
        """Run the model itself, not a version of it."""
        if self._dynamic is not None:
            self._dynamic.run(self._inputs, self._kept_sizes)
            return
        if self._graph.variants:
            for position, passed in enumerate(self._inputs):
                self._check_input(self._input_tensor(position), passed, any_sizes=False)
        self._runner()

    def _run_special(self) -> GraphModule | None:
        """Run the first specialisation that takes the inputs; None if there is none.

        The one that ran last is tried first where the inputs have the same buffers.
        """
        last = self._last_special
        same = len(self._passed) == len(self._inputs) and all(map(operator.is_, self._passed, self._inputs))
        if same and last is not None and self._takes_inputs(last):
            return last
        for model in self._bound.model.variants(self._sizes_of_inputs()):
            if id(model) not in self._specials:
                self._specials[id(model)] = GraphModule(model.bind(self.device), self._requested_threads)
            special = self._specials[id(model)]
            if not (same and special is last) and self._takes_inputs(special, self._inputs):
                self._last_special, self._passed = special, self._inputs[:]
                return special
        self._last_special, self._passed = None, []
        return None

    def _sizes_of_inputs(self) -> dict[str, int]:
        """The sizes of the model for the inputs; none if it rejects them, as versions of it may not."""
        try:
            return bind_sizes(self._graph, shapes_of(self._inputs))
        except SizeMismatchError:
            return {}

    def _takes_inputs(self, special: GraphModule, inputs: Sequence[Value] = ()) -> bool:
        """Run a specialisation, on new `inputs` if there are any; False if it rejects their sizes."""
        self._strings.copy_to(special._strings)
        try:
            for position, passed in enumerate(inputs):
                if position in self._strings.inputs:
                    special._unset.discard(position)
                elif isinstance(passed, NDArray):
                    special.set_input_zero_copy(position, passed)
                else:
                    special._inputs[position] = passed
                    special._unset.discard(position)
            special._run()
        except SizeMismatchError:
            return False
        return True

    def _input_tensor(self, position: int) -> GraphTensor:
        return self._graph.tensors[self._graph.inputs[position]]

    def _passed_inputs(self) -> list[tuple[GraphTensor, str]]:
        """The inputs that users pass (all but KV caches), with their element types."""
        positions = [i for i in range(len(self._graph.inputs)) if i not in self._caches]
        tensors = [(i, self._input_tensor(i)) for i in positions]
        return [(t, "string" if i in self._strings.inputs else t.dtype) for i, t in tensors]

    def _signature(self) -> str:
        return ", ".join(
            f"{t.name}: {'a list of ' if t.is_sequence else ''}{dtype}[{', '.join(map(size_text, t.shape))}]"
            for t, dtype in self._passed_inputs()
        )


def _buffer(tensor: GraphTensor, where: Device) -> Value:
    """The initial buffer of an input; symbolic dimensions have size 0."""
    if tensor.is_sequence:
        return ArraySequence()
    return empty(tuple([d if isinstance(d, int) else 0 for d in tensor.shape]), tensor.dtype, where)


_executors: weakref.WeakSet[GraphModule] = weakref.WeakSet()


def _revive(model: CompiledModel, where: Device, num_threads: int | None) -> GraphModule:
    return GraphModule(model.bind(where), num_threads)


def _unlock_after_fork() -> None:
    """Replace the locks of executors in a forked child, where the threads that may have held them do not exist."""
    for executor in list(_executors):
        executor._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_after_fork)
