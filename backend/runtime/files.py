"""Opening files that others named, and atomic writes: readers see the old content or the complete new one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular", "replacing"]

_DESCRIPTORS = "/proc/self/fd"
_NAME_KEPT = 40
"""Characters of the target's name kept in the temporary file's name, to stay below file-system limits."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading: reading from a pipe or a device may block, or never end.

    Raises OSError for anything else, and for a file that can't be read.
    """
    return open(path, "rb", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe without a writer blocks, too
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder `open` says what it is
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file, but a pipe, a socket or a device", path)
    return descriptor


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, durable: bool = False, private: bool = False
) -> Generator[BinaryIO]:
    """A file to write in a `with` block, which atomically replaces `path` when the block ends.

    When the block fails or is interrupted, `path` stays unchanged and no temporary file is left. Where the file system
    has files without a name (O_TMPFILE on Linux), that holds for a killed process, too, except in the last moment, when
    the file has a name already; elsewhere the temporary file stays then. `durable` waits for fsync, `private` restricts
    reading to the owner. A symbolic link is followed; a device or a pipe is written to directly. Raises OSError, which
    names `path`.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with _naming(path, target), open(target, "wb") as file:
            yield file
        return
    scratch = target.parent / f".{target.name[:_NAME_KEPT]}.{os.urandom(6).hex()}.tmp"
    with _naming(path, scratch):
        mode = 0o600 if private else 0o666
        unnamed = _open_unnamed(target.parent, mode)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) if unnamed is None else unnamed
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(descriptor)
                if unnamed is not None:
                    _link(descriptor, scratch)
                    if durable:  # Btrfs keeps the size only of files that had a name; the contents are written already
                        os.fsync(descriptor)
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
        if durable:
            _sync_folder(target.parent)


def _open_unnamed(folder: Path, mode: int) -> int | None:
    """A file without a name in `folder`, which ends with the process unless it is linked; None if there is no such."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_DESCRIPTORS):
        return None
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE, mode)
    except OSError:  # the file system has none, or `folder` can't be written to, which the next attempt reports
        return None


def _link(descriptor: int, path: Path) -> None:
    """Give a file without a name the name `path`. (A link can't replace a file: hence the temporary name.)"""
    source = f"{_DESCRIPTORS}/{descriptor}"
    folder = os.open(path.parent, os.O_PATH)  # also where the folder can't be listed
    try:  # with the descriptor of a folder Python calls linkat, which follows the link below /proc
        os.link(source, path.name, dst_dir_fd=folder)
    except OSError:  # a security policy may refuse links
        import shutil  # 2 ms, which loading and running a model does without

        named = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(os.fstat(descriptor).st_mode))
        with open(source, "rb") as contents, open(named, "wb") as copy:
            shutil.copyfileobj(contents, copy)
    finally:
        os.close(folder)


@contextmanager
def _naming(path: str | os.PathLike[str], written: Path) -> Generator[None]:
    """Make an OSError about the temporary file `written` name `path` instead."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, written, str(written)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
