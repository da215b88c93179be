"""Targets: their forms, parser defaults and errors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from relayc.backend.cpu import HostCPU, host_cpu, resolve_cpu
from relayc.backend.llvm import runtime
from relayc.backend.processors import PROCESSORS
from relayc.backend.runtime import cpu_features
from relayc.backend.runtime.errors import ArtifactError
from relayc.backend.target import (
    AttrOption,
    CacheBytes,
    Target,
    TargetError,
    list_target_kinds,
    register_target_kind,
    target_kind,
)

SKYLAKE_X = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512 -num-cores=8"
HASWELL_HOST = HostCPU("x86_64-unknown-linux-gnu", "haswell", PROCESSORS["haswell"].features, CacheBytes(1, 2, 3), 4)


def test_the_three_forms_are_equivalent():
    words = Target(SKYLAKE_X)
    fields = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "skylake-avx512", "num-cores": 8}
    assert words == Target(fields) == Target(json.dumps(fields))
    assert hash(words) == hash(Target(fields))
    assert words != Target(SKYLAKE_X + " -mattr=-avx512f")


@pytest.mark.parametrize("text", ["llvm", SKYLAKE_X, "llvm -mcpu=neoverse-n1 -mtriple=aarch64-unknown-linux-gnu",
                                  "llvm -host='llvm -mcpu=haswell' -libs=a,b"])  # fmt: skip
def test_every_form_round_trips(text):
    target = Target(text)
    assert Target(str(target)) == target
    assert Target(target.to_json()) == target
    assert Target(target.to_dict()) == target
    assert pickle.loads(pickle.dumps(target)) == target
    assert Target(target) == target


def test_underscores_stand_for_dashes():
    target = Target('{"kind": "cuda", "max_num_threads": 512}')
    assert target == Target("cuda -max-num-threads=512") == Target("cuda -max_num_threads=512")
    assert target.attrs["max_num_threads"] == target.attrs["max-num-threads"] == target.get("max_num_threads") == 512
    assert "max_num_threads" in target.attrs and "max_threads" not in target.attrs
    assert target.get("max_threads", 7) == 7
    with pytest.raises(KeyError):
        target.attrs["max_threads"]


def test_options_declared_with_underscores():
    kind = register_target_kind("test_underscored", device="cpu").add_attr_option("vector_lanes", int, 8)
    assert Target("test_underscored -vector-lanes=4").attrs == {"vector_lanes": 4}
    assert Target("test_underscored").attrs["vector-lanes"] == 8
    assert Target("test_underscored").with_attrs(vector_lanes=2).get("vector-lanes") == 2
    with pytest.raises(TargetError, match="has an option 'vector-lanes' already"):
        kind.add_attr_option("vector-lanes", int)


def test_avx512_processor():
    target = Target(SKYLAKE_X)
    assert (target.vector_bytes, target.vector_registers, target.num_cores) == (64, 32, 8)
    assert target.has_fma and "avx512f" in target.features
    assert target.keys == ("cpu",) and target.device_kind == "cpu" and target.mcpu == "skylake-avx512"


@pytest.mark.parametrize(
    ("mattr", "expected"),
    [("-avx512f", (32, 16, True)), ("-fma", (64, 32, False)), ("-avx", (16, 16, False)), ("-avx2", (32, 16, True))],
)
def test_removing_a_feature_removes_its_dependents(mattr, expected):
    target = Target(f"{SKYLAKE_X} -mattr={mattr}")
    assert (target.vector_bytes, target.vector_registers, target.has_fma) == expected
    assert not {f for f in target.features if f.startswith("avx512")} or mattr == "-fma"


def test_adding_a_feature():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64 -mattr=+avx2,+fma")
    assert {"avx2", "fma"} <= target.features and target.get("mattr") == ["+avx2", "+fma"]


def test_bare_kind_means_this_machine():
    target, host = Target("llvm"), host_cpu()
    assert target.num_cores == host.cores
    assert target.cache_bytes == host.caches
    assert target.features >= host.features & PROCESSORS["x86-64-v2"].features
    assert target.mcpu and target.get("mtriple")


def test_host_is_resolved_to_explicit_attributes():
    attrs = resolve_cpu({}, HASWELL_HOST)
    elsewhere = HostCPU("aarch64-unknown-linux-gnu", "generic", PROCESSORS["generic"].features, CacheBytes(9, 9, 9), 64)
    printed = {name: value for name, value in attrs.items() if name != "features"}
    assert resolve_cpu(printed, elsewhere) == attrs
    assert resolve_cpu(printed, HASWELL_HOST) == attrs


def test_removed_host_feature_is_explicit():
    host = HostCPU("x86_64-unknown-linux-gnu", "skylake-avx512",
                   frozenset(f for f in PROCESSORS["skylake-avx512"].features if not f.startswith("avx512")),
                   CacheBytes(1, 2, 3), 4)  # fmt: skip
    attrs = resolve_cpu({}, host)
    assert "-avx512f" in attrs["mattr"] and attrs["vector-bytes"] == 32


def test_an_unknown_host_processor():
    host = HostCPU("x86_64-unknown-linux-gnu", "newlake", PROCESSORS["x86-64-v3"].features, CacheBytes(1, 2, 3), 4)
    attrs = resolve_cpu({}, host)
    assert attrs["mcpu"] == "newlake" and "+avx2" in attrs["mattr"] and attrs["vector-bytes"] == 32
    printed = {name: value for name, value in attrs.items() if name != "features"}
    assert resolve_cpu(printed, HASWELL_HOST)["features"] == attrs["features"]


def test_features_of_a_host_known_only_to_llvm():
    """LLVM adds features implied by the processor's name, unless it is told not to."""
    host = HostCPU("x86_64-unknown-linux-gnu", "newlake", PROCESSORS["x86-64-v4"].features, CacheBytes(1, 2, 3), 4)
    attrs = resolve_cpu({"mattr": ["-avx512f"]}, host)
    assert {"-avx512f", "-avx512bw"} <= set(attrs["mattr"]) and "avx512f" not in attrs["features"]


