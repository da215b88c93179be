"""Models compiled for other processors than this one: run where this machine can, read as assembly where it can't."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from relayc import relay
from relayc.backend.llvm.runtime import LLVMModule
from relayc.backend.runtime import ArtifactError, CompiledModel, GraphModule, device
from relayc.backend.target import Target
from relayc.te.ir import IRModule

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 12, 15, 15)).astype(np.float32)
KERNEL = RNG.standard_normal((24, 12, 3, 3)).astype(np.float32)
DEPTHWISE = RNG.standard_normal((24, 1, 3, 3)).astype(np.float32)
WEIGHT = RNG.standard_normal((40, 24)).astype(np.float32)

RUNNABLE = ["x86-64", "x86-64-v2", "x86-64-v3", "haswell", "skylake-avx512", "x86-64-v4"]
LINUX = "-mtriple=x86_64-unknown-linux-gnu"
VECTORS = {
    f"llvm {LINUX} -mcpu=x86-64-v2": (r"mulps\s.*%xmm\d", r"%[yz]mm"),
    f"llvm {LINUX} -mcpu=haswell": (r"vfmadd\w+ps\s.*%ymm\d", "%zmm"),
    f"llvm {LINUX} -mcpu=skylake-avx512": (r"vfmadd\w+ps\s.*%zmm\d", "no such thing"),
    f"llvm {LINUX} -mcpu=znver5": (r"vfmadd\w+ps\s.*%zmm\d", "no such thing"),
    "llvm -mtriple=aarch64-unknown-linux-gnu": (r"fmla\s+v\d+\.4s", "[xyz]mm"),
    "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-v2": (r"fmla\s+v\d+\.4s", "[xyz]mm"),
    "llvm -mtriple=aarch64-apple-darwin -mcpu=apple-m1": (r"fmla(\.4s)?\s+v\d+", "[xyz]mm"),
}
"""Target -> patterns of the multiply-adds of its vectors, and of instructions its code must not have."""


def model() -> IRModule:
    """A convolution, a depthwise one, a pooling over everything, a product and a softmax."""
    x = relay.var("x", X.shape)
    y = relay.nn.relu(relay.nn.conv2d(x, relay.const(KERNEL), padding=(1, 1, 1, 1)))
    y = relay.nn.conv2d(y, relay.const(DEPTHWISE), padding=(1, 1, 1, 1), groups=24)
    y = relay.mean(relay.sigmoid(y), axis=(2, 3))
    return IRModule({"main": relay.Function((x,), relay.nn.softmax(relay.nn.dense(y, relay.const(WEIGHT))))})


def run(lib: CompiledModel) -> np.ndarray:
    return GraphModule(lib["default"](device("cpu", 0)))(X)[0].numpy()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return relay.create_executor("debug", model()).evaluate()(X)


@pytest.mark.parametrize("cpu", RUNNABLE)
def test_older_processors_give_the_same_results(cpu, expected):
    target = Target(f"llvm {LINUX} -mcpu={cpu}")
    if not target.features <= Target("llvm").features:
        pytest.skip(f"this machine is no {cpu}")
    np.testing.assert_allclose(run(relay.build(model(), target)), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target", VECTORS)
def test_kernels_use_the_vectors_of_their_processor(target):
    module = relay.build(model(), target).module
    assert isinstance(module, LLVMModule)
    assembly = module.get_source("asm")
    wanted, unwanted = VECTORS[target]
    assert len(re.findall(wanted, assembly)) > 20
    assert not re.search(unwanted, assembly)


@pytest.mark.parametrize(("target", "machine"), [(f"llvm {LINUX} -mcpu=znver5", 62), (list(VECTORS)[4], 183)])
def test_object_code_is_for_the_machine_named(target, machine):
    module = relay.build(model(), target).module
    assert isinstance(module, LLVMModule)
    for part in module._parts:
        kind, found = struct.unpack_from("<HH", part.code, 16)
        assert (part.code[:5], kind, found) == (b"\x7fELF\x02", 1, machine)


@pytest.mark.parametrize("target", [f"llvm {LINUX} -mcpu=sapphirerapids", "llvm -mtriple=aarch64-unknown-linux-gnu"])
def test_code_for_another_processor_is_rejected(target, tmp_path):
    if Target(target).features <= Target("llvm").features:
        pytest.skip("this machine can run it")
    lib = relay.build(model(), target)
    lib.save(tmp_path / "m.relayc")
    with pytest.raises(ArtifactError, match=r"this machine|instructions"):
        run(lib)


_AARCH64_VECTORS = {
    "fmla": (0xFFA0FC00, 0x4E20CC00),
    "fmla by element": (0xFF80F400, 0x4F801000),
    "fadd": (0xFFA0FC00, 0x4E20D400),
    "fmul": (0xFFA0FC00, 0x6E20DC00),
}
"""Instruction of 128-bit vectors -> (mask, value) of its 32 bits (Arm Architecture Reference Manual, C7.2)."""


def aarch64_instructions(code: bytes) -> set[str]:
    """The instructions of the table that occur in the executable sections of an ELF object."""
    (table,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    found: set[str] = set()
    for number in range(count):
        flags, _, offset, size = struct.unpack_from("<QQQQ", code, table + 64 * number + 8)
        if flags & 4:  # SHF_EXECINSTR
            words = np.frombuffer(code, "<u4", size // 4, offset)
            found |= {name for name, (mask, value) in _AARCH64_VECTORS.items() if ((words & mask) == value).any()}
    return found


@pytest.mark.parametrize("target", [t for t in VECTORS if "aarch64-unknown" in t])
def test_every_kernel_for_aarch64_computes_with_vectors(target):
    module = relay.build(model(), target).module
    assert isinstance(module, LLVMModule)
    kernels = {part.functions[0].name: part.code for part in module._parts if part.functions[0].name != "relayc_run"}
    kernels = {name: code for name, code in kernels.items() if "fused_transpose" not in name}  # moves data only
    assert len(kernels) >= 4
    for name, code in kernels.items():
        found = aarch64_instructions(code)
        assert found, name
        assert not re.search("conv|dense", name) or found & {"fmla", "fmla by element"}, name
