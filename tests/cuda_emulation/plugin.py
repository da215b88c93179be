"""Fixtures of tests that run on a CUDA device: a real one if there is one, else the emulated one.

A test with the fixture `cuda_device` runs on either, one with `where` on a CPU as well. A test marked `cuda` needs a
real GPU and is skipped elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from relayc.backend.runtime import Device, device
from tests.cuda_emulation import emulation

__all__ = ["cuda_device", "emulated_cuda_device", "pytest_runtest_setup", "where"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and (reason := emulation.no_real_device()) is not None:
        pytest.skip(reason)


@pytest.fixture
def cuda_device() -> Generator[Device, None, None]:
    """`cuda(0)`. If it is emulated, compilation for "cuda" targets the emulation during the test."""
    if emulation.real_driver():
        yield device("cuda", 0)
    else:
        yield from _emulated()


@pytest.fixture(params=["cpu", "cuda"])
def where(request: pytest.FixtureRequest) -> Device:
    """`cpu(0)`, then `cuda(0)`."""
    return device("cpu", 0) if request.param == "cpu" else request.getfixturevalue("cuda_device")


@pytest.fixture
def emulated_cuda_device() -> Generator[Device, None, None]:
    """`cuda(0)`, emulated: for tests of behaviour that only the emulation has."""
    if emulation.real_driver():
        pytest.skip("this process uses the real driver")
    yield from _emulated()


def _emulated() -> Generator[Device, None, None]:
    reason = emulation.unavailable()
    if reason is not None:
        pytest.skip(reason)
    pytest.importorskip("cuda.bindings.driver")
    with emulation.visible(), emulation.compiling():
        yield device("cuda", 0)
    for index in (0, 1):
        emulation.reset(index)
