"""The interpreter that runs this program, and others beside it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["runs_python", "start_python"]


def runs_python() -> bool:
    """Whether `sys.executable` is an interpreter; in a program that embeds or bundles one it may be that program."""
    return os.path.basename(sys.executable or "").startswith("python") and not getattr(sys, "frozen", False)


def start_python(code: str, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """A process that runs Python code, and finds the modules that this one does.

    The streams are as in `subprocess.Popen`. Signals from the keyboard don't reach the process. Raises OSError.
    """
    import subprocess  # 3 ms, which programs without other processes do without

    path = os.pathsep.join([folder or os.getcwd() for folder in sys.path])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=stdin, stdout=stdout, stderr=stderr,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
