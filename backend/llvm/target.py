"""The "llvm" target kind: native code for CPUs through LLVM. Bare "llvm" means this machine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from relayc.backend.cpu import KNOWN_FEATURES, HostCPU, add_cpu_options, host_cpu
from relayc.backend.llvm.installed import installed_llvm
from relayc.backend.target import register_target_kind

__all__ = ["llvm_host_cpu"]


@lru_cache(maxsize=1)
def llvm_host_cpu() -> HostCPU:
    """This machine under LLVM's name, which selects the code generator's scheduling model."""
    host, installed = host_cpu(), installed_llvm()
    present = frozenset(name for name, has in installed.features.items() if has)
    features = (present & KNOWN_FEATURES) | (host.features - set(installed.features))
    features -= {f for f in features if f.startswith("amx")} - host.features  # LLVM doesn't ask the system
    return replace(host, triple=installed.triple, name=installed.processor, features=features)


add_cpu_options(register_target_kind("llvm", device="cpu"), llvm_host_cpu).add_attr_option(
    "opt-level", int, 3, "effort of LLVM's optimiser, 0 to 3"
).add_attr_option("fast-math", list, doc="LLVM's flags for float operations: arcp, contract, ninf, nnan, nsz")
