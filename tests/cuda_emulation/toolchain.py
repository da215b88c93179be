"""Builds with the system's C++ compiler, cached by the hash of all that determines the result."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HERE", "build", "cache_folder", "compiler", "digest"]

HERE = Path(__file__).parent


@functools.cache
def compiler() -> str | None:
    """The path of g++ (C++20), or None."""
    return shutil.which("g++")


@functools.cache
def cache_folder() -> Path:
    """A per-user folder for build results that persists between test runs."""
    folder = Path(tempfile.gettempdir()) / f"relayc-cuda-emulation-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([str(compiler()), "--version"], capture_output=True, text=True, check=True).stdout


def _cpu() -> str:
    """The processor that -march=native stands for, so that several machines can share a folder."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return ""


def digest(*parts: str) -> str:
    """A file name derived from these strings, the compiler and the machine."""
    text = "\0".join((_compiler_version(), _cpu(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def build(name: str, arguments: Sequence[str], key: str, text: str | None = None) -> Path:
    """The file `name` in the cache, built by `g++ arguments -o name` if missing.

    `text` is a source for standard input ("-" among the arguments). Raises RuntimeError with the compiler's messages.
    """
    suffix = Path(name).suffix
    target = cache_folder() / f"{Path(name).stem}-{digest(key, text or '', *arguments)}{suffix}"
    if target.exists():
        return target
    handle, made = tempfile.mkstemp(suffix=suffix, dir=cache_folder())
    os.close(handle)
    command = [str(compiler()), *arguments, "-o", made]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        os.unlink(made)
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[:6000]}")
    os.replace(made, target)
    return target
