"""The "interp" target kind: loop functions run by the interpreter, on a device of its own.

It is written as an out-of-tree device would be: a device kind, a device API (`backend.interp.runtime`), a target kind,
and a code generator that returns a Module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.backend.interp.runtime import interp_device_api
from relayc.backend.runtime.device import register_device_kind
from relayc.backend.runtime.dtype import data_type
from relayc.backend.runtime.errors import ArgumentError, ModuleError
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.packed_func import PackedFunc, PythonFunc
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.target import Target, register_target_kind
from relayc.te.ir import IRModule, collect
from relayc.te.tir import Call, StringImm
from relayc.te.tir.interpreter import Interpreter

__all__ = ["InterpModule", "build"]

register_device_kind("interp", 40)
register_target_kind("interp", device="interp").add_attr_option(
    "check-uninitialized", bool, False, "reading memory that was never written is an error"
).set_default_keys(["interp", "cpu"])


class InterpModule(Module):
    """A module of loop functions kept as IR. It exists only in its process and can't be saved."""

    type_key = "interp"

    def __init__(self, module: IRModule, check_uninitialized: bool) -> None:
        super().__init__()
        self._module = module
        self._check_uninitialized = check_uninitialized

    def function_names(self) -> list[str]:
        return list(self._module)

    def _find(self, name: str) -> PackedFunc | None:
        return PythonFunc(lambda *args: self._run(name, *args), name) if name in self._module else None

    def _run(self, name: str, *args: Any) -> None:
        packed = {call: get_global_func(call) for call in self._packed_calls()}
        interpreter = Interpreter(self._module, packed, check_uninitialized=self._check_uninitialized)
        interpreter(name, *[_as_numpy(name, i, arg) for i, arg in enumerate(args)])

    def _packed_calls(self) -> set[str]:
        """Names of the packed functions that the module calls."""
        calls = [call for name in self._module for call in collect(self._module[name], Call)]
        names = [call.args[0] for call in calls if call.op == "call_packed"]
        return {name.value for name in names if isinstance(name, StringImm)}

    def get_source(self, fmt: str = "") -> str:
        if fmt not in ("", "tir"):
            raise ModuleError(f"module of type 'interp' has its source in format 'tir', not {fmt!r}")
        return str(self._module)


def _as_numpy(name: str, position: int, value: Any) -> Any:
    """Convert an argument for the interpreter: an NDArray of this device becomes a numpy view of its memory."""
    if not isinstance(value, NDArray):
        return value
    if value.device.kind != "interp" or not value.is_contiguous:
        raise ArgumentError(
            f"{name}: argument {position} is a {value.dtype} array on {value.device}, strides {value.strides}; "
            "expected a contiguous array on device interp"
        )
    space = interp_device_api().memory(value.handle)
    start = value.byte_offset
    dtype = data_type(value.dtype).numpy
    nbytes = int(np.prod(value.shape, dtype=np.int64)) * dtype.itemsize
    return space[start : start + nbytes].view(dtype).reshape(value.shape)


def build(module: IRModule, target: Target) -> InterpModule:
    """The code generator of target kind "interp"."""
    return InterpModule(module, target.get("check-uninitialized"))
