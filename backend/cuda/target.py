"""The "cuda" target kind: NVIDIA GPUs described by attributes, so that no GPU is needed to compile for one.

The parser takes defaults from `ARCHITECTURES`; `Target.from_device` queries a live device. Bare "cuda" means the first
GPU of this machine, or `DEFAULT_ARCH` where there is none. `CudaLimits` is the target as the code generator and the
verifier read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from relayc.backend.runtime.device import Device
from relayc.backend.target import Target, TargetError, register_target_kind

__all__ = ["ARCHITECTURES", "DEFAULT_ARCH", "STATIC_SHARED_BYTES", "Architecture", "CudaLimits", "compute_capability"]

STATIC_SHARED_BYTES = 48 << 10
"""Maximum bytes of statically declared shared memory, on every architecture; beyond it memory is dynamic."""

DEFAULT_ARCH = "sm_90"
"""Architecture of bare "cuda" on a machine without a GPU."""

_ARCH_SPECIFIC = {"9.0": "a"}
"""Compute capabilities whose architecture-specific instructions are used: code for them runs on no other GPU."""

_ARCH = re.compile(r"(?:sm|compute)_(\d{2,3})([af]?)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Resources of an architecture, per multiprocessor (SM) and block; the processor is its best known one.

    Sources: CUDA C++ Programming Guide, table of technical specifications per compute capability; data sheets.
    """

    processor: str
    multiprocessors: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    l2_bytes: int
    shared_per_block: int | None = None
    """Opt-in limit in bytes; None: all of an SM's except the 1 KiB reserved by the system."""


_KB, _MB = 1 << 10, 1 << 20

ARCHITECTURES: dict[int, Architecture] = {
    75: Architecture("T4", 40, 1024, 16, 64 * _KB, 4 * _MB, 64 * _KB),
    80: Architecture("A100", 108, 2048, 32, 164 * _KB, 40 * _MB),
    86: Architecture("A10", 72, 1536, 16, 100 * _KB, 6 * _MB),
    87: Architecture("Orin", 16, 1536, 16, 164 * _KB, 4 * _MB),
    88: Architecture("sm_88", 16, 1536, 16, 100 * _KB, 4 * _MB),
    89: Architecture("L40S", 142, 1536, 24, 100 * _KB, 96 * _MB),
    90: Architecture("H100", 132, 2048, 32, 228 * _KB, 50 * _MB),
    100: Architecture("B200", 148, 2048, 32, 228 * _KB, 126 * _MB),
    103: Architecture("B300", 148, 2048, 32, 228 * _KB, 126 * _MB),
    110: Architecture("Thor", 20, 1536, 24, 228 * _KB, 32 * _MB),
    120: Architecture("RTX 5090", 170, 1536, 24, 100 * _KB, 96 * _MB),
    121: Architecture("GB10", 48, 1536, 24, 100 * _KB, 24 * _MB),
}
"""Compute capability times ten -> architecture. The processor only decides defaults of counts that a device may
override."""

_INT_OPTIONS: tuple[tuple[str, str], ...] = (
    ("max-num-threads", "threads per block that schedules aim for at most"),
    ("max-threads-per-block", "threads per block that a kernel can be launched with"),
    ("max-shared-memory-per-block", "bytes of shared memory per block, opted in to"),
    ("registers-per-block", "32-bit registers of a block"),
    ("registers-per-sm", "32-bit registers of a multiprocessor"),
    ("shared-memory-per-sm", "bytes of shared memory of a multiprocessor"),
    ("max-threads-per-sm", "threads resident on a multiprocessor"),
    ("max-blocks-per-sm", "blocks resident on a multiprocessor"),
    ("thread-warp-size", "threads that run in step"),
    ("multi-processor-count", "multiprocessors of the device"),
    ("l2-bytes", "second-level cache, shared by all multiprocessors"),
)


def compute_capability(arch: str) -> int:
    """The compute capability times ten: 90 for "sm_90" and "sm_90a". Raises TargetError for another format."""
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise TargetError(f"-arch={arch!r} is not a CUDA architecture; expected one such as sm_80 or sm_90")
    return int(match[1])


