"""CPU targets: their options, and detection of the host.

All kinds that run on a CPU share these options. Their parser makes everything explicit: `mcpu` names a processor of
`backend.processors`, `mattr` says how the features that code may use (`features`) differ from that processor's own, and
`mtune`, where it is another one, names the processor that schedules are chosen for.
"""

from __future__ import annotations

import difflib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relayc.backend.processors import ASSUMED_CACHES, PROCESSORS, nearest_processor
from relayc.backend.runtime.cpu_features import host_features
from relayc.backend.runtime.device import cpu
from relayc.backend.runtime.threads import available_cpus
from relayc.backend.target import CacheBytes, TargetError, TargetKind

__all__ = ["KNOWN_FEATURES", "HostCPU", "add_cpu_options", "host_cpu", "resolve_cpu", "vector_unit"]

KNOWN_FEATURES = frozenset[str]().union(*[row.features for row in PROCESSORS.values()])
"""The features that code generation depends on, named as in LLVM and GCC."""
_MOST_OF_LLC = 16 << 20
"""Upper bound of the last-level cache share per usable core, in bytes: a virtual machine reports the L3 of the whole
socket."""


@dataclass(frozen=True, slots=True)
class HostCPU:
    """The host: LLVM triple, processor name, features (those of `PROCESSORS`), cache sizes, usable cores."""

    triple: str
    name: str
    features: frozenset[str]
    caches: CacheBytes
    cores: int


@lru_cache(maxsize=1)
def host_cpu() -> HostCPU:
    """The host, detected without LLVM: the processor is named by the highest x86-64 level that it supports."""
    features = host_features() & KNOWN_FEATURES
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        name, features, arch = "generic", features | PROCESSORS["generic"].features, "aarch64"
    else:
        levels = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
        name, arch = next((level for level in levels if _own_features(level) <= features), "x86-64"), "x86_64"
        features |= PROCESSORS["x86-64"].features
    system = "apple-darwin" if platform.system() == "Darwin" else "unknown-linux-gnu"
    return HostCPU(f"{arch}-{system}", name, features, _host_caches(), available_cpus())


def _host_caches() -> CacheBytes:
    """The host's cache sizes as the runtime detects them; assumed defaults where detection fails."""
    here = cpu()
    l1, l2, l3 = here.l1_cache_size_bytes, here.l2_cache_size_bytes, here.l3_cache_size_bytes
    if l1 is None:
        return ASSUMED_CACHES
    return CacheBytes(l1, l2 or 0, min(l3 or 0, _MOST_OF_LLC * available_cpus()))


