"""te.dot2, te.byte_pairs, te.dot4, te.dot8: equal results on all targets, also on overflow; te.dot2_bfloat16."""

from __future__ import annotations

import platform
import shutil

import ml_dtypes
import numpy as np
import pytest

from relayc import te
from relayc.backend import build, nd
from relayc.backend.runtime import device
from relayc.te.errors import CompileError

RNG = np.random.default_rng(5)
EXTREMES = np.array([-(1 << 15), (1 << 15) - 1, -1, 0, 1], np.int64)
TARGETS = ["llvm", "interp"]
if platform.machine() == "x86_64":
    TARGETS.append("llvm -mcpu=x86-64-v2")
if shutil.which("cc"):
    TARGETS.append("c")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 8, 24, 32])
def test_dot2_multiplies_signed_int16(target, lanes):
    n = 48 * lanes
    halves = RNG.choice(np.concatenate([EXTREMES, RNG.integers(-(1 << 15), 1 << 15, 20)]), (2, 2, n))
    x, y = (((h[1] << 16) | (h[0] & 0xFFFF)).astype(np.uint32).view(np.int32) for h in halves)
    products = halves[0] * halves[1]
    expected = (products[0] + products[1]).astype(np.uint32).view(np.int32)
    a, b = (te.placeholder((n,), dtype="int32", name=name) for name in "ab")
    c = te.compute((n,), lambda i: te.dot2(a[i], b[i]), name="c")
    s = te.create_schedule(c)
    if lanes > 1:
        _, inner = s[c].split(c.op.axis[0], factor=lanes)
        s[c].vectorize(inner)
    function = build(s, [a, b, c], target)
    kind = device("interp" if target == "interp" else "cpu")
    arrays = [nd.array(v, kind) for v in (x, y, np.zeros_like(x))]
    function(*arrays)
    np.testing.assert_array_equal(arrays[2].numpy(), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 8, 24])
