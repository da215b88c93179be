"""`map_batches`: a model as a function of batches that can be sent to other processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from relayc.backend.runtime.checks import check_path
from relayc.runtime import ArgumentError, ExecutorPool, GraphModule, load_model

__all__ = ["BatchMapper", "map_batches"]

Array = np.ndarray[Any, Any]


def map_batches(
    model: str | os.PathLike[str],
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | Sequence[str] | None = None,
    *,
    keep: Sequence[str] = (),
    where: str | None = None,
    num_threads: int | None = None,
    expect_sha256: str | None = None,
) -> BatchMapper:
    """A function of batches of rows that runs a compiled model, for Dask, Ray Data and others that send functions.

    `model` is the path of an artifact, on every machine that runs it. A batch is a dictionary of arrays by column, and
    the result is one, too; or a batch is an array, for a model with one input and one output. The rows are the first
    dimension, which the model has to treat independently. If it is fixed in the model, batches of any size are cut into
    such pieces, the last one filled up.

    `inputs` are the columns of inputs, `outputs` the names of the outputs wanted, or the columns of them, where they
    are called otherwise; `keep` are columns that are passed on. `where` and `num_threads` are the device and the number
    of threads of each run, `expect_sha256` is that of `load_model`.
    """
    path = check_path(model, "the model of map_batches")
    if path.lower().endswith((".onnx", ".pb")):
        raise ArgumentError(f"{path}: map_batches takes a compiled model; `relayc compile {path}` makes one")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ArgumentError(f"inputs= is {inputs!r}; expected a dictionary of columns by input")
    for what, names in (("outputs", () if outputs is None else outputs), ("keep", keep)):
        if isinstance(names, str) or not isinstance(names, Sequence | Mapping):
            raise ArgumentError(f"{what}= is {names!r}; expected a list of names")
    named = None if outputs is None else dict(outputs) if isinstance(outputs, Mapping) else {n: n for n in outputs}
    return BatchMapper(os.path.abspath(path), dict(inputs or {}), named, tuple(keep), where, num_threads, expect_sha256)


@dataclass(frozen=True)
class BatchMapper:
    """What `map_batches` returns. Each process opens the artifact once, however often this is copied.

    Any number of threads may call it at once. Raises ArgumentError for missing columns and wrong arrays.
    """

    path: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str] | None
    keep: tuple[str, ...]
    where: str | None
    num_threads: int | None
    expect_sha256: str | None

    @overload
    def __call__(self, batch: Array) -> Array: ...
    @overload
    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]: ...
    def __call__(self, batch: Any) -> Any:
        model = _opened(self)
        unknown = [name for name in self.inputs if name not in model.inputs]
        if unknown:
            raise ArgumentError(
                f"{self.path}: got columns for the inputs {unknown}; expected inputs of the model, {model.inputs}"
            )
        wanted = {name: name for name in model.outputs} if self.outputs is None else self.outputs
        if isinstance(batch, np.ndarray):
            if len(model.inputs) != 1 or len(wanted) != 1:
                raise ArgumentError(
                    f"{self.path} got one array; it has the inputs {model.inputs} and gives {[*wanted]}: "
                    "pass a dictionary of arrays by column, or name one of the outputs"
                )
            (result,) = model.run({model.inputs[0]: batch}, [*wanted])
            return result
        if not isinstance(batch, Mapping):
            raise ArgumentError(
                f"{self.path} got a {type(batch).__name__}; expected a dictionary of arrays by column, or an array "
                '(Ray Data: batch_format="numpy")'
            )
        columns = {name: self.inputs.get(name, name) for name in model.inputs}
        missing = sorted({*columns.values(), *self.keep} - set(batch))
        if missing:
            raise ArgumentError(f"{self.path}: the batch has the columns {[*batch]}; missing are {missing}")
        results = model.run({name: np.asarray(batch[column]) for name, column in columns.items()}, [*wanted])
        return {**{name: batch[name] for name in self.keep}, **dict(zip(wanted.values(), results, strict=True))}


class _Opened:
    """A model of this process. `rows` is the first dimension, None if it may have any size."""

    def __init__(self, mapper: BatchMapper) -> None:
        model = load_model(mapper.path, expect_sha256=mapper.expect_sha256)
        executor = GraphModule.of(model, mapper.where, mapper.num_threads)
        shapes = executor.get_input_info()[0]
        self.inputs, self.outputs = [*shapes], [*executor.get_output_info()[0]]
        firsts = {shape[0] for shape in shapes.values() if shape and isinstance(shape[0], int)}
        if len(firsts) > 1 or not all(shapes.values()):
            raise ArgumentError(
                f"{mapper.path}: the model has the inputs {dict(shapes)}; expected one number of rows as their first "
                "dimension"
            )
        self.rows = firsts.pop() if firsts else None
        self._pool = ExecutorPool(executor)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The outputs for all rows, of as many runs as it takes."""
        counts = {len(values) if values.ndim else -1 for values in inputs.values()}
        if len(counts) != 1:
            raise ArgumentError(f"the columns have different numbers of rows: {sorted(counts)}")
        count = counts.pop()
        with self._pool.borrowed() as executor:
            if self.rows in (None, count):
                return executor.infer(inputs, outputs)
            step = self.rows
            starts = range(0, max(count, 1), step)
            pieces = [
                executor.infer({name: _piece(values, at, step) for name, values in inputs.items()}, outputs)
                for at in starts
            ]
        return [np.concatenate(parts)[:count] for parts in zip(*pieces, strict=True)]


def _piece(values: Array, at: int, rows: int) -> Array:
    """So many rows from position `at`; where they end, the last one, or zeros without any, fills them up."""
    piece = values[at : at + rows]
    if len(piece) == rows:
        return piece
    filling = piece[-1:] if len(piece) else np.zeros((1, *values.shape[1:]), values.dtype)
    return np.concatenate([piece, np.repeat(filling, rows - len(piece), axis=0)])


@dataclass
class _Process:
    """The models that this process has opened, with the time and size of their files then."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    models: dict[tuple[Any, ...], tuple[tuple[int, int], _Opened]] = field(default_factory=dict)


_process = _Process()


def _opened(mapper: BatchMapper) -> _Opened:
    """The model of a function, opened when it is first called; again if the file is another one."""
    key = mapper.path, mapper.where, mapper.num_threads, mapper.expect_sha256
    status = os.stat(mapper.path)
    state = status.st_mtime_ns, status.st_size
    with _process.lock:
        found = _process.models.get(key)
        if found is None or found[0] != state:
            found = _process.models[key] = state, _Opened(mapper)
        return found[1]