def test_few_cores_get_a_share_of_a_large_last_level_cache():
    """A virtual machine of two cores reports the half gigabyte of L3 of its host."""
    host = Target("llvm")
    assert host.cache_bytes.l3 <= host.num_cores * (16 << 20)


def test_detection_agrees_with_llvm():
    llvm = pytest.importorskip("llvmlite.binding")
    present = {name for name, has in llvm.get_host_cpu_features().items() if has}
    assert host_cpu().features <= present | PROCESSORS["x86-64"].features | PROCESSORS["apple-m1"].features


@pytest.mark.parametrize("allowed", [True, False])
def test_amx_is_detected_if_the_system_permits_it(monkeypatch, allowed: bool):
    reported = {"flags": "sse2 avx512f avx512_vnni amx_tile amx_int8 amx_bf16"}
    monkeypatch.setattr(cpu_features, "_cpuinfo", lambda: reported)
    monkeypatch.setattr(cpu_features, "_may_use_tiles", lambda: allowed)
    found = cpu_features.host_features.__wrapped__()
    assert {"sse2", "avx512f", "avx512vnni"} <= found
    assert {name for name in found if name.startswith("amx-")} == (
        {"amx-tile", "amx-int8", "amx-bf16"} if allowed else set()
    )


def test_code_with_amx_is_rejected_where_the_system_forbids_it(monkeypatch):
    monkeypatch.setattr(runtime, "host_features", lambda: frozenset({"sse2"}))
    with pytest.raises(ArtifactError, match="needs the instructions amx-tile, which this processor"):
        runtime.check_machine(Target("llvm").attrs["mtriple"], ["sse2", "amx-tile"])


@pytest.mark.parametrize(("mcpu", "architecture"), [("haswell", "x86_64"), ("neoverse-n1", "aarch64"),
                                                    ("generic", "aarch64"), ("x86-64", "x86_64")])  # fmt: skip
