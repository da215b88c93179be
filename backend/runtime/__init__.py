"""The runtime: what ships with a compiled model. It needs no compiler, and nothing else of the project."""

from __future__ import annotations

from relayc.backend.runtime import graph_executor, nd
from relayc.backend.runtime.artifact import BoundModel, CompiledModel, load_model
from relayc.backend.runtime.context import Context, Ctx, set_random_seed
from relayc.backend.runtime.device import (
    Device,
    DeviceAttrKind,
    cpu,
    cuda,
    device,
    get_device_api,
    register_device_kind,
)
from relayc.backend.runtime.device_api import DeviceAPI, WorkspacePool
from relayc.backend.runtime.errors import (
    ArgumentError,
    ArtifactError,
    DeviceError,
    MissingModelError,
    ModuleError,
    RegistryError,
    RelaycError,
    RunCancelledError,
)
from relayc.backend.runtime.executor_pool import ExecutorPool
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.memory import MemoryUse, memory_use
from relayc.backend.runtime.metadata import ModelMetadata
from relayc.backend.runtime.module import Module, load_module, load_module_bytes, register_module_loader
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.packed_func import HostFunc, KernelFunc, PackedFunc, PythonFunc, convert
from relayc.backend.runtime.registry import (
    get_global_func,
    list_global_func_names,
    register_func,
    register_provider,
    remove_global_func,
)
from relayc.backend.runtime.safetensors import load_param_dict, save_param_dict
from relayc.backend.runtime.signing import check_signature, sign_artifact
from relayc.backend.runtime.threads import num_threads, set_num_threads
from relayc.backend.runtime.timing import BenchmarkResult

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "BenchmarkResult",
    "BoundModel",
    "CompiledModel",
    "Context",
    "Ctx",
    "Device",
    "DeviceAPI",
    "DeviceAttrKind",
    "DeviceError",
    "ExecutorPool",
    "GraphModule",
    "HostFunc",
    "KernelFunc",
    "MemoryUse",
    "MissingModelError",
    "ModelMetadata",
    "Module",
    "ModuleError",
    "NDArray",
    "PackedFunc",
    "PythonFunc",
    "RegistryError",
    "RelaycError",
    "RunCancelledError",
    "WorkspacePool",
    "check_signature",
    "convert",
    "cpu",
    "cuda",
    "device",
    "get_device_api",
    "get_global_func",
    "graph_executor",
    "list_global_func_names",
    "load_model",
    "load_module",
    "load_module_bytes",
    "load_param_dict",
    "memory_use",
    "nd",
    "num_threads",
    "register_device_kind",
    "register_func",
    "register_module_loader",
    "register_provider",
    "remove_global_func",
    "save_param_dict",
    "set_num_threads",
    "set_random_seed",
    "sign_artifact",
]
