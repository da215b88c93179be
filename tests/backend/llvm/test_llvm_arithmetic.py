"""Arithmetic, comparisons and conversions of all types and widths through LLVM, against the interpreter."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import pytest

from relayc.backend.llvm.build import build
from relayc.backend.target import Target
from relayc.te.ir import IRModule
from relayc.te.tir import (
    Add,
    Div,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mod,
    Mul,
    Sub,
    cast,
    const,
)
from relayc.te.tir.ops import all as all_of, any as any_of, logical_not
from tests.backend.llvm.programs import LANES, assert_same, elementwise, rng, sample


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "int64", "float16", "bfloat16"])
def test_arithmetic_of_every_type_and_width(run_both, dtype, lanes):
    count = lanes * 3
    for node in (Add, Sub, Mul):
        f = elementwise(lambda a, b, node=node: node(a, b), [dtype, dtype], dtype, lanes, count)
        assert_same(run_both(f, sample(dtype, count), sample(dtype, count), np.zeros_like(sample(dtype, count))))


@pytest.mark.parametrize("lanes", [1, 4, 5])
@pytest.mark.parametrize("node", [Div, Mod, FloorDiv, FloorMod])
@pytest.mark.parametrize("dtype", ["int32", "int8", "int64"])
def test_integer_division_has_the_right_sign(run_both, dtype, node, lanes):
    values = np.array(list(range(-9, 10)), dtype)
    pairs = [(a, b) for a, b in itertools.product(values, values) if b != 0]
    pairs = pairs[: len(pairs) // lanes * lanes]
    a, b = (np.array([p[k] for p in pairs], dtype) for k in (0, 1))
    f = elementwise(node, [dtype, dtype], dtype, lanes, len(a))
    assert_same(run_both(f, a, b, np.zeros_like(a)))
    for divisor in (1, 2, 3, 8, -2, -3):
        g = elementwise(lambda x, d=divisor: node(x, cast(x.dtype, const(d, "int64"))), [dtype], dtype, lanes, len(a))
        assert_same(run_both(g, a, np.zeros_like(a)))


@pytest.mark.parametrize("node", [Div, Mod, FloorDiv, FloorMod])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integer_vectors_are_divided_exactly(run_both, dtype, node):
    """They are divided as floats: quotients next to integers, of values up to the type's limits, must not be rounded
    up."""
    info = np.iinfo(dtype)
    some = rng.integers(info.min, info.max, 2000, endpoint=True)
    divisors = np.concatenate([some, rng.integers(1, 100, 2000), [info.max, info.min or 1, 1, 2]])
    divisors = divisors[divisors != 0]
    quotients = rng.integers(info.min, info.max, len(divisors), endpoint=True) // divisors
    a = np.concatenate([rng.permutation(divisors), *[quotients * divisors + i for i in (-1, 0, 1)]])
    b = np.tile(divisors, 4)
    fits = (a >= info.min) & (a <= info.max) & ~((a == info.min) & (b == -1))
    a, b = (x[fits][: fits.sum() // 8 * 8].astype(dtype) for x in (a, b))
    f = elementwise(node, [dtype, dtype], dtype, 8, len(a))
    assert_same(run_both(f, a, b, np.zeros_like(a)))


@pytest.mark.parametrize("node", [Div, Mod, FloorDiv, FloorMod])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("bits", [20, 51, 52, 63])
def test_int64_vectors_are_divided_exactly(run_both, dtype, node, bits):
    """Divided as floats if all values have 51 bits at most: next to multiples, and with one larger value in any
    lane."""
    lowest = 0 if dtype == "uint64" else -(2**bits)
    some = rng.integers(lowest, 2**bits - 1, 400)
    b = np.concatenate([some[some != 0], rng.integers(1, 100, 400), [2**bits - 1, lowest or 2, 1]])
    quotients = rng.integers(lowest, 2**bits - 1, len(b)) // b
    a = np.concatenate([rng.permutation(b), *[quotients * b + i for i in (-1, 0, 1)]])
    b = np.tile(b, 4)
    fits = (a >= lowest) & (a < 2**bits) & ~((a == lowest) & (b == -1))
    a, b = (x[fits][: fits.sum() // 8 * 8].astype(dtype) for x in (a, b))
    half = len(a) // 2
    a[half::9], b[half + 900 :: 9] = 2**62 + 12345, 2**60 + 1
    for lanes in (8, 4):
        f = elementwise(node, [dtype, dtype], dtype, lanes, len(a))
        assert_same(run_both(f, a, b, np.zeros_like(a)))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("node", [Div, FloorDiv, Mod, FloorMod])
def test_division_by_zero_and_overflow_do_not_trap(run_llvm, node, lanes, dtype):
    lowest, is_quotient = np.iinfo(dtype).min, node in (Div, FloorDiv)
    f = elementwise(node, [dtype, dtype], dtype, lanes, 4)
    for low, quotient in ((lowest, lowest), (-7, 7)):  # small values take the vector path, divided as floats
        a, b = np.array([5, -5, low, low], dtype), np.array([0, 0, -1, 0], dtype)
        c = run_llvm(f, a, b, np.ones(4, dtype))
        np.testing.assert_array_equal(c[2], [0, 0, quotient if is_quotient else 0, 0])


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
def test_min_and_max_propagate_nan(run_both, dtype, lanes):
    a, b = sample(dtype, 24), sample(dtype, 24)
    if a.dtype.kind not in "iu":
        a[:4] = np.nan
        b[3:8] = np.nan
    for node in (Min, Max):
        f = elementwise(lambda x, y, node=node: node(x, y), [dtype, dtype], dtype, lanes, 24)
        assert_same(run_both(f, a, b, np.zeros_like(a)))
        g = elementwise(lambda x, node=node: node(x, cast(x.dtype, const(0))), [dtype], dtype, lanes, 24)
        assert_same(run_both(g, a, np.zeros_like(a)))


@pytest.mark.parametrize("lanes", [1, 4, 5])
def test_comparisons_logic_and_bool_memory(run_both, lanes):
    def truth(a, b, p):
        return any_of(all_of(a < b, p), all_of(a >= b, logical_not(p)), a == b)

    for dtype in ("float32", "int16", "uint64", "bfloat16"):
        f = elementwise(truth, [dtype, dtype, "bool"], "bool", lanes, 20)
        a, b = sample(dtype, 20, -3, 3), sample(dtype, 20, -3, 3)
        assert_same(run_both(f, a, b, sample("bool", 20), np.zeros(20, bool)))


CAST_TYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
              "float64"]  # fmt: skip


@pytest.mark.parametrize("source", CAST_TYPES)
@pytest.mark.parametrize("lanes", [1, 5, 8])
def test_casts(run_both, source, lanes):
    values = sample(source, 40, -60, 60)
    for target in CAST_TYPES:
        if target == source:
            continue
        f = elementwise(lambda a, to=target: cast(to, a), [source], target, lanes, 40)
        assert_same(run_both(f, values, np.zeros(40, sample(target, 1).dtype)))


@pytest.mark.parametrize("lanes", [8, 16, 48, 64])
def test_bfloat16_rounds_to_nearest_even(run_both, lanes):
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    f = elementwise(lambda a: cast("bfloat16", a), ["float32"], "bfloat16", lanes, 4096 // lanes * lanes)
    values = values[: 4096 // lanes * lanes]
    ((_, _), (mine, expected)) = run_both(f, values, np.zeros(len(values), ml_dtypes.bfloat16))
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(mine[finite].view(np.uint16), expected[finite].view(np.uint16))
    assert np.isnan(mine[~finite].astype("f4")).all()


@pytest.mark.parametrize("lanes", [16, 32, 48])
def test_denormals_are_rounded_to_bfloat16(run_both, lanes):
    """The processor's instruction flushes them to zero. Every kind, one per lane among normal values."""
    denormal = np.array([1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF, 0x80008001, 0x807FFFFF], np.uint32)
    values = np.full((len(denormal), lanes, lanes), 1.0 + 2.0**-8, np.float32)
    for of_kind, bits in zip(values, denormal.view(np.float32), strict=True):
        np.fill_diagonal(of_kind, bits)
    values = values.ravel()
    f = elementwise(lambda a: cast("bfloat16", a), ["float32"], "bfloat16", lanes, len(values))
    ((_, _), (mine, expected)) = run_both(f, values, np.zeros(len(values), ml_dtypes.bfloat16))
    np.testing.assert_array_equal(mine.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(
    ("cpu", "lanes", "count"), [("znver4", 64, 2), ("znver4", 16, 1), ("znver4", 48, 0), ("skylake-avx512", 64, 0)]
)
def test_bfloat16_rounding_uses_the_instruction(cpu, lanes, count):
    f = elementwise(lambda a: cast("bfloat16", a), ["float32"], "bfloat16", lanes, 4 * lanes)
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    text = build(IRModule({"f": f}), target).get_source("asm")
    body = text[: text.index("vpsrld")] if count else text
    assert len(re.findall(r"\tvcvtne2?ps2bf16\t", body)) == count
    assert ("vfpclassps" in body) == bool(count)


@pytest.mark.parametrize("lanes", [1, 8])
def test_float16_without_conversion_instructions(run_llvm, lanes):
    old = Target("llvm -mcpu=x86-64-v2") if "x86" in Target("llvm").get("mtriple") else Target("llvm")
    every_half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    widen = elementwise(lambda a: cast("float32", a), ["float16"], "float32", lanes, 1 << 16)
    wide = run_llvm(widen, every_half, np.zeros(1 << 16, "f4"), target=old)[1]
    np.testing.assert_array_equal(wide, every_half.astype("f4"))
    bits = rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint64).astype(np.uint32).view(np.float32)
    some = [bits, rng.uniform(-1e-4, 1e-4, 1 << 14), rng.uniform(-7e4, 7e4, 1 << 13), np.repeat(wide[: 1 << 12], 2)]
    with np.errstate(invalid="ignore"):
        values = np.concatenate(some).astype("f4")
    values[-(1 << 13) :: 2] = np.nextafter(values[-(1 << 13) :: 2], np.float32(9))
    narrow = elementwise(lambda a: cast("float16", a), ["float32"], "float16", lanes, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype("f2")
    np.testing.assert_array_equal(run_llvm(narrow, values, np.zeros(len(values), "f2"), target=old)[1], expected)
    text = build(IRModule({"f": elementwise(lambda a: a * a, ["float16"], "float16", lanes, 64)}), old)
    assert "hfsf" not in text.get_source("asm") and "sfhf" not in text.get_source("asm")


def test_multiply_add_is_contracted_where_the_target_fuses(run_llvm):
    def compute(a, b, c):
        return a * b + c

    f = elementwise(compute, ["float32"] * 3, "float32", 8, 8)
    fused = build(IRModule({"f": f}), Target("llvm -mcpu=haswell"))
    assert "vfmadd" in fused.get_source("asm")
    plain = build(IRModule({"f": f}), Target("llvm -mcpu=x86-64-v2"))
    assert "mulps" in plain.get_source("asm")
    for form, reference in ((lambda a, b, c: c - a * b, lambda a, b, c: c - a * b),
                            (lambda a, b, c: a * b - c, lambda a, b, c: a * b - c)):  # fmt: skip
        a, b, c = (sample("float32", 16) for _ in range(3))
        g = elementwise(form, ["float32"] * 3, "float32", 8, 16)
        got = run_llvm(g, a, b, c, np.zeros(16, "float32"))[3]
        np.testing.assert_allclose(got, reference(*(x.astype("f8") for x in (a, b, c))), rtol=1e-4, atol=1e-2)
