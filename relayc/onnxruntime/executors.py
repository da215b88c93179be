"""The executors of a session: of its model, and of the versions of it that inputs ask for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relayc.onnxruntime.options import log
from relayc.onnxruntime.values import NodeArg
from relayc.runtime import ExecutorPool, GraphModule

__all__ = ["Executors"]

_Version = tuple[tuple[tuple[str, int], ...], bool]
"""The initializers that are inputs, with their ranks, and whether sizes of one name may differ."""


class Executors:
    """The executors of a model and of its versions: with initializers as inputs, with sizes of one name that differ.

    `make` compiles the model with the shapes that it is given for some inputs; a version is compiled when it is first
    needed, which is logged. `inputs` and `overridable` describe the model; only required inputs are in `inputs`.
    """

    def __init__(
        self,
        first: GraphModule,
        make: Callable[[Mapping[str, Any]], GraphModule],
        inputs: Mapping[str, NodeArg],
        overridable: Mapping[str, NodeArg],
    ) -> None:
        self._make, self._known = make, {**inputs, **overridable}
        self._overridable = overridable
        self._shared_sizes = _sizes_of_one_name(self._known.values())
        self._pools: dict[_Version, ExecutorPool] = {((), False): ExecutorPool(first)}
        self._lock = threading.Lock()
        self.has_one_version = not overridable and not self._shared_sizes

    def of(self, feed: Mapping[str, Any]) -> ExecutorPool:
        """The executors for these inputs."""
        passed = tuple([(name, feed[name].ndim) for name in self._overridable if name in feed])
        different = self._differing_size(feed)
        version = passed, different is not None
        with self._lock:
            if version not in self._pools:
                self._pools[version] = ExecutorPool(self._make(self._shapes(version, different)))
            return self._pools[version]

    def only(self) -> ExecutorPool:
        """The executors of the model itself."""
        return self._pools[(), False]

    def cancel(self) -> None:
        """Cancel the runs in progress."""
        for pool in list(self._pools.values()):
            pool.cancel()

    def _differing_size(self, feed: Mapping[str, Any]) -> str | None:
        """A name of sizes that differ in these inputs."""
        sizes: dict[str, int] = {}
        for name, axis, size in self._shared_sizes:
            if name in feed and sizes.setdefault(size, feed[name].shape[axis]) != feed[name].shape[axis]:
                return size
        return None

    def _shapes(self, version: _Version, different: str | None) -> dict[str, Any]:
        """The shapes by which a version is compiled; logged."""
        passed = dict(version[0])
        if passed:
            log.warning("the initializers %s are overridden: the model is compiled with them as inputs", list(passed))
        if different is None:
            return {name: (None,) * rank for name, rank in passed.items()}
        log.warning("inputs differ in %r, a size that the model has once: it is compiled for both", different)
        values = [v for v in self._known.values() if v.name in passed or (v.shape and v.name not in self._overridable)]
        return {value.name: _with_own_sizes(value) for value in values}


def _sizes_of_one_name(inputs: Iterable[NodeArg]) -> list[tuple[str, int, str]]:
    """The dimensions whose name another one has, too: (input, axis, name)."""
    named = [(i.name, axis, d) for i in inputs for axis, d in enumerate(i.shape) if isinstance(d, str)]
    counts = Counter(name for _, _, name in named)
    return [row for row in named if counts[row[2]] > 1]


def _with_own_sizes(declared: NodeArg) -> tuple[int | str, ...]:
    """The shape of an input with names that no other dimension has."""
    return tuple([d if isinstance(d, int) else f"{declared.name}_{axis}" for axis, d in enumerate(declared.shape)])
