"""Hashes of files are computed once, and again when a file changes."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from relayc.backend.cache import DiskCache
from relayc.backend.file_hashes import known_hash

OLD = 10_000_000_000


class Files:
    """Some files, whose hash is their text; counts how often they are read."""

    def __init__(self, folder: Path, cache: DiskCache | None) -> None:
        self.paths = [folder / "a", folder / "b"]
        self.cache, self.reads = cache, Counter[str]()
        for path in self.paths:
            path.write_text("1")

    def hash(self) -> str:
        return known_hash(self.cache, [(str(path), path.stat()) for path in self.paths], self._read)

    def _read(self) -> str:
        self.reads["all"] += 1
        return "".join(path.read_text() for path in self.paths)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are written now are ten seconds old when they are hashed."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + OLD)


@pytest.mark.usefixtures("later")
def test_files_are_read_once_and_after_each_change(tmp_path: Path) -> None:
    files = Files(tmp_path, DiskCache(tmp_path / "cache"))
    assert [files.hash() for _ in range(3)] == ["11"] * 3
    assert files.reads["all"] == 1
    before = files.paths[1].stat()
    files.paths[1].write_text("2")  # as long, and with the same time of modification
    os.utime(files.paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [files.hash() for _ in range(2)] == ["12"] * 2
    files.paths[0].unlink()
    (tmp_path / "c").write_text("3")
    (tmp_path / "c").rename(files.paths[0])
    assert files.hash() == "32"
    assert files.reads["all"] == 3


def test_files_that_have_just_changed_are_read_every_time(tmp_path: Path) -> None:
    """They may change again within the same step of a file system's clock."""
    files = Files(tmp_path, DiskCache(tmp_path / "cache"))
    assert [files.hash() for _ in range(2)] == ["11"] * 2
    assert files.reads["all"] == 2


@pytest.mark.usefixtures("later")
def test_without_a_cache_files_are_read_every_time(tmp_path: Path) -> None:
    files = Files(tmp_path, None)
    assert [files.hash() for _ in range(2)] == ["11"] * 2
    assert files.reads["all"] == 2