def add_cpu_options(kind: TargetKind, host: Callable[[], HostCPU] = host_cpu) -> TargetKind:
    """Give a kind the CPU options and the parser that resolves them; `host` detects the machine."""
    options: tuple[tuple[str, type, str], ...] = (
        ("mtriple", str, "LLVM triple of the machine; follows from mcpu"),
        ("mcpu", str, "processor; this machine's when neither it nor a triple is given"),
        ("mtune", str, "processor that schedules are chosen for, where it is not mcpu"),
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

    Cache sizes are those that `host` reports where no processor is named, else those of the table; so a named processor
    means the same on every machine. Raises TargetError for an `mcpu` that is not in `PROCESSORS` and comes without
    `mattr`, or is of another architecture than the triple; an `mtune` that is not in it; a `mattr` entry without sign
    or with an unknown feature; and invalid sizes.
    """
    attrs = {"mtriple": _triple_for(attrs.get("mcpu"), host), **attrs}
    native = "mcpu" not in attrs and attrs["mtriple"] == host.triple
    baseline = _baseline(attrs["mtriple"])
    attrs.setdefault("mcpu", host.name if native else baseline)
    own = _own_features(attrs["mcpu"], baseline)
    if attrs["mcpu"] not in PROCESSORS and not native and not attrs.get("mattr"):
        raise TargetError(f"unknown processor {attrs['mcpu']!r}; known are: {', '.join(PROCESSORS)}. "
                          "For another one list its features: -mattr=+feature,+feature")  # fmt: skip
    if not own >= _own_features(baseline):
        raise TargetError(f"-mcpu={attrs['mcpu']} is not a processor of -mtriple={attrs['mtriple']}; omit one of "
                          "them, or pass the triple of that processor")  # fmt: skip
    features = _adjust(host.features if native else own, attrs.get("mattr", []))
    attrs["features"] = sorted(features)
    present = own | host.features if native else own  # LLVM may imply more than our table does
    attrs["mattr"] = sorted(f"+{f}" for f in features - own) + sorted(f"-{f}" for f in present - features)
    attrs["mtune"] = _tuned_for(attrs, host.features if native else features, native)
    width, count = vector_unit(features)
    filled = {"vector-bytes": width, "vector-registers": count, "num-cores": host.cores, **attrs}
    caches = host.caches if native else _caches_of(str(filled["mtune"] or filled["mcpu"]), int(filled["num-cores"]))
    attrs = {"l1-bytes": caches.l1, "l2-bytes": caches.l2, "l3-bytes": caches.l3, **filled}
    if attrs["num-cores"] < 1 or attrs["vector-bytes"] not in (4, 8, 16, 32, 64, 128, 256):
        raise TargetError(f"num-cores {attrs['num-cores']}, vector-bytes {attrs['vector-bytes']}: expected at least "
                          "one core and a power of two from 4 to 256")  # fmt: skip
    return attrs


def _own_features(name: str, otherwise: str = "") -> frozenset[str]:
    """The features of a processor of the table; of the one called `otherwise` where there is none of that name."""
    return PROCESSORS[name if name in PROCESSORS else otherwise].features


def _tuned_for(attrs: dict[str, Any], features: frozenset[str], native: bool) -> str | None:
    """The processor that schedules are chosen for, where it is not `mcpu`; None where it is, or none is known.

    For the host and for a processor that is not in the table, the nearest one that is.
    """
    given, mcpu = attrs.get("mtune"), attrs["mcpu"]
    if given is not None:
        if given not in PROCESSORS:
            raise TargetError(f"unknown processor -mtune={given}; known are: {', '.join(PROCESSORS)}")
        return None if given == mcpu else given
    is_known = mcpu in PROCESSORS and (PROCESSORS[mcpu].is_known or not native)
    return None if is_known else nearest_processor(features) or None


def _caches_of(name: str, cores: int) -> CacheBytes:
    """The cache sizes of the table for a processor; of the last level as much as a machine of `cores` would report."""
    caches = PROCESSORS[name].caches if name in PROCESSORS else ASSUMED_CACHES
    return caches._replace(l3=min(caches.l3, _MOST_OF_LLC * cores))


def _triple_for(mcpu: str | None, host: HostCPU) -> str:
    """The triple for a processor given without one: the host's, unless the processor is of another architecture."""
    named = PROCESSORS.get(mcpu or host.name)
    if (host.features if named is None else named.features) >= _own_features(_baseline(host.triple)):
        return host.triple
    return f"{'x86_64' if _baseline(host.triple) == 'generic' else 'aarch64'}-unknown-linux-gnu"


def _baseline(triple: str) -> str:
    return "generic" if triple.startswith(("aarch64", "arm64")) else "x86-64"


def _adjust(features: frozenset[str], mattr: list[str]) -> frozenset[str]:
    for entry in mattr:
        if entry[:1] not in ("+", "-") or len(entry) < 2:
            raise TargetError(f"-mattr has {entry!r}; expected +feature or -feature, such as +avx2,-avx512f")
        if entry[1:] not in KNOWN_FEATURES:  # LLVM would ignore it, and no machine could be checked for it
            close = difflib.get_close_matches(entry[1:], KNOWN_FEATURES, n=1)
            hint = f" (did you mean {entry[0]}{close[0]}?)" if close else ""
            raise TargetError(f"-mattr has the unknown feature {entry!r}{hint}; known are: "
                              f"{', '.join(sorted(KNOWN_FEATURES))}")  # fmt: skip
        features = features | {entry[1:]} if entry[0] == "+" else features - _with_dependents(entry[1:])
    return features


def _with_dependents(feature: str) -> frozenset[str]:
    """A feature and the features that require it: without avx512f there is no avx512bw, without avx no avx2."""
    families = {"avx512f": ("avx512",), "avx2": ("avx2", "avx512"), "avx": ("avx", "fma", "f16c", "vaes", "vpclmulqdq")}
    prefixes = families.get(feature, ())
    return frozenset({feature} | {f for f in KNOWN_FEATURES if f.startswith(prefixes) and prefixes})


def vector_unit(features: frozenset[str]) -> tuple[int, int]:
    """Bytes of a vector register and the number of vector registers."""
    if "avx512f" in features:
        return 64, 32
    if "avx" in features:
        return 32, 16
    return 16, 32 if "neon" in features else 16
