"""Attention on GPUs, against numpy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.cuda.build import prepare
from relayc.backend.runtime import Module
from relayc.backend.target import Target
from relayc.relay.op.common import numpy_dtype
from relayc.te.ir import IRModule
from relayc.te.ir.decisions import recording
from relayc.topi.cuda import attention
from relayc.topi.registry import schedule_for
from tests.cuda_proof import proof

RNG = np.random.default_rng(8)
TARGET = Target("cuda -arch=sm_90")


def expected(q, k, v, scale, causal, mask=None, bias=None, softcap=0.0):
    per_group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, per_group, axis=1), np.repeat(v, per_group, axis=1)
    score = q @ k.swapaxes(-1, -2) * scale
    score = np.tanh(score / softcap) * softcap if softcap else score
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    score = score if bias is None else score + bias
    if causal:
        rows, keys = score.shape[-2:]
        score = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, score, -np.inf)
    largest = score.max(-1, keepdims=True)
    weight = np.exp(score - np.where(np.isinf(largest), 0, largest))
    total = weight.sum(-1, keepdims=True)
    return weight / np.where(total == 0, 1, total) @ v


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(3, 3), (4, 2)])
def test_attention(cuda_device, heads, groups, causal, dtype):
    length, keys, depth, width = 33, 40, 16, 24
    shapes = [(2, heads, length, depth), (2, groups, keys, depth), (2, groups, keys, width), (1, 1, length, keys)]
    arrays = [RNG.standard_normal(s).astype(dtype) for s in shapes]
    q, k, v, mask = [te.placeholder(a.shape, dtype, n) for a, n in zip(arrays, "qkvm", strict=True)]
    out = topi.nn.attention(q, k, v, mask, 0.25, causal)
    library = backend.build(te.lower(schedule_for([out], TARGET), [q, k, v, mask, out]), target=TARGET)
    result = backend.nd.empty((2, heads, length, width), dtype, cuda_device)
    library(*[backend.nd.array(a, cuda_device) for a in arrays], result)
    wide = [a.astype("float32") for a in arrays]
    tolerance = 1e-4 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(
        result.numpy(), expected(*wide[:3], 0.25, causal, wide[3]), rtol=tolerance, atol=tolerance
    )


@dataclass(frozen=True)
class Case:
    """Attention in 16-bit floats."""

    queries: int
    keys: int
    depth: int = 64
    width: int = 0
    heads: int = 2
    groups: int = 2
    batch: int = 1
    dtype: str = "float16"
    causal: bool = False
    mask: str = ""
    bias: bool = False
    softcap: float = 0.0

    def __str__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return ",".join(changed)


LENGTHS = (1, 7, 64, 100, 257)
CASES = [
    *[Case(n, n, causal=causal) for n in LENGTHS for causal in (False, True)],
    *[Case(70, 90, depth, causal=True) for depth in (16, 20, 32, 33, 80, 96, 128, 192)],
    *[Case(70, 90, 64, width) for width in (7, 18, 40, 128)],
    *[Case(40, 130, heads=6, groups=groups, batch=2, causal=True) for groups in (1, 2, 6)],
    *[Case(40, 130, mask=mask) for mask in ("float16", "float32", "bool")],
    Case(100, 30, causal=True),
    Case(50, 128, mask="bool", bias=True, softcap=5.0),
    Case(128, 128, mask="float16", causal=True, batch=2),
    Case(65, 127, dtype="bfloat16", mask="bool", causal=True),
]  # fmt: skip


def tensors(case: Case, queries: te.Dim, keys: te.Dim) -> tuple[list[te.Tensor], te.Tensor]:
    """The arguments and the result, for so many queries and keys."""
    shapes = [(case.batch, case.heads, queries, case.depth), (case.batch, case.groups, keys, case.depth),
              (case.batch, case.groups, keys, case.width or case.depth)]  # fmt: skip
    q, k, v = [te.placeholder(shape, case.dtype, n) for n, shape in zip("qkv", shapes, strict=True)]
    extra = [(case.mask, "mask")] if case.mask else []
    extra += [(case.dtype, "bias")] if case.bias else []
    added = {n: te.placeholder((case.batch, 1, queries, keys), kind, n) for kind, n in extra}
    out = topi.nn.attention(
        q, k, v, added.get("mask"), 0.125, case.causal, softcap=case.softcap, bias=added.get("bias")
    )
    return [q, k, v, *added.values()], out


def lowered(
    case: Case, arch: str = "sm_90", symbolic: bool = False, choice: str = "one kernel"
) -> tuple[IRModule, Target, list[te.Tensor]]:
    """The attention lowered, by one kernel or four whichever the model predicts to be faster."""
    target = Target(f"cuda -arch={arch}")
    sizes = (te.size_var("s"), te.size_var("t")) if symbolic else (case.queries, case.keys)
    arguments, out = tensors(case, *sizes)
    with pytest.MonkeyPatch.context() as patch, recording() as decisions:
        patch.setattr(attention, "_cycles_of_four", lambda facts: float("inf") if choice == "one kernel" else 0.0)
        schedule = schedule_for([out], target)
    assert any(d.choice == choice for d in decisions), decisions
    return te.lower(schedule, [*arguments, out]), target, arguments


def check_results(cuda_device, library: Module, case: Case, arguments: list[te.Tensor]) -> None:
    sizes = {"s": case.queries, "t": case.keys}
    inputs: list[backend.nd.NDArray] = []
    for tensor in arguments:
        values = RNG.standard_normal([d if isinstance(d, int) else sizes[d.name] for d in tensor.shape])
        typed = values > 0 if tensor.dtype.is_bool else values.astype(numpy_dtype(str(tensor.dtype)))
        inputs.append(backend.nd.array(typed, cuda_device))
    arrays = [x.numpy() if str(x.dtype) == "bool" else x.numpy().astype("float32") for x in inputs]
    named = dict(zip([t.op.name for t in arguments], arrays, strict=True))
    result = backend.nd.empty((case.batch, case.heads, case.queries, case.width or case.depth), case.dtype, cuda_device)
    library(*inputs, result)
    reference = expected(
        *arrays[:3], 0.125, case.causal, named.get("mask"), named.get("bias"), case.softcap
    )
    tolerance = 2e-2 if case.dtype == "bfloat16" else 3e-3
    np.testing.assert_allclose(result.numpy().astype("float32"), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_in_one_kernel(cuda_device, case):
    module, target, arguments = lowered(case)
    check_results(cuda_device, backend.build(module, target=target), case, arguments)


@pytest.mark.parametrize("case", [Case(0, 0), Case(0, 0, causal=True), Case(0, 0, 20, mask="bool")], ids=str)
def test_one_kernel_serves_any_lengths(cuda_device, case):
    module, target, arguments = lowered(case, symbolic=True)
    library = backend.build(module, target=target)
    for queries, keys in [*zip(LENGTHS, LENGTHS, strict=True), (1, 257), (100, 30)]:
        check_results(cuda_device, library, replace(case, queries=queries, keys=keys), arguments)


def test_few_queries_of_a_dynamic_number_have_a_kernel_of_their_own():
    module, target, _ = lowered(Case(0, 0, heads=32), symbolic=True)
    (function,) = prepare(module, target)
    many, few = function.kernels
    assert few.threads == 32 < many.threads


def test_attention_in_16_bits_in_four_kernels(cuda_device):
    case = Case(50, 60, groups=1, mask="float16", causal=True)
    module, target, arguments = lowered(case, choice="four kernels")
    check_results(cuda_device, backend.build(module, target=target), case, arguments)


CHECKED = [
    Case(100, 100, causal=True),
    Case(65, 127, 80, dtype="bfloat16", mask="bool"),
    Case(70, 90, 33, 18, groups=1),
    Case(300, 300, 128, batch=2),
]


@pytest.mark.parametrize("case", CHECKED, ids=str)
def test_the_kernel_has_no_races(case):
    module, target, _ = lowered(case)
    assert proof.check_kernels([module["main"]], str(target.get("arch"))) == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("depth", [64, 128])
def test_the_kernel_fits_the_registers(depth, arch):
    module, _, _ = lowered(Case(1024, 1000, depth, heads=96, groups=96, causal=True, mask="float16"), arch)
    (report,) = proof.compile_for([module["main"]], arch).report.values()
    assert report["spill_loads"] == report["spill_stores"] == report["stack"] == 0
