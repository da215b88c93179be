"""The disk cache of compiled code."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relayc.backend.cache import UNDECODABLE, DiskCache, default_cache
from relayc.backend.runtime.log import warn_once
from relayc.backend.source_version import source_version


def test_entries_are_shared_between_caches(tmp_path):
    folder = tmp_path / "deep" / "cache"
    DiskCache(folder).put("key", b"value")
    again = DiskCache(folder)
    assert again.get("key") == b"value"
    assert again.get("other") is None
    assert (again.hits, again.misses) == (1, 1)


def test_the_folder_is_private_to_its_owner(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    cache.put("key", b"value")
    assert stat.S_IMODE(os.stat(cache.folder).st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in cache.folder.glob("??/*"))


def test_the_whole_key_is_compared(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    monkeypatch.setattr(DiskCache, "_path", lambda self, key: tmp_path / "same")
    cache.put("one", b"1")
    assert cache.get("two") is None
    assert cache.get("one") == b"1"


@pytest.mark.parametrize("position", [0, 10, 45, -1])
def test_a_corrupt_entry_is_a_miss(tmp_path, position):
    cache = DiskCache(tmp_path)
    cache.put("key", b"some value")
    (path,) = tmp_path.glob("??/*")
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))
    assert cache.get("key") is None
    path.write_bytes(bytes(data)[:20])
    assert cache.get("key") is None
    cache.put("key", b"new")
    assert cache.get("key") == b"new"


def test_the_least_recently_used_entries_are_evicted_first(tmp_path):
    cache = DiskCache(tmp_path, limit=100_000)
    for i in range(40):
        cache.put(f"key {i}", bytes(5_000))
        for path in tmp_path.glob("??/*"):
            if path == cache._path("key 0"):
                os.utime(path, (2e9, 2e9))
    left = [i for i in range(40) if cache.get(f"key {i}") is not None]
    assert 0 in left and 39 in left and len(left) <= 22
    assert sum(p.stat().st_size for p in tmp_path.glob("??/*")) <= 110_000


def test_many_processes_with_few_writes_keep_the_size_limit(tmp_path):
    for i in range(300):
        DiskCache(tmp_path, limit=50_000).put(f"key {i}", bytes(500))
    count, size = DiskCache(tmp_path, limit=50_000).usage()
    assert 50 < count < 120 and size < 75_000


def test_entries_removed_concurrently_are_skipped(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    for i in range(5):
        cache.put(f"key {i}", b"value")
    stat = Path.stat

    def gone(path, **kwargs):
        if path == cache._path("key 3"):
            raise FileNotFoundError(path)
        return stat(path, **kwargs)

    monkeypatch.setattr(Path, "stat", gone)
    assert cache.usage()[0] == 4


def test_clearing_leaves_other_files_of_the_folder(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put("key", b"value")
    (tmp_path / "tuning.json").write_text("{}")
    cache.clear()
    assert cache.get("key") is None and cache.usage() == (0, 0)
    assert (tmp_path / "tuning.json").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """The full disk is simulated by a limit of 1000 bytes on the size of the process's files."""
    program = """
import resource, sys
from pathlib import Path
from relayc.backend.cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache.put("large", bytes(5000))
cache.put("small", bytes(500))
print(cache.get("large"), len(cache.get("small")))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert done.stdout.split() == ["None", "500"]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [DiskCache(tmp_path)._path("small")]


def test_a_read_only_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    cache.put("key", b"value")
    assert cache.get("key") is None


def test_concurrent_writes_of_one_key_leave_a_valid_entry(tmp_path):
    cache = DiskCache(tmp_path)
    writers = [threading.Thread(target=cache.put, args=("key", bytes([k]) * 100_000)) for k in range(8)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    value = cache.get("key")
    assert value is not None and value == value[:1] * 100_000
    assert len(list(tmp_path.glob("??/*"))) == 1


def test_the_environment_selects_or_disables_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    cache = default_cache()
    assert cache is not None and cache.folder == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RELAYC_CACHE_DIR", "~/below")
    cache = default_cache()
    assert cache is not None and cache.folder == tmp_path / "below"
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    assert default_cache() is None


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch, caplog):
    warn_once.cache_clear()

    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "RELAYC_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert default_cache() is None
    assert "Name a folder: RELAYC_CACHE_DIR=folder" in caplog.text


def test_the_sources_have_a_version():
    assert len(source_version()) == 64


@pytest.mark.parametrize("error", UNDECODABLE)
def test_a_value_that_can_t_be_decoded_is_a_miss(tmp_path, error):
    def reject(value):
        raise error("nonsense")

    cache = DiskCache(tmp_path)
    cache.put("key", b"value")
    assert cache.decoded("key", reject) is None and (cache.hits, cache.misses) == (0, 1)
    assert cache.decoded("key", bytes.decode) == "value"
