"""Sizes and memory layouts of graphs with dynamic shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayc.backend.runtime.dtype import nbytes as nbytes_of
from relayc.backend.runtime.errors import ArgumentError, SizeMismatchError
from relayc.backend.runtime.execution_plan import Bind, RunNodes, results_of
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.sequences import Value
from relayc.backend.runtime.sizes import MAX_ELEMENTS, evaluate, extent, variables

__all__ = [
    "ALIGNMENT", "FROM_INPUTS", "RESULT_SIZE", "Stage", "bind_sizes", "owner_of", "shapes_of", "stages_of",
    "tensor_bytes",
]  # fmt: skip

ALIGNMENT = 64
_MAX_LAYOUTS = 256
FROM_INPUTS = -1
"""Stage of tensors whose sizes follow from the inputs; other stages are numbered by the instruction they precede."""
RESULT_SIZE = "#result"
"""Prefix of size variables that are bound by the shapes of control-flow results."""


def bind_sizes(
    graph: Graph, shapes: Sequence[tuple[int, ...]], inherited: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Bind size variables from the input shapes, in addition to `inherited` ones.

    Raises `ArgumentError` naming the input and axis whose size contradicts the other inputs or the model.
    """
    sizes: dict[str, int] = dict(inherited or {})
    size_producer: dict[str, str] = dict.fromkeys(sizes, "the graph around")
    tensors = [graph.tensors[index] for index in graph.inputs]
    for tensor, shape in zip(tensors, shapes, strict=True):
        if len(tensor.shape) != len(shape):
            raise SizeMismatchError(
                f"input {tensor.name!r} of model {graph.name!r}: got shape {shape}; expected {tensor.shape_text}"
            )
        for axis, (dim, passed) in enumerate(zip(tensor.shape, shape, strict=True)):
            if isinstance(dim, str) and dim not in sizes:
                sizes[dim], size_producer[dim] = passed, f"input {tensor.name!r}, axis {axis}"
    for tensor, shape in zip(tensors, shapes, strict=True):
        for axis, (dim, passed) in enumerate(zip(tensor.shape, shape, strict=True)):
            if passed == (sizes[dim] if isinstance(dim, str) else dim):
                continue
            unknown = [name for name in variables(dim) if name not in sizes]
            if unknown:
                raise ArgumentError(f"model {graph.name!r}: no input has the size {unknown[0]!r} as a dimension")
            wanted = evaluate(dim, sizes)
            if wanted != passed:
                why = "".join(f"; {name} is {sizes[name]} by {size_producer[name]}" for name in variables(dim))
                if isinstance(dim, str):
                    why += ". If the two may differ, compile the model with another name for one: from_onnx(shape=...)"
                raise SizeMismatchError(
                    f"input {tensor.name!r} of model {graph.name!r}: got shape {shape}, whose axis {axis} is {passed}; "
                    f"expected {wanted} in {tensor.shape_text}{why}"
                )
    return sizes


def shapes_of(values: Sequence[Value]) -> list[tuple[int, ...]]:
    """The shapes of arrays; () for sequences, whose elements may have any shape."""
    return [value.shape if isinstance(value, NDArray) else () for value in values]


def stages_of(graph: Graph) -> dict[int, Stage]:
    """The stages at which tensors get their memory in a run of a graph with size variables."""
    known = _known_before(graph)
    groups: dict[int, tuple[list[int], list[int]]] = {FROM_INPUTS: ([], [])}
    of_slot: dict[int | str, int] = {}
    stage_of = [max([known.get(v, FROM_INPUTS) for d in _home(graph, tensor).shape for v in variables(d)],
                default=FROM_INPUTS) for tensor in graph.tensors]  # fmt: skip
    for index, tensor in enumerate(graph.tensors):
        if tensor.storage == "slot":
            of_slot[tensor.place] = min(of_slot.get(tensor.place, stage_of[index]), stage_of[index])
    for index, tensor in enumerate(graph.tensors):
        stage = stage_of[index]
        first = of_slot[tensor.place] if tensor.storage == "slot" else stage
        groups.setdefault(first, ([], []))[first != stage].append(index)
    return {number: Stage(graph, *tensors) for number, tensors in groups.items()}