def test_the_architecture_follows_from_the_processor(mcpu, architecture):
    assert Target(f"llvm -mcpu={mcpu}").attrs["mtriple"].startswith(architecture)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lvm", ["unknown target kind 'lvm'", "did you mean 'llvm'", "cuda", "interp"]),
        ("", ["has no kind"]),
        ("-mcpu=x", ["has no kind"]),
        ("llvm -mcup=haswell", ["no option 'mcup'", "did you mean 'mcpu'", "num-cores"]),
        ("llvm -mcpu=pentium9", ["unknown processor 'pentium9'", "skylake-avx512", "-mattr"]),
        ("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=haswell", ["haswell", "aarch64", "omit one"]),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=neoverse-n1", ["neoverse-n1", "x86_64", "omit one"]),
        ("llvm -mattr=avx2", ["'avx2'", "+feature"]),
        ("llvm -mattr=+avx9", ["'+avx9'", "did you mean +avx", "avx512f"]),
        ("llvm -mcpu=x86-64 -mattr=-hyperthreads", ["'-hyperthreads'", "known are"]),
        ("llvm -num-cores=many", ["num-cores", "'many'", "int"]),
        ("llvm -num-cores=0", ["num-cores 0", "at least one core"]),
        ("llvm -num-cores", ["requires a value"]),
        ("llvm haswell", ["'haswell' is not an option", "-name=value"]),
        ("llvm -mcpu=haswell -mcpu=skylake", ["-mcpu twice"]),
        ("llvm -num-cores=2 -num_cores=2", ["-num_cores twice"]),
        ({"kind": "llvm", "num-cores": 2, "num_cores": 2}, ["'num-cores' twice"]),
        ("llvm -mcpu='", ["can't be split"]),
        ('{"kind": "llvm"', ["looks like JSON"]),
        ('{"kind": ' + "[" * 100_000, ["looks like JSON"]),
        ('{"mcpu": "haswell"}', ["has no kind"]),
        ({"kind": "llvm", "num-cores": "8"}, ["'num-cores'", "'8'", "int"]),
        ({"kind": "llvm", "num-cores": True}, ["'num-cores'", "True", "int"]),
        ({"kind": "llvm", "mattr": "+avx2"}, ["'mattr'", "list of str"]),
        ({"kind": "llvm", "features": ["avx2"]}, ["'features'", "follows from others"]),
        (7, ["string, a dictionary or a Target"]),
    ],
)
def test_invalid_targets_are_rejected(text, words):
    with pytest.raises(TargetError) as caught:
        Target(text)
    for word in words:
        assert word in str(caught.value)


def test_current_target_is_the_innermost():
    assert Target.current() is None
    with pytest.raises(TargetError, match="no current target"):
        Target.current(allow_none=False)
    outer, inner = Target("llvm"), Target(SKYLAKE_X)
    with outer:
        with inner:
            assert Target.current() is inner
        with outer:
            assert Target.current() is outer
        assert Target.current() is outer
    assert Target.current() is None


def test_host_target():
    target = Target("llvm", host="llvm -mcpu=haswell")
    assert target.host is not None and target.host.mcpu == "haswell"
    assert target.with_host(SKYLAKE_X).host == Target(SKYLAKE_X)
    assert Target("llvm").host is None


def test_with_attrs():
    assert Target(SKYLAKE_X).with_attrs(num_cores=3).num_cores == 3
    assert Target(SKYLAKE_X).with_attrs(mattr=["-avx512f"]).features.isdisjoint({"avx512f", "avx512bw"})


def test_from_device():
    assert Target.from_device("cpu") == Target("llvm")


def test_kinds_are_an_open_set():
    kind = register_target_kind("test_npu", device="cpu")
    kind.add_attr_option("lanes", int, 8, "lanes").add_attr_option("fast", bool, False)
    kind.add_attr_option("scale", float, 1.0).add_attr_option("twice", int).set_default_keys(["npu"])
    kind.set_parser(lambda attrs: {**attrs, "twice": 2 * attrs["lanes"]})
    assert "test_npu" in list_target_kinds() and target_kind("test_npu") is kind
    target = Target("test_npu -keys=mine -fast -scale=2")
    assert target.keys == ("mine", "npu") and target.get("fast") is True and target.get("scale") == 2.0
    assert target.get("twice") == 16 and target.get("absent", 5) == 5 and target.num_cores == 1
    assert Target(str(target)) == target
    with pytest.raises(TargetError, match="registered already"):
        register_target_kind("test_npu", device="cpu")
    with pytest.raises(TargetError, match="option 'lanes' already"):
        kind.add_attr_option("lanes", int)


def test_boolean_option_spellings():
    option = AttrOption("fast", bool)
    assert option.read("true") is True and option.read("0") is False
    with pytest.raises(TargetError, match="true or false"):
        option.read("maybe")


PROBE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
code = llvm.parse_assembly("define void @f() { ret void }")
for line in sys.stdin:
    triple, cpu, features = line.split()
    llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features).emit_assembly(code)
"""


def test_llvm_knows_the_processors_and_features():
    """Runs in a process of its own, because LLVM aborts the process for some unknown names."""
    pytest.importorskip("llvmlite")
    lines = []
    for name, row in PROCESSORS.items():
        features = row.features
        triple = "aarch64-unknown-linux-gnu" if "neon" in features else "x86_64-unknown-linux-gnu"
        lines.append(f"{triple} {name} {','.join(f'+{feature}' for feature in sorted(features))}")
    done = subprocess.run(
        [sys.executable, "-c", PROBE], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == ""
