"""Error reports of a machine without a usable GPU."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from relayc.backend.cuda import driver, gpu as gpu_module
from relayc.backend.cuda.runtime import CUDADeviceAPI, probe
from relayc.backend.runtime import DeviceAttrKind, DeviceError, device, nd
from relayc.backend.runtime.device import _apis as device_apis
from tests.cuda_emulation import emulation


@pytest.fixture(autouse=True)
def look_again(monkeypatch):
    """Hide an emulated device that another test started."""
    monkeypatch.setattr(driver, "_detect", emulation.DETECT)


def raising(message):
    def function(*_):
        raise RuntimeError(message)

    return function


MACHINES = {
    "no driver": (SimpleNamespace(cuInit=raising('Failed to dlopen libcuda.so.1')), "no NVIDIA driver on this machine"),
    "stub": (SimpleNamespace(cuInit=lambda _: (34,)), "stub"),
    "no GPU": (SimpleNamespace(cuInit=lambda _: (100,)), "finds no GPU"),
    "two versions": (SimpleNamespace(cuInit=lambda _: (803,)), "different versions"),
    "other": (SimpleNamespace(cuInit=lambda _: (46,)), "cuInit returned 46"),
    "old driver": (
        SimpleNamespace(
            cuInit=lambda _: (0,), cuDriverGetVersion=lambda: (0, 12040), cuDeviceGetCount=lambda: (0, 1)
        ),
        "supports CUDA 12.4; CUDA 13.0 or later is needed",
    ),
    "hidden": (
        SimpleNamespace(
            cuInit=lambda _: (0,), cuDriverGetVersion=lambda: (0, 13000), cuDeviceGetCount=lambda: (0, 0)
        ),
        "CUDA_VISIBLE_DEVICES",
    ),
}  # fmt: skip


@pytest.fixture(params=MACHINES)
def machine(request, monkeypatch):
    """A machine without a usable device, and the reason."""
    bindings, reason = MACHINES[request.param]
    gc.collect()  # objects of other tests belong to a driver
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    monkeypatch.setattr(driver, "_State", type("_State", (), {"count": 0, "inherited": False}))
    monkeypatch.setitem(device_apis, "cuda", CUDADeviceAPI())
    return reason


def test_the_reason_is_reported_by_probe_and_by_every_use(machine):
    count, reason = probe()
    assert count == 0 and machine in reason
    gpu = device("cuda", 0)
    assert not gpu.exist and not device("cuda_host", 0).exist
    assert gpu.device_name is None and gpu.api.get_attr(gpu, DeviceAttrKind.TOTAL_GLOBAL_MEMORY) is None
    uses = [
        lambda: nd.array(np.ones(3, "float32"), gpu),
        lambda: nd.empty((3,), "float32", gpu),
        gpu.sync,
        gpu.create_raw_stream,
        lambda: gpu.api.set_device(gpu),
    ]
    for use in uses:
        with pytest.raises(DeviceError, match="there is no device cuda:0: ") as caught:
            use()
        assert machine in str(caught.value)


def test_missing_bindings_are_reported(monkeypatch):
    def missing():
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr(driver, "bindings", missing)
    monkeypatch.setattr(driver, "_State", type("_State", (), {"count": 0, "inherited": False}))
    count, reason = probe()
    assert count == 0 and "pip install 'relayc[cuda]'" in reason


def test_an_invalid_device_number(monkeypatch):
    monkeypatch.setattr(gpu_module, "probe", lambda: (2, "ok"))
    with pytest.raises(DeviceError, match="there is no device cuda:7: this machine has 2 CUDA devices, from cuda:0 on"):
        CUDADeviceAPI().set_device(device("cuda", 7))


def test_a_forked_child_has_no_device(monkeypatch):
    state = type("_State", (), {"count": 1, "inherited": False})
    monkeypatch.setattr(driver, "_State", state)
    assert probe() == (1, "ok") and not driver.is_gone()
    driver._after_fork()
    assert driver.is_gone()
    assert probe()[0] == 0 and "'spawn'" in probe()[1]


def test_a_failed_call_has_the_drivers_message(monkeypatch):
    bindings = SimpleNamespace(
        cuEventSynchronize=lambda _: (700,),
        cuGetErrorName=lambda code: (0, b"CUDA_ERROR_ILLEGAL_ADDRESS"),
        cuGetErrorString=lambda code: (0, b"an illegal memory access was encountered"),
    )
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    with pytest.raises(driver.DriverError) as caught:
        driver.call("cuEventSynchronize", 1)
    assert caught.value.code == 700 and caught.value.is_sticky
    text = "cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"
    assert str(caught.value).startswith(text) and "CUDA_LAUNCH_BLOCKING=1" in str(caught.value)
