"""InferenceSession: onnxruntime's interface to a compiled model."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import relayc
from relayc.backend.cache import default_cache
from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.interpreter import runs_python
from relayc.backend.runtime.log import warn_once
from relayc.onnxruntime.binding import IOBinding, device_output, host_output, is_on_device
from relayc.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplemented as Unsupported,
    OrtError,
    RuntimeException,
)
from relayc.onnxruntime.executors import Executors
from relayc.onnxruntime.frequent_sizes import FrequentSizes, compile_version_elsewhere
from relayc.onnxruntime.options import RunOptions, SessionOptions, log, note_ignored
from relayc.onnxruntime.source import Source
from relayc.onnxruntime.values import NodeArg, OrtValue, dtype_name, value_type
from relayc.runtime import (
    ArgumentError,
    CompiledModel,
    Device,
    DeviceError,
    ExecutorPool,
    GraphModule,
    ModelMetadata,
    NDArray,
    RelaycError,
    RunCancelledError,
    device,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from relayc.onnxruntime.profile import RunLog

__all__ = ["CPU", "CUDA", "InferenceSession", "get_available_providers"]

_Options = TypeVar("_Options", SessionOptions, RunOptions)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_MOST_BYTES_OF_VERSIONS = 1 << 30
"""Most bytes of weights of a model that gets versions, which have weights of their own."""


def get_available_providers() -> list[str]:
    """The devices that sessions can use here, by onnxruntime's names, best first."""
    return [CUDA, CPU] if device("cuda").exist else [CPU]


