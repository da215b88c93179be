"""What this machine's processor can do, as the operating system tells it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

__all__ = ["host_features"]

_ARM_NAMES = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "asimdrdm": "rdm", "atomics": "lse",
              "crc32": "crc", "fp": "fp-armv8"}  # fmt: skip
_X86_NAMES = {"abm": "lzcnt", "avx_vnni": "avxvnni", "bmi1": "bmi", "pclmulqdq": "pclmul", "pni": "sse3",
              "sha_ni": "sha"}  # fmt: skip


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The processor's features by LLVM's names, where LLVM has one; none where the system does not tell."""
    words = _first_line(Path("/proc/cpuinfo"), ("flags", "Features")).split()
    names = {_X86_NAMES.get(w, _ARM_NAMES.get(w, w.replace("_", "."))) for w in words}
    names |= {name.replace(".", "") for name in names if name.startswith("avx512")}  # avx512_vnni -> avx512vnni
    names |= {name.replace("amx.", "amx-") for name in names}
    return frozenset(names)


def _first_line(path: Path, keys: tuple[str, ...]) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2] for line in lines if line.split(":")[0].strip() in keys), "")
