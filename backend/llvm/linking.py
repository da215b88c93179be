"""Links object files to callable code: on x86-64 Linux by our own linker, elsewhere by LLVM's.

LLVM's library is loaded only for the latter, and to look for functions that the process lacks.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from relayc.backend.llvm.elf import ElfImage
from relayc.backend.llvm.object_file import ObjectFile
from relayc.backend.runtime.errors import ModuleError

__all__ = ["Image", "addresses_of", "checked_object", "link", "process_triple"]


class Image(Protocol):
    """Linked code, freed with the image unless it is kept."""

    def address(self, name: str) -> int:
        """The address of a global function."""
        ...

    def keep(self) -> None:
        """Keep the code for the rest of the process."""
        ...


def link(objects: Sequence[bytes], externals: Iterable[str] = ()) -> Image:
    """Link objects for this machine. Undefined functions are resolved in the process.

    `externals` names the undefined functions for formats other than ELF, whose files say it themselves. Raises
    `ModuleError` for functions that there are not, and for ELF files `MalformedObject`.
    """
    if sys.platform != "linux":
        addresses_of(externals)
        return import_module("relayc.backend.llvm.jit").JitImage(objects)
    files = [ObjectFile.read(code) for code in objects]
    own = {name for file in files for name in file.defined}
    elsewhere = addresses_of(dict.fromkeys(name for file in files for name in file.undefined if name not in own))
    if platform.machine() == "x86_64":
        return ElfImage(files, elsewhere)
    return import_module("relayc.backend.llvm.jit").JitImage(objects)


def addresses_of(names: Iterable[str]) -> dict[str, int]:
    """The addresses of functions of the process or of the C library.

    Raises `ModuleError` for those that there are not: LLVM's linker would abort the process over them.
    """
    found = {name: _address_of(name) for name in names}
    missing = sorted(name for name, address in found.items() if address is None)
    if missing:
        raise ModuleError(
            f"this code calls {', '.join(missing)}, which neither the module nor the process has; load the library "
            "that has it first: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)"
        )
    return {name: address for name, address in found.items() if address is not None}


@lru_cache(maxsize=1)
def _libraries() -> tuple[Any, ...]:
    """Libraries to resolve symbols in: the process and all it has loaded, then the libraries that compilers rely on."""
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libgcc_s.so.1"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return tuple(found)


def _address_of(name: str) -> int | None:
    for library in _libraries():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value
        except AttributeError:
            continue
    try:
        return import_module("relayc.backend.llvm.jit").address_of(name)
    except ImportError:  # where only the runtime is installed
        return None


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
