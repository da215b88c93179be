"""Targets, code generation and the runtime. The public names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayc.backend.driver import build
    from relayc.backend.runtime import (
        Device,
        DeviceAPI,
        Module,
        NDArray,
        PackedFunc,
        cpu,
        cuda,
        device,
        get_global_func,
        nd,
        num_threads,
        register_device_kind,
        register_func,
        set_num_threads,
    )
    from relayc.backend.target import Target, list_target_kinds, register_target_kind

__all__ = [
    "Device",
    "DeviceAPI",
    "Module",
    "NDArray",
    "PackedFunc",
    "Target",
    "build",
    "cpu",
    "cuda",
    "device",
    "get_global_func",
    "list_target_kinds",
    "nd",
    "num_threads",
    "register_device_kind",
    "register_func",
    "register_target_kind",
    "set_num_threads",
]

_HOMES = {
    "Target": "relayc.backend.target",
    "build": "relayc.backend.driver",
    "list_target_kinds": "relayc.backend.target",
    "register_target_kind": "relayc.backend.target",
}
"""Public name -> module that defines it, for names from outside `backend.runtime`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'relayc.backend' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "relayc.backend.runtime")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
