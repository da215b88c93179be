"""Writing files whole: readers see what was there before or all of what is there now, whatever happens in between."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]

_NAME_KEPT = 40
"""Letters of a file's name in that of its forerunner, which must not become too long for a file system."""


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, durable: bool = False, private: bool = False
) -> Generator[BinaryIO]:
    """A file to write in a `with` block; it takes the place of `path` in one step when the block ends.

    When the block fails or is interrupted nothing is left of it, and what was at `path` stays. `durable` waits until
    the bytes are on the disk, `private` lets nobody but the owner read them. A link keeps pointing where it does; a
    device or a pipe is written to as it is. Raises OSError, which names `path`.
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
    """An OSError about the file that is `written` speaks of `path`, which the user knows."""
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
