"""Targets of this machine's CPU with and without features that affect code generation, and one that is not run."""

from __future__ import annotations

from relayc.backend.target import Target
from relayc.topi.cpu.tiling import has_byte_products

__all__ = ["BYTE_PRODUCTS", "HAS_AMX", "WITHOUT_BYTE_PRODUCTS", "avx2_target", "of_no_trait", "runnable"]

_VNNI = has_byte_products(Target("llvm"))
HAS_AMX = "amx-int8" in Target("llvm").features
WITHOUT_BYTE_PRODUCTS = "llvm -mattr=-avx512vnni,-avxvnni,-amx-tile" if _VNNI else "llvm"
"""Without VNNI and AMX: int8 products use 2-way dot products or 16-bit arithmetic."""
_OF_VECTORS = ["llvm -mattr=-amx-tile"] if _VNNI and HAS_AMX else []
BYTE_PRODUCTS = [WITHOUT_BYTE_PRODUCTS, *_OF_VECTORS, *(["llvm"] if _VNNI else [])]
"""Targets for all int8 dot-product instructions that this machine supports."""


def avx2_target(num_cores: int) -> Target:
    """A processor with AVX2 alone and with the caches of a server, whose sizes decide plans."""
    caches = f"-l2-bytes={1 << 20} -l3-bytes={16 << 20}"
    return Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell {caches} -num-cores={num_cores}")


def of_no_trait(text: str) -> Target:
    """The target of `text`; if it names no processor, this machine without its traits."""
    return Target(text if "-mcpu=" in text or "-mtune=" in text else f"{text} -mtune=x86-64")


def runnable(target: Target) -> Target:
    """The target if this machine can run its code, else the host with that target's caches, cores and traits."""
    here = Target("llvm")
    if target.features <= here.features:
        return target
    caches = target.cache_bytes
    sizes = {"l1-bytes": caches.l1, "l2-bytes": caches.l2, "l3-bytes": caches.l3}
    return here.with_attrs(**sizes, num_cores=target.num_cores, mtune=target.get("mtune", target.mcpu))
