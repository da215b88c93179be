"""The cached properties of the installed LLVM agree with LLVM, which is queried once per library and processor."""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import pytest

from relayc.backend.cache import default_cache
from relayc.backend.llvm import installed
from relayc.backend.llvm.installed import InstalledLLVM, installed_llvm


@pytest.fixture
def answers_of_llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[InstalledLLVM]:
    """LLVM's answers, with an empty cache and nothing remembered in the process."""
    answers: list[InstalledLLVM] = []
    ask = installed._query_llvm
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(installed, "_query_llvm", lambda: answers.append(ask()) or answers[-1])
    monkeypatch.setattr(installed, "installed_llvm", installed_llvm.__wrapped__)
    return answers


def test_cached_properties_agree_with_llvm(answers_of_llvm: list[InstalledLLVM]) -> None:
    first, second = installed.installed_llvm(), installed.installed_llvm()
    assert first == second and len(answers_of_llvm) == 1
    assert first.version.split(".")[0] == str(llvm.llvm_version_info[0])
    assert (first.triple, first.processor) == (llvm.get_process_triple(), llvm.get_host_cpu_name())
    assert first.features == dict(llvm.get_host_cpu_features())


@pytest.mark.parametrize("changed", ["processor_description", "__version__"])
def test_another_processor_or_library_is_queried(
    changed: str, answers_of_llvm: list[InstalledLLVM], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.installed_llvm()
    if changed == "__version__":
        monkeypatch.setattr(installed.llvmlite, "__version__", "another")
    else:
        monkeypatch.setattr(installed, changed, lambda: "another")
    installed.installed_llvm()
    assert len(answers_of_llvm) == 2


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"version": "1"}', b'{"version": 1, "triple": "", "processor": "", "features": {}}',
              b'{"version": "1", "triple": "", "processor": "", "features": []}'],
)  # fmt: skip
def test_cached_nonsense_is_queried_anew(value: bytes, answers_of_llvm: list[InstalledLLVM]) -> None:
    cache = default_cache()
    assert cache is not None
    cache.put(installed._key(), value)
    assert [installed.installed_llvm() for _ in range(2)] == 2 * answers_of_llvm and len(answers_of_llvm) == 1


def test_without_a_processor_description_nothing_is_cached(
    answers_of_llvm: list[InstalledLLVM], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installed, "processor_description", lambda: "")
    installed.installed_llvm()
    installed.installed_llvm()
    assert len(answers_of_llvm) == 2 and not list(tmp_path.iterdir())
