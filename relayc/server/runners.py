"""What runs a model for the server: the interface, and compiled models behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from relayc.backend.runtime.sizes import Size
from relayc.runtime import CompiledModel, ExecutorPool, GraphModule, RunCancelledError
from relayc.server.errors import ServerError
from relayc.server.tensors import DATATYPES, Array, TensorSpec

__all__ = ["CompiledRunner", "ModelRunner", "Stop"]


class Stop:
    """Ends a run from another thread: calling it calls what the run registered, or prevents the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_called = False
        self._action: Callable[[], object] | None = None

    def __call__(self) -> None:
        with self._lock:
            self._is_called = True
            if self._action is not None:
                self._action()

    @contextmanager
    def ends_by(self, action: Callable[[], object]) -> Generator[None]:
        """A context of a run that `action`, called from another thread, ends.

        Raises RunCancelledError if the run is not wanted any more. After the context `action` is not called.
        """
        with self._lock:
            if self._is_called:
                raise RunCancelledError("nobody waits for this run")
            self._action = action
        try:
            yield
        finally:
            with self._lock:
                self._action = None


class ModelRunner(Protocol):
    """A model that can be served. `infer` is called from several threads at once.

    `platform` is the name of the engine in the model's metadata. `batch_obstacle` says why requests can't be joined
    along the first dimension, None if they can.
    """

    @property
    def platform(self) -> str: ...

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    @property
    def batch_obstacle(self) -> str | None: ...

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], stop: Stop) -> list[Array]:
        """The outputs named, of inputs of the right types. Raises ArgumentError for sizes that contradict each other.

        Ends early, with RunCancelledError, when `stop` is called.
        """
        ...


class CompiledRunner:
    """A compiled model on a device, by default the one that it was compiled for.

    Runs at the same time have an executor each, which share the weights; `num_threads` limits the threads of each.
    Raises ServerError for a model that the protocol has no types for, or that keeps a state between runs.
    """

    platform = "relayc"

    def __init__(self, model: CompiledModel, where: str | None = None, num_threads: int | None = None) -> None:
        executor = GraphModule.of(model, where, num_threads)
        if model.graph.caches:
            raise ServerError("the model keeps KV caches between runs; serve it with caches as inputs and outputs")
        if executor.sequence_names() or model.graph.maps:
            raise ServerError("the model has sequences, optional values or maps; the protocol has tensors only")
        info = executor.get_input_info(), executor.get_output_info()
        self.inputs, self.outputs = (_specs(shapes, dtypes) for shapes, dtypes in info)
        self.batch_obstacle = _batch_obstacle([*info[0][0].items(), *info[1][0].items()])
        self._pool = ExecutorPool(executor)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], stop: Stop) -> list[Array]:
        with self._pool.borrowed() as executor, stop.ends_by(executor.cancel):
            return executor.infer(inputs, outputs)


def _specs(shapes: Mapping[str, Sequence[Size]], dtypes: Mapping[str, str]) -> list[TensorSpec]:
    for name, dtype in dtypes.items():
        if dtype not in DATATYPES:
            raise ServerError(f"tensor {name!r} is of {dtype}; the protocol has {', '.join(DATATYPES)}")
    return [
        TensorSpec(name, DATATYPES[dtype], tuple(d if isinstance(d, int) else -1 for d in shapes[name]))
        for name, dtype in dtypes.items()
    ]


def _batch_obstacle(tensors: Sequence[tuple[str, Sequence[Size]]]) -> str | None:
    """Why the model can't take several requests at once: they are joined along the first dimension of all tensors."""
    sizes: set[Size] = set()
    for name, shape in tensors:
        if not shape or not isinstance(shape[0], str):
            return f"{name!r} has no first dimension of any size"
        sizes.add(shape[0])
    return None if len(sizes) == 1 else f"first dimensions differ: {', '.join(sorted(map(str, sizes)))}"
