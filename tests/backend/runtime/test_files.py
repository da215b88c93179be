"""Atomic file writes, with errors that name the target."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relayc.backend.runtime import files
from relayc.backend.runtime.files import _open_unnamed, replacing


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


KILLED = """
import os, signal, sys
from relayc.backend.runtime.files import replacing
with replacing(sys.argv[1]) as file:
    file.write(bytes(100_000))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def has_unnamed_files(folder: Path) -> bool:
    descriptor = _open_unnamed(folder, 0o600)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


@pytest.mark.parametrize("there", [False, True])
def test_a_killed_process_leaves_nothing(tmp_path: Path, there: bool) -> None:
    if not has_unnamed_files(tmp_path):
        pytest.skip("the file system has no files without a name")
    path = tmp_path / "file"
    if there:
        path.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["file"] * there and (not there or path.read_bytes() == b"old")


@pytest.mark.parametrize("lacking", ["the system", "the file system", "/proc"])
def test_without_unnamed_files_there_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "the system":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif lacking == "/proc":
        monkeypatch.setattr(files, "_DESCRIPTORS", str(tmp_path / "none"))
    else:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY, raising=False)  # as kernels that do not know the flag
    assert not has_unnamed_files(tmp_path)
    write(tmp_path / "file", durable=True)
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_the_mode_is_that_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


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


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs files without a name (Linux)")
def test_a_file_is_copied_where_links_are_refused(tmp_path, monkeypatch):
    def refused(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with replacing(tmp_path / "model", private=True) as file:
        file.write(b"contents")
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [("model", b"contents")]
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o600
