"""Processors: one table of the CPUs that schedules know, by LLVM's names (`-mcpu`, `-mtune`).

A row has what instructions there are (`features`) and what schedules are chosen by: cache sizes and latencies, how many
cache misses a core has outstanding, how fast the last-level cache is. Schedules ask for traits by name, such as
`has_high_latency_llc`; a trait follows from the figures of its row, never from the size of another cache. Sizes that a
machine reports take the place of those in the table (`backend.cpu`); traits are always the table's.

Sources, named in the rows; a figure of which none was found is 0:

* AMD: Software Optimization Guides 55723 (Zen 1 and 2), 56665 (Zen 3), 57647 (Zen 4), 58455 (Zen 5)
* Intel: 64 and IA-32 Architectures Optimization Reference Manual (248966); Architecture Day 2021; product pages
* kerncraft: machine files of github.com/RRZE-HPC/kerncraft, examples/machine-files
* AnandTech: articles 11550 (Skylake-X), 14664 (Ice Lake), 14694 (Rome; its table also has Naples and the Xeon 8280)
* Arm: technical reference manuals of the cores; en.wikichip.org/wiki/aws_graviton3; chipsandcheese.com on Graviton 4
* perf: Linux, tools/perf/pmu-events/arch/x86
* measured: by this project, `docs/decisions/0040-high-latency-llc.md` and `0045-prefetch-to-l2.md`
"""

from __future__ import annotations

from dataclasses import dataclass

from relayc.backend.target import CacheBytes, Target

__all__ = ["ASSUMED_CACHES", "PROCESSORS", "Latencies", "Processor", "nearest_processor", "processor_of"]

_KIB, _MIB = 1 << 10, 1 << 20
ASSUMED_CACHES = CacheBytes(32 * _KIB, _MIB, 16 * _MIB)
"""Cache sizes of a processor of which nothing is known."""
_FEW_FILL_BUFFERS = 24
"""Most line-fill buffers that a hardware prefetcher exhausts: those of Zen 4, measured."""
_SLOW_LLC_BYTES_PER_CYCLE = 8.0
"""Bytes per cycle of a last-level cache that is hardly faster than memory: that of Sapphire Rapids, measured."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Load-to-use latencies of the caches in core cycles; 0 where unknown."""

    l1: int = 0
    l2: int = 0
    l3: int = 0