def test_byte_pairs_are_sign_extended(target, lanes):
    n = 48 * lanes
    pairs = RNG.choice(np.array([-128, -127, -1, 0, 1, 127]), (n, 2)).astype(np.int8)
    halves = RNG.integers(-(1 << 15), 1 << 15, (n, 2)).astype(np.int16)
    expected = (pairs.astype(np.int64) * halves).sum(1).astype(np.int32)
    a, b = te.placeholder((n,), dtype="int16", name="a"), te.placeholder((n,), dtype="int32", name="b")
    c = te.compute((n,), lambda i: te.dot2(b[i], te.byte_pairs(a[i])), name="c")
    s = te.create_schedule(c)
    if lanes > 1:
        _, inner = s[c].split(c.op.axis[0], factor=lanes)
        s[c].vectorize(inner)
    kind = device("interp" if target == "interp" else "cpu")
    arrays = [nd.array(v, kind) for v in (pairs.view("<i2")[:, 0], halves.view("<i4")[:, 0], expected * 0)]
    build(s, [a, b, c], target)(*arrays)
    np.testing.assert_array_equal(arrays[2].numpy(), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 6, 8, 24, 32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_dot4_multiplies_unsigned_by_signed_bytes(target, lanes, accumulate):
    n = 48 * lanes
    x = RNG.choice(np.array([0, 1, 127, 128, 254, 255]), (n, 4)).astype(np.uint8)
    y = RNG.choice(np.array([-64, -63, -1, 0, 1, 64]), (n, 4)).astype(np.int8)
    before = RNG.integers(-1000, 1000, n).astype(np.int32)
    expected = (x.astype(np.int32) * y).sum(1) + (before if accumulate else 0)
    a, b, z = (te.placeholder((n,), dtype="int32", name=name) for name in "abz")
    both = te.compute((n,), lambda i: te.dot4(a[i], b[i]) + (z[i] if accumulate else 0), name="c")
    s = te.create_schedule(both)
    if lanes > 1:
        _, inner = s[both].split(both.op.axis[0], factor=lanes)
        s[both].vectorize(inner)
    function = build(s, [a, b, z, both], target)
    kind = device("interp" if target == "interp" else "cpu")
    values = (x.view(np.int32)[:, 0], y.view(np.int32)[:, 0], before, np.zeros_like(before))
    arrays = [nd.array(v, kind) for v in values]
    function(*arrays)
    np.testing.assert_array_equal(arrays[3].numpy(), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 6, 8, 24, 32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_dot8_adds_two_dot4_products_in_16_bits(target, lanes, accumulate):
    n = 48 * lanes
    x = RNG.choice(np.array([0, 1, 127, 128, 254, 255]), (2, n, 4)).astype(np.uint8)
    y = RNG.choice(np.array([-32, -31, -1, 0, 1, 32]), (2, n, 4)).astype(np.int8)
    y[:, 0] = 0
    y[0, 0] = (-128, 0, 64, 64)  # alone in its half
    before = RNG.integers(-1000, 1000, n).astype(np.int32)
    expected = (x.astype(np.int32) * y).sum((0, 2)) + (before if accumulate else 0)
    a, b, c, d, z = (te.placeholder((n,), dtype="int32", name=name) for name in "abcdz")
    both = te.compute(
        (n,), lambda i: te.dot8(a[i], b[i], c[i], d[i]) + (z[i] if accumulate else 0), name="both"
    )
    s = te.create_schedule(both)
    if lanes > 1:
        _, inner = s[both].split(both.op.axis[0], factor=lanes)
        s[both].vectorize(inner)
    function = build(s, [a, b, c, d, z, both], target)
    kind = device("interp" if target == "interp" else "cpu")
    words = [v.view(np.int32)[:, 0] for v in (x[0], y[0], x[1], y[1])]
    arrays = [nd.array(v, kind) for v in (*words, before, np.zeros_like(before))]
    function(*arrays)
    np.testing.assert_array_equal(arrays[-1].numpy(), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 6, 8, 24, 32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_dot2_bfloat16_multiplies_pairs(target, lanes, accumulate):
    n = 48 * lanes
    x, y = (RNG.standard_normal((n, 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    before = RNG.standard_normal(n).astype(np.float32)
    expected = (x.astype(np.float64) * y.astype(np.float64)).sum(1) + (before if accumulate else 0)
    a, b = (te.placeholder((n,), dtype="int32", name=name) for name in "ab")
    z = te.placeholder((n,), name="z")
    both = te.compute((n,), lambda i: te.dot2_bfloat16(a[i], b[i]) + (z[i] if accumulate else 0.0), name="c")
    s = te.create_schedule(both)
    if lanes > 1:
        _, inner = s[both].split(both.op.axis[0], factor=lanes)
        s[both].vectorize(inner)
    function = build(s, [a, b, z, both], target)
    kind = device("interp" if target == "interp" else "cpu")
    arrays = [nd.array(v, kind) for v in (x.view(np.int32)[:, 0], y.view(np.int32)[:, 0], before, before * 0)]
    function(*arrays)
    np.testing.assert_allclose(arrays[3].numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("cpu", "has_it"), [("znver4", True), ("sapphirerapids", True), ("cascadelake", False)])
def test_dot2_bfloat16_is_one_instruction_where_there_is_one(cpu, has_it):
    n = 256
    a, b = (te.placeholder((n,), dtype="int32", name=name) for name in "ab")
    z = te.placeholder((n,), name="z")
    c = te.compute((n,), lambda i: z[i] + te.dot2_bfloat16(a[i], b[i]), name="c")
    s = te.create_schedule(c)
    _, inner = s[c].split(c.op.axis[0], factor=16)
    s[c].vectorize(inner)
    assembly = build(s, [a, b, z, c], f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}").get_source("asm")
    assert ("vdpbf16ps" in assembly) == has_it and ("vfmadd" in assembly) != has_it


VNNI = [("cascadelake", "zmm"), ("icelake-server", "zmm"), ("znver4", "zmm"), ("alderlake", "ymm")]


@pytest.mark.parametrize(("cpu", "register"), VNNI)
def test_dot4_is_one_instruction_with_vnni(cpu, register):
    n, lanes = 256, 16 if register == "zmm" else 8
    a, b, z = (te.placeholder((n,), dtype="int32", name=name) for name in "abz")
    c = te.compute((n,), lambda i: z[i] + te.dot4(a[i], b[i]), name="c")
    s = te.create_schedule(c)
    _, inner = s[c].split(c.op.axis[0], factor=lanes)
    s[c].vectorize(inner)
    assembly = build(s, [a, b, z, c], f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}").get_source("asm")
    assert any("vpdpbusd" in line and register in line for line in assembly.splitlines())
    assert "vpmaddubsw" not in assembly


@pytest.mark.parametrize(("dot", "operands"), [(te.dot2, 2), (te.dot2_bfloat16, 2), (te.dot4, 2), (te.dot8, 4)])
def test_other_operand_types_are_an_error(dot, operands):
    with pytest.raises(CompileError, match="int32"):
        dot(*[te.const(1, "int16")] * operands)
