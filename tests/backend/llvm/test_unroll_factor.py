"""Unrolling of register-accumulated sums of products, with shared addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from relayc import backend, relay, te
from relayc.backend.llvm.codegen.unroll_factor import unroll_factor
from relayc.backend.target import Target
from relayc.te.ir import IRModule, collect
from relayc.te.tir import For, ForKind

X86 = "llvm -mtriple=x86_64-unknown-linux-gnu"
AVX512 = f"{X86} -mcpu=sapphirerapids"


def product(
    depth: te.Dim, rows: int = 8, columns: int = 32, dtype: str = "float32", prefetches: Sequence[int] = ()
) -> IRModule:
    """(rows, depth) by (depth, columns): all accumulators are in registers in a loop along the depth.

    The loop is split by the factors `prefetches`; memory is prefetched in the innermost loop.
    """
    a, b = te.placeholder((rows, depth), dtype, "a"), te.placeholder((depth, columns), dtype, "b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    s = te.create_schedule([c.op])
    tile = s.cache_write(c, "local")
    i, j = s[tile].op.axis
    s[tile].reorder(k, i, j)
    loop, rest = k, k
    for every in prefetches:
        loop, rest = s[tile].split(rest, factor=every)
    if prefetches:
        s[tile].prefetch(b, loop, te.Prefetch(order=lambda i, j, k: (k + 100, 0)))
    s[tile].unroll(i)
    s[tile].vectorize(j)
    s[c].vectorize(s[c].op.axis[1])
    return te.lower(s, [a, b, c])


def steps(module: IRModule, vector_bits: int = 512) -> int:
    (function,) = module.functions.values()
    loops = [f for f in collect(function.body, For) if f.kind is ForKind.SERIAL and str(f.loop_var).startswith("k")]
    return unroll_factor(loops[-1], vector_bits)


@pytest.mark.parametrize(
    ("depth", "found"), [(64, 8), (60, 6), (7, 7), (5, 5), (13, 8), (127, 8), (2, 2)]
)
def test_the_factor_divides_the_trip_count_or_is_the_maximum(depth: int, found: int):
    assert steps(product(depth)) == found


def test_larger_tiles_are_unrolled_less_and_others_not_at_all():
    assert steps(product(64, rows=14)) == 4, "of 28 multiply-adds each"
    assert steps(product(64, rows=8), vector_bits=256) == 4, "of 32: up to seven, of which four divide the steps"
    assert steps(product(64, rows=14, columns=64)) == 1, "56, which no registers hold"
    assert steps(product(64, rows=2)) == 1, "four multiply-adds"
    assert steps(product(te.size_var("n"))) == 1, "how many of them is not known"


@pytest.mark.parametrize(
    ("prefetches", "found"), [([2], 4), ([4], 2), ([8], 1), ([16], 1), ([8, 2], 1), ([4, 2], 2), ([2, 1], 4)]
)
def test_short_loops_between_prefetches_are_unrolled_together(
    prefetches: list[int], found: int
):
    """The unrolled body has eight steps in all."""
    assert steps(product(64, prefetches=prefetches)) == found
    text = backend.build(product(64, prefetches=prefetches), target=Target(AVX512)).get_source("asm")
    assert text.count("vfmadd") == 16 * 8
    assert text.count("prefetch") == 8 // min(prefetches[-1], 8)


@pytest.mark.parametrize("depth", [1, 2, 7, 13, 64, 67])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results(depth: int, dtype: str):
    """With every size of the remainder."""
    rng = np.random.default_rng(depth)
    a, b = rng.standard_normal((8, depth)).astype(dtype), rng.standard_normal((depth, 32)).astype(dtype)
    result = backend.nd.empty((8, 32), dtype)
    backend.build(product(depth, dtype=dtype), target="llvm")(backend.nd.array(a), backend.nd.array(b), result)
    np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_accumulators_stay_in_registers_with_few_address_instructions():
    """Nothing is spilled; four steps take one addition for each operand, and one for the loop."""
    text = backend.build(product(640, rows=13), target=Target(AVX512)).get_source("asm")
    (body,) = [b.split("\tj")[0] for b in re.split(r"\n\.LBB", text) if b.count("vfmadd") == 4 * 26]
    assert not re.search(r"zmm\d+, -?\d*\(%rsp\)|\(%rsp\), %zmm", body)
    scalar = re.findall(r"^\s(?:add|lea|inc|sub|cmp|mov|shl)\w*\s", body, flags=re.M)
    assert len(scalar) <= 4


@pytest.mark.parametrize(
    ("processor", "through"), [("icelake-server", True), ("znver5", False), ("haswell", False)]
)
def test_accumulators_pass_between_steps_in_registers(processor: str, through: bool):
    """Not with LLVM's models of Zen 4 and 5, with which 14 x 2 vectors spill only if accumulators pass the barrier."""
    rows, columns = (14, 32) if processor != "haswell" else (6, 16)
    lib = backend.build(product(64, rows, columns), target=Target(f"{X86} -mcpu={processor}"))
    assert ("=v,=v" in lib.get_source("raw-ll")) == through
    assert "(%rsp)" not in lib.get_source("asm")