@dataclass(frozen=True, slots=True)
class Processor:
    """One row of the table.

    `features` are named as in LLVM and GCC. `core` is the microarchitecture, "" for a row that stands for many, such as
    x86-64-v3. `caches`: L1 and L2 of a core, L3 of what shares one, of the largest part sold. `llc` is how cores reach
    it: "ring", "mesh", or "core complex" (a few cores with one of their own). `llc_bytes_per_cycle`: what a core reads
    from it in order. `fill_buffers` are the cache misses that L1 has outstanding at most; `prefetches_to_l1` whether
    the hardware prefetcher takes them for the lines it brings. `fma_bits` are those of the vector multiply-adds that
    begin in a cycle. `llvm_loads_early`: LLVM's scheduling model of the processor moves loads ahead of an unrolled
    step's multiply-adds. Unknown figures are 0.
    """

    features: frozenset[str]
    core: str = ""
    caches: CacheBytes = ASSUMED_CACHES
    latencies: Latencies = Latencies()
    llc: str = ""
    llc_bytes_per_cycle: float = 0.0
    fill_buffers: int = 0
    prefetches_to_l1: bool = False
    fma_bits: int = 0
    llvm_loads_early: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the row is of one microarchitecture."""
        return bool(self.core)

    @property
    def has_few_fill_buffers(self) -> bool:
        """Whether software prefetch into L1 takes its line-fill buffers from the hardware prefetcher.

        Prefetches then go to L2, or are left out where the hardware prefetcher follows.
        """
        return self.prefetches_to_l1 and 0 < self.fill_buffers <= _FEW_FILL_BUFFERS

    @property
    def has_high_latency_llc(self) -> bool:
        """Whether the LLC is hardly faster than memory, so that what a core reads again should stay in its L2 cache."""
        return 0 < self.llc_bytes_per_cycle <= _SLOW_LLC_BYTES_PER_CYCLE

    @property
    def traits(self) -> list[str]:
        """The traits that schedules depend on, for people."""
        found = {"few line-fill buffers": self.has_few_fill_buffers, "high-latency LLC": self.has_high_latency_llc}
        return [name for name, has in found.items() if has]


_V1 = frozenset({"cx8", "fxsr", "mmx", "sse", "sse2"})
_V2 = _V1 | {"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"}
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_CRYPTO = {"aes", "pclmul"}
_HASWELL = _V3 | _CRYPTO
_SKYLAKE_X = _V4 | _CRYPTO | {"adx"}
_CASCADE = _SKYLAKE_X | {"avx512vnni"}
_ICE = _CASCADE | {"avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vpopcntdq", "gfni", "sha", "vaes",
                   "vpclmulqdq"}  # fmt: skip
_SAPPHIRE = _ICE | {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni"}
_ZEN = _V3 | _CRYPTO | {"adx", "sha", "sse4a"}
_ZEN3 = _ZEN | {"vaes", "vpclmulqdq"}
_ZEN4 = _ZEN3 | _V4 | {"avx512bf16", "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni",
                       "avx512vpopcntdq", "gfni"}  # fmt: skip
_ZEN5 = _ZEN4 | {"avx512vp2intersect", "avxvnni"}
_ARMV8 = frozenset({"fp-armv8", "neon"})
_ARMV82 = _ARMV8 | {"aes", "crc", "dotprod", "fullfp16", "lse", "rdm", "sha2"}
_NEOVERSE_V1 = _ARMV82 | {"bf16", "i8mm", "sve"}


def _skylake(features: frozenset[str], core: str, l3: int) -> Processor:
    """Server cores with 32 KiB of L1. Sizes, L2 latency, 77 cycles of L3: AnandTech; FMA ports: Intel."""
    caches = CacheBytes(32 * _KIB, _MIB, l3)
    return Processor(features, core, caches, Latencies(4, 14, 77), llc="mesh", fma_bits=1024)


def _golden_cove(features: frozenset[str], core: str, l3: int) -> Processor:
    """Server cores with 2 MiB of L2.

    Sizes: kerncraft, SapphireRapids; 16 fill buffers: Architecture Day; LLC:
    measured on Sapphire Rapids; two 512-bit FMA ports: Intel.
    """
    caches = CacheBytes(48 * _KIB, 2 * _MIB, l3)
    return Processor(features, core, caches, Latencies(5), "mesh", llc_bytes_per_cycle=8.0, fill_buffers=16,
                     fma_bits=1024)  # fmt: skip


PROCESSORS: dict[str, Processor] = {
    # Rows that stand for many processors: features only.
    "x86-64": Processor(_V1), "x86-64-v2": Processor(_V2), "x86-64-v3": Processor(_V3), "x86-64-v4": Processor(_V4),
    "generic": Processor(_ARMV8),
    # Intel, clients. Latencies, 10 fill buffers, bytes per cycle of the ring (18, sustained, Skylake): Intel, the
    # chapters on these cores. L3 of four cores. Two 256-bit FMA ports.
    "haswell": Processor(_HASWELL, "Haswell", CacheBytes(32 * _KIB, 256 * _KIB, 8 * _MIB), Latencies(4, 11, 34), "ring",
                         fill_buffers=10, fma_bits=512),
    "broadwell": Processor(_HASWELL | {"adx"}, "Broadwell", CacheBytes(32 * _KIB, 256 * _KIB, 8 * _MIB),
                           Latencies(4, 11, 34), "ring", fill_buffers=10, fma_bits=512),
    "skylake": Processor(_HASWELL | {"adx"}, "Skylake", CacheBytes(32 * _KIB, 256 * _KIB, 8 * _MIB),
                         Latencies(4, 12, 44), "ring", 18.0, fill_buffers=10, fma_bits=512),
    # Sizes: AnandTech. 12 fill buffers: Architecture Day, which compares Golden Cove's 16 with them. One 512-bit FMA.
    "icelake-client": Processor(_ICE, "Sunny Cove", CacheBytes(48 * _KIB, 512 * _KIB, 8 * _MIB), Latencies(5, 13),
                                "ring", fill_buffers=12, fma_bits=512),
    "alderlake": Processor(_ZEN3 - {"sse4a"} | {"avxvnni", "gfni"}, "Golden Cove",
                           CacheBytes(48 * _KIB, 1280 * _KIB, 30 * _MIB), Latencies(5), "ring", fill_buffers=16,
                           fma_bits=512),
    # Intel, servers. L3 of 28 cores of 1.375 MiB: AnandTech.
    "skylake-avx512": _skylake(_SKYLAKE_X, "Skylake-SP", 28 * 1408 * _KIB),
    "cascadelake": _skylake(_CASCADE, "Cascade Lake", 28 * 1408 * _KIB),
    "cooperlake": _skylake(_CASCADE | {"avx512bf16"}, "Cooper Lake", 28 * 1408 * _KIB),
    # Sizes: kerncraft, IcelakeSP (1.5 MiB of L3 a core, of 40).
    "icelake-server": Processor(_ICE, "Sunny Cove", CacheBytes(48 * _KIB, 1280 * _KIB, 60 * _MIB), Latencies(5, 14),
                                "mesh", fill_buffers=12, fma_bits=1024),
    "sapphirerapids": _golden_cove(_SAPPHIRE, "Golden Cove", 105 * _MIB),
    "emeraldrapids": _golden_cove(_SAPPHIRE, "Raptor Cove", 320 * _MIB),
    "graniterapids": _golden_cove(_SAPPHIRE | {"amx-fp16"}, "Redwood Cove", 504 * _MIB),
    # AMD. Sizes, latencies, outstanding L1 misses, FMA pipes: the guides; L3 latency of Zen 2: AnandTech; that the
    # hardware prefetcher takes the buffers of L1 (miss address buffers): perf, amdzen4, ls_mab_alloc. Bytes per cycle
    # of Zen 5's LLC: measured, 16 to 32.
    "znver1": Processor(_ZEN, "Zen", CacheBytes(32 * _KIB, 512 * _KIB, 8 * _MIB), Latencies(4, 12), "core complex",
                        fill_buffers=22, prefetches_to_l1=True, fma_bits=256, llvm_loads_early=True),
    "znver2": Processor(_ZEN, "Zen 2", CacheBytes(32 * _KIB, 512 * _KIB, 16 * _MIB), Latencies(4, 12, 34),
                        "core complex", fill_buffers=22, prefetches_to_l1=True, fma_bits=512, llvm_loads_early=True),
    "znver3": Processor(_ZEN3, "Zen 3", CacheBytes(32 * _KIB, 512 * _KIB, 32 * _MIB), Latencies(4, 12, 46),
                        "core complex", fill_buffers=24, prefetches_to_l1=True, fma_bits=512, llvm_loads_early=True),
    "znver4": Processor(_ZEN4, "Zen 4", CacheBytes(32 * _KIB, _MIB, 32 * _MIB), Latencies(4, 14, 50), "core complex",
                        fill_buffers=24, prefetches_to_l1=True, fma_bits=512, llvm_loads_early=True),
    "znver5": Processor(_ZEN5, "Zen 5", CacheBytes(48 * _KIB, _MIB, 32 * _MIB), Latencies(4, 14), "core complex", 16.0,
                        fma_bits=1024, llvm_loads_early=True),
    # Arm. L1 and L2: the manuals, which let makers choose; L3: of Graviton 2, 3 and 4 (32, 32, 36 MiB). Four 128-bit
    # pipes, two of N1 and N2.
    "neoverse-n1": Processor(_ARMV82, "Neoverse N1", CacheBytes(64 * _KIB, _MIB, 32 * _MIB), llc="mesh",
                             fma_bits=256),
    "neoverse-v1": Processor(_NEOVERSE_V1, "Neoverse V1", CacheBytes(64 * _KIB, _MIB, 32 * _MIB), Latencies(4, 11),
                             "mesh", fma_bits=512),
    "neoverse-n2": Processor(_NEOVERSE_V1 | {"sve2"}, "Neoverse N2", CacheBytes(64 * _KIB, _MIB, 32 * _MIB),
                             llc="mesh", fma_bits=256),
    "neoverse-v2": Processor(_NEOVERSE_V1 | {"sve2"}, "Neoverse V2", CacheBytes(64 * _KIB, 2 * _MIB, 36 * _MIB),
                             llc="mesh", fma_bits=512),
    # A core's quarter of the L2 of four; the system's cache as L3.
    "apple-m1": Processor(_ARMV82, "Firestorm", CacheBytes(128 * _KIB, 3 * _MIB, 8 * _MIB), fma_bits=512),
}  # fmt: skip
"""LLVM's name of a processor -> what is known of it."""

_UNKNOWN = Processor(frozenset())


def processor_of(target: Target) -> Processor:
    """The row that schedules for `target` are chosen by: of its `mtune`, or else of its `mcpu`.

    A row without a microarchitecture, with sizes that are assumed and no trait, where neither is in the table.
    """
    return PROCESSORS.get(target.get("mtune", "") or target.mcpu, _UNKNOWN)


def nearest_processor(features: frozenset[str]) -> str:
    """The processor of the table with the most features that all are among `features`; "" if there is none.

    What a processor that is not in the table, such as a later one of the same maker, is tuned as.
    """
    known = {name: row.features for name, row in PROCESSORS.items() if row.is_known and row.features <= features}
    return max(known, key=lambda name: len(known[name]), default="")
