"""Memory, control flow and calls of the loop IR through LLVM, against the interpreter."""

from __future__ import annotations

import operator
import re

import numpy as np
import pytest

from relayc.backend.llvm.build import build
from relayc.backend.runtime import nd
from relayc.backend.target import Target
from relayc.te.dtype import dtype as dtype_of
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import (
    Allocate,
    Broadcast,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    Div,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    Let,
    LetStmt,
    Max,
    Mod,
    Ramp,
    Select,
    Shuffle,
    SizeVar,
    StringImm,
    Var,
    While,
    call_intrin,
    cast,
    const,
    convert,
    decl_buffer,
    if_then_else,
    ramp,
    select,
    seq,
)
from relayc.te.tir.ops import all as all_of, logical_and
from tests.backend.llvm.programs import assert_same, elementwise, loop, make, rng, sample


@pytest.mark.parametrize(("wide", "narrow"), [("int32", "uint8"), ("int32", "int16"), ("int64", "int32")])
@pytest.mark.parametrize("lanes", [8, 12, 16, 48, 64])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_masked_stores_of_truncated_integers_write_only_what_the_mask_chooses(run_both, wide, narrow, lanes, count):
    """LLVM stores the wide integer where a constant mask chooses one."""
    a, c = decl_buffer((64,), wide, name="A"), decl_buffer((80,), narrow, name="C")
    value = cast(narrow, BufferLoad(a, (ramp(0, 1, lanes),)))
    f = make(BufferStore(c, value, (ramp(3, 1, lanes),), ramp(0, 1, lanes) < count), a, c)
    assert_same(run_both(f, np.arange(20, 84, dtype=wide), np.full(80, 77, narrow)))


