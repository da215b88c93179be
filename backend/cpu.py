"""CPU targets: instruction-set features, known processors and detection of the host.

All kinds that run on a CPU share these options. Their parser makes everything explicit: `mcpu` names a processor,
`mattr` says how the features that code may use (`features`) differ from that processor's own.
"""

from __future__ import annotations

import difflib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relayc.backend.runtime.cpu_features import host_features
from relayc.backend.runtime.device import cpu
from relayc.backend.runtime.threads import available_cpus
from relayc.backend.target import CacheBytes, TargetError, TargetKind

__all__ = ["CPU_FEATURES", "HostCPU", "add_cpu_options", "host_cpu", "resolve_cpu"]

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

CPU_FEATURES: dict[str, frozenset[str]] = {
    "x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
    "haswell": _HASWELL, "broadwell": _HASWELL | {"adx"}, "skylake": _HASWELL | {"adx"}, "skylake-avx512": _SKYLAKE_X,
    "cascadelake": _CASCADE, "cooperlake": _CASCADE | {"avx512bf16"}, "icelake-client": _ICE, "icelake-server": _ICE,
    "alderlake": _ZEN3 - {"sse4a"} | {"avxvnni", "gfni"}, "sapphirerapids": _SAPPHIRE, "emeraldrapids": _SAPPHIRE,
    "graniterapids": _SAPPHIRE | {"amx-fp16"},
    "znver1": _ZEN, "znver2": _ZEN, "znver3": _ZEN3, "znver4": _ZEN4, "znver5": _ZEN5,
    "generic": _ARMV8, "neoverse-n1": _ARMV82, "neoverse-v1": _NEOVERSE_V1, "neoverse-n2": _NEOVERSE_V1 | {"sve2"},
    "neoverse-v2": _NEOVERSE_V1 | {"sve2"}, "apple-m1": _ARMV82,
}  # fmt: skip
"""Processor name -> features relevant to code generation, named as in LLVM and GCC ("generic": any AArch64)."""

_KNOWN_FEATURES = frozenset[str]().union(*CPU_FEATURES.values())
_MOST_OF_LLC = 16 << 20
"""Upper bound of the last-level cache share per usable core, in bytes: a virtual machine reports the L3 of the whole
socket."""
_ASSUMED_CACHES = CacheBytes(32 << 10, 1 << 20, 16 << 20)


@dataclass(frozen=True, slots=True)
class HostCPU:
    """The host: LLVM triple, processor name, features (those of `CPU_FEATURES`), cache sizes, usable cores."""

    triple: str
    name: str
    features: frozenset[str]
    caches: CacheBytes
    cores: int


@lru_cache(maxsize=1)
def host_cpu() -> HostCPU:
    """The host, detected without LLVM: the processor is named by the highest x86-64 level that it supports."""
    features = host_features() & _KNOWN_FEATURES
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        name, features, arch = "generic", features | _ARMV8, "aarch64"
    else:
        levels = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
        name, arch = next((level for level in levels if CPU_FEATURES[level] <= features), "x86-64"), "x86_64"
        features |= _V1
    system = "apple-darwin" if platform.system() == "Darwin" else "unknown-linux-gnu"
    return HostCPU(f"{arch}-{system}", name, features, _host_caches(), available_cpus())


def _host_caches() -> CacheBytes:
    """The host's cache sizes as the runtime detects them; assumed defaults where detection fails."""
    here = cpu()
    l1, l2, l3 = here.l1_cache_size_bytes, here.l2_cache_size_bytes, here.l3_cache_size_bytes
    if l1 is None:
        return _ASSUMED_CACHES
    return CacheBytes(l1, l2 or 0, min(l3 or 0, _MOST_OF_LLC * available_cpus()))


def add_cpu_options(kind: TargetKind, host: Callable[[], HostCPU] = host_cpu) -> TargetKind:
    """Give a kind the CPU options and the parser that resolves them; `host` detects the machine."""
    options: tuple[tuple[str, type, str], ...] = (
        ("mtriple", str, "LLVM triple of the machine; follows from mcpu"),
        ("mcpu", str, "processor; this machine's when neither it nor a triple is given"),
        ("mattr", list, "features added (+avx2) to or taken (-avx512f) from the processor's own"),
        ("num-cores", int, "cores that a parallel loop is shared between"),
        ("vector-bytes", int, "width of a vector register that schedules aim at"),
        ("vector-registers", int, "number of vector registers"),
        ("l1-bytes", int, "first-level data cache of one core"),
        ("l2-bytes", int, "second-level cache of one core"),
        ("l3-bytes", int, "third-level cache, shared"),
    )
    for name, type_, doc in options:
        kind.add_attr_option(name, type_, doc=doc)
    kind.add_attr_option("features", list, doc="all features code may use", derived=True)
    return kind.set_default_keys(["cpu"]).set_parser(lambda attrs: resolve_cpu(attrs, host()))


