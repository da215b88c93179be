"""A compiled model called with torch's tensors: large ones are read and returned without a copy."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from onnx import ModelProto

import relayc
from relayc.frontends.onnx import ModelParts
from relayc.runtime import ExecutorPool, GraphModule, NDArray
from relayc.torch.exporting import Computed, Exported, Passed
from relayc.torch.options import Options

__all__ = ["Execution", "bytes_of"]

_SMALL = 1 << 15
"""Bytes up to which a copy takes less time than to pass the memory by DLPack, 15 us (Zen 4)."""

_NUMPY_NAMES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"}
)
_NUMPY_TYPES = frozenset(getattr(torch, name) for name in _NUMPY_NAMES)
"""Element types that torch and numpy both have."""


class Execution:
    """A graph compiled with the present values of some of its arguments as constants.

    Any number of threads may call it: each call has an executor of its own.
    """

    def __init__(self, exported: Exported, values: Sequence[Any], constant: Sequence[int], options: Options) -> None:
        self._results, self._sizes = exported.results, exported.sizes
        count = len(exported.arguments)
        bound = {number: values[at] for number, at in enumerate(exported.arguments) if at in constant}
        self._constant = [exported.arguments[number] for number in bound]
        self._bound = [*bound.values()]
        self._versions = [tensor._version for tensor in self._bound]
        bound |= {count + number: tensor for number, tensor in enumerate(exported.constants)}
        self._arguments = [at for number, at in enumerate(exported.arguments) if number not in bound]
        model = _with_constants(exported.proto, bound)
        compiled = relayc.compile_onnx(model, opt_level=options.opt_level, config=options.config)
        first = GraphModule.of(compiled, num_threads=options.threads)
        self._names = [*first.get_input_info()[0]]
        self._pool = ExecutorPool(first)

    def changed(self, values: Sequence[Any]) -> list[int]:
        """The positions of the arguments that are constants here, and are other tensors now, or have other values."""
        found = [values[at] for at in self._constant]
        if all(map(operator.is_, found, self._bound)) and [t._version for t in found] == self._versions:
            return []
        before = zip(self._constant, self._bound, self._versions, strict=True)
        return [at for at, tensor, version in before if values[at] is not tensor or values[at]._version != version]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The results of the graph for its arguments."""
        with self._pool.borrowed() as executor:
            for name, at in zip(self._names, self._arguments, strict=True):
                _set(executor, name, values[at])
            executor.run()
            outputs = [_tensor(executor.get_output(at)) for at in range(executor.get_num_outputs())]
        found = [int(tensor) if at in self._sizes else tensor for at, tensor in enumerate(outputs)]
        return [_result(result, found, values) for result in self._results]


def _set(executor: GraphModule, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        executor.set_input(name, np.asarray(value, np.int64))
        return
    value = value.detach()
    if value.nbytes <= _SMALL and value.dtype in _NUMPY_TYPES:
        executor.set_input(name, value.numpy())
    elif value.is_contiguous() and value.data_ptr() % value.element_size() == 0:
        executor.set_input_zero_copy(name, value)
    else:
        executor.set_input(name, value)


def _tensor(array: NDArray) -> torch.Tensor:
    if 0 < array.nbytes <= _SMALL and array.dtype in _NUMPY_NAMES:  # numpy's empty arrays have other strides
        return torch.from_numpy(array.numpy())
    return torch.from_dlpack(array)


def _result(result: Passed | Computed, outputs: Sequence[Any], values: Sequence[Any]) -> Any:
    if isinstance(result, Passed):
        return result.constant if result.argument is None else values[result.argument]
    found = outputs[result.output]
    for view in result.views:
        found = view(found)
    return found


def _with_constants(proto: ModelProto, bound: dict[int, torch.Tensor]) -> ModelParts:
    """The model with inputs, by number, as weights of these values."""
    made = ModelProto()
    made.CopyFrom(proto)
    weights: dict[str, np.ndarray] = {}
    for number, tensor in sorted(bound.items(), reverse=True):
        value = proto.graph.input[number]
        del made.graph.input[number]
        kind = value.type.tensor_type.elem_type
        initializer = made.graph.initializer.add(name=value.name, data_type=kind, raw_data=b"")
        initializer.dims.extend(tensor.shape)
        weights[value.name] = bytes_of(tensor)
    return ModelParts(made, weights)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a tensor in row-major order as bytes, without a copy if it is contiguous: uint8[nbytes]."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
