"""Options of sessions and runs, by onnxruntime's names.

Options that only tell onnxruntime how to work are accepted, and noted once in the log; options that would change
results and are not supported are refused when the session is made.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any
from weakref import WeakSet

from relayc.backend.runtime.log import logger
from relayc.onnxruntime.errors import InvalidArgument, NotImplemented as Unsupported

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions", "log", "note_ignored",
]  # fmt: skip

log = logger().getChild("onnxruntime")

_noted = set[str]()
_noting = threading.Lock()


def note_ignored(option: str) -> None:
    """Log, once in a process, that an option has no effect."""
    with _noting:
        if option in _noted:
            return
        _noted.add(option)
    log.info("%s has no effect", option)


class GraphOptimizationLevel(IntEnum):
    """How much graphs are optimised; `PassContext(opt_level=...)` in relayc's terms."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether independent branches run at once: always, in relayc."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of nodes, which relayc chooses."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_CHANGES_RESULTS = {"session.set_denormal_as_zero": "1"}
"""Configuration entries, and their values, that would change results."""


_SPECIALIZE_AFTER = "relayc.specialize_after"
_SECONDS = 20.0


class SessionOptions:
    """Options of a session. Effective are `intra_op_num_threads` (0: all), `graph_optimization_level`,
    `enable_profiling` with `profile_file_prefix`, providers, and overrides of free dimensions by name.

    So is the configuration entry "relayc.specialize_after": the seconds, 20 by default, that runs of certain sizes have
    taken when the model is compiled for these, by another process; "off": never. It is off, too, with
    `use_deterministic_compute`, since results may differ by the order of sums.
    """

    __slots__ = (
        "__weakref__", "_config", "dimensions", "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse",
        "enable_profiling", "execution_mode", "execution_order", "graph_optimization_level", "inter_op_num_threads",
        "intra_op_num_threads", "log_severity_level", "log_verbosity_level", "logid", "optimized_model_filepath",
        "profile_file_prefix", "providers", "use_deterministic_compute", "use_per_session_threads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.enable_profiling = False
        self.profile_file_prefix = "onnxruntime_profile_"
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.optimized_model_filepath = ""
        self.use_deterministic_compute, self.use_per_session_threads = False, True
        self.dimensions: dict[str, int] = {}
        self.providers: list[tuple[str, Mapping[str, str]]] = []
        self._config: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """An entry of the configuration. Raises NotImplemented for one that would change results."""
        if _CHANGES_RESULTS.get(key) == value:
            raise Unsupported(f"the configuration entry {key!r}={value!r} would change results; leave it out")
        if key == _SPECIALIZE_AFTER:
            _seconds_of(value)
        else:
            note_ignored(f"the configuration entry {key!r}")
        self._config[key] = value

    @property
    def threads(self) -> int | None:
        """The most threads of a run; None: all, as for 0 and less."""
        chosen = _integer("intra_op_num_threads", self.intra_op_num_threads)
        return chosen if chosen > 0 else None

    @property
    def opt_level(self) -> int:
        """The level of `PassContext` for `graph_optimization_level`."""
        return min(_integer("graph_optimization_level", self.graph_optimization_level), 3)

    @property
    def specialize_after(self) -> float | None:
        """Seconds of runs of certain sizes after which the model is compiled for these; None: never."""
        return None if self.use_deterministic_compute else _seconds_of(self._config.get(_SPECIALIZE_AFTER, _SECONDS))

    def get_session_config_entry(self, key: str) -> str:
        """The value of a configuration entry. Raises RuntimeError without one, as onnxruntime does."""
        if key not in self._config:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the symbolic dimension `name` of the inputs at `value`."""
        self.dimensions[name] = _integer(f"the override of the dimension {name!r}", value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        raise Unsupported(f"dimensions by denotation ({denotation!r}); use add_free_dimension_override_by_name")

    def add_provider(self, provider_name: str, provider_options: Mapping[str, str]) -> None:
        """Add a device to those of sessions that are given none."""
        self.providers.append((provider_name, provider_options))

    def has_providers(self) -> bool:
        return bool(self.providers)

    def add_initializer(self, name: str, value: Any) -> None:
        raise Unsupported(f"initializer {name!r} from outside the model; write it into the model")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        raise Unsupported(f"initializers {list(names)} from outside the model; write them into the model")

    def register_custom_ops_library(self, path: str) -> None:
        raise Unsupported(
            f"the library of custom operators {path!r}; register converters (relayc.frontends.onnx.registry.converter)"
        )

    def refuse_unsupported(self) -> None:
        """Raise NotImplemented for options that are set and would be missed; note those without effect."""
        if self.optimized_model_filepath:
            raise Unsupported(f"optimized_model_filepath={self.optimized_model_filepath!r}: leave it empty")
        default = SessionOptions()
        for name in ("inter_op_num_threads", "execution_mode", "execution_order", "enable_cpu_mem_arena",
                     "enable_mem_pattern", "enable_mem_reuse", "use_per_session_threads", "log_severity_level",
                     "log_verbosity_level"):  # fmt: skip
            if getattr(self, name) != getattr(default, name):
                note_ignored(f"SessionOptions.{name}")


def _integer(what: str, value: Any) -> int:
    """An option as an integer. Raises InvalidArgument for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is {value!r}; expected an integer") from None


def _seconds_of(value: Any) -> float | None:
    """The seconds that an entry says, None for "off". Raises InvalidArgument for anything else."""
    if value == "off":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidArgument(f'the configuration entry {_SPECIALIZE_AFTER!r} is {value!r}; expected seconds, or "off"')
    return seconds


class RunOptions:
    """Options of a run. `terminate = True`, set by any thread, ends the runs that were given these options."""

    __slots__ = ("__weakref__", "_config", "_lock", "_runs", "_terminate", "log_severity_level", "log_verbosity_level",
                 "logid", "only_execute_path_to_fetches")  # fmt: skip

    def __init__(self) -> None:
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = False
        self._config: dict[str, str] = {}
        self._terminate, self._lock = False, threading.Lock()
        self._runs: WeakSet[Any] = WeakSet()

    @property
    def terminate(self) -> bool:
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            self._terminate = bool(value)
            runs = list(self._runs) if value else []
        for executor in runs:
            executor.cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        note_ignored(f"the configuration entry {key!r} of runs")
        self._config[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The value of a configuration entry. Raises RuntimeError without one, as onnxruntime does."""
        if key not in self._config:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._config[key]

    def started(self, executor: Any) -> Callable[[], None]:
        """Tie the options to a run about to begin on `executor`; the result unties them."""
        with self._lock:
            self._runs.add(executor)
        return lambda: self._runs.discard(executor)
