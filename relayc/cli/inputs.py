"""Inputs of a model set from the command line, and its outputs as named arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.cli.options import (
    Shapes,
    check_fill,
    check_names,
    fill_inputs,
    read_inputs,
    require_values,
    resolved,
    typed,
)

__all__ = ["Inputs", "results_of"]


@dataclass(frozen=True)
class Inputs:
    """Values of a model's inputs as the command line says: `passed` by name, others filled as `fill` says.

    `shapes` ("x:1,3,224,224", "batch=1") gives the dynamic dimensions of filled inputs their sizes.
    """

    passed: dict[str, Any]
    fill: str | None
    seed: int
    shapes: Shapes

    @staticmethod
    def read(files: Sequence[str], fill: str | None, seed: int, shapes: Shapes) -> Inputs:
        """Read `files` ("file.npz", "name=file.npy"). Raises UsageError for what can't be read or understood."""
        check_fill(fill)
        return Inputs(read_inputs(files), fill, seed, shapes)

    def set(self, executor: GraphModule, artifact: CompiledModel | None = None) -> None:
        """Set all inputs of an executor. Raises UsageError for a value or a shape that doesn't fit the model.

        Of an artifact the names in `shapes` are checked here; other models were compiled with them.
        """
        wanted, dtypes = executor.get_input_info()
        require_values({name: (shape, dtypes[name]) for name, shape in wanted.items()}, self.passed, self.fill)
        provided = typed(self.passed, dtypes)
        sizes = resolved({n: provided[n].shape if n in provided else shape for n, shape in wanted.items()}, self.shapes)
        if artifact is not None:
            check_names(wanted, artifact.metadata.input_shapes, self.shapes)
        types = {name: (shape, dtypes[name]) for name, shape in sizes.items()}
        for name, value in fill_inputs(types, provided, self.fill, self.seed).items():
            executor.set_input(name, value)


def results_of(executor: GraphModule, compiled: CompiledModel) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of the last run by name; elements of sequences as "name[0]", values of maps as "name[key]"."""
    names = [compiled.graph.tensors[number].name for number in compiled.graph.outputs]
    return dict(part for i, name in enumerate(names) for part in _arrays(name, executor.get_output(i)))


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if not isinstance(value, list):
        array = value.numpy()
        yield name, array.astype(str) if array.dtype == object else array
    elif value and isinstance(value[0], dict):
        for key in value[0]:
            yield f"{name}[{key}]", np.array([row[key] for row in value], np.float32)
    else:
        for number, item in enumerate(value):
            yield from _arrays(f"{name}[{number}]", item)
