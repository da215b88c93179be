"""Object files made callable: by our own linker where it can, else by LLVM's.

LLVM's library is loaded for the second only.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from relayc.backend.llvm.elf import ElfImage, UnsupportedObject

__all__ = ["Image", "link", "process_triple"]


class Image(Protocol):
    """Linked code. It is freed with the image, unless it is kept."""

    def address(self, name: str) -> int:
        """The address of a global function."""
        ...

    def keep(self) -> None:
        """Never free the code."""
        ...


def link(objects: Sequence[bytes]) -> Image:
    """Code for this machine, ready to be called. Functions that no object has are those of the process."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        try:
            return ElfImage(objects)
        except UnsupportedObject:
            pass
    return import_module("relayc.backend.llvm.jit").JitImage(objects)


def process_triple() -> str:
    """The LLVM triple of this machine, as far as it matters to object files."""
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    system = {"linux": "unknown-linux-gnu", "darwin": "apple-darwin", "win32": "pc-windows-msvc"}.get(sys.platform)
    return f"{machine}-{system or sys.platform}"
