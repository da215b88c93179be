"""Fixtures: a toy device registered from outside, and a small compiled model in several forms."""

from __future__ import annotations

import copy
import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relayc.backend.runtime import (
    Device,
    DeviceAPI,
    DeviceAttrKind,
    DeviceError,
    KernelFunc,
    Module,
    PackedFunc,
    PythonFunc,
    device,
    register_device_kind,
    register_func,
    register_module_loader,
)
from relayc.backend.runtime.artifact import CompiledModel


class ToyDeviceAPI(DeviceAPI):
    """A device with opaque handles, its own memory, and a log of calls."""

    addressable = False

    def __init__(self) -> None:
        super().__init__()
        self.spaces: dict[int, Any] = {}
        self.log: list[tuple[Any, ...]] = []
        self._handles = itertools.count(1)

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        return {DeviceAttrKind.EXIST: device.index < 2, DeviceAttrKind.WARP_SIZE: 4}.get(kind)

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = 64) -> int:
        if nbytes > 1 << 20:
            raise DeviceError(f"out of memory: can't allocate {nbytes} bytes on {device}")
        handle = next(self._handles)
        self.spaces[handle] = (ctypes.c_uint8 * max(nbytes, 1))(*[0xCD] * nbytes)
        return handle

    def free_data_space(self, device: Device, handle: int) -> None:
        del self.spaces[handle]

    def copy_data_from_to(
        self, source, source_offset, target, target_offset, nbytes, device_from, device_to, stream=None
    ) -> None:
        self.log.append(("copy", str(device_from), str(device_to), nbytes, stream))
        data = ctypes.string_at(self._address(source, device_from) + source_offset, nbytes)
        ctypes.memmove(self._address(target, device_to) + target_offset, data, nbytes)

    def stream_sync(self, device: Device, stream: Any = None) -> None:
        self.log.append(("sync", stream))

    def sync_stream_from_to(self, device: Device, source: Any, target: Any) -> None:
        self.log.append(("order", source, target))

    def host_array(self, handle: int) -> np.ndarray:
        return np.frombuffer(self.spaces[handle], np.uint8)

    def _address(self, handle: int, device: Device) -> int:
        return handle if device.kind == "cpu" else ctypes.addressof(self.spaces[handle])


_api = ToyDeviceAPI()


@pytest.fixture
def toy():
    """(the toy device, its API with an empty log)"""
    register_device_kind("toy", 71)
    register_func("device_api.toy", lambda: _api, override=True)
    _api.log.clear()
    return device("toy", 1), _api


# -- a compiled model in C: y = relu(x @ w + b), z = y + 1; two kernels, an entry function, an arena


MODEL_SOURCE = r"""
#include <stdint.h>
typedef struct Ctx Ctx;
struct Ctx {
  void (*parallel)(Ctx*, void (*)(Ctx*, void*, int32_t, int32_t), void*, int32_t);
  int32_t num_threads, reserved;
  void* (*alloc_workspace)(Ctx*, int64_t);
  void (*free_workspace)(Ctx*, void*);
  int32_t (*call_packed)(Ctx*, const char*, void*, int32_t*, int32_t);
};
void dense_relu(Ctx* c, const float* x, const float* w, const float* b, float* y) {
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++) {
      float sum = b[j];
      for (int k = 0; k < 3; k++) sum += x[3 * i + k] * w[4 * k + j];
      y[4 * i + j] = sum > 0 ? sum : 0;
    }
}
void add_one(Ctx* c, const float* x, float* y) { for (int i = 0; i < 8; i++) y[i] = x[i] + 1; }
void threads(Ctx* c, const float* x, float* y) { y[0] = c->num_threads; }
void shout(Ctx* c) { c->call_packed(c, "test.executor.shout", 0, 0, 0); }
void run_entry(Ctx* c, uint8_t* arena, void** t) {
  dense_relu(c, t[0], t[1], t[2], (float*)(arena + 64));
  add_one(c, (float*)(arena + 64), t[4]);
}
void run_shout(Ctx* c, uint8_t* arena, void** t) { shout(c); }
void run_threads(Ctx* c, uint8_t* arena, void** t) { threads(c, t[0], t[4]); }
"""
KERNELS = {
    "dense_relu": 4,
    "add_one": 2,
    "threads": 2,
    "shout": 0,
    "run_entry": 2,
    "run_shout": 2,
    "run_threads": 2,
}