def _known_before(graph: Graph) -> dict[str, int]:
    """For each size variable bound by an instruction, the next instruction that runs kernels.

    Tensors whose sizes become known between the same kernels are planned together, so they may share memory.
    """
    tensors, steps = graph.tensors, graph.steps
    passed = graph.input_sizes
    known: dict[str, int] = {}
    new: list[str] = []
    for i, step in enumerate(steps):
        if isinstance(step, RunNodes):
            known.update({name: i for name in new if name not in known})
            new = []
        elif isinstance(step, Bind):
            new.append(step.name)
        else:
            names = [v for t in results_of(step) for d in tensors[t].shape for v in variables(d)]
            new += [name for name in names if name.startswith(RESULT_SIZE) and name not in passed]
    return {**dict.fromkeys(new, len(steps)), **known}


def _home(graph: Graph, tensor: GraphTensor) -> GraphTensor:
    """The owner of a tensor's buffer, or the tensor itself."""
    return graph.tensors[owner_of(graph, tensor)] if tensor.storage in ("output", "own") else tensor


class Stage:
    """Tensors whose sizes become known at one point of a run, and their memory layout."""

    def __init__(self, graph: Graph, tensors: Sequence[int], views: Sequence[int]) -> None:
        """`views` alias memory of this stage under shapes that may be known later."""
        owners = [i for i in tensors if graph.tensors[i].storage == "slot"]
        self.tensors = [*owners, *views]
        self.numbers = np.array(self.tensors, np.intp)
        places = [int(graph.tensors[i].place) for i in self.tensors]
        slots = {place: k for k, place in enumerate(sorted(set(places)))}
        self.slot_of = np.array([slots[place] for place in places], np.intp)
        """the slot of each of `tensors`"""
        kinds: dict[tuple[Any, str], int] = {}
        kind_of = [kinds.setdefault((graph.tensors[i].shape, graph.tensors[i].dtype), len(kinds)) for i in owners]
        self.kinds = [*kinds]
        """the different shapes and types of the tensors that slots are as large as"""
        self.kind_of = np.array(kind_of, np.intp)
        """the kind of each of these, which come first among `tensors`"""
        self.slot_count = len(slots)
        self.buffers = [i for i in tensors if graph.tensors[i].storage in ("output", "own")]
        self.owners = [i for i in self.buffers if owner_of(graph, graph.tensors[i]) == i]
        """tensors with memory of their own, which others may alias"""
        self.variables = sorted({v for i in owners for d in graph.tensors[i].shape for v in variables(d)})
        self.arena: NDArray | None = None
        self.placed: dict[str, int] | None = None
        """the sizes that the current addresses were computed for"""
        self.layouts: dict[tuple[int, ...], tuple[np.ndarray[Any, Any], int]] = {}

    def layout(self, sizes: dict[str, int]) -> tuple[np.ndarray[Any, Any], int]:
        """(Byte offset of each tensor, total bytes) for these sizes."""
        key = tuple([sizes[name] for name in self.variables])
        found = self.layouts.get(key)
        if found is None:
            nbytes = np.array([tensor_bytes(shape, dtype, sizes) for shape, dtype in self.kinds], np.int64)
            slots = np.ones(self.slot_count, np.int64)
            np.maximum.at(slots, self.slot_of[: len(self.kind_of)], nbytes[self.kind_of])
            slots = -(-slots // ALIGNMENT) * ALIGNMENT
            ends = np.cumsum(slots)
            total = int(ends[-1]) if self.slot_count else 0
            if len(self.layouts) >= _MAX_LAYOUTS:
                self.layouts.pop(next(iter(self.layouts)))
            found = self.layouts[key] = ((ends - slots)[self.slot_of], total)
        return found


def owner_of(graph: Graph, tensor: GraphTensor) -> int:
    """The tensor that owns the buffer of a graph output or of a tensor stored as "own"."""
    place = int(tensor.place)
    return graph.outputs[place] if tensor.storage == "output" else place


def tensor_bytes(shape: tuple[Any, ...], dtype: str, sizes: dict[str, int]) -> int:
    """The bytes of a tensor. Raises `ArgumentError` for a negative dimension, and for too many elements."""
    dims = [evaluate(d, sizes) for d in shape]
    if min(dims, default=0) < 0:
        raise ArgumentError(f"the sizes {sizes} make a tensor of shape {tuple(dims)}; the inputs are too small for it")
    if extent(dims) > MAX_ELEMENTS:
        raise ArgumentError(
            f"the sizes {sizes} make a tensor of shape {tuple(dims)}; expected at most {MAX_ELEMENTS} elements, "
            "dimensions of size 0 not counted"
        )
    return nbytes_of(dtype, math.prod(dims))
