"""Properties of the installed LLVM and of the host in LLVM's terms, cached on disk.

Loading LLVM takes 50 to 100 ms. A compilation that finds all its code in the cache needs only these few strings of it,
so they are cached too, keyed by the LLVM library file and the system's description of the processor.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import llvmlite  # does not load LLVM yet

from relayc.backend.cache import default_cache
from relayc.backend.runtime.cpu_features import processor_description

__all__ = ["InstalledLLVM", "installed_llvm"]

_FORMAT = "installed llvm 1"  # to be changed with the fields of `InstalledLLVM`


class InstalledLLVM(NamedTuple):
    """LLVM's version and its names for the host: triple, processor, features present and absent."""

    version: str
    triple: str
    processor: str
    features: dict[str, bool]


@lru_cache(maxsize=1)
def installed_llvm() -> InstalledLLVM:
    """LLVM's answer, cached in the process and on disk."""
    cache, key = default_cache(), _key()
    found = None if cache is None or not key else cache.decoded(key, _from_json)
    if found is not None:
        return found
    answer = _query_llvm()
    if cache is not None and key:
        cache.put(key, json.dumps(answer._asdict()).encode())
    return answer


def _from_json(data: bytes) -> InstalledLLVM:
    found = InstalledLLVM(**json.loads(data))
    texts = (found.version, found.triple, found.processor, *found.features)
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(f, bool) for f in found.features.values()):
        raise ValueError("cached properties of LLVM have fields of wrong types")
    return found


def _query_llvm() -> InstalledLLVM:
    import llvmlite.binding as llvm  # this loads LLVM

    return InstalledLLVM(
        ".".join([str(part) for part in llvm.llvm_version_info]),
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        {name: bool(has) for name, has in llvm.get_host_cpu_features().items()},
    )


def _key() -> str:
    """The cache key; "" if it can't be determined."""
    processor = processor_description()
    folder = Path(llvmlite.__file__).parent / "binding"
    libraries = [(path, path.stat()) for path in sorted(folder.iterdir()) if "llvmlite" in path.name]
    if not processor or not libraries:
        return ""
    files = [f"{path} {found.st_size} {found.st_mtime_ns}" for path, found in libraries]
    return "\n".join([_FORMAT, llvmlite.__version__, *files, processor])
