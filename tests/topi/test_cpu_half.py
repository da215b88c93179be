"""Elementwise functions of float16, by vectors."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.te.tir import call_intrin
from relayc.topi.registry import schedule_for


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize(
    ("target", "instruction"),
    [("-mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", "vroundps"),
     ("-mtriple=x86_64-unknown-linux-gnu -mcpu=znver4", "vrndscaleps"),
     ("-mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1", ".8h")],
)  # fmt: skip
def test_float16_is_rounded_by_vectors(name, target, instruction):
    x = te.placeholder((256,), "float16", "x")
    y = getattr(topi, name)(x)
    target = backend.Target(f"llvm {target}")
    text = backend.build(te.lower(schedule_for([y], target), [x, y]), target=target).get_source("asm")
    rounding = [line for line in text.splitlines() if instruction in line and ("frint" in line or "vr" in line)]
    assert rounding and f"{name}f" not in text and "roundevenf" not in text


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_every_float16_is_rounded_as_numpy_does(name):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = te.placeholder(halves.shape, "float16", "x")
    y = getattr(topi, name)(x)
    target = backend.Target("llvm")
    found = backend.nd.empty(halves.shape, "float16")
    backend.build(te.lower(schedule_for([y], target), [x, y]), target=target)(backend.nd.array(halves), found)
    with np.errstate(invalid="ignore"):
        expected = (np.rint if name == "round" else getattr(np, name))(halves)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2", "llvm -mcpu=haswell"])
@pytest.mark.parametrize(("dtype", "bits", "smallest"), [("float16", 11, -14), ("bfloat16", 8, -126)])
def test_gelu_of_every_16_bit_float(dtype, bits, smallest, target):
    """Precise down to the smallest float16 values, where 1 + erf(x) cancels."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    x = te.placeholder(halves.shape, dtype, "x")
    y = topi.nn.gelu(x, False)
    kind = backend.Target(target)
    found = backend.nd.empty(halves.shape, dtype)
    backend.build(te.lower(schedule_for([y], kind), [x, y]), target=kind)(backend.nd.array(halves), found)
    with np.errstate(invalid="ignore"):
        result, wide = found.numpy().astype("f8"), halves.astype("f8")
    assert np.isnan(result[np.isnan(wide)]).all()
    assert result[wide == np.inf] == np.inf
    assert result[wide == -np.inf] == 0
    finite = np.isfinite(wide)
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in wide[finite]])
    last = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(exact) + 1e-300)), smallest) - bits + 1)
    error = np.abs(result[finite] - exact) / last
    assert np.max(error[wide[finite] > -5.5]) <= 0.7
    assert np.max(np.abs(result[finite] - exact)[wide[finite] <= -5.5]) <= 1e-7


@pytest.mark.parametrize(("cpu", "instruction"), [("haswell", "vpermilps"), ("skylake-avx512", "vscalefps")])
@pytest.mark.parametrize("function", [topi.exp, topi.sigmoid])
def test_exponentials_use_shuffled_tables_or_vscalef(cpu, instruction, function):
    x = te.placeholder((4096,), "float16", "x")
    y = function(x)
    target = backend.Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    text = backend.build(te.lower(schedule_for([y], target), [x, y]), target=target).get_source("asm")
    assert re.search(f"\t{instruction}\t", text)


@pytest.mark.parametrize(("cpu", "estimated"), [("haswell", False), ("skylake-avx512", True)])
@pytest.mark.parametrize("lanes", [16, 32, 7])
def test_reciprocals_are_estimated_where_one_instruction_has_14_bits(cpu, estimated, lanes):
    x = te.placeholder((4 * lanes,), "float32", "x")
    y = te.compute(x.shape, lambda i: call_intrin("float32", "fast_reciprocal", x[i]), name="y")
    s = te.create_schedule(y.op)
    s[y].vectorize(s[y].split(y.op.axis[0], factor=lanes)[1])
    code = te.lower(s, [x, y])
    text = backend.build(code, target=backend.Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}"))
    assert text.get_source("asm").count("\tvrcp14ps") == (lanes // 16 if estimated else 0)
    values, found = np.geomspace(1e-30, 1e30, 4 * lanes).astype("f4"), backend.nd.empty(x.shape, "float32")
    backend.build(code, target=backend.Target("llvm"))(backend.nd.array(values), found)
    np.testing.assert_allclose(found.numpy(), 1 / values, rtol=2.0**-14)


def test_gelu_repeats_its_argument_few_times():
    """Fused behind a product, the expression is repeated for each element of a tile."""
    y = topi.nn.gelu(te.placeholder((64,), "float16", "x"), False)
    assert str(y.op.body[0]).count("x[") <= 4


@pytest.mark.parametrize("columns", [49, 300])
@pytest.mark.parametrize(
    ("dtype", "function", "bits"),
    [("float16", "fast_exp", 11), ("bfloat16", "fast_exp", 8), ("float32", "exp_nonpositive", 21)],
)
def test_softmax_is_as_precise_as_its_results(dtype, function, bits, columns):
    """16-bit results need less precision than float32 sums; with masked elements and large values, too."""
    values = np.random.default_rng(0).normal(0, 4, (64, columns))
    values[:, ::7], values[3], values[5] = -60000, values[3] + 200, values[5] - 300
    values = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = te.placeholder(values.shape, dtype, "x")
    y, target, found = topi.nn.softmax(x, 1), backend.Target("llvm"), backend.nd.empty(values.shape, dtype)
    code = te.lower(schedule_for([y], target), [x, y])
    assert set(re.findall(r"\w*exp\w*(?=\()", str(code))) == {function}
    backend.build(code, target=target)(backend.nd.array(values), found)
    exact = np.exp(values.astype("f8") - values.astype("f8").max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(found.numpy().astype("f8"), exact, rtol=0.62 * 2.0 ** (1 - bits), atol=2.0**-25)