@pytest.mark.parametrize("stride", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("lanes", [3, 4, 7, 8])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int8"])
def test_strided_vectors(run_both, stride, lanes, dtype):
    a, c = decl_buffer((64,), dtype, name="A"), decl_buffer((64,), dtype, name="C")
    base = 40 if stride == -1 else 5
    read = BufferStore(c, BufferLoad(a, (ramp(base, stride, lanes),)), (ramp(3, 1, lanes),))
    assert_same(run_both(make(read, a, c), sample(dtype, 64), np.zeros(64, sample(dtype, 1).dtype)))
    if stride:
        write = BufferStore(c, BufferLoad(a, (ramp(3, 1, lanes),)), (ramp(base, stride, lanes),))
        assert_same(run_both(make(write, a, c), sample(dtype, 64), np.zeros(64, sample(dtype, 1).dtype)))


def test_a_strided_load_stays_inside_the_buffer(run_llvm):
    a, c = decl_buffer((15,), name="A"), decl_buffer((8,), name="C")
    f = make(BufferStore(c, BufferLoad(a, (ramp(0, 2, 8),)), (ramp(0, 1, 8),)), a, c)
    text = build(IRModule({"f": f}), Target("llvm")).get_source("raw-ll")
    assert "i64 7" in text and "i64 8\n" not in text
    x = sample("float32", 15)
    np.testing.assert_array_equal(run_llvm(f, x, np.zeros(8, "float32"))[1], x[::2])


@pytest.mark.parametrize("extent", [40, 39])
def test_indices_within_one_aligned_vector_become_a_shuffle(run_both, extent):
    a, c = decl_buffer((extent,), name="A"), decl_buffer((40,), name="C")
    lane = ramp(0, 1, 8)
    picked = [lane // 4 * 4 + 3, (7 - lane) // 2, lane % 3 * 2 + 1]

    def body(i):
        reads = [BufferLoad(a, (i * 8 + picks,)) for picks in picked[: 3 if extent == 40 else 2]]
        return BufferStore(c, sum(reads[1:], reads[0]), (ramp(i * 8, 1, 8),))

    f = make(loop(extent // 8, body), a, c)
    assert_same(run_both(f, sample("float32", extent), np.zeros(40, "float32")))
    text = build(IRModule({"f": f}), Target("llvm")).get_source("raw-ll")
    assert "llvm.masked.gather" not in text


def test_quotients_in_an_index_are_hoisted(run_both):
    """The sum is loop-invariant; added term by term inside the loop, each term would take a register."""
    a, c = decl_buffer((400,), name="A"), decl_buffer((168,), name="C")

    def body(i):
        line = i // 4 * 99 + (7 - i % 4 * 2)
        return loop(24, lambda k: BufferStore(c, BufferLoad(a, (k * 2 - 1 + line,)), (i * 24 + k,)))

    f = make(loop(7, body), a, c)
    assert_same(run_both(f, sample("float32", 400), np.zeros(168, "float32")))
    text = build(IRModule({"f": f}), Target("llvm")).get_source("raw-ll")
    assert re.search(r"urem.*, 4\n.*mul nsw.*, 2\n.* sub nsw i64 (.*), .*\n.* mul nsw .*, 2\n.* add nsw i64", text)


PIECES = {
    "every third": lambda lane: lane * 3, "every fourth": lambda lane: lane * 4 + 1,
    "two lines": lambda lane: lane % 2 * 70 + lane // 2, "three lines": lambda lane: lane % 3 * 66 + lane // 3,
    "backwards": lambda lane: (15 - lane) % 2 * 70 + (15 - lane) // 2, "pairs": lambda lane: lane // 2 * 3 + lane % 2,
    "two of eleven": lambda lane: lane // 2 * 11 + lane % 2,
}  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "bool"])
def test_gathers_from_few_contiguous_pieces(run_both, name, dtype):
    lanes = 24 if name == "three lines" else 16
    last = max(map(PIECES[name], range(lanes)))
    a, c = decl_buffer((2 * lanes + last + 1,), dtype, name="A"), decl_buffer((3 * lanes,), dtype, name="C")
    f = make(loop(3, lambda i: BufferStore(c, BufferLoad(a, (PIECES[name](ramp(0, 1, lanes)) + i * lanes,)),
                                           (ramp(i * lanes, 1, lanes),))), a, c)  # fmt: skip
    assert_same(run_both(f, sample(dtype, 2 * lanes + last + 1), np.zeros(3 * lanes, sample(dtype, 1).dtype)))
    if dtype == "int8" or name == "two of eleven":
        text = build(IRModule({"f": f}), Target("llvm")).get_source("raw-ll")
        assert "shufflevector" in text and "gather" not in text and "insertelement" not in text


@pytest.mark.parametrize("lanes", [3, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bool", "float16", "int64"])
def test_masked_and_gathered_accesses(run_both, lanes, dtype):
    a, c = decl_buffer((64,), dtype, name="A"), decl_buffer((64,), dtype, name="C")
    index = decl_buffer((lanes,), "int32", name="I")
    n = Var("n", dtype_of("int32"))
    mask = ramp(0, 1, lanes) < n
    at = (ramp(7, 1, lanes),)
    positions = BufferLoad(index, (ramp(0, 1, lanes),))
    body = seq(
        BufferStore(c, BufferLoad(a, at, mask), (ramp(0, 1, lanes),)),
        BufferStore(c, BufferLoad(a, at), (ramp(10, 1, lanes),), mask),
        BufferStore(c, BufferLoad(a, (ramp(2, 3, lanes),), mask), (ramp(20, 1, lanes),)),
        BufferStore(c, BufferLoad(a, (positions,)), (ramp(30, 1, lanes),)),
        BufferStore(c, BufferLoad(a, (positions,), mask), (ramp(40, 1, lanes),)),
        BufferStore(c, BufferLoad(a, at), (positions + 50,), mask),
    )
    f = make(body, a, c, index, n)
    where = rng.permutation(lanes).astype("int32")
    for count in range(lanes + 1):
        zeros = np.zeros(64, sample(dtype, 1).dtype)
        assert_same(run_both(f, sample(dtype, 64), zeros, where, count))


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("dtype", ["float32", "bool", "float16", "int64"])
@pytest.mark.parametrize(("lanes", "wanted"), [(10, 8), (16, 8), (24, 16), (33, 16), (17, 17)])
def test_masked_loads_of_several_registers(run_llvm, lanes, wanted, dtype, target):
    a, c = decl_buffer((64,), dtype, name="A"), decl_buffer((64,), dtype, name="C")
    n, first = Var("n", dtype_of("int32")), Var("first", dtype_of("int32"))
    mask = logical_and(Broadcast(n > 0, lanes), ramp(0, 1, lanes) < wanted)
    load = BufferLoad(a, (ramp(first, 1, lanes),), mask)
    f = make(BufferStore(c, load, (ramp(0, 1, lanes),)), a, c, n, first)
    ones = np.ones(64, sample(dtype, 1).dtype)
    for flag in (1, 0):
        _, result, *_ = run_llvm(f, ones, np.zeros(64, ones.dtype), flag, 9, target=Target(target))
        np.testing.assert_array_equal(result, flag * (np.arange(64) < wanted))


@pytest.mark.parametrize("wanted", [25, 8, 24])
def test_masked_loads_with_a_constant_mask_are_plain_loads(run_llvm, wanted):
    # Masks of 32 lanes starting at 8: first no register without an active lane, then some without any.
    a, c = decl_buffer((64,), "float32", name="A"), decl_buffer((64,), "float32", name="C")
    first = Var("first", dtype_of("int32"))
    load = BufferLoad(a, (ramp(first, 1, 32),), ramp(0, 1, 32) < wanted)
    f = make(BufferStore(c, load, (ramp(0, 1, 32),)), a, c, first)
    target = Target("llvm -mattr=-avx512f")
    _, result, *_ = run_llvm(f, np.ones(64, "float32"), np.zeros(64, "float32"), 9, target=target)
    np.testing.assert_array_equal(result, np.arange(64) < wanted)
    code = build(IRModule({"f": f}), target).get_source("asm")
    assert code.count("vmaskmovps") == (1 if wanted == 25 else 4)


@pytest.mark.parametrize(
    ("dtype", "lanes", "masked"),
    [("float32", 16, False), ("float32", 64, True), ("float16", 29, True), ("uint8", 64, True), ("float16", 18, False)],
)
def test_constant_masks_stay_masked_loads_where_shuffles_are_slow(dtype, lanes, masked):
    """LLVM would expand shuffles to single elements: a third of the speed where windows cross the ends of lines."""
    a, c = decl_buffer((128,), dtype, name="A"), decl_buffer((128,), dtype, name="C")
    first = Var("first", dtype_of("int32"))
    load = BufferLoad(a, (ramp(first - 2, 1, lanes),), ramp(0, 1, lanes) >= 2)
    f = make(BufferStore(c, load, (ramp(0, 1, lanes),)), a, c, first)
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    assert ("@llvm.masked.load" in build(IRModule({"f": f}), target).get_source("raw-ll")) == masked


@pytest.mark.parametrize(("dtype", "lanes", "offsets"), [
    ("float32", 64, ["", "64", "128", "192"]), ("int8", 128, ["", "64"]), ("float64", 16, ["", "64"]),
    ("float32", 16, [""]),
])  # fmt: skip
def test_registers_of_a_vector_are_stored_in_the_order_of_their_addresses(dtype, lanes, offsets):
    """LLVM stores the last one first, which costs up to a third of the bandwidth."""
    a, c = decl_buffer((1024,), dtype, name="A"), decl_buffer((1024,), dtype, name="C")

    def doubled(i: Var) -> BufferStore:
        value = BufferLoad(a, (ramp(i * lanes, 1, lanes),))
        return BufferStore(c, value + value, (ramp(i * lanes, 1, lanes),))

    f = make(loop(1024 // lanes, doubled), a, c)
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    code = build(IRModule({"f": f}), target).get_source("asm")
    assert re.findall(r"vmov\w+\t%zmm\d+, (\d*)\(", code) == offsets


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("lanes", [16, 30, 64, 128, 255])
def test_ramps_are_compared_with_a_dynamic_limit(run_llvm, lanes, compare, target):
    """Compared by the count of lanes: limits before the first and after the last of them, too."""
    limits, c = decl_buffer((9,), "int32", name="limits"), decl_buffer((9 * lanes,), "int8", name="C")
    i = Var("i", dtype_of("int32"))
    limit = Var("limit", dtype_of("int32"))
    inside = compare(ramp(i * 3, 1, lanes), Broadcast(limit, lanes))
    store = BufferStore(c, Cast(dtype_of("int8").with_lanes(lanes), inside), (ramp(i * lanes, 1, lanes),))
    f = make(For(i, const(0), const(9), ForKind.SERIAL, LetStmt(limit, BufferLoad(limits, (i,)), store)), limits, c)
    values = np.array([-(1 << 30), -1, 6, 10, 20, 15 + lanes - 1, 18 + lanes, 22 + lanes, 1 << 30], np.int32)
    _, result = run_llvm(f, values, np.zeros(9 * lanes, np.int8), target=Target(target))
    positions = np.arange(lanes) + 3 * np.arange(9)[:, None]
    np.testing.assert_array_equal(result.reshape(9, lanes), compare(positions, values[:, None]))


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("dtype", ["float32", "bool", "float16", "bfloat16", "int64", "uint8"])
def test_vectors_selected_by_data_are_blended(run_llvm, dtype, target):
    """A branch per vector would be mispredicted half of the time."""
    flags, a, b = decl_buffer((9,), "bool", name="flags"), decl_buffer((9 * 21,), dtype), decl_buffer((9 * 21,), dtype)
    c, zeros, i = decl_buffer((9 * 21,), dtype, name="C"), decl_buffer((9 * 21,), dtype), Var("i", dtype_of("int32"))
    line, flag = (ramp(i * 21, 1, 21),), BufferLoad(flags, (i,))
    zero = Broadcast(const(0, dtype), 21)
    stores = [BufferStore(c, Select(flag, BufferLoad(a, line), BufferLoad(b, line)), line),
              BufferStore(zeros, Select(flag, BufferLoad(a, line), zero), line)]  # fmt: skip
    f = make(For(i, const(0), const(9), ForKind.SERIAL, seq(stores)), flags, a, b, c, zeros)
    chosen, first, second = np.arange(9) % 3 != 1, sample(dtype, 9 * 21), sample(dtype, 9 * 21)[::-1].copy()
    *_, result, masked = run_llvm(f, chosen, first, second, np.zeros_like(first), np.zeros_like(first),
                                  target=Target(target))  # fmt: skip
    each = np.repeat(chosen, 21)
    np.testing.assert_array_equal(result, np.where(each, first, second))
    np.testing.assert_array_equal(masked, np.where(each, first, np.zeros_like(first)))
    code = build(IRModule({"f": f}), Target(target)).get_source("ll")
    assert "select i1" not in code and code.count("br i1") <= 1, "the loop alone"


@pytest.mark.parametrize(("lanes", "kind"), [(64, "i8"), (18, "i16")])
def test_lane_counts_have_the_width_of_masks(lanes, kind):
    c, first = decl_buffer((64,), "int8", name="C"), Var("first", dtype_of("int32"))
    inside = Cast(dtype_of("int8").with_lanes(lanes), ramp(first, 1, lanes) < 50)
    f = make(BufferStore(c, inside, (ramp(0, 1, lanes),)), c, first)
    for cpu, narrow in (("skylake-avx512", True), ("haswell", False)):
        target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
        assert (f"icmp ult <{lanes} x {kind}>" in build(IRModule({"f": f}), target).get_source("raw-ll")) == narrow


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("dtype", ["float32", "bool", "float16", "int64"])
@pytest.mark.parametrize("lanes", [15, 16, 17, 33, 65])
def test_shuffles_of_any_length(run_llvm, lanes, dtype, target):
    """Adjacent elements swapped, every fifth lane 0: the remainder may be a single lane."""
    a, c = decl_buffer((lanes + 1,), dtype, name="A"), decl_buffer((lanes,), dtype, name="C")
    lane, two, five = ramp(0, 1, lanes), Broadcast(const(2), lanes), Broadcast(const(5), lanes)
    at = select(lane % two < 1, lane + 1, lane - 1)
    loads = BufferLoad(a, (at,), lane % five < 4), BufferLoad(a, (at,))
    values, order = sample(dtype, lanes + 1), np.arange(lanes) ^ 1
    for load, wanted in zip(loads, (np.arange(lanes) % 5 < 4, True), strict=True):
        f = make(BufferStore(c, load, (lane,)), a, c)
        _, result = run_llvm(f, values, np.ones(lanes, values.dtype), target=Target(target))
        np.testing.assert_array_equal(result, np.where(wanted, values[order], np.zeros(1, values.dtype)))


@pytest.mark.parametrize("lanes", [1, 4])
def test_if_then_else_evaluates_only_the_selected_side(run_llvm, lanes):
    # a[i - 2] for i < 2 would be out of bounds
    a, c = decl_buffer((16,), name="A"), decl_buffer((16,), name="C")

    def body(i):
        at = ramp(i * lanes, 1, lanes)
        inside = at >= (const(2) if lanes == 1 else convert(2))
        shifted = at - 2
        value = if_then_else(inside, BufferLoad(a, (shifted,)), const(-1.0))
        return BufferStore(c, value, (at,))

    f = make(loop(16 // lanes, body), a, c)
    x = sample("float32", 16)
    got = run_llvm(f, x, np.zeros(16, "float32"))[1]
    np.testing.assert_array_equal(got, np.concatenate([[-1, -1], x[:-2]]).astype("f4"))


def test_short_circuit_guards_a_load(run_both):
    a, c = decl_buffer((8,), "int32", name="A"), decl_buffer((8,), "bool", name="C")
    f = make(loop(8, lambda i: BufferStore(c, all_of(i >= 3, BufferLoad(a, (i - 3,)) > 0), (i,))), a, c)
    assert_same(run_both(f, sample("int32", 8), np.zeros(8, bool)))


@pytest.mark.parametrize("lanes", [1, 4])
def test_an_index_read_from_memory_is_read_again(run_both, lanes):
    """One expression in several statements; what it reads, and what a variable in it stands for, changes between."""
    place, out = decl_buffer((1,), "int32", name="place"), decl_buffer((64,), "float32", name="out")
    at = BufferLoad(place, (const(0),)) * 8 + 2
    index = at if lanes == 1 else ramp(at, 1, lanes)
    row, x = Var("row", dtype_of("int32")), Var("x", dtype_of("int32"))
    value = const(1.0) if lanes == 1 else Broadcast(const(1.0), lanes)
    moved = x * 8 + 32 if lanes == 1 else ramp(x * 8 + 32, 1, lanes)
    body = seq(
        BufferStore(place, const(1), (const(0),)),
        BufferStore(out, value, (index,)),
        BufferStore(place, const(2), (const(0),)),
        BufferStore(out, value * 2.0, (index,)),
        For(row, const(0), const(2), ForKind.UNROLLED, seq(
            BufferStore(place, row + 1, (const(0),)),
            LetStmt(x, BufferLoad(place, (const(0),)), BufferStore(out, value * 3.0, (moved,))),
        )),
    )  # fmt: skip
    assert_same(run_both(make(body, place, out), np.zeros(1, "int32"), np.zeros(64, "float32")))


def test_index_arithmetic(run_both):
    a, c = decl_buffer((4096,), "int32", name="A"), decl_buffer((64,), "int32", name="C")

    def body(i):
        position = (i // 8) * 16 + (i % 8) * 3 - (i - 40) // 4 + (i - 30) % 7 + Div(i - 40, const(3)) + 50
        return BufferStore(c, BufferLoad(a, (position + Mod(i - 40, const(5)),)), (i,))

    assert_same(run_both(make(loop(64, body), a, c), np.arange(4096, dtype="int32"), np.zeros(64, "int32")))


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.UNROLLED, ForKind.PARALLEL])
@pytest.mark.parametrize("extent", [0, 1, 5, 33])
def test_loops_of_constant_extent(run_both, kind, extent):
    c = decl_buffer((64,), "int32", name="C")
    f = make(loop(extent, lambda i: BufferStore(c, i * i + 1, (i - 7,)), kind, start=7), c)
    assert_same(run_both(f, np.zeros(64, "int32")))


@pytest.mark.parametrize("kind", list(ForKind)[:2])
def test_loops_of_symbolic_extent(run_both, kind):
    n, c = SizeVar("n"), decl_buffer((64,), "int32", name="C")
    f = make(loop(n, lambda i: BufferStore(c, i % n + (n - i) // 3, (i,)), kind), c, n)
    for extent in (0, 1, 7, 64):
        assert_same(run_both(f, np.zeros(64, "int32"), extent))


def test_consecutive_parallel_loops_of_one_symbolic_extent(run_both):
    n, c = SizeVar("n"), decl_buffer((64,), "int32", name="C")
    first = loop(n, lambda i: BufferStore(c, i + 1, (i,)), ForKind.PARALLEL)
    second = loop(n, lambda i: BufferStore(c, BufferLoad(c, (i,)) * 2, (i,)), ForKind.PARALLEL)
    assert_same(run_both(make(seq(first, second), c, n), np.zeros(64, "int32"), 7))


def test_a_huge_unrolled_loop_stays_a_loop(run_both):
    c = decl_buffer((100_000,), "int32", name="C")
    j = Var("j", dtype_of("int32"))
    f = make(loop(500, lambda i: For(j, const(0), const(200), ForKind.UNROLLED,
                                     BufferStore(c, i - j, (i * 200 + j,))), ForKind.UNROLLED), c)  # fmt: skip
    assert build(IRModule({"f": f}), Target("llvm")).get_source("raw-ll").count("store") == 200
    assert_same(run_both(f, np.zeros(100_000, "int32")))


def test_nested_parallel_loops_with_captured_values(run_both):
    n, scale = Var("n", dtype_of("int32")), Var("scale", dtype_of("float32"))
    a, c = decl_buffer((256,), name="A"), decl_buffer((256,), name="C")
    scratch = decl_buffer((8,), name="scratch", scope="local")
    shift = Var("shift", dtype_of("int32"))

    def inner(i):
        def row(j):
            at = (i * 8 + j * 4 + shift - n,)
            return seq(
                BufferStore(scratch, BufferLoad(a, at) * scale, (j,)),
                BufferStore(c, BufferLoad(scratch, (j,)) + cast("float32", n), at),
            )

        return Allocate(scratch, loop(2, row, ForKind.PARALLEL))

    body = LetStmt(shift, n + 0, loop(32, inner, ForKind.PARALLEL))
    f = make(body, a, c, n, scale)
    assert_same(run_both(f, sample("float32", 256), np.zeros(256, "float32"), 3, 1.5), rtol=1e-6)


def test_parallel_loops_capture_vectors(run_both):
    n, c = SizeVar("n"), decl_buffer((1024,), "int64", name="C")
    wide, mask = Var("wide", dtype_of("int64x16")), Var("mask", dtype_of("boolx16"))
    small, last = Var("small", dtype_of("int8x16")), Var("last", dtype_of("int64"))
    value = select(mask, wide + cast("int64x16", small), wide - Broadcast(last, 16))
    body = loop(n, lambda i: BufferStore(c, value * cast("int64", i), (ramp(i * 16, 1, 16),)), ForKind.PARALLEL)
    lanes = ramp(cast("int64", n), 3, 16)
    kept = lanes % Broadcast(cast("int64", n), 16) < const(4, "int64")
    for var, captured in [(last, cast("int64", n) * 7), (small, cast("int8x16", lanes)), (mask, kept), (wide, lanes)]:
        body = LetStmt(var, captured, body)
    assert_same(run_both(make(body, c, n), np.zeros(1024, "int64"), 9))


def test_large_scratch_memory_comes_from_the_context(run_both):
    a, c = decl_buffer((8,), name="A"), decl_buffer((8,), name="C")
    big = decl_buffer((1 << 16,), name="big")
    f = make(
        Allocate(big, seq(loop(8, lambda i: BufferStore(big, BufferLoad(a, (i,)), (i * 8000,))),
                          loop(8, lambda i: BufferStore(c, BufferLoad(big, (i * 8000,)), (i,))))),
        a, c,
    )  # fmt: skip
    assert_same(run_both(f, sample("float32", 8), np.zeros(8, "float32")))


def test_while_let_and_conditions(run_both):
    c = decl_buffer((8,), "int32", name="C")
    x, y = Var("x", dtype_of("int32")), Var("y", dtype_of("int32"))
    load = BufferLoad(c, (const(0),))
    body = seq(
        BufferStore(c, const(1), (const(0),)),
        While(load < 100, seq(BufferStore(c, load * 3, (const(0),)))),
        LetStmt(x, load + 1, BufferStore(c, Let(y, x * x, y + y * x), (const(1),))),
        IfThenElse(load > 200, BufferStore(c, const(5), (const(2),)), BufferStore(c, const(6), (const(2),))),
        IfThenElse(load == 243, BufferStore(c, const(7), (const(3),))),
    )
    assert_same(run_both(make(body, c), np.zeros(8, "int32")))


@pytest.mark.parametrize("indices", [(0, 5, 2, 7), (3,), (7, 6, 5, 4, 3, 2, 1, 0), (1, 1, 6)])
def test_shuffles(run_both, indices):
    a, c = decl_buffer((8,), name="A"), decl_buffer((8,), name="C")
    low, high = (BufferLoad(a, (ramp(k, 1, 4),)) for k in (0, 4))
    value = Shuffle((low, high), indices)
    f = make(BufferStore(c, value, (ramp(0, 1, len(indices)),)), a, c)
    assert_same(run_both(f, sample("float32", 8), np.zeros(8, "float32")))
    parts = tuple(BufferLoad(a, (const(k),)) for k in range(8))
    g = make(BufferStore(c, Shuffle(parts, indices), (ramp(0, 1, len(indices)),)), a, c)
    assert_same(run_both(g, sample("float32", 8), np.zeros(8, "float32")))


@pytest.mark.parametrize("lanes", [1, 4, 5])
def test_bit_operations(run_both, lanes):
    def mix(a, b):
        return ((a & b) | (a ^ (b >> 3))) + (call_intrin(a.dtype, "bitwise_not", a) << 2) + call_intrin(
            a.dtype, "popcount", a
        )  # fmt: skip

    for dtype in ("int32", "uint8", "uint64"):
        f = elementwise(mix, [dtype, dtype], dtype, lanes, 20)
        assert_same(run_both(f, sample(dtype, 20), sample(dtype, 20), np.zeros(20, dtype)))


@pytest.mark.parametrize("lanes", [1, 4, 5])
@pytest.mark.parametrize("op", ["sqrt", "floor", "ceil", "trunc", "round", "fabs"])
def test_exact_float_functions(run_both, op, lanes):
    for dtype in ("float32", "float64", "float16"):
        f = elementwise(lambda a: call_intrin(a.dtype, op, a), [dtype], dtype, lanes, 20)
        assert_same(run_both(f, np.abs(sample(dtype, 20)) if op == "sqrt" else sample(dtype, 20), np.zeros(20, dtype)))


@pytest.mark.parametrize("op", ["isnan", "isinf", "isfinite"])
def test_float_classes(run_both, op):
    values = np.array([0, -1, np.nan, np.inf, -np.inf, 1e38, -0.0, 3], "float32")
    f = elementwise(lambda a: call_intrin("bool" if a.dtype.lanes == 1 else "boolx4", op, a), ["float32"], "bool", 4, 8)
    assert_same(run_both(f, values, np.zeros(8, bool)))


@pytest.mark.parametrize("lanes", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_reductions_of_vectors(run_both, op, lanes):
    for dtype in ("float32", "int32", "uint8"):
        a, c = decl_buffer((lanes,), dtype, name="A"), decl_buffer((1,), dtype, name="C")
        value = call_intrin(dtype, f"vector_reduce_{op}", BufferLoad(a, (ramp(0, 1, lanes),)))
        f = make(BufferStore(c, value, (const(0),)), a, c)
        x = sample(dtype, lanes, -10, 10)
        assert_same(run_both(f, x, np.zeros(1, dtype)), rtol=1e-5)
        if dtype == "float32" and op != "add":
            for k in range(lanes):
                y = x.copy()
                y[k] = np.nan
                assert np.isnan(run_both(f, y, np.zeros(1, dtype))[1][0])


def test_atomics_in_a_parallel_loop(run_both):
    a, c = decl_buffer((1000,), "int32", name="A"), decl_buffer((4,), "int32", name="C")

    def body(i):
        def address(k):
            return call_intrin("handle", "address_of", BufferLoad(c, (convert(k),)))

        value = BufferLoad(a, (i,))
        return seq(
            Evaluate(call_intrin("int32", "atomic_add", address(0), value)),
            Evaluate(call_intrin("int32", "atomic_max", address(1), value)),
        )

    f = make(loop(1000, body, ForKind.PARALLEL), a, c)
    assert_same(run_both(f, sample("int32", 1000), np.zeros(4, "int32")))


def test_kernels_call_each_other(host):
    a, c = decl_buffer((16,), name="A"), decl_buffer((16,), name="C")
    inner = make(loop(4, lambda i: BufferStore(c, BufferLoad(a, (i,)) + 1.0, (i,))), a, c).with_attr(
        "global_symbol", "inner"
    )
    x, y = decl_buffer((16,), name="X"), decl_buffer((16,), name="Y")

    def call(i):
        def at(b):
            return call_intrin("handle", "address_of", BufferLoad(b, (i * 4,)))

        return Evaluate(Call(convert(0).dtype, "call_kernel", (StringImm("inner"), at(x), at(y))))

    outer = make(loop(4, call), x, y).with_attr("global_symbol", "outer")
    module = build(IRModule({"inner": inner, "outer": outer}), host)
    values, result = sample("float32", 16), nd.array(np.zeros(16, "float32"))
    module["outer"](nd.array(values), result)
    np.testing.assert_array_equal(result.numpy(), values + 1)


def test_vector_values_of_ramps(run_both):
    c, n = decl_buffer((8,), "int64", name="C"), Var("n", dtype_of("int32"))
    value = cast("int64", Ramp(n, n + 1, 8) * 3 + ramp(0, 2, 8))
    assert_same(run_both(make(BufferStore(c, value, (ramp(0, 1, 8),)), c, n), np.zeros(8, "int64"), 5))


def test_select_evaluates_lane_by_lane(run_both):
    f = elementwise(lambda a, b: select(a > b, a - b, Select(a < b, b, a)), ["float32"] * 2, "float32", 5, 20)
    assert_same(run_both(f, sample("float32", 20), sample("float32", 20), np.zeros(20, "float32")))


def test_reinterpret(run_both):
    f = elementwise(lambda a: call_intrin("int32x4", "reinterpret", a), ["float32"], "int32", 4, 8)
    assert_same(run_both(f, sample("float32", 8), np.zeros(8, "int32")))


def test_unsupported_code_is_an_error(host):
    c = decl_buffer((8,), name="C")
    f = make(loop(8, lambda i: BufferStore(c, Cast(c.dtype, i), (i,)), ForKind.VECTORIZED), c)
    with pytest.raises(CompileError, match="still vectorized") as info:
        build(IRModule({"f": f}), host)
    assert "in function f" in info.value.__notes__
    g = make(Evaluate(Call(convert(0).dtype, "storage_sync", (StringImm("shared"),))), c)
    with pytest.raises(CompileError, match="does not know the intrinsic 'storage_sync'"):
        build(IRModule({"f": g}), host)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell", "skylake-avx512", "znver5"])
def test_code_for_other_processors(cpu):
    f = elementwise(lambda a, b: Max(a * b + a, b), ["float32"] * 2, "float32", 16, 64)
    text = build(IRModule({"f": f}), Target(f"llvm -mcpu={cpu}")).get_source("asm")
    assert ("zmm" in text) == (cpu in ("skylake-avx512", "znver5"))


def test_code_for_another_architecture():
    f = elementwise(lambda a, b: a * b + a, ["float32"] * 2, "float32", 4, 64)
    module = build(IRModule({"f": f}), Target("llvm -mtriple=aarch64-unknown-linux-gnu"))
    assert "fmla" in module.get_source("asm") or "fmadd" in module.get_source("asm")


def test_fast_math_flags_are_the_targets():
    f = elementwise(lambda a, b: a / b, ["float32"] * 2, "float32", 4, 64)
    module = build(IRModule({"f": f}), Target("llvm -fast-math=nnan,arcp"))
    assert "fdiv nnan arcp" in module.get_source("raw-ll")
    with pytest.raises(CompileError, match="flags reassoc can't be used"):
        build(IRModule({"f": f}), Target("llvm -fast-math=reassoc"))


def test_fast_math_is_an_option_of_the_context():
    f = elementwise(lambda a, b: a / b, ["float32"] * 2, "float32", 4, 64)

    def text(target: str) -> str:
        return build(IRModule({"f": f}), Target(target)).get_source("raw-ll")

    with PassContext(config={"llvm.fast_math": True}):
        assert "fdiv arcp contract nnan nsz " in text("llvm -fast-math=nnan")
    with PassContext(opt_level=4):
        assert "fdiv arcp contract nsz " in text("llvm")
    with PassContext(opt_level=4, config={"llvm.fast_math": False}):
        assert "fdiv <4 x float>" in text("llvm")
    assert "fdiv <4 x float>" in text("llvm")
