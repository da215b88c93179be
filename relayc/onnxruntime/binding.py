"""Binding of inputs and outputs to memory, by onnxruntime's names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayc.onnxruntime.errors import NotImplemented as Unsupported
from relayc.onnxruntime.values import OrtValue, element_dtype

if TYPE_CHECKING:
    from relayc.onnxruntime.session import InferenceSession

__all__ = ["IOBinding"]


class IOBinding:
    """The inputs and outputs of runs of a session (`InferenceSession.io_binding`).

    Outputs bound to memory are written there; others are new arrays.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, Any] = {}
        self.targets: dict[str, np.ndarray[Any, Any] | None] = {}
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self.inputs[self._session.input(name).name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """An input in memory at an address of the host, which has to live as long as the binding is used."""
        self.bind_cpu_input(name, _at(buffer_ptr, device_type, element_type, shape))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """An output; with an address, type and shape written there."""
        target = None
        if buffer_ptr is not None:
            target = _at(buffer_ptr, device_type, element_type, () if shape is None else shape)
        self.targets[self._session.output(name).name] = target

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.targets[self._session.output(name).name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.targets.clear()
        self.results.clear()

    def synchronize_inputs(self) -> None:
        """Nothing: inputs are read before a run returns."""

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


def _at(address: int, device_type: str, element_type: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """An array over memory of the host."""
    if device_type != "cpu":
        raise Unsupported(f"memory of the device {device_type!r} in a binding; bind memory of the host")
    dtype = element_dtype(element_type)
    size = int(np.prod([int(d) for d in shape], dtype=np.int64)) * dtype.itemsize
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtype).reshape(tuple(shape))
