"""Atomic file writes: readers see the old content or the complete new one."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]

_NAME_KEPT = 40
"""Characters of the target's name kept in the temporary file's name, to stay below file-system limits."""


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, durable: bool = False, private: bool = False
) -> Generator[BinaryIO]:
    """A file to write in a `with` block, which atomically replaces `path` when the block ends.

    When the block fails or is interrupted, `path` stays unchanged and the temporary file is removed. `durable` waits
    for fsync, `private` restricts reading to the owner. A symbolic link is followed; a device or a pipe is written to
    directly. Raises OSError, which names `path`.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with _naming(path, target), open(target, "wb") as file:
            yield file
        return
    scratch = target.parent / f".{target.name[:_NAME_KEPT]}.{os.urandom(6).hex()}.tmp"
    with _naming(path, scratch):
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(descriptor)
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
        if durable:
            _sync_folder(target.parent)


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
