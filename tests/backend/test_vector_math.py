"""Accuracy of the expanded mathematical functions on dense samples and special values, against numpy in higher
precision."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest

from relayc.backend import vector_math
from relayc.backend.llvm.build import build
from relayc.backend.lower_intrin import LowerIntrin, lower_intrinsics
from relayc.backend.runtime import nd
from relayc.backend.target import Target
from relayc.backend.vector_math import EXPANSIONS, Instructions
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, collect
from relayc.te.tir import (
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    For,
    ForKind,
    PrimFunc,
    Var,
    broadcast,
    call_intrin,
    const,
    decl_buffer,
    ramp,
)

COUNT = 1 << 15
_STATED = re.compile(r"(\w+) (\d+\.\d)")


def stated_ulp() -> dict[tuple[str, str], float]:
    """The error table in the docstring of `vector_math`."""
    found, dtype = {}, ""
    for line in (vector_math.__doc__ or "").splitlines():
        dtype = next((d for d in ("float32", "float64") if line.strip().startswith(d)), dtype)
        for name, ulp in _STATED.findall(line):
            found[name, dtype] = float(ulp)
    return found


STATED = stated_ulp()
REFERENCES = {
    "exp_nonpositive": np.exp,
    "fast_exp": np.exp,
    "log1p_fraction": np.log1p,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "erf": np.vectorize(math.erf),
    "fast_gelu": np.vectorize(lambda x: max(x, -100) * math.erfc(-x * math.sqrt(0.5)) / 2),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "atan2": np.arctan2,
}  # fmt: skip
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-45, -1e-45, 1e-38, 88.7, 88.73, 89.4,
           -87.4, -103.9, -104.1, 3.4e38, -3.4e38, 709.8, -745, 1e20]  # fmt: skip


def function(op: str, dtype: str, arity: int, lanes: int, count: int) -> PrimFunc:
    buffers = [decl_buffer((count,), dtype, name=f"A{k}") for k in range(arity)]
    out, i = decl_buffer((count,), dtype, name="C"), Var("i")
    at = (ramp(i * lanes, 1, lanes),)
    value = call_intrin(out.dtype.with_lanes(lanes), op, *[BufferLoad(b, at) for b in buffers])
    body = For(i, const(0), const(count // lanes), ForKind.SERIAL, BufferStore(out, value, at))
    everyone = (*buffers, out)
    return PrimFunc(tuple(b.data for b in everyone), body, {b.data: b for b in everyone}, {"global_symbol": "f"})


def run(op: str, lanes: int, *args: np.ndarray, target: str = "llvm") -> np.ndarray:
    dtype = str(args[0].dtype)
    f = function(op, dtype, len(args), lanes, len(args[0]))
    placed, out = [nd.array(a) for a in args], nd.array(np.zeros_like(args[0]))
    build(IRModule({"f": f}), Target(target))["f"](*placed, out)
    return out.numpy()


def samples(dtype: str, seed: int) -> np.ndarray:
    """Random bits for every magnitude, the most used range, values near 0, near 1 and near overflow, and special
    values."""
    rng, part = np.random.default_rng(seed), COUNT // 8
    words = rng.integers(0, 1 << 63, 2 * part, dtype=np.uint64)
    bits = (words.astype(np.uint32).view("f4") if dtype == "float32" else words.view("f8")).astype(dtype)
    edge = 110 if dtype == "float32" else 750
    parts = [
        np.array(SPECIAL), bits, -bits[:part], rng.uniform(-10, 10, 2 * part), rng.uniform(-1, 1, part),
        rng.uniform(-1, 1, part) * 10.0 ** rng.uniform(-30, 0, part), rng.uniform(-edge, edge, part),
        1 + rng.uniform(-0.01, 0.01, part),
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.concatenate([p.astype(dtype) for p in parts])[:COUNT]


def check(op: str, got: np.ndarray, args: tuple[np.ndarray, ...], allowed: float) -> None:
    wide = np.float64 if got.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = REFERENCES.get(op, getattr(np, op, None))(*[a.astype(wide) for a in args])
        rounded = exact.astype(got.dtype)
        spacing = np.spacing(np.maximum(np.abs(rounded), np.finfo(got.dtype).smallest_subnormal)).astype(wide)
        finite = np.isfinite(rounded) & np.isfinite(got)
        ulp = np.where(finite, np.abs(got.astype(wide) - exact) / spacing, 0)
        if op in ("exp_nonpositive", "fast_exp", "sigmoid"):  # 0 is accepted for a denormal result
            normal = np.finfo(got.dtype).smallest_normal
            ulp = np.where((exact >= 0) & (exact < normal) & (got >= 0) & (got <= normal), 0, ulp)
    worst = int(np.argmax(ulp))
    assert ulp[worst] <= allowed, f"{op}{[a[worst] for a in args]} = {got[worst]}, exactly {rounded[worst]}"
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded), f"{op}: NaN where and only where it is due")
    infinite = np.isinf(rounded) | np.isinf(got)
    np.testing.assert_array_equal(got[infinite], rounded[infinite])
    zero = rounded == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]), f"{op}: sign of zero")


def test_the_table_states_every_function():
    assert {name for name, dtype in STATED if dtype == "float32"} == set(EXPANSIONS)


OF_TWO = ("pow", "atan2", "fmod")


def within_domain(op: str, x: np.ndarray) -> np.ndarray:
    if op in ("exp_nonpositive", "fast_exp"):
        return np.where(np.abs(x) <= 64, x, -np.abs(x))
    if op == "fast_gelu":
        return np.maximum(x, -5.5)
    return np.clip(np.abs(x), 0, 1) if op == "log1p_fraction" else x


@pytest.mark.parametrize(("op", "dtype"), [key for key in STATED if key[0] not in OF_TWO])
def test_error_is_within_what_is_stated(op, dtype):
    if dtype == "float64" and np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a float type wider than float64 as reference")
    x = within_domain(op, samples(dtype, 1))
    check(op, run(op, 8, x), (x,), STATED[op, dtype])


def pairs(op: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = samples(dtype, 2), samples(dtype, 3)
    np.random.default_rng(4).shuffle(y)
    if op == "pow":
        x[: COUNT // 2] = np.abs(x[: COUNT // 2])
        with np.errstate(invalid="ignore"):
            y[-COUNT // 8 :] = np.round(y[-COUNT // 8 :])
    return x, y


@pytest.mark.parametrize(("op", "dtype"), [key for key in STATED if key[0] in OF_TWO and key != ("fmod", "float64")])
def test_error_of_functions_of_two_values(op, dtype):
    if dtype == "float64" and np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a float type wider than float64 as reference")
    x, y = pairs(op, dtype)
    check(op, run(op, 8, x, y), (x, y), STATED[op, dtype])
    grid = [g.ravel().astype(dtype) for g in np.meshgrid(SPECIAL[:24], SPECIAL[:24])]
    check(op, run(op, 8, *grid), tuple(grid), STATED[op, dtype])


def test_pow_of_float64_where_lanes_are_in_the_vectors_range():
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a float type wider than float64 as reference")
    rng = np.random.default_rng(3)
    x, y = np.exp(rng.uniform(-20, 20, 1 << 14)), rng.uniform(-2, 2, 1 << 14)
    near, steep = 1 + rng.uniform(-1e-3, 1e-3, 1 << 14), rng.uniform(-1000, 1000, 1 << 14)
    zero = np.where(rng.random(1 << 14) < 0.3, 0.0, x)
    for base, power in ((x, y), (near, steep), (zero, np.abs(y))):
        check("pow", run("pow", 8, base, power), (base, power), STATED["pow", "float64"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"])
def test_pow_with_large_exponents(target, dtype):
    """Bases away from powers of two: their logarithms have the largest low parts, which exponents multiply."""
    if "avx512" in target and "avx512f" not in Target("llvm").features:
        pytest.skip("this processor does not have AVX-512")
    if dtype == "float64" and np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a float type wider than float64 as reference")
    random = np.random.default_rng(12)
    for low, high, reach in ((0.5, 2, 40), (1.3, 1.42, 100), (0.85, 1.15, 200)):
        x, y = random.uniform(low, high, COUNT).astype(dtype), random.uniform(-reach, reach, COUNT).astype(dtype)
        check("pow", run("pow", 8, x, y, target=target), (x, y), 2.5 if dtype == "float32" else 3.0)


@pytest.mark.parametrize("op", [op for op, dtype in STATED if dtype == "float64" and op != "sqrt"])
def test_functions_of_float64_are_vectors(op):
    """The C library is called for lanes out of range only, in a branch of its own."""
    module = IRModule({"f": function(op, "float64", 2 if op in OF_TWO else 1, 8, 64)})
    calls = list(collect(LowerIntrin(has=Instructions(fused=True)).run(module, None)["f"].body, Call))
    rare = [c.args[2] for c in calls if c.op == "if_then_else"]
    of_library = [c for c in calls if c.op == op]
    assert all(any(c is r for r in rare) for c in of_library)
    assert len(of_library) == (1 if op in ("sin", "cos", "tan", "pow", "fmod") else 0)


@pytest.mark.parametrize("op", ["log", "log2", "log10", "log1p"])
def test_logarithms_on_the_fast_path(op):
    """Vectors of positive values: of any magnitude, close to 1, and from one power of two to the next."""
    random = np.random.default_rng(10)
    near, some = 1 + random.uniform(-0.1, 0.1, COUNT), random.uniform(0.5, 4, COUNT)
    x = np.concatenate([np.exp(random.uniform(-80, 80, COUNT)), near, some, 1 + np.arange(-2048, 2048) * 2.0**-23])
    x = x.astype("f4")
    x = np.concatenate([x, x[x > 0.01] - np.float32(1)]) if op == "log1p" else x
    x = x[: len(x) // 8 * 8]
    check(op, run(op, 8, x), (x,), STATED[op, "float32"] + 0.1)


@pytest.mark.parametrize(
    "op",
    ["exp", "log", "log2", "log10", "log1p", "log1p_fraction", "erf", "exp_nonpositive", "atan", "asin", "acos",
     "asinh", "acosh", "rsqrt"],
)  # fmt: skip
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"])
def test_float64_by_intervals(op, target):
    """Vectors of positive values, close to 1, around the ends of intervals, and of both signs for odd functions."""
    if "avx512" in target and "avx512f" not in Target("llvm").features:
        pytest.skip("this processor does not have AVX-512")
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a float type wider than float64 as reference")
    random = np.random.default_rng(11)
    n = np.arange(16)
    ends = np.concatenate([
        0.734628 + n[:9] / 32, 1.031756 + n[:8] / 16, (n + 0.5) * 0.3827742375433445, (n + 0.5) / 15,
        np.arange(1, 128, 2) * math.log(2) / 32, 2.0 ** np.arange(-4, 5), 1.5 * 2.0 ** np.arange(-4, 5),
        np.sin(np.arcsin((n[:14] - 6.5) / 7 / math.sqrt(2)) + math.pi / 4), [math.sqrt(2) - 1, math.sqrt(2) + 1],
    ])  # fmt: skip
    near = (ends[:, None] * (1 + np.arange(-64, 64) * 2.0**-50)).ravel()
    x = np.concatenate([1 + random.uniform(-0.1, 0.1, COUNT), random.uniform(1e-3, 8, COUNT), near[near > 0]])
    x = np.concatenate([x, x[x > 1.01] - 1]) if op == "log1p" else x
    x = x[x <= 1] if op in ("asin", "acos") else x[x >= 1] if op == "acosh" else x
    x = np.concatenate([x, -x]) if op in ("exp", "erf", "atan", "asin", "acos", "asinh") else x
    x = -x if op == "exp_nonpositive" else within_domain(op, x)
    x = x[: len(x) // 16 * 16]
    check(op, run(op, 16, x, target=target), (x,), STATED[op, "float64"])


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"])
def test_square_roots_of_float64_are_those_of_the_instruction(target: str) -> None:
    """Operands have every magnitude, and roots close to the middle of two floats, or to a float."""
    if "avx512" in target and "avx512f" not in Target("llvm").features:
        pytest.skip("this processor does not have AVX-512")
    random = np.random.default_rng(14)
    whole = random.integers(1 << 26, 1 << 27, COUNT).astype("f8") ** 2
    halves = (random.integers(1 << 52, 1 << 53, COUNT) * 2.0**-52) ** 2
    near = [np.nextafter(x, end) for x in (whole, halves) for end in (0, np.inf)]
    magnitudes = np.exp(random.uniform(-744, 709, COUNT))
    common = random.uniform(0, 4, 8 * COUNT)
    x = np.concatenate([whole, halves, *near, magnitudes, common, samples("float64", 3)])
    x = x[: len(x) // 16 * 16]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run("sqrt", 16, x, target=target), np.sqrt(x))


def test_square_roots_without_an_estimate_stay_instructions() -> None:
    for element, has in (("float32", Instructions(True, wide_lookups=True)), ("float64", Instructions(True))):
        module = IRModule({"f": function("sqrt", element, 1, 8, 64)})
        assert LowerIntrin(has=has).run(module, None)["f"] is module["f"]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"])
def test_pow_on_the_fast_path(target):
    """Vectors of positive bases and small exponents."""
    if "avx512" in target and "avx512f" not in Target("llvm").features:
        pytest.skip("this processor does not have AVX-512")
    random = np.random.default_rng(9)
    x = np.concatenate([np.exp(random.uniform(-20, 20, COUNT)), random.uniform(0.5, 2, COUNT)]).astype("f4")
    y = random.uniform(-4, 4, 2 * COUNT).astype("f4")
    check("pow", run("pow", 16, x, y, target=target), (x, y), STATED["pow", "float32"])


@pytest.mark.parametrize("op", sorted(EXPANSIONS))
def test_scalars_and_odd_lanes_agree_with_vectors(op):
    arity = 2 if op in OF_TWO else 1
    args = [within_domain(op, np.abs(samples("float32", 5 + k))[:840]) for k in range(arity)]
    expected, least = run(op, 8, *args), np.finfo("f4").smallest_normal
    rtol = 1e-4 if op == "fast_exp" else 1e-6  # fast_exp has 15 bits, and different paths for different lanes
    for lanes in (1, 3, 7):
        np.testing.assert_allclose(run(op, lanes, *args), expected, rtol=rtol, atol=least)


@pytest.mark.parametrize("op", ["sin", "cos", "tan", "pow", "fmod", "log", "exp", "exp_nonpositive"])
def test_without_fused_multiply_adds(op):
    """Products are rounded before the addition: reductions must not rely on a single rounding."""
    args = pairs(op, "float32") if op in OF_TWO else (within_domain(op, samples("float32", 1)),)
    check(op, run(op, 8, *args, target="llvm -mcpu=x86-64-v2"), args, STATED[op, "float32"] + 0.5)


@pytest.mark.parametrize(("cpu", "lanes", "instruction"), [
    ("haswell", 8, r"vperm(d|ps)\s.*%ymm"), ("haswell", 24, r"vperm(d|ps)\s.*%ymm"),
    ("skylake-avx512", 16, r"vperm(d|ps)\s.*%zmm"), ("haswell", 4, None), ("haswell", 1, None), ("x86-64-v2", 8, None),
])  # fmt: skip
@pytest.mark.parametrize("op", ["exp_nonpositive", "log"])
def test_tables_are_looked_up_by_lane(op, cpu, lanes, instruction):
    """Targets without a lookup instruction use a longer polynomial."""
    f = function(op, "float32", 1, lanes, 48)
    text = build(IRModule({"f": f}), Target(f"llvm -mcpu={cpu}")).get_source("asm")
    assert bool(re.search(instruction or r"perm(d|ps)\s", text)) == (instruction is not None)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("lanes", [2, 3, 4, 8, 16, 24, 32])
def test_one_special_argument_in_any_lane(lanes, target):
    """It sends the whole vector to the slow path."""
    count = lanes * lanes
    for value in (0.0, np.nan, -1.0, 1e-40):
        x = np.full(count, 2.0, np.float32)
        x[:: lanes + 1] = value
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(run("log", lanes, x, target=target), np.log(x.astype("f8")), rtol=1e-6)


@pytest.mark.parametrize("lanes", [16, 24, 4, 32])
@pytest.mark.parametrize("op", ["exp_nonpositive", "fast_exp"])
def test_exponentials_of_other_numbers_of_lanes(op, lanes):
    x = within_domain(op, samples("float32", 6))[: COUNT // 96 * 96]
    check(op, run(op, lanes, x), (x,), STATED[op, "float32"])


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_fast_exp_of_large_arguments_overestimates(lanes, target):
    """Softmax sums depend on that; neither they nor NaN of either sign may become plausible values."""
    large = np.array(
        [64.01, 65, 88, 89, 100, 128, 200, 1e3, 65504, 1e6, 1e20, 3e38, np.inf, np.nan, -np.nan, np.nan], "f4"
    )
    got = run("fast_exp", lanes, large, target=target)
    assert np.all(got[:-3] > np.exp(64.0)) and np.all(np.isnan(got[-3:]))
    small = -large
    small[-3:] = -103
    assert np.all((got := run("fast_exp", lanes, small, target=target)) >= 0) and np.all(got <= np.exp(-64.0))


def test_fast_exp_uses_the_scaling_instruction():
    texts = {}
    for cpu in ("skylake-avx512", "haswell"):
        module = IRModule({"f": function("fast_exp", "float32", 1, 16, 64)})
        texts[cpu] = build(module, Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")).get_source("asm")
    assert {cpu: "vscalefps" in text for cpu, text in texts.items()} == {"skylake-avx512": True, "haswell": False}


def test_an_unavailable_instruction_is_an_error():
    module = IRModule({"f": function("fraction", "float32", 1, 16, 64)})
    with pytest.raises(CompileError, match=r"no instruction is 'fraction' of float32x16"):
        build(module, Target("llvm -mcpu=haswell"))


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2", "llvm -fast-math=arcp"])
def test_remainders_of_multiples_are_zero(target):
    """Quotients next to integers, which rounding or a reciprocal may move to the other side."""
    random = np.random.default_rng(8)
    y = random.uniform(1e-3, 10, 4096).astype("f4")
    multiple = y * random.integers(1, 1 << 20, 4096).astype("f4")
    x = np.concatenate([multiple, np.nextafter(multiple, np.inf, dtype="f4"), np.nextafter(multiple, 0, dtype="f4")])
    y = np.tile(y, 3)
    np.testing.assert_array_equal(run("fmod", 8, x, y, target=target), np.fmod(x, y))
    np.testing.assert_array_equal(run("fmod", 8, -x, y, target=target), np.fmod(-x, y))


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_half_pi(op):
    """Arguments where the reduction cancels most bits, also near the limit of each reduction method."""
    n = np.concatenate([np.arange(-40000, 40000), np.arange(80000, 84000), 2 ** np.arange(17, 40) * 3])
    x = np.concatenate([np.nextafter((n * (np.pi / 2)).astype("f4"), side, dtype="f4") for side in (-np.inf, np.inf)])
    x = np.concatenate([x, (n * (np.pi / 2)).astype("f4")])
    x = x[: len(x) // 8 * 8]
    exact = np.longdouble(x) - np.round(x / np.longdouble(np.pi)) * np.longdouble(np.pi)
    assert np.abs(exact).min() < 1e-4
    check(op, run(op, 8, x), (x,), STATED[op, "float32"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [
    -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 0.0, 0.3, -0.75, 0.98, -1.7, 3.9, 4.5, math.inf, math.nan,
])  # fmt: skip
def test_pow_with_constant_exponents(exponent, dtype):
    x = np.concatenate([samples(dtype, 7)[:2048], np.abs(samples(dtype, 7)[4096:])])  # many all positive
    buffers = [decl_buffer((len(x),), dtype, name=name) for name in "AC"]
    i, power = Var("i"), broadcast(const(exponent, dtype), 8)
    at = (ramp(i * 8, 1, 8),)
    value = call_intrin(power.dtype, "pow", BufferLoad(buffers[0], at), power)
    body = For(i, const(0), const(len(x) // 8), ForKind.SERIAL, BufferStore(buffers[1], value, at))
    f = PrimFunc(tuple(b.data for b in buffers), body, {b.data: b for b in buffers}, {"global_symbol": "f"})
    out = nd.array(np.zeros_like(x))
    build(IRModule({"f": f}), Target("llvm"))["f"](nd.array(x), out)
    check("pow", out.numpy(), (x, np.full_like(x, exponent)), 2.0)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "log"])
def test_16_bit_floats_are_computed_in_float32(op, dtype):
    x = np.abs(np.random.default_rng(0).uniform(0.1, 8, 256)).astype(dtype)
    got = run(op, 8, x).astype("f4")
    exact = REFERENCES.get(op, getattr(np, op, None))(x.astype("f8"))
    np.testing.assert_allclose(got, exact, rtol=2 ** (-10 if dtype == "float16" else -7))


def error_in_half(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error, in units in the last place of float16."""
    rounded = exact.astype("f2")
    finite = np.isfinite(rounded) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(rounded[got == 0]))
    return np.max(np.abs(got[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite])).astype("f8"))