class InferenceSession:
    """A model compiled for this machine, or a compiled one, behind onnxruntime's interface.

    `path_or_bytes` is the path or the bytes of an ONNX file or of a compiled model, a ModelProto or a CompiledModel. An
    ONNX model is compiled here, its kernels taken from the cache where it has them. Of `providers` the first that is
    available is the device.

    Any number of threads may call `run` at once: each has an executor of its own over the same weights.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._options = _options_of(sess_options, SessionOptions, "sess_options") or SessionOptions()
        self._options.refuse_unsupported()
        for name in (*options, *(["disabled_optimizers"] if disabled_optimizers else [])):
            note_ignored(f"the argument {name} of InferenceSession")
        self._source = Source(path_or_bytes)
        self._reported = _Reported(self._source.path)
        self._run_log: RunLog | None = None
        if self._options.enable_profiling:
            # imported here: it takes 3 ms, which sessions without profiles do without
            self._run_log = import_module("relayc.onnxruntime.profile").RunLog(self._options.profile_file_prefix)
        self._workers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.set_providers(self._options.providers or None if providers is None else providers, provider_options)

    # -- the model

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Choose the device, and make the model ready on it."""
        self._providers = _chosen(providers, provider_options)
        for device_name, options in self._providers.items():
            for name in options:
                if (device_name, name) != (CUDA, "device_id"):
                    note_ignored(f"the provider option {name}")
        self._device = _device_of(self._providers)
        self._source.begin()
        with self._reported:
            model = self._made()
            executor = self._executor(model)
        self._metadata, sequences = model.metadata, executor.sequence_names()
        others = model.metadata.container_types
        passed = {name: text for name, text in others.items() if name in sequences}
        fixed = self._options.dimensions
        inputs = executor.get_input_info()
        shapes = _declared_shapes(model.metadata, [name for name in inputs[0] if name not in sequences])
        self._inputs = _described(inputs, shapes, sequences, fixed, passed)
        self._may_be_absent = frozenset(n for n, value in self._inputs.items() if value.type.startswith("optional("))
        self._last: tuple[dict[str, tuple[np.dtype[Any], tuple[int, ...]]], ExecutorPool] | None = None
        self._outputs = _described(executor.get_output_info(), model.metadata.output_shapes, sequences, fixed, others)
        self._output_names = list(self._outputs)
        self._may_be_none = frozenset(n for n, value in self._outputs.items() if value.type.startswith("optional("))
        is_compiled = self._source.is_compiled
        overridable = {} if is_compiled else dict(model.metadata.overridable_initializers)
        info = {name: shapes.get(name, ()) for name in overridable}, overridable
        self._overridable = _described(info, shapes, frozenset(), fixed, {})
        self._dtypes = {**overridable, **inputs[1]}
        described = {**self._inputs, **self._overridable}
        self._scalars = frozenset(name for name, shape in inputs[0].items() if shape == () and name not in sequences)
        self._array_checks = {n: _fits(v, self._dtypes[n]) for n, v in described.items() if v.type.startswith("tensor")}
        remade = {} if is_compiled else self._inputs  # a compiled model has the one version that it is
        has_sizes = any(not isinstance(size, int) for value in remade.values() for size in value.shape)
        if has_sizes or self._overridable:
            self._source.keep_digest()
        self._executors = Executors(executor, self._version, remade, self._overridable)
        can_be = executor.reads_in_place and self._run_log is None
        self._in_place: ExecutorPool | FrequentSizes | None
        self._in_place = self._executors.only() if can_be else None
        """the executors of the model itself, if they can read inputs in place, and runs are not logged"""
        seconds = self._options.specialize_after
        if self._in_place is not None and seconds is not None and has_sizes and self._may_have_versions(model):
            self._in_place = FrequentSizes(self._in_place, self._version_of_sizes, seconds, self._forget_sizes)

    def _version(self, shapes: Mapping[str, Any]) -> GraphModule:
        """An executor of the model compiled with these shapes of inputs."""
        self._source.check_unchanged()
        return self._executor(self._made(shapes))

    def _may_have_versions(self, model: CompiledModel) -> bool:
        """Can another process compile the model for certain sizes, and is there memory for that?"""
        nbytes = sum(values.nbytes for values in model.params.values())
        if nbytes > _MOST_BYTES_OF_VERSIONS or self._device.kind != "cpu" or not self._source.is_passable:
            return False
        return runs_python() and default_cache() is not None  # which the other process leaves the model in

    def _version_of_sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> ExecutorPool:
        """Executors of the model compiled for these shapes of inputs, by another process."""
        arguments = {**self._build_arguments(shapes), "model": self._source.picklable()}
        compile_version_elsewhere(arguments)
        model = relayc.compile_onnx(**arguments, before=_not_in_the_cache)
        self._source.check_unchanged()
        return ExecutorPool(self._executor(model))

    def _forget_sizes(self) -> None:
        self._in_place = self._executors.only()

    def _made(self, shapes: Mapping[str, Any] | None = None) -> CompiledModel:
        """The compiled model: loaded, or compiled from the ONNX model; `shapes` override those of inputs."""
        self._source.check_exists()
        if self._source.is_compiled:
            return self._source.compiled()
        return relayc.compile_onnx(**self._build_arguments(shapes))

    def _build_arguments(self, shapes: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments of `compile_onnx` for the model; `shapes` override those of inputs."""
        on_gpu = self._device.kind == "cuda"
        return {
            "model": self._source.value,
            "target": "cuda" if on_gpu else "llvm",
            "shape": {**self._known_dimensions(), **(shapes or {})} or None,
            "opt_level": self._options.opt_level,
            "config": {} if on_gpu else {"relay.check_indices": True},  # as in onnxruntime, which checks on CPUs
        }

    def _known_dimensions(self) -> dict[str, int]:
        """The overrides of dimensions that the model has; as in onnxruntime, others have no effect."""
        chosen = self._options.dimensions
        if not chosen:
            return {}
        # imported here: models without overrides are taken from the cache without the compiler
        shapes = import_module("relayc.frontends.onnx.model").declared_inputs(self._source.value).values()
        known = {size for shape in shapes for size in shape or ()}
        for name in chosen.keys() - known:
            note_ignored(f"the override of the dimension {name!r}, which the model does not have,")
        return {name: size for name, size in chosen.items() if name in known}

    def _executor(self, model: CompiledModel) -> GraphModule:
        return GraphModule.of(model, self._device, self._options.threads)

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs.values())

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that a run may be given other values of, as inputs; none of a compiled model.

        The model is compiled once more for the first run with others of them.
        """
        return list(self._overridable.values())

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says about itself."""
        return self._metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        """The device in use, and the CPU."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {key: str(value) for key, value in options.items()} for name, options in self._providers.items()}

    def enable_fallback(self) -> None:
        """Nothing: a session runs on its device or raises an error."""

    def disable_fallback(self) -> None:
        """Nothing: a session runs on its device or raises an error."""

    def input(self, name: str) -> NodeArg:
        """The input or overridable initializer `name`. Raises InvalidArgument for an unknown one."""
        return _known({**self._inputs, **self._overridable}, name, "Invalid input name")

    def output(self, name: str) -> NodeArg:
        """The output `name`. Raises InvalidArgument for an unknown one."""
        return _known(self._outputs, name, "Invalid output name")

    def __reduce__(self) -> Any:
        """Pickle what the session was made of: the other process makes one of its own, on the same kind of device."""
        return InferenceSession, (self._source.value, self._options, list(self._providers.items()))

    # -- runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Any]:
        """The outputs named, by default all: numpy arrays, lists of them, lists of dictionaries.

        `timeout` is in seconds. Raises ValueError for missing inputs, InvalidArgument for wrong ones, and Fail for a
        run that `cancel`, `run_options.terminate` or the timeout ended.
        """
        names = self._output_names if not output_names else self._wanted(output_names)
        if run_options is None and timeout is None and self._in_place is not None and type(input_feed) is dict:
            try:
                results = self._in_place.infer_in_place(input_feed, None if names is self._output_names else names)
            except RelaycError:
                with self._reported:  # only where a run fails: it would cost time in each
                    raise
            if results is not None:
                return results
        feed, pool = self._accepted(input_feed)
        with pool.borrowed() as executor:
            return self._run(executor, names, feed, run_options, timeout)

    def _wanted(self, names: Sequence[str]) -> list[str]:
        if isinstance(names, str):
            raise TypeError(f"output_names is the text {names!r}; expected a list of names, or None for all outputs")
        return [self.output(name).name for name in names]

    def _accepted(self, feed: Mapping[str, Any]) -> tuple[Mapping[str, Any], ExecutorPool]:
        """The inputs as the executors take them, and the executors for them.

        Arrays of the types and shapes of those accepted last are accepted as they are.
        """
        if self._last is not None and type(feed) is dict and len(feed) == len(self._last[0]):
            known, pool = self._last
            for name, value in feed.items():
                if type(value) is not np.ndarray or known.get(name) != (value.dtype, value.shape):
                    break
            else:
                return feed, pool
        checked = self._checked(feed)
        pool = self._pool(checked)
        as_it_is = all(type(value) is np.ndarray and value is checked[name] for name, value in feed.items())
        if as_it_is and len(checked) == len(feed):
            self._last = {name: (value.dtype, value.shape) for name, value in feed.items()}, pool
        return checked, pool

    def _pool(self, feed: Mapping[str, Any]) -> ExecutorPool:
        """The executors for these inputs."""
        if self._executors.has_one_version:
            return self._executors.only()
        with self._reported:
            return self._executors.of(feed)

    def _run(
        self,
        executor: GraphModule,
        names: Sequence[str],
        feed: Mapping[str, Any],
        run_options: RunOptions | None,
        timeout: float | None,
    ) -> list[Any]:
        started = time.perf_counter_ns()
        with self._reported:
            feed = feed if self._device.kind == "cpu" else _placed(executor, feed)
            if run_options is None and timeout is None:
                results = executor.infer(feed, names)
            else:
                with _stoppable(executor, run_options, timeout):
                    results = executor.infer(feed, names)
        if self._run_log is not None:
            self._run_log.add_run(started, executor, feed)
        if self._may_be_none.isdisjoint(names):
            return results
        return [_element(value) if name in self._may_be_none else value
                for name, value in zip(names, results, strict=True)]  # fmt: skip

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as arrays of the declared types; onnxruntime's errors for others."""
        if not isinstance(feed, Mapping):
            raise InvalidArgument(f"input_feed is a {type(feed).__name__}; expected a dictionary of inputs by name")
        missing = [name for name in self._inputs if name not in feed and name not in self._may_be_absent]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        fits = self._array_checks
        return dict.fromkeys(self._may_be_absent - feed.keys(), ()) | {
            name: value if name in fits and fits[name](value) else self._value(self.input(name), value)
            for name, value in feed.items()
            if value is not None or name in self._inputs
        }

    def _value(self, declared: NodeArg, value: Any) -> Any:
        value = value.memory if isinstance(value, OrtValue) else value
        if declared.name in self._may_be_absent:  # for the executor a list of at most one value
            return [] if value is None else [value]
        if declared.type.startswith("seq"):
            return [] if value is None else value
        if value is None:
            raise InvalidArgument(f"input {declared.name!r} is None; expected {declared.type}")
        dtype = self._dtypes[declared.name]
        if not hasattr(value, "dtype"):
            try:
                value = np.asarray(value, object if dtype == "string" else to_numpy(dtype))
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidArgument(f"input {declared.name!r}: {error}; expected {declared.type}") from error
        elif isinstance(value, np.generic):
            value = np.asarray(value)
        if declared.name in self._scalars and isinstance(value, np.ndarray) and value.ndim and value.size == 1:
            warn_once(f"input {declared.name!r} is a scalar: an array of one element is taken for one", "onnxruntime")
            value = value.reshape(())
        if isinstance(value, np.ndarray | NDArray):
            _check_array(declared, value)
        return value

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:  # fmt: skip
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on bound inputs, and write the outputs where they are bound; on a GPU, complete when it returns."""
        targets = iobinding.targets or dict.fromkeys(self._outputs)
        on_host = [name for name, target in targets.items() if not is_on_device(target)]
        feed, pool = self._accepted(iobinding.inputs)
        with pool.borrowed() as executor:
            arrays = dict(zip(on_host, self._run(executor, on_host, feed, run_options, None), strict=True))
            with self._reported:
                iobinding.results = [
                    host_output(name, arrays[name], target) if name in arrays else device_output(executor, name, target)
                    for name, target in targets.items()
                ]
                if len(on_host) < len(targets):
                    executor.device.sync()

    def submit(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> Future[list[Any]]:
        """Like `run`, in another thread."""
        with self._lock:
            if self._workers is None:
                from concurrent.futures import ThreadPoolExecutor  # 1 ms, which `run` does without

                self._workers = ThreadPoolExecutor(os.cpu_count() or 1, "relayc-session")
        return self._workers.submit(self.run, output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Like `run`, in another thread, which then calls ``callback(outputs, user_data, error message)``."""

        def finished(future: Future[list[Any]]) -> None:
            error = future.exception()
            callback([] if error is not None else future.result(), user_data, "" if error is None else str(error))

        self.submit(output_names, input_feed, run_options).add_done_callback(finished)

    def cancel(self) -> None:
        """End all runs of the session that are in progress; they raise Fail."""
        self._executors.cancel()
        if isinstance(self._in_place, FrequentSizes):
            self._in_place.cancel()

    # -- profiling

    def end_profiling(self) -> str:
        """Write the trace of the runs so far, in Chrome's format, and return the file's name; "" without profiling."""
        return "" if self._run_log is None else self._run_log.write()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._run_log is None else self._run_log.start

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name}: {i.type} {i.shape}" for i in self._inputs.values())
        return f"<InferenceSession {self._metadata.graph_name!r} on {next(iter(self._providers))}({inputs})>"