def _resolve(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes passed, with every option made explicit."""
    if "arch" not in attrs:
        here = Device("cuda", 0)
        attrs = {**(_query(here) if here.exist else {"arch": DEFAULT_ARCH}), **attrs}
    capability = compute_capability(attrs["arch"])
    known = ARCHITECTURES.get(capability)
    if known is None:
        supported = ", ".join(f"sm_{c}" for c in ARCHITECTURES)
        raise TargetError(f"-arch={attrs['arch']}: this architecture is not known; known are: {supported}")
    most = known.shared_per_sm - 1024 if known.shared_per_block is None else known.shared_per_block
    filled = {
        "model": known.processor, "max-num-threads": 1024, "max-threads-per-block": 1024,
        "max-shared-memory-per-block": most, "registers-per-block": 65536, "registers-per-sm": 65536,
        "shared-memory-per-sm": known.shared_per_sm, "max-threads-per-sm": known.threads_per_sm,
        "max-blocks-per-sm": known.blocks_per_sm, "thread-warp-size": 32,
        "multi-processor-count": known.multiprocessors, "l2-bytes": known.l2_bytes,
    }  # fmt: skip
    attrs = {**filled, **attrs}
    wrong = [name for name, _ in _INT_OPTIONS if attrs[name] < 1]
    if wrong:
        raise TargetError(f"option -{wrong[0]} is {attrs[wrong[0]]}; expected at least 1")
    return attrs


def _query(device: Device) -> dict[str, Any]:
    """Attributes that a live device reports; the table has the rest."""
    version = device.compute_version
    if not device.exist or version is None:
        raise TargetError(f"there is no device {device} on this machine; name an architecture instead: -arch=sm_90")
    reported = {
        "arch": "sm_" + version.replace(".", "") + _ARCH_SPECIFIC.get(version, ""),
        "model": device.device_name,
        "max-threads-per-block": device.max_threads_per_block,
        "max-shared-memory-per-block": device.max_shared_memory_per_block,
        "registers-per-block": device.max_registers_per_block,
        "thread-warp-size": device.warp_size,
        "multi-processor-count": device.multi_processor_count,
        "l2-bytes": device.l2_cache_size_bytes,
    }
    return {name: value for name, value in reported.items() if value is not None}


_kind = register_target_kind("cuda", device="cuda").add_attr_option(
    "arch", str, doc='the architecture: "sm_90"; with an "a" at its end also what only that one has'
)
for _name, _doc in _INT_OPTIONS:
    _kind.add_attr_option(_name, int, doc=_doc)
_kind.add_attr_option("tf32", bool, False, doc="float32 products on tensor cores, with mantissas of 10 bits")
_kind.set_default_keys(["cuda", "gpu"]).set_parser(_resolve).set_device_query(_query)


@dataclass(frozen=True, slots=True)
class CudaLimits:
    """Resource limits of a kernel on a target, and the occupancy that follows from its resources."""

    capability: int
    threads_per_block: int
    shared_per_block: int
    registers_per_block: int
    registers_per_sm: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    warp: int

    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = ((1 << 31) - 1, 65535, 65535)

    @staticmethod
    def of(target: Target) -> CudaLimits:
        """The limits of a target of kind "cuda"."""
        names = ("max-threads-per-block", "max-shared-memory-per-block", "registers-per-block", "registers-per-sm",
                 "shared-memory-per-sm", "max-threads-per-sm", "max-blocks-per-sm", "thread-warp-size")  # fmt: skip
        return CudaLimits(compute_capability(target.get("arch")), *[target.get(name) for name in names])

    def blocks_per_multiprocessor(self, threads: int, registers: int, shared: int) -> int:
        """Blocks of a kernel resident together on one SM.

        `threads` per block, `registers` per thread (allocated in units of 256 per warp), `shared` bytes per block (in
        units of 128, plus 1 KiB used by the system). 0 when not even one fits.
        """
        warps = -(-threads // self.warp)
        per_warp = -(-registers * self.warp // 256) * 256
        reserved = 1024 if self.capability >= 80 else 0
        per_block = -(-(shared + reserved) // 128) * 128
        by_registers = self.registers_per_sm // per_warp // warps if registers else self.blocks_per_sm
        by_shared = self.shared_per_sm // per_block if per_block else self.blocks_per_sm
        return min(self.blocks_per_sm, self.threads_per_sm // self.warp // warps, by_registers, by_shared)

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The fraction of an SM's warps that a kernel can occupy, as `blocks_per_multiprocessor` determines."""
        warps = -(-threads // self.warp)
        return self.blocks_per_multiprocessor(threads, registers, shared) * warps / (self.threads_per_sm // self.warp)
