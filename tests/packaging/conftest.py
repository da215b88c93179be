"""Tests of a built wheel, which are collected where `--wheel FILE` names one (`make wheel` builds it and runs them)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a wheel there is nothing to test here."""
    return True if config.getoption("wheel") is None and collection_path.name.startswith("test_") else None


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("wheel")).resolve()
