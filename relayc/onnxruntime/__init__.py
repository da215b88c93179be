"""onnxruntime's Python interface on compiled models: ``import relayc.onnxruntime as onnxruntime``.

`install()` puts this module in the place of onnxruntime for packages that import it, and so does
``python -m relayc.onnxruntime program.py``.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from types import ModuleType

from relayc.onnxruntime.binding import IOBinding
from relayc.onnxruntime.errors import (
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    OrtError,
    RuntimeException,
)
from relayc.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    log,
    note_ignored,
)
from relayc.onnxruntime.session import CPU, CUDA, InferenceSession, get_available_providers
from relayc.onnxruntime.values import NodeArg, OrtDevice, OrtValue
from relayc.runtime import ModelMetadata, set_random_seed

__all__ = [
    "EPFail", "EngineError", "ExecutionMode", "ExecutionOrder", "Fail", "GraphOptimizationLevel", "IOBinding",
    "InferenceSession", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelLoadCanceled", "ModelLoaded",
    "ModelMetadata", "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NodeArg", "NotFound", "NotImplemented",
    "OrtDevice", "OrtError", "OrtValue", "RunOptions", "RuntimeException", "SessionIOBinding", "SessionOptions",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_build_info", "get_device", "get_version_string", "install", "preload_dlls", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_seed",
]  # fmt: skip

__version__ = "1.23.0"
"""The version of onnxruntime whose interface this is."""

SessionIOBinding = IOBinding


def get_all_providers() -> list[str]:
    """All devices that relayc knows, by onnxruntime's names."""
    return [CUDA, CPU]


def get_device() -> str:
    """ "GPU" if there is one, else "CPU"."""
    return "GPU" if len(get_available_providers()) > 1 else "CPU"


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    return f"relayc, with the interface of onnxruntime {__version__}"


_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """The least severity that is logged: 0 verbose, 1 information, 2 warnings, 3 errors, 4 fatal errors."""
    if not 0 <= severity < len(_LEVELS):
        raise InvalidArgument(f"severity {severity}; expected 0 to {len(_LEVELS) - 1}")
    log.setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    note_ignored("set_default_logger_verbosity")


def enable_telemetry_events() -> None:
    """Nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Nothing: there is no telemetry."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Nothing: libraries are loaded when they are needed."""


def set_seed(seed: int) -> None:
    """Make sessions created from now on draw the same numbers each time where the model gives no seed."""
    set_random_seed(seed)


def install() -> None:
    """Make ``import onnxruntime``, in this process and from now on, give this module."""
    installed: dict[str, ModuleType] = {}
    prefix = "relayc.onnxruntime"
    for name in ("", ".capi", ".capi.onnxruntime_pybind11_state", ".capi._pybind_state",
                 ".capi.onnxruntime_inference_collection"):  # fmt: skip
        installed["onnxruntime" + name] = import_module(prefix + name)
    original = sys.modules.get("onnxruntime")
    if original is not None and original is not installed["onnxruntime"]:
        log.warning("onnxruntime was imported before install(); modules that have it keep it")
    sys.modules.update(installed)


from relayc.onnxruntime import capi as capi  # noqa: E402 - its modules have the names above
