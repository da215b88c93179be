"""Inputs of a model set from the command line, and its outputs as named arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.cli.options import fill_inputs, parse_shapes, read_inputs, resolved, typed

__all__ = ["results_of", "set_inputs"]


def set_inputs(
    executor: GraphModule, files: Sequence[str], fill: str | None, seed: int, shapes: Sequence[str]
) -> None:
    """Set every input from `files` ("file.npz", "name=file.npy"), or filled ("random", "ones", "zeros").

    `shapes` ("x:1,3,224,224", "batch=1") gives the dynamic dimensions of filled inputs their sizes. Raises UsageError
    for a file or a shape that doesn't fit the model.
    """
    wanted, dtypes = executor.get_input_info()
    provided, sizes = typed(read_inputs(files), dtypes), parse_shapes(shapes)
    types = {
        name: (provided[name].shape if name in provided else resolved(shape, sizes), dtypes[name])
        for name, shape in wanted.items()
    }
    for name, value in fill_inputs(types, provided, fill, seed).items():
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