@pytest.mark.parametrize(("processor", "most"), [("haswell", 14), ("x86-64-v2", 14), ("icelake-server", 30)])
def test_no_more_accumulators_pass_in_registers_than_there_are(processor: str, most: int):
    """LLVM ended the process: 30 vectors of AVX2, of the sum over several pixels of volumes of any size."""
    x = relay.var("x", (te.size_var("b"), 3, 1, te.size_var("h"), 7))
    weight = relay.const(np.zeros((33, 3, 3, 3, 5), np.float32))
    body = relay.nn.conv3d(x, weight, strides=(4, 2, 2), padding=(2, 2, 0, 2, 1, 1))
    built = relay.build(relay.Function([x], body), f"{X86} -mcpu={processor}")
    passed = re.findall(r'asm sideeffect "((?:=v,)+)', built.get_lib().get_source("raw-ll"))
    assert all(operands.count("=v") <= most for operands in passed)


def test_a_step_loads_each_of_two_separate_vectors_once():
    """From memory that the function writes they were loaded again behind the barrier of each row: 42 loads a step."""
    rows, lanes, steps = 14, 16, 4
    a, b = te.placeholder((rows, 64), "float32", "a"), te.placeholder((2, 64, lanes), "float32", "b")
    k = te.reduce_axis((0, 64), "k")
    panels = te.compute(b.shape, lambda *i: b(*i) * 2, name="panels")
    c = te.compute((rows, 2 * lanes), lambda i, j: te.sum(a[i, k] * panels[j // lanes, k, j % lanes], k), name="c")
    s = te.create_schedule([c.op])
    tile = s.cache_write(c, "local")
    for tensor in (c, tile):
        i, j = s[tensor].op.axis
        each, lane = s[tensor].split(j, factor=lanes)
        if tensor is tile:
            s[tile].reorder(k, i, each, lane)
        s[tensor].unroll(i)
        s[tensor].unroll(each)
        s[tensor].vectorize(lane)
    text = backend.build(te.lower(s, [a, b, c]), target=Target(AVX512)).get_source("asm")
    (body,) = [b.split("\tj")[0] for b in re.split(r"\n\.LBB", text) if b.count("vfmadd") == steps * 2 * rows]
    vectors = [line for line in body.splitlines() if re.search(r"\(%r\w+\S*, .*%zmm", line)]
    assert len([line for line in vectors if not re.search("broadcast|1to16", line)]) == steps * 2
    assert "(%rsp)" not in body


def test_addresses_with_divisions_by_sizes_are_advanced_by_additions():
    """LLVM may not divide by a size where the program does not, and computed the whole address in each iteration."""
    n, rows, lanes = te.size_var("n"), 14, 16
    a, b = te.placeholder((4, n + 1, rows, 64), name="a"), te.placeholder((8, 4, 64, lanes), name="b")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((8, n + 1, 4, rows, lanes), lambda p, i, h, y, x: te.sum(a[h, i, y, k] * b[p, h, k, x], k), name="c")
    s = te.create_schedule([c.op])
    tile = s.cache_write(c, "local")
    p, i, h, y, x = s[c].op.axis
    s[c].fuse(p, i)
    s[tile].compute_at(s[c], h)
    s[tile].reorder(k, *s[tile].op.axis[-2:])
    for tensor in (c, tile):
        *_, y, x = s[tensor].op.axis
        s[tensor].unroll(y)
        s[tensor].vectorize(x)
    text = backend.build(te.lower(s, [n, a, b, c]), target=Target(AVX512)).get_source("asm")
    (body,) = [part.split("\tj")[0] for part in re.split(r"\n\.LBB", text) if part.count("vfmadd") == 8 * rows]
    assert not re.search(r"\t(shl|lea|imul|mov)q", body)


def test_a_tile_of_nearly_all_registers_does_not_spill():
    """14 x 2 vectors of a strided convolution: one of the accumulators was in memory, a dependence in each step."""
    x, weight = relay.var("x", (1, 128, 56, 56)), relay.const(np.zeros((128, 128, 3, 3), np.float32))
    conv = relay.nn.conv2d(x, weight, strides=(2, 2), padding=(1, 1, 1, 1), channels=128, kernel_size=(3, 3))
    target = f"{X86} -mcpu=icelake-server -mtune=sapphirerapids -num-cores=1"
    lib = relay.build(IRModule({"main": relay.Function((x,), relay.nn.relu(conv))}), target)
    loops = [b for b in re.split(r"\n(?=\.LBB)", lib.module.get_source("asm")) if "vfmadd" in b]
    assert [b.count("vfmadd") for b in loops] == [4 * 28]
    assert not any("(%rsp)" in b[b.index("vfmadd") : b.rindex("vfmadd")] for b in loops)


@pytest.mark.parametrize("processor", ["icelake-server", "znver5"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(784, 1152, 128), (3136, 576, 64), (128, 768, 768)])
def test_byte_dot_product_accumulators_stay_in_registers(processor: str, rows: int, depth: int, columns: int):
    """With prefetches in every second step LLVM hoisted the loads of all rows, which was up to four times slower."""
    x, weight = relay.var("x", (rows, depth), "uint8"), relay.const(np.ones((columns, depth), np.int32))
    y = relay.nn.relu(relay.nn.dense(relay.cast(x, "int32"), weight))
    target = f"{X86} -mcpu={processor} -mtune=sapphirerapids -num-cores=1"
    text = relay.build(IRModule({"main": relay.Function((x,), y)}), target).module.get_source("asm")
    loops = [b for b in re.split(r"\n(?=\.LBB)", text) if "vpdpbusd" in b]
    assert loops and not any(re.search(r"zmm\d+, -?\d*\(%rsp\)", b) for b in loops)


@pytest.mark.parametrize(
    ("target", "columns", "vectors"),
    [
        (AVX512, 208, 1), (AVX512, 209, 2), (f"{X86} -mcpu=znver5", 208, 1),
        ("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1", 100, 1),
    ],
)  # fmt: skip
def test_two_separate_vectors_of_a_row_keep_accumulators_in_registers(target: str, columns: int, vectors: int):
    """The last columns are a partial panel, so its two vectors are apart: LLVM would spill, up to four times slower
    whatever the loop (with 13 vectors, prefetching few result lines in between). The last of the panels of two vectors
    has tiles of as many as it needs.
    """
    x, weight = relay.var("x", (784, 256)), relay.const(np.zeros((columns, 256), np.float32))
    lib = relay.build(IRModule({"main": relay.Function((x,), relay.nn.dense(x, weight))}), target)
    loops = [re.sub("fmla", "vfmadd", b) for b in re.split(r"\n(?=\.LBB)", lib.module.get_source("asm"))]
    loops = [b for b in loops if "vfmadd" in b]
    whole, last = [b.count("vfmadd") for b in loops]
    assert whole == last and whole % 4 == 0, "several steps of each are written out, more of the narrower one"
    rows, narrow = [len(set(re.findall(r"vfmadd\S*\s+(?:[^,\n]+, [^,\n]+, (?=%)|(?=v))(\S+)", b))) for b in loops]
    assert 2 * narrow == vectors * rows
    assert not any(re.search(r"\(%rsp\)|\[sp", b[b.index("vfmadd") : b.rindex("vfmadd")]) for b in loops)