def _not_in_the_cache() -> None:
    raise RuntimeError("the cache of compiled models did not keep it")


def _chosen(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Mapping[str, Any]]:
    """The available ones among `providers`, with their options; the CPU last."""
    chosen: dict[str, Mapping[str, Any]] = {}
    separate = list(provider_options or [])
    named = [providers] if isinstance(providers, str) else [CPU] if providers is None else providers
    for number, provider in enumerate(named):
        name, options = provider if isinstance(provider, tuple) and len(provider) == 2 else (provider, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise InvalidArgument(f"providers[{number}] is {provider!r}; expected a name, or a name and its options")
        if name != CPU and name not in (available := get_available_providers()):
            message = f"Specified provider {name!r} is not in available provider names. Available: {available}"
            warnings.warn(message, UserWarning, stacklevel=4)
            continue
        chosen[name] = {**options, **(separate[number] if number < len(separate) else {})}
    chosen.setdefault(CPU, {})
    return chosen


def _declared_shapes(metadata: ModelMetadata, tensors: Sequence[str]) -> Mapping[str, Sequence[int | str | None]]:
    """The shapes that an ONNX model declares for its inputs; as in onnxruntime, () for tensors of undeclared rank."""
    is_imported = metadata != ModelMetadata()
    return {**dict.fromkeys(tensors if is_imported else (), ()), **metadata.input_shapes}


def _described(
    info: tuple[Mapping[str, Sequence[Any]], Mapping[str, str]],
    declared: Mapping[str, Sequence[int | str | None]],
    sequences: frozenset[str],
    fixed: Mapping[str, int],
    others: Mapping[str, str],
) -> dict[str, NodeArg]:
    """Inputs or outputs by name, with the shapes that the model declares; dimensions that are `fixed` are numbers.

    `others` are the types of those that are no tensors, as far as the model declares them.
    """
    shapes, dtypes = info
    found: dict[str, NodeArg] = {}
    for name, dtype in dtypes.items():
        compiled = [] if name in others else [d if isinstance(d, int) else None for d in shapes[name]]
        shape = [fixed.get(d, d) if isinstance(d, str) else d for d in declared.get(name, compiled)]
        found[name] = NodeArg(name, shape, others.get(name) or value_type(dtype, name in sequences))
    return found


def _known(table: Mapping[str, NodeArg], name: str, problem: str) -> NodeArg:
    found = table.get(name)
    if found is None:
        raise InvalidArgument(f"{problem}: {name}; known are {', '.join(table)}")
    return found


def _device_of(providers: Mapping[str, Mapping[str, Any]]) -> Device:
    """The device of the first provider."""
    name, options = next(iter(providers.items()))
    return device("cuda", int(options.get("device_id", 0))) if name == CUDA else device("cpu")


def _element(value: Any) -> Any:
    """The value of an optional output, which is a list of at most one for the executor if it may be absent."""
    return next(iter(value), None) if isinstance(value, list) else value


def _placed(executor: GraphModule, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Have arrays on the executor's device read in place; the inputs that remain, to be copied there."""
    rest: dict[str, Any] = {}
    for name, value in feed.items():
        if isinstance(value, NDArray) and value.device == executor.device and value.is_contiguous:
            executor.set_input_zero_copy(name, value)
        else:
            rest[name] = value
    return rest


def _fits(declared: NodeArg, dtype: str) -> Callable[[Any], bool]:
    """Tells whether a value is an array that can be passed as it is; False of what has to be looked at."""
    wanted, rank = None if dtype == "string" else to_numpy(dtype), len(declared.shape)
    sizes = [(axis, size) for axis, size in enumerate(declared.shape) if isinstance(size, int)]

    def fits(value: Any) -> bool:
        if type(value) is not np.ndarray or value.dtype != wanted or value.ndim != rank:
            return False
        shape = value.shape
        return all(shape[axis] == size for axis, size in sizes)

    return fits


def _check_array(declared: NodeArg, value: np.ndarray[Any, Any] | NDArray) -> None:
    """Raise InvalidArgument for an array of another type, rank or size than the model declares."""
    found = value_type(dtype_name(value))
    if found != declared.type:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({found}) , expected: ({declared.type}), for input: {declared.name}; "
            "convert the array with astype"
        )
    if not declared.shape and value.ndim == 0:
        return
    if declared.shape and value.ndim != len(declared.shape):
        raise InvalidArgument(
            f"Invalid rank for input: {declared.name} Got: {value.ndim} Expected: {len(declared.shape)} "
            "Please fix either the inputs/outputs or the model."
        )
    wrong = [
        f" index: {axis} Got: {size} Expected: {wanted}"
        for axis, (size, wanted) in enumerate(zip(value.shape, declared.shape, strict=False))
        if isinstance(wanted, int) and size != wanted
    ]
    if wrong:
        places = "\n".join(wrong)
        raise InvalidArgument(
            f"Got invalid dimensions for input: {declared.name} for the following indices\n{places}\n"
            " Please fix either the inputs/outputs or the model."
        )


def _options_of(options: Any, kind: type[_Options], what: str) -> _Options | None:
    """The options passed as `what`, which are of a kind or None. Raises InvalidArgument for anything else."""
    if options is not None and not isinstance(options, kind):
        raise InvalidArgument(f"{what} is a {type(options).__name__}; expected {kind.__name__}()")
    return options


def _seconds(timeout: Any) -> float:
    """A timeout in seconds, as far as clocks go. Raises InvalidArgument for what is no number of 0 or more."""
    number = isinstance(timeout, int | float | np.integer | np.floating) and not isinstance(timeout, bool)
    if not number or not timeout >= 0:
        raise InvalidArgument(f"timeout is {timeout!r}; expected seconds, 0 or more")
    return float(min(timeout, threading.TIMEOUT_MAX))


@contextmanager
def _stoppable(executor: GraphModule, options: RunOptions | None, timeout: float | None) -> Generator[None]:
    """A context in which the run on `executor` can be ended by `options` and after `timeout` seconds."""
    timer = None if timeout is None else threading.Timer(_seconds(timeout), executor.cancel)
    chosen = _options_of(options, RunOptions, "run_options")
    untie = None if chosen is None else chosen.started(executor)
    try:
        if options is not None and options.terminate:
            raise RunCancelledError("terminate is set in the options of the run")
        if timer is not None:
            timer.start()
        yield
    finally:
        if timer is not None:
            timer.cancel()
        if untie is not None:
            untie()


class _Reported:
    """A context whose errors are raised by onnxruntime's names; a class, since a generator's takes longer."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            reported = _reported_as(error, self._path)
            if reported is not error:
                raise reported from error


def _reported_as(error: Exception, path: str | None) -> Exception:
    """The error by onnxruntime's name; the error itself where onnxruntime has none for it."""
    if isinstance(error, OrtError):
        return error
    if isinstance(error, RunCancelledError):
        return Fail(f"Exiting due to terminate flag being set to true: {error}")
    if isinstance(error, ArgumentError):
        return InvalidArgument(str(error))
    if isinstance(error, DeviceError):
        return RuntimeException(str(error))
    if isinstance(error, RelaycError):
        return Fail(str(error))
    if isinstance(error, TypeError) or not _is_compile_error(error):
        return error
    log.debug("the model %s", path, exc_info=True)
    where = "Load model" if path is None else f"Load model from {path}"
    return _ERRORS_OF_MODELS.get(type(error).__name__, InvalidGraph)(f"{where} failed: {error}")


_ERRORS_OF_MODELS: Mapping[str, type[OrtError]] = {
    "UnsupportedOperatorError": Unsupported, "NotAModelError": InvalidProtobuf, "NoGraphError": InvalidArgument,
}  # fmt: skip
"""The exceptions for errors of the importer, which is not imported for compiled models."""


def _is_compile_error(error: Exception) -> bool:
    """Is it one of the compiler, which is not imported for compiled models?"""
    return any(base.__name__ == "CompileError" for base in type(error).__mro__)
