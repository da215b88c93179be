"""Binding of inputs and outputs to memory, by onnxruntime's names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayc.onnxruntime.errors import InvalidArgument
from relayc.onnxruntime.values import OrtValue, device_named, element_dtype
from relayc.runtime import Device, GraphModule, NDArray, nd

if TYPE_CHECKING:
    from relayc.onnxruntime.session import InferenceSession

__all__ = ["IOBinding", "Target", "device_output", "host_output", "is_on_device"]

Target = np.ndarray[Any, Any] | NDArray | Device | None
"""Where an output is bound: memory of the host, memory of a device, or a device; None: the host."""


class IOBinding:
    """The inputs and outputs of runs of a session (`InferenceSession.io_binding`).

    Outputs bound to memory are written there, those bound to a device are new arrays there, others in host memory.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, Any] = {}
        self.targets: dict[str, Target] = {}
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self.inputs[self._session.input(name).name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue.memory)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """An input in memory at an address, which has to live as long as the binding is used."""
        self.bind_cpu_input(name, _at(buffer_ptr, device_named(device_type, device_id), element_type, shape))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """An output on a device; with an address, type and shape written there."""
        target: Target = device_named(device_type, device_id)
        if buffer_ptr is not None:
            target = _at(buffer_ptr, target, element_type, () if shape is None else shape)
        self.targets[self._session.output(name).name] = target

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.targets[self._session.output(name).name] = ortvalue.memory

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.targets.clear()
        self.results.clear()

    def synchronize_inputs(self) -> None:
        """Wait until inputs on devices are complete."""
        for where in {value.device for value in self.inputs.values() if isinstance(value, NDArray)}:
            where.sync()

    def synchronize_outputs(self) -> None:
        """Nothing: outputs are complete when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as numpy arrays."""
        return [value.numpy() for value in self.results]

    @property
    def _iobinding(self) -> IOBinding:
        return self


def is_on_device(target: Target) -> bool:
    """Is an output bound to a device, or to memory there?"""
    return isinstance(target, NDArray) or (isinstance(target, Device) and target.kind != "cpu")


def host_output(name: str, result: Any, target: Target) -> OrtValue:
    """An output in host memory, copied to where it is bound."""
    if not isinstance(target, np.ndarray):
        return OrtValue(result)
    if (target.shape, target.dtype) != (result.shape, result.dtype):
        found, expected = f"{target.dtype} {target.shape}", f"{result.dtype} {result.shape}"
        raise InvalidArgument(f"output {name!r} is bound to {found}; expected {expected}")
    target[...] = result
    return OrtValue(target)


def device_output(executor: GraphModule, name: str, target: Target) -> OrtValue:
    """An output of the last run on the device where it is bound."""
    if isinstance(target, NDArray):
        return OrtValue(executor.get_output(name, out=target))
    assert isinstance(target, Device), "other targets are memory of the host"
    result = executor.get_output(name)
    if not isinstance(result, NDArray):
        raise InvalidArgument(f"output {name!r} is bound to {target}, but is no tensor of numbers; bind it to 'cpu'")
    return OrtValue(result if result.device == target else nd.array(result, target))


def _at(address: int, where: Device, element_type: Any, shape: Sequence[int]) -> np.ndarray[Any, Any] | NDArray:
    """An array over memory of the host or of a device, as `where` says."""
    dtype = element_dtype(element_type)
    if where.kind != "cpu":
        return NDArray(address, tuple(int(d) for d in shape), dtype.name, where, None)
    size = int(np.prod([int(d) for d in shape], dtype=np.int64)) * dtype.itemsize
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtype).reshape(tuple(shape))
