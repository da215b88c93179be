"""A fixture for tests of code for processors that this machine may not be, and an option that runs all tests so.

Nothing of the compiler is imported before it is used: the LLVM backend adds intrinsics to the table of all.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["amx_target", "emulated_processors", "pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor", metavar="NAME", help="run as if this machine were this processor, by an emulation")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--processor")
    if name is not None:
        from tests.processor_emulation import emulation

        pretended = emulation.pretending(name)
        pretended.__enter__()
        config.add_cleanup(lambda: pretended.__exit__(None, None, None))


@pytest.fixture
def emulated_processors() -> Generator[None, None, None]:
    """Code that is compiled for other processors during the test runs here."""
    from tests.processor_emulation import emulation

    reason = emulation.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with emulation.emulating():
        yield


@pytest.fixture
def amx_target(request: pytest.FixtureRequest) -> str:
    """A target with AMX: this machine, or else one that is emulated."""
    from relayc.backend.target import Target

    if {"amx-int8", "amx-bf16"} <= Target("llvm").features:
        return "llvm"
    request.getfixturevalue("emulated_processors")
    return "llvm -mcpu=sapphirerapids"
