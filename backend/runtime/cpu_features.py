"""Host CPU features, as reported by the operating system."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import lru_cache

__all__ = ["host_features", "processor_description"]

_ARM_NAMES = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "asimdrdm": "rdm", "atomics": "lse",
              "crc32": "crc", "fp": "fp-armv8"}  # fmt: skip
_X86_NAMES = {"abm": "lzcnt", "avx_vnni": "avxvnni", "bmi1": "bmi", "pclmulqdq": "pclmul", "pni": "sse3",
              "sha_ni": "sha"}  # fmt: skip
_DESCRIBING = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer",
               "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"}  # fmt: skip


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The host's features by LLVM's names; empty where the system does not report them.

    AMX features are included if the system grants this process permission, which is requested here.
    """
    words = " ".join([_cpuinfo().get(key, "") for key in ("flags", "Features")]).split()
    names = {_X86_NAMES.get(w, _ARM_NAMES.get(w, w.replace("_", "."))) for w in words}
    names |= {name.replace(".", "") for name in names if name.startswith("avx512")}  # avx512_vnni -> avx512vnni
    names |= {name.replace("amx.", "amx-") for name in names}
    if "amx-tile" in names and not _may_use_tiles():
        names = {name for name in names if not name.startswith("amx")}
    return frozenset(names)


def _may_use_tiles() -> bool:
    """Request permission from Linux to use AMX tiles; without it their first use kills the process.

    (Linux: Documentation/arch/x86/xstate.rst.)
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def processor_description() -> str:
    """The system's description of the first processor; "" where there is none."""
    return "\n".join([f"{key}: {value}" for key, value in _cpuinfo().items() if key in _DESCRIBING])


@lru_cache(maxsize=1)
def _cpuinfo() -> dict[str, str]:
    """The fields of /proc/cpuinfo of the first processor."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                key, separator, value = line.partition(":")
                if key.strip() in found:  # the next processor
                    break
                if separator:
                    found[key.strip()] = value.strip()
    except OSError:
        return {}
    return found
