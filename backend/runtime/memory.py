"""The memory that running a model takes, known from its graph before it runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.dtype import nbytes as nbytes_of
from relayc.backend.runtime.errors import ArgumentError, ModuleError
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.layouts import bind_sizes, stages_of
from relayc.backend.runtime.module import Module, tree_sections
from relayc.backend.runtime.sizes import evaluate, variables

__all__ = ["MemoryUse", "memory_use"]

_COPIES_OF_CODE = 3
"""Code is in memory as a part of the file, as the object files read from it, and linked."""
_BYTES_OF_NODE = 12_000
"""Bytes of the runtime's own objects for a node with its tensors: measured on densenet121, 188 nodes."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that one executor of a model takes on its device.

    `inputs` are the executor's copies of inputs, `outputs` its buffers, `activations` the intermediate tensors and
    scratch memory, `code` machine code and the runtime's tables of nodes. `unknown` names the sizes that only a run
    computes: tensors of such sizes, and those in branches and loops, are not counted.
    """

    weights: int
    activations: int
    inputs: int
    outputs: int
    code: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weights + self.activations + self.inputs + self.outputs + self.code


def memory_use(model: CompiledModel, shapes: Mapping[str, Sequence[int]] | None = None) -> MemoryUse:
    """The memory that an executor of the model takes; `shapes` are those of inputs with dynamic ones, by name.

    Raises `ArgumentError` for a dynamic input without a shape, and for shapes that contradict each other or the model.
    """
    graph = model.graph
    wanted = [_shape_of(graph.tensors[index], shapes or {}, graph.name) for index in graph.inputs]
    sizes = bind_sizes(graph, wanted) if graph.sizes else {}
    for variant in itertools.islice(model.variants(sizes), 1):
        graph, sizes = variant.graph, {}
    activations, unknown = _activations(graph, sizes)
    return MemoryUse(
        weights=sum(values.nbytes for values in model.params.values()),
        activations=activations,
        inputs=sum(_bytes_of(graph.tensors[index], sizes) for index in graph.inputs),
        outputs=sum(
            _bytes_of(graph.tensors[index], sizes) for index in graph.outputs
            if graph.tensors[index].storage == "output"
        ),
        code=_COPIES_OF_CODE * _code_bytes(model.module) + _BYTES_OF_NODE * len(graph.nodes),
        unknown=unknown,
    )  # fmt: skip


def _code_bytes(module: Module) -> int:
    """The bytes of machine code; 0 for what can't be saved, such as functions in Python."""
    try:
        return sum(len(piece) for section in tree_sections(module) for piece in section.pieces)
    except ModuleError:
        return 0


def _shape_of(tensor: GraphTensor, shapes: Mapping[str, Sequence[int]], model: str) -> tuple[int, ...]:
    if tensor.is_sequence:
        return ()
    passed = shapes.get(tensor.name)
    if passed is not None:
        return tuple(passed)
    if not tensor.is_static:
        raise ArgumentError(
            f"input {tensor.name!r} of model {model!r} has the dynamic shape {tensor.shape_text}; expected a shape for "
            "it in `shapes`"
        )
    return tensor.static_shape


def _activations(graph: Graph, sizes: dict[str, int]) -> tuple[int, tuple[str, ...]]:
    """The bytes of intermediate tensors, and the sizes that are not known before a run."""
    if not graph.is_dynamic:
        return graph.arena_bytes, ()
    total, unknown = 0, dict[str, None]()
    for stage in stages_of(graph).values():
        missing = [name for name in stage.variables if name not in sizes]
        unknown |= dict.fromkeys(missing)
        total += 0 if missing else stage.layout(sizes)[1]
    return total, tuple(unknown)


def _bytes_of(tensor: GraphTensor, sizes: Mapping[str, int]) -> int:
    """The bytes of a tensor; 0 for a sequence, and for one whose size is not known before a run."""
    if tensor.is_sequence or not all(name in sizes for d in tensor.shape for name in variables(d)):
        return 0
    return nbytes_of(tensor.dtype, math.prod(evaluate(d, sizes) for d in tensor.shape))
