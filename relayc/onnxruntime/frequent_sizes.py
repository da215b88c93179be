"""Versions of a model for the sizes that its runs often have.

A model of dynamic sizes may take longer than one compiled for the sizes of a run. Where runs of certain sizes have
taken long enough for it to pay, another process compiles the model for these, at a low priority, and leaves it in the
cache of compiled models. From then on such runs have executors of their own; their results may differ by the order of
sums.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import relayc
from relayc.backend.runtime.interpreter import start_python
from relayc.onnxruntime.options import log
from relayc.runtime import ExecutorPool

__all__ = ["FrequentSizes", "compile_version", "compile_version_elsewhere"]

_MOST_VERSIONS = 4
_MOST_SIZES = 256
"""Combinations of sizes that are counted."""
_FIRST_RUNS, _SHORTEST_RUN = 32, 1e-3
"""A model whose first runs take fewer seconds each is not watched: choosing a version takes 1e-6."""
_COMMAND = "from relayc.onnxruntime.frequent_sizes import compile_version; compile_version()"

_Sizes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of the inputs, by name."""


class FrequentSizes:
    """Runs with numpy arrays, in executors for their sizes where there are, else in those for all.

    `make` compiles the model for certain shapes of inputs; it is called in a thread when runs of these sizes have taken
    `seconds`, and may fail. `stop` is called when no sizes are counted any more, and there are no versions.
    """

    def __init__(
        self, for_all: ExecutorPool, make: Callable[[Mapping[str, tuple[int, ...]]], ExecutorPool], seconds: float,
        stop: Callable[[], None],
    ) -> None:  # fmt: skip
        self._for_all, self._make, self._limit, self._stop = for_all, make, seconds, stop
        self._versions: dict[_Sizes, ExecutorPool] = {}
        self._seconds: dict[_Sizes, float] = {}
        self._runs = 0
        self._counts = True
        self._lock = threading.Lock()
        self.compiling: threading.Thread | None = None
        """the thread that waits for a version"""

    def infer_in_place(self, inputs: Mapping[str, Any], outputs: Sequence[int | str] | None = None) -> list[Any] | None:
        """`GraphModule.infer_in_place` of an executor that no other thread uses."""
        try:
            sizes = tuple([(name, value.shape) for name, value in inputs.items()])
            version = self._versions.get(sizes)
        except (AttributeError, TypeError):  # values that are no arrays
            return self._for_all.infer_in_place(inputs, outputs)
        if version is not None:
            return version.infer_in_place(inputs, outputs)
        if not self._counts:
            return self._for_all.infer_in_place(inputs, outputs)
        start = perf_counter()
        results = self._for_all.infer_in_place(inputs, outputs)
        if results is not None:
            self._count(sizes, perf_counter() - start)
        return results

    def cancel(self) -> None:
        """End the runs of versions that are in progress."""
        for version in self._versions.values():
            version.cancel()

    def _count(self, sizes: _Sizes, seconds: float) -> None:
        """Add a run. One of two threads that do so at once may be lost."""
        self._runs += 1
        if sizes in self._seconds or len(self._seconds) < _MOST_SIZES:
            seconds += self._seconds.get(sizes, 0.0)
            self._seconds[sizes] = seconds
        if seconds >= self._limit:
            self._begin(sizes)
        elif self._runs == _FIRST_RUNS and sum(self._seconds.values()) < _FIRST_RUNS * _SHORTEST_RUN:
            self._end()

    def _begin(self, sizes: _Sizes) -> None:
        with self._lock:
            if self.compiling is None and self._counts and sizes not in self._versions:
                self.compiling = threading.Thread(
                    target=self._add_version, args=(sizes,), name="relayc-frequent-sizes", daemon=True
                )
                self.compiling.start()

    def _add_version(self, sizes: _Sizes) -> None:
        shapes = dict(sizes)
        try:
            log.info("the model is compiled for inputs of %s, which are frequent", shapes)
            version = self._make(shapes)
        except Exception as error:  # noqa: BLE001 - whatever it is, runs go on without a version
            log.info("inputs of %s are frequent, but have no version of their own: %s", shapes, error)
            self._end()
            return
        self._versions = {**self._versions, sizes: version}
        if len(self._versions) == _MOST_VERSIONS:
            self._end()
        self.compiling = None

    def _end(self) -> None:
        self._counts = False
        if not self._versions:
            self._stop()


def compile_version_elsewhere(arguments: Mapping[str, Any]) -> None:
    """Have another process call `compile_onnx` with these arguments, which leaves the model in the cache.

    Raises RuntimeError, with what it wrote about that, if it fails.
    """
    import pickle  # with subprocess 4 ms, which sessions without versions do without
    from subprocess import DEVNULL, PIPE

    process = start_python(_COMMAND, stdin=PIPE, stdout=DEVNULL, stderr=PIPE)
    _, said = process.communicate(pickle.dumps(dict(arguments)))
    if process.returncode:
        raise RuntimeError(f"the compilation ended with status {process.returncode}: {said.decode(errors='replace')}")


def compile_version() -> None:
    """The work of the other process: `compile_onnx` with arguments that come pickled."""
    import pickle

    if hasattr(os, "nice"):
        os.nice(10)
    try:
        relayc.compile_onnx(**pickle.load(sys.stdin.buffer))
    except Exception as error:  # noqa: BLE001 - the first process logs it, without a trace
        sys.exit(str(error))
