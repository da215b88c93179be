"""Atomic file writes, with errors that name the target."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from relayc.backend.runtime.files import replacing


def write(path: Path | str, data: bytes = b"new", **options: bool) -> None:
    with replacing(path, **options) as file:
        file.write(data)


@pytest.mark.parametrize("durable", [False, True])
def test_the_file_is_new_or_replaced(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"other"):
        write(path, data, durable=durable)
        assert path.read_bytes() == data and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_or_is_interrupted_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_full_disk_error_names_the_target_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write(path, b"x" * 4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path) and os.listdir(tmp_path) == []


def test_errors_name_the_target_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "no" / "file")
    assert caught.value.filename == str(tmp_path / "no" / "file")
    with pytest.raises(IsADirectoryError) as folder:
        write(tmp_path)
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as other, replacing(tmp_path / "file"):
        (tmp_path / "input").read_bytes()
    assert other.value.filename == str(tmp_path / "input")


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").read_bytes() == b"new"


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe)
    assert os.read(reader, 10) == b"new" and pipe.is_fifo()
    os.close(reader)


def test_long_names_and_private_files(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    write(path, private=True)
    assert path.stat().st_mode & 0o777 == 0o600
