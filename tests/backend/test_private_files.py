"""What another user may have written is not read from the cache folder, and a warning says so once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relayc.backend import private_files
from relayc.backend.cache import DiskCache
from relayc.backend.private_files import NotPrivateError, fault_of_folder, is_private, read_private
from relayc.backend.runtime.log import warn_once

OTHER = 12345


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    warn_once.cache_clear()
    caplog.set_level(logging.WARNING)
    return caplog


def cached(folder: Path) -> tuple[DiskCache, Path]:
    cache = DiskCache(folder)
    cache.put("key", b"value")
    (path,) = folder.glob("??/*")
    return cache, path


def give_away(path: Path) -> None:
    """Make `path` another user's; where the tests may not do that, make it writable by all."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    else:
        path.chmod(0o777)


@pytest.mark.parametrize("which", ["folder", "folder of the entry", "entry"])
@pytest.mark.parametrize("change", [lambda p: p.chmod(0o770), lambda p: p.chmod(0o702), give_away])
def test_an_entry_that_another_user_may_have_written_is_a_miss(
    tmp_path: Path, which: str, change: Callable[[Path], None], warnings: pytest.LogCaptureFixture
) -> None:
    cache, path = cached(tmp_path / "cache")
    assert cache.get("key") == b"value" and not warnings.records
    change({"folder": cache.folder, "folder of the entry": path.parent, "entry": path}[which])
    if which != "entry":
        cache = DiskCache(cache.folder)  # a folder is looked at once
    assert cache.get("key") is None and cache.get("key") is None
    (record,) = warnings.records
    assert str(cache.folder) in record.getMessage()
    assert ("RELAYC_CACHE_DIR" in record.getMessage()) == (which != "entry")
    cache.put("key", b"new")
    assert cache.get("key") == (b"new" if which == "entry" else None)


def test_a_folder_is_looked_at_once_and_an_absent_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []

    def look(folder: Path) -> str | None:
        looked.append(folder)
        return fault_of_folder(folder)

    monkeypatch.setattr(private_files, "fault_of_folder", look)
    cache = DiskCache(tmp_path / "cache")
    assert cache.get("key") is None and not cache.folder.exists()
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    assert cache.get("key") is None
    assert looked.count(cache.folder) == 2
    cache.folder.chmod(0o700)
    for _ in range(20):
        cache.put("key", b"value")
        assert cache.get("key") == b"value"
    assert looked.count(cache.folder) == 3
    assert len(looked) == 5  # the entry's folder as well, before and after it was made


def test_nothing_is_written_to_or_removed_from_another_user_s_folder(tmp_path: Path) -> None:
    folder, path = cached(tmp_path / "cache")[0].folder, next((tmp_path / "cache").glob("??/*"))
    folder.chmod(0o777)
    cache = DiskCache(folder)
    cache.put("other", b"value")
    cache.clear()
    assert cache.usage() == (0, 0) and path.exists() and list(cache.folder.iterdir()) == [path.parent]


@pytest.mark.skipif(os.geteuid() != 0, reason="making a link another user's takes root")
def test_links_must_be_the_user_s(tmp_path: Path) -> None:
    cached(tmp_path / "there" / "cache")
    to_parent, to_folder = tmp_path / "parent", tmp_path / "cache"
    to_parent.symlink_to(tmp_path / "there")
    to_folder.symlink_to(tmp_path / "there" / "cache")
    for link, folder in ((to_parent, to_parent / "cache"), (to_folder, to_folder)):
        assert DiskCache(folder).get("key") == b"value"
        give_away(link)
        assert DiskCache(folder).get("key") is None
        assert f"{link} is a symbolic link of another user" in (fault_of_folder(folder) or "")


def test_shared_parents_and_absent_folders_have_no_fault(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    assert cached(parent / "cache")[0].get("key") == b"value"
    assert fault_of_folder(parent / "none") is None and is_private(parent / "cache" / "none")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(NotPrivateError, match="no regular file"):
        read_private(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


def test_without_user_numbers_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, path = cached(tmp_path)
    path.chmod(0o666)
    monkeypatch.delattr(private_files.os, "geteuid")
    assert cache.get("key") == b"value"
