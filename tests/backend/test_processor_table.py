"""The table of processors: what targets take from it, and which traits schedules see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relayc import backend, te, topi
from relayc.backend.cpu import HostCPU, resolve_cpu
from relayc.backend.processors import PROCESSORS, nearest_processor, processor_of
from relayc.backend.target import CacheBytes, Target, TargetError
from relayc.topi.registry import schedule_for

KNOWN = [name for name, row in PROCESSORS.items() if row.is_known]
ELSEWHERE = [
    HostCPU("x86_64-unknown-linux-gnu", "haswell", PROCESSORS["haswell"].features, CacheBytes(1, 2, 3), 4),
    HostCPU("aarch64-unknown-linux-gnu", "generic", PROCESSORS["generic"].features, CacheBytes(9, 9, 9), 4),
]


def triple_of(name: str) -> str:
    return f"{'aarch64' if 'neon' in PROCESSORS[name].features else 'x86_64'}-unknown-linux-gnu"


@pytest.mark.parametrize("name", KNOWN)
def test_a_named_processor_is_what_its_machine_is_natively(name: str) -> None:
    """Schedules and code generators read nothing but the target."""
    row, explicit = PROCESSORS[name], {"mcpu": name, "mtriple": triple_of(name), "num-cores": 4}
    there = HostCPU(triple_of(name), name, row.features, row.caches._replace(l3=min(row.caches.l3, 64 << 20)), 4)
    native = resolve_cpu({}, there)
    assert all(resolve_cpu(explicit, host) == native for host in [there, *ELSEWHERE])


@pytest.mark.parametrize("name", ["znver4", "sapphirerapids", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize(
    "operator",
    [lambda x: topi.nn.softmax(x, 1), lambda x: topi.transpose(x, (1, 0)), lambda x: topi.sum(x, 0)],
    ids=["softmax", "transpose", "sum"],
)
def test_object_code_for_a_processor_is_that_of_its_machine(
    name: str, operator: Callable[[te.Tensor], te.Tensor]
) -> None:
    row = PROCESSORS[name]
    there = HostCPU(triple_of(name), name, row.features, row.caches._replace(l3=min(row.caches.l3, 32 << 20)), 2)
    detected = {key: value for key, value in resolve_cpu({}, there).items() if key != "features" and value is not None}
    targets = [Target({"kind": "llvm", **detected}), Target(f"llvm -mcpu={name} -num-cores=2")]
    x = te.placeholder((4000, 4000), name="x")
    out = operator(x)
    codes = [
        backend.build(te.lower(schedule_for([out], target), [x, out]), target=target).get_source("asm")
        for target in targets
    ]
    assert codes[0] == codes[1]


def test_detected_sizes_take_the_place_of_those_of_the_table() -> None:
    small = CacheBytes(16 << 10, 256 << 10, 0)
    host = HostCPU("x86_64-unknown-linux-gnu", "znver4", PROCESSORS["znver4"].features, small, 2)
    attrs = resolve_cpu({}, host)
    assert (attrs["l1-bytes"], attrs["l2-bytes"], attrs["l3-bytes"]) == small
    target = Target({"kind": "llvm", **{n: v for n, v in attrs.items() if n != "features" and v is not None}})
    assert processor_of(target).has_few_fill_buffers


@pytest.mark.parametrize("name", ["haswell", "skylake", "skylake-avx512", "cascadelake", "x86-64-v3", "x86-64-v4"])
def test_an_l1_cache_of_32_kib_is_no_trait(name: str) -> None:
    target = Target(f"llvm -mcpu={name} -l1-bytes=32768")
    assert not processor_of(target).has_few_fill_buffers


@pytest.mark.parametrize(
    ("target", "traits"),
    [
        ("llvm -mcpu=znver4", ["few line-fill buffers"]),
        ("llvm -mcpu=znver4 -l1-bytes=49152 -l2-bytes=2097152", ["few line-fill buffers"]),
        ("llvm -mcpu=sapphirerapids", ["high-latency LLC"]),
        ("llvm -mcpu=sapphirerapids -l1-bytes=32768 -l2-bytes=1048576", ["high-latency LLC"]),
        ("llvm -mcpu=alderlake -l2-bytes=2097152", []),  # Raptor Lake: the LLC is on a ring
        ("llvm -mcpu=znver5", []),
        ("llvm -mcpu=x86-64-v3 -mtune=znver3", ["few line-fill buffers"]),
        ("llvm -mcpu=znver4 -mtune=x86-64", []),
        ("interp", []),
    ],
)
def test_traits_follow_from_the_processor_and_not_from_sizes(target: str, traits: list[str]) -> None:
    assert processor_of(Target(target)).traits == traits


def test_an_unknown_processor_is_tuned_as_the_nearest_known_one() -> None:
    later = PROCESSORS["znver5"].features | {"avx512fp16"}
    host = HostCPU("x86_64-unknown-linux-gnu", "znver9", later, CacheBytes(49152, 1 << 20, 32 << 20), 2)
    native = resolve_cpu({}, host)
    assert (native["mcpu"], native["mtune"]) == ("znver9", "znver5")
    printed = {name: value for name, value in native.items() if name != "features"}
    assert resolve_cpu(printed, ELSEWHERE[0]) == native
    assert nearest_processor(PROCESSORS["x86-64-v3"].features) == ""


@pytest.mark.parametrize("name", KNOWN)
def test_the_nearest_of_a_known_processor_has_its_traits(name: str) -> None:
    """What the target kinds that don't ask LLVM for the processor's name find by features."""
    nearest = PROCESSORS[nearest_processor(PROCESSORS[name].features)]
    assert nearest.features == PROCESSORS[name].features


def test_tuning_for_another_processor() -> None:
    target = Target("llvm -mcpu=x86-64-v3 -mtune=znver4")
    assert target.vector_bytes == 32 and target.cache_bytes == PROCESSORS["znver4"].caches
    assert Target(str(target)) == target
    assert "mtune" not in Target("llvm -mcpu=znver4 -mtune=znver4").attrs
    with pytest.raises(TargetError, match="unknown processor -mtune=znver9; known are: x86-64"):
        Target("llvm -mtune=znver9")


@pytest.mark.parametrize("name", KNOWN)
def test_rows_are_plausible(name: str) -> None:
    caches, latencies = PROCESSORS[name].caches, PROCESSORS[name].latencies
    assert 0 < caches.l1 < caches.l2 < caches.l3
    known = [cycles for cycles in (latencies.l1, latencies.l2, latencies.l3) if cycles]
    assert known == sorted(known)
