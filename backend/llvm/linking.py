"""Links object files to callable code: by our own linker if possible, else by LLVM's.

LLVM's library is loaded only for the latter.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from relayc.backend.llvm.elf import ElfImage, UnsupportedObject

__all__ = ["Image", "checked_object", "link", "process_triple"]


class Image(Protocol):
    """Linked code, freed with the image unless it is kept."""

    def address(self, name: str) -> int:
        """The address of a global function."""
        ...

    def keep(self) -> None:
        """Keep the code for the rest of the process."""
        ...


def link(objects: Sequence[bytes]) -> Image:
    """Link objects for this machine. Undefined functions are resolved in the process."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        try:
            return ElfImage(objects)
        except UnsupportedObject:
            pass
    return import_module("relayc.backend.llvm.jit").JitImage(objects)


def process_triple() -> str:
    """The LLVM triple of this machine, as precise as object files require."""
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    system = {"linux": "unknown-linux-gnu", "darwin": "apple-darwin", "win32": "pc-windows-msvc"}.get(sys.platform)
    return f"{machine}-{system or sys.platform}"


def checked_object(code: bytes, triple: str) -> bytes:
    """`code`, an object file for `triple`. Raises ValueError for what is visibly none (checked on Linux only)."""
    if "-linux" in triple and not code.startswith(b"\x7fELF"):
        raise ValueError(f"cached code for {triple} begins with {code[:4]!r}, not as an ELF file does")
    return code