def resolve_cpu(attrs: dict[str, Any], host: HostCPU) -> dict[str, Any]:
    """The attributes passed, with every option of `add_cpu_options` made explicit.

    Raises TargetError for a processor that is not in `CPU_FEATURES` and comes without `mattr`, a processor of another
    architecture than the triple, a `mattr` entry without sign or with an unknown feature, and invalid sizes.
    """
    attrs = {"mtriple": _triple_for(attrs.get("mcpu"), host), **attrs}
    native = "mcpu" not in attrs and attrs["mtriple"] == host.triple
    baseline = _baseline(attrs["mtriple"])
    attrs.setdefault("mcpu", host.name if native else baseline)
    own = CPU_FEATURES.get(attrs["mcpu"], CPU_FEATURES[baseline])
    if attrs["mcpu"] not in CPU_FEATURES and not native and not attrs.get("mattr"):
        raise TargetError(f"unknown processor {attrs['mcpu']!r}; known are: {', '.join(CPU_FEATURES)}. "
                          "For another one list its features: -mattr=+feature,+feature")  # fmt: skip
    if not own >= CPU_FEATURES[baseline]:
        raise TargetError(f"-mcpu={attrs['mcpu']} is not a processor of -mtriple={attrs['mtriple']}; omit one of "
                          "them, or pass the triple of that processor")  # fmt: skip
    features = _adjust(host.features if native else own, attrs.get("mattr", []))
    attrs["features"] = sorted(features)
    present = own | host.features if native else own  # LLVM may imply more than our table does
    attrs["mattr"] = sorted(f"+{f}" for f in features - own) + sorted(f"-{f}" for f in present - features)
    width, count = _vector_unit(features)
    caches = host.caches if attrs["mcpu"] == host.name else _ASSUMED_CACHES
    filled = {"vector-bytes": width, "vector-registers": count, "num-cores": host.cores,
              "l1-bytes": caches.l1, "l2-bytes": caches.l2, "l3-bytes": caches.l3}  # fmt: skip
    attrs = {**filled, **attrs}
    if attrs["num-cores"] < 1 or attrs["vector-bytes"] not in (4, 8, 16, 32, 64, 128, 256):
        raise TargetError(f"num-cores {attrs['num-cores']}, vector-bytes {attrs['vector-bytes']}: expected at least "
                          "one core and a power of two from 4 to 256")  # fmt: skip
    return attrs


def _triple_for(mcpu: str | None, host: HostCPU) -> str:
    """The triple for a processor given without one: the host's, unless the processor is of another architecture."""
    if CPU_FEATURES.get(mcpu or host.name, host.features) >= CPU_FEATURES[_baseline(host.triple)]:
        return host.triple
    return f"{'x86_64' if _baseline(host.triple) == 'generic' else 'aarch64'}-unknown-linux-gnu"


def _baseline(triple: str) -> str:
    return "generic" if triple.startswith(("aarch64", "arm64")) else "x86-64"


def _adjust(features: frozenset[str], mattr: list[str]) -> frozenset[str]:
    for entry in mattr:
        if entry[:1] not in ("+", "-") or len(entry) < 2:
            raise TargetError(f"-mattr has {entry!r}; expected +feature or -feature, such as +avx2,-avx512f")
        if entry[1:] not in _KNOWN_FEATURES:  # LLVM would ignore it, and no machine could be checked for it
            close = difflib.get_close_matches(entry[1:], _KNOWN_FEATURES, n=1)
            hint = f" (did you mean {entry[0]}{close[0]}?)" if close else ""
            raise TargetError(f"-mattr has the unknown feature {entry!r}{hint}; known are: "
                              f"{', '.join(sorted(_KNOWN_FEATURES))}")  # fmt: skip
        features = features | {entry[1:]} if entry[0] == "+" else features - _with_dependents(entry[1:])
    return features


def _with_dependents(feature: str) -> frozenset[str]:
    """A feature and the features that require it: without avx512f there is no avx512bw, without avx no avx2."""
    families = {"avx512f": ("avx512",), "avx2": ("avx2", "avx512"), "avx": ("avx", "fma", "f16c", "vaes", "vpclmulqdq")}
    prefixes = families.get(feature, ())
    return frozenset({feature} | {f for f in _KNOWN_FEATURES if f.startswith(prefixes) and prefixes})


def _vector_unit(features: frozenset[str]) -> tuple[int, int]:
    """Bytes of a vector register and the number of vector registers."""
    if "avx512f" in features:
        return 64, 32
    if "avx" in features:
        return 32, 16
    return 16, 32 if "neon" in features else 16
