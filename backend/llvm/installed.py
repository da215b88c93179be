"""What the LLVM that is installed is, and this machine by its names.

Loading LLVM takes 50 to 100 ms. A compilation that finds all its code in the cache needs nothing of it but these few
words, so they are kept there too: for the very file that was asked, and a processor that the system describes alike.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import llvmlite  # this loads nothing yet

from relayc.backend.cache import default_cache
from relayc.backend.runtime.cpu_features import processor_description

__all__ = ["InstalledLLVM", "installed_llvm"]

_FORMAT = "installed llvm 1"  # to be changed with the fields of `InstalledLLVM`


@dataclass(frozen=True, slots=True)
class InstalledLLVM:
    """LLVM's version, and what it calls this machine: triple, processor, and the features that it has and has not."""

    version: str
    triple: str
    processor: str
    features: dict[str, bool]


@lru_cache(maxsize=1)
def installed_llvm() -> InstalledLLVM:
    """What LLVM says, or said when it was asked before."""
    cache, key = default_cache(), _key()
    found = None if cache is None or not key else cache.get(key)
    if found is not None:
        return InstalledLLVM(**json.loads(found))
    asked = _asked()
    if cache is not None and key:
        cache.put(key, json.dumps(asdict(asked)).encode())
    return asked


def _asked() -> InstalledLLVM:
    import llvmlite.binding as llvm  # this loads LLVM

    return InstalledLLVM(
        ".".join([str(part) for part in llvm.llvm_version_info]),
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        {name: bool(has) for name, has in llvm.get_host_cpu_features().items()},
    )


def _key() -> str:
    """What decides the answer; "" where that can't be told."""
    processor = processor_description()
    folder = Path(llvmlite.__file__).parent / "binding"
    libraries = [(path, path.stat()) for path in sorted(folder.iterdir()) if "llvmlite" in path.name]
    if not processor or not libraries:
        return ""
    files = [f"{path} {found.st_size} {found.st_mtime_ns}" for path, found in libraries]
    return "\n".join([_FORMAT, llvmlite.__version__, *files, processor])