class CLibrary(Module):
    """A module over a shared library written in C; it saves the path of the library."""

    type_key = "test.c_library"

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.library = path, ctypes.CDLL(path)

    def function_names(self) -> list[str]:
        return list(KERNELS)

    def _find(self, name: str) -> PackedFunc | None:
        if name not in KERNELS:
            return None
        address = ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value
        return KernelFunc(name, address, ["buffer"] * KERNELS[name], self.library)

    def save_to_bytes(self) -> bytes:
        return self.path.encode()


class PythonModule(Module):
    """Kernels as Python functions over NDArrays, without a compiled entry function."""

    type_key = "test.python"

    def __init__(self) -> None:
        super().__init__()
        self.functions = {"dense_relu": _dense_relu, "add_one": _add_one}

    def function_names(self) -> list[str]:
        return list(self.functions)

    def _find(self, name: str) -> PackedFunc | None:
        return PythonFunc(self.functions[name], name) if name in self.functions else None

    def save_to_bytes(self) -> bytes:
        return b"python"


def _dense_relu(x, w, b, y):
    y[:] = np.maximum(x.numpy() @ w.numpy() + b.numpy(), 0)


def _add_one(x, y):
    y[:] = x.numpy() + 1


register_module_loader("test.c_library", lambda data: CLibrary(bytes(data).decode()), override=True)
register_module_loader("test.python", lambda _: PythonModule(), override=True)


def graph_of(entry="run_entry", device="cpu"):
    """The graph of the model; a fresh dictionary that a test may change."""
    return {
        "version": 1,
        "name": "small",
        "device": device,
        "target": "test",
        "tensors": [
            {"name": "x", "shape": [2, 3], "dtype": "float32", "storage": ["input", 0]},
            {"name": "w", "shape": [3, 4], "dtype": "float32", "storage": ["param", "w"]},
            {"name": "b", "shape": [4], "dtype": "float32", "storage": ["param", "b"]},
            {"name": "h", "shape": [2, 4], "dtype": "float32", "storage": ["arena", 64]},
            {"name": "y", "shape": [2, 4], "dtype": "float32", "storage": ["output", 0]},
        ],
        "nodes": [
            {
                "name": "dense_relu_0",
                "func": "dense_relu",
                "inputs": [0, 1, 2],
                "outputs": [3],
                "scratch": [],
                "ops": ["nn.dense", "add", "nn.relu"],
                "sources": ["/fc/MatMul", "/fc/Add", "/Relu"],
                "flops": 64,
                "bytes": 120,
            },
            {
                "name": "add_one_0",
                "func": "add_one",
                "inputs": [3],
                "outputs": [4],
                "scratch": [],
                "ops": ["add"],
                "sources": ["/Add"],
                "flops": 8,
                "bytes": 64,
            },
        ],
        "inputs": [0],
        "outputs": [4],
        "arena_bytes": 96,
        "entry": entry,
    }


WEIGHTS = {
    "w": np.arange(12, dtype="float32").reshape(3, 4) - 5,
    "b": np.array([1, -1, 2, -2], "float32"),
}


def expected(x):
    return np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0) + 1


@pytest.fixture(scope="session")
def c_library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.c").write_text(MODEL_SOURCE)
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(folder / "model.so"), str(folder / "model.c")]
    subprocess.run(command, check=True)
    return str(folder / "model.so")


@pytest.fixture
def small():
    """The helpers of this file as a fixture, as it can't be imported."""
    return SimpleNamespace(graph=graph_of, weights=WEIGHTS, expected=expected, Python=PythonModule, CLibrary=CLibrary)


@pytest.fixture(params=["entry", "nodes", "python", "toy"])
def model(request, toy):
    """The model in every way it can run: compiled entry, kernel by kernel, Python kernels, on another device."""
    if request.param in ("python", "toy"):
        return CompiledModel(graph_of(None, "toy" if request.param == "toy" else "cpu"), WEIGHTS, PythonModule())
    library = CLibrary(request.getfixturevalue("c_library"))
    return CompiledModel(graph_of("run_entry" if request.param == "entry" else None), WEIGHTS, library)


@pytest.fixture
def damaged() -> Callable[[Any, Sequence[Any], Any], Any]:
    """A function that copies a JSON description and sets the value at a path of keys."""

    def with_value(description: Any, place: Sequence[Any], value: Any) -> Any:
        copied = at = copy.deepcopy(description)
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
        return copied

    return with_value