@pytest.mark.parametrize("lanes", [8, 16], ids=["divided", "estimated"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("op", ["exp", "exp_nonpositive", "tanh", "sigmoid"])
def test_every_float16_value(op, target, lanes):
    """Low precision suffices; results are hardly further off than rounding makes them.

    Estimates of reciprocals have 14 bits; their values differ among processors.
    """
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = np.where(x > 0, -x, x) if op == "exp_nonpositive" else x
    with np.errstate(all="ignore"):
        exact = REFERENCES.get(op, getattr(np, op, None))(x.astype("f8"))
        error = error_in_half(run(op, lanes, x, target=target), exact)
    assert error <= (0.7 if (op, lanes) == ("sigmoid", 16) else 0.6)


@pytest.mark.parametrize(("dtype", "divided"), [("float16", False), ("bfloat16", False), ("float32", True)])
def test_only_float32_divides_for_the_logistic_function(dtype, divided):
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    text = build(IRModule({"f": function("sigmoid", dtype, 1, 16, 64)}), target).get_source("asm")
    assert ("vdivps" in text) == divided and ("vrcp14ps" in text) != divided


@pytest.mark.parametrize("lanes", [8, 16], ids=["divided", "estimated"])
@pytest.mark.parametrize("op", ["exp", "exp_nonpositive", "tanh", "sigmoid"])
def test_every_bfloat16_value(op, lanes):
    """Denormal and infinite results of exp, too."""
    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        x = np.where(x > 0, -x, x) if op == "exp_nonpositive" else x
        exact = REFERENCES.get(op, getattr(np, op, None))(x.astype("f8"))
        rounded = exact.astype(ml_dtypes.bfloat16).astype("f8")
    got = run(op, lanes, x).astype("f8")
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    smallest = 2.0**-133 if op == "exp" else 2.0**-126  # 0 is accepted for a denormal result of the others
    np.testing.assert_allclose(got[finite], exact[finite], rtol=0.52 * 2.0**-7, atol=0.52 * smallest)


@pytest.mark.parametrize(("name", "bound"), [("x s", 0.6), ("s / x", 0.6), ("1 - s", 1.0), ("s + s s", 0.502)])
def test_lower_precision_where_only_products_follow(name, bound):
    """A value subtracted from 1 keeps full precision: the relative error of the difference would exceed its own."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[(np.abs(x) > 1e-4) & (np.abs(x) < 16)][: 1 << 14]
    values, i = [decl_buffer((len(x),), "float16", name=n) for n in "AC"], Var("i")
    at = (ramp(i * 8, 1, 8),)
    v = Cast(dtype("float32x8"), BufferLoad(values[0], at))
    s, one = call_intrin(v.dtype, "sigmoid", v), broadcast(const(1.0, "float32"), 8)
    result = {"x s": v * s, "s / x": s / v, "1 - s": one - s, "s + s s": s + s * s}[name]
    store = BufferStore(values[1], Cast(dtype("float16x8"), result), at)
    body = For(i, const(0), const(len(x) // 8), ForKind.SERIAL, store)
    f = PrimFunc(tuple(b.data for b in values), body, {b.data: b for b in values}, {"global_symbol": "f"})
    out = nd.array(np.zeros_like(x))
    build(IRModule({"f": f}), Target("llvm"))["f"](nd.array(x), out)
    v = x.astype("f8")
    s = 1 / (1 + np.exp(-v))
    exact = {"x s": v * s, "s / x": s / v, "1 - s": 1 / (1 + np.exp(v)), "s + s s": s + s * s}[name]
    assert error_in_half(out.numpy(), exact) <= bound


def test_no_library_call_is_left_but_the_kept_ones():
    module = IRModule({"f": function("tanh", "float32", 1, 8, 64)})
    ops = {c.op for c in collect(LowerIntrin().run(module, None)["f"].body, Call)}
    assert ops <= {"fma", "fabs", "reinterpret", "shift_left", "shift_right", "bitwise_and", "bitwise_or"}
    assert LowerIntrin(keep=("tanh",)).run(module, None) is module
    wide = IRModule({"f": function("fast_exp", "float64", 1, 8, 64)})
    assert LowerIntrin().run(wide, None) is wide


def test_a_function_without_expandable_calls_is_unchanged() -> None:
    plain, tanh = function("fabs", "float32", 1, 8, 64), function("tanh", "float32", 1, 8, 64)
    assert lower_intrinsics(plain) is plain
    assert lower_intrinsics(tanh) is not tanh and lower_intrinsics(tanh, ("tanh",)) is tanh


@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_fast_inverse_square_root(lanes):
    x = np.abs(samples("float32", 6))
    x = x[(x >= np.finfo("f4").smallest_normal) & (x <= 1e38)][:2400]
    exact = 1 / np.sqrt(x.astype("f8"))
    assert np.max(np.abs(run("fast_rsqrt", lanes, x) - exact) / np.spacing(exact.astype("f4"))) <= 3
