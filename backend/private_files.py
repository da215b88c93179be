"""Files that nobody but the user can have written: what is read from the cache folder has to be one.

Compiled code from the cache is run, and a hash shows that an entry is whole, not who made it. So the folder and each
file in it must belong to the effective user, and neither group nor others may write to it (access-control lists that
let others write show in the group's bits). Systems without user numbers have no such check.

Parent folders are not checked: whoever may write to one can remove the folder or put another in its place, but can't
make a folder and files that belong to the user; and caches in a folder that a group shares are common. A symbolic link
on the way must be the user's or root's: another user's link could lead to files that the user owns but did not write,
such as an unpacked archive. Inside a checked folder, links are the user's own, and what they lead to is checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from relayc.backend.runtime.log import warn_once

__all__ = ["NotPrivateError", "fault_of_folder", "is_private", "is_private_file", "read_private"]

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(PermissionError):
    """A file that another user may have written, or that is no regular file."""


def fault_of_folder(folder: Path) -> str | None:
    """Why another user may have written to `folder`, and the fix; None if no other can have, or there is no folder."""
    if not hasattr(os, "geteuid"):
        return None
    other = "name another folder: RELAYC_CACHE_DIR=folder"
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and place.lstat().st_uid not in (0, os.geteuid()):
                return f"{place} is a symbolic link of another user (number {place.lstat().st_uid}); {other}"
        fault = _fault(folder.stat())
    except OSError:  # reading fails, too
        return None
    return fault and f"{folder} {fault}; run chmod -R go-w on a folder of your own, or {other}"


def is_private(folder: Path) -> bool:
    """Can nobody but the user have written to `folder`? Otherwise a warning is logged, once, with the fix."""
    fault = fault_of_folder(folder)
    if fault is not None:
        warn_once(f"no cache is used: {fault}")
    return fault is None


def is_private_file(path: Path) -> bool:
    """Is this a regular file that nobody but the user can have written, in a folder that `is_private`?"""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and _fault(found) is None


def read_private(path: Path) -> bytes:
    """The bytes of a regular file that nobody but the user can have written, in a folder that `is_private`.

    Raises NotPrivateError, which says why, for other files, and OSError if the file can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:  # checked when open: it can't be exchanged between the check and the reading
        found = os.fstat(descriptor)
        fault = _fault(found)
        if not stat.S_ISREG(found.st_mode):
            fault = "is no regular file"
        if fault is not None:
            raise NotPrivateError(f"{path} {fault}; delete it")
        return file.read()


def _fault(found: os.stat_result) -> str | None:
    """Why another user may have written to a file or folder; None if no other can have, or can't be told apart."""
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to another user (number {found.st_uid}; this is {os.geteuid()})"
    if found.st_mode & _WRITABLE:
        return f"may be written by group or others (mode {stat.S_IMODE(found.st_mode):o})"
    return None
