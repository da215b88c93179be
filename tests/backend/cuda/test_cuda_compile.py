"""Kernels that other tests run only on the host are compiled for GPUs here, and their instructions counted."""

from __future__ import annotations

import pytest

from relayc import te
from relayc.backend.cuda.build import build
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.target import Target
from relayc.te import tir
from tests.backend.cuda import cuda_programs as programs

TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "uint64", "bool")
OF_INTEGERS = ("vector_", "bitwise_", "is", "popcount", "byte_", "round_to_int32")
FUNCTIONS = [
    name for name, row in tir.intrinsics.INTRINSICS.items()
    if row.arity == 1 and row.reference is not None and not name.startswith(OF_INTEGERS)
]  # fmt: skip


def compiled(s, args, arch):
    return build(te.lower(s, args, name="f"), Target(f"cuda -arch={arch}"))


def map_of(fn, dtype, out_count=1, n=64):
    a = te.placeholder((n,), dtype, name="a")
    outs = te.compute((n,), lambda i: fn(a[i]), name="out")
    outs = [outs] if out_count == 1 else list(outs)
    s = te.create_schedule(outs[0].op)
    s[outs[0]].bind(s[outs[0]].op.axis[0], te.thread_axis("threadIdx.x"))
    return s, [a, *outs]


@pytest.mark.parametrize("arch", ["sm_75", *programs.ARCHES, "sm_100"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_function_of_every_float(dtype, arch):
    def all_of(x):
        return tuple(tir.call_intrin(dtype, name, x) for name in FUNCTIONS)

    module = compiled(*map_of(all_of, dtype, len(FUNCTIONS)), arch)
    assert module.image[:4] == b"\x7fELF" and len(FUNCTIONS) > 25


@pytest.mark.parametrize("arch", ["sm_75", *programs.ARCHES])
def test_every_cast(arch):
    for source in TYPES:
        assert compiled(*map_of(lambda x: tuple(x.astype(t) for t in TYPES), source, len(TYPES)), arch).image


@pytest.mark.parametrize("arch", ["sm_75", *programs.ARCHES])
def test_every_atomic(arch):
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "uint32", "int64", "uint64"):

        def emit(ins, outs, dtype=dtype):
            axis = tir.IterVar(tir.Range(0, 64), tir.Var("t"), "thread", "threadIdx.x")
            value = tir.BufferLoad(ins[0], (axis.var,))
            place = tir.call_intrin("handle", "address_of", tir.BufferLoad(outs[0], (tir.const(0),)))
            calls = [tir.Evaluate(tir.call_intrin(dtype, op, place, value)) for op in ("atomic_add", "atomic_max")]
            return tir.AttrStmt("thread_extent", axis, tir.const(64), tir.seq(calls))

        a = te.placeholder((64,), dtype, name="a")
        out = te.extern((1,), [a], emit, name="out", dtype=dtype)
        assert compiled(te.create_schedule(out.op), [a, out], arch).image


@pytest.mark.parametrize(
    ("threads", "expected"),
    [(32, {"SHFL.BFLY": 5, "BAR.SYNC.DEFER_BLOCKING": 0}), (256, {"SHFL.BFLY": 8, "BAR.SYNC.DEFER_BLOCKING": 1})],
)
@pytest.mark.parametrize("arch", programs.ARCHES)
def test_reductions_use_warp_shuffles(threads, expected, arch):
    a = te.placeholder((4, 4 * threads), name="a")
    k = te.reduce_axis((0, 4 * threads), name="k")
    out = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="out")
    s = te.create_schedule(out.op)
    _, bound = s[out].split(out.op.reduce_axis[0], factor=threads)
    s[out].bind(bound, te.thread_axis("threadIdx.x"))
    s[out].bind(out.op.axis[0], te.thread_axis("blockIdx.x"))
    module = compiled(s, [a, out], arch)
    counts = instruction_counts(module.get_source("sass"))["f_kernel0"]
    for name, number in expected.items():
        assert sum(n for full, n in counts.items() if full.startswith(name)) == number, counts
    assert module.report["f_kernel0"]["spill_stores"] == 0


@pytest.mark.parametrize("arch", programs.ARCHES)
@pytest.mark.parametrize(("dtype", "vector", "width"), [("float32", 4, "128"), ("float16", 8, "128"), ("int8", 4, "")])
def test_vectors_are_single_accesses(dtype, vector, width, arch):
    module = compiled(*programs.vector_add(4096, dtype, vector), arch)
    counts = instruction_counts(module.get_source("sass"))["f_kernel0"]
    loads = {name: n for name, n in counts.items() if name.startswith("LDG")}
    stores = {name: n for name, n in counts.items() if name.startswith("STG")}
    assert sum(loads.values()) == 2 and sum(stores.values()) == 1, counts
    assert all(width in name for name in (*loads, *stores))


def test_byte_dot_products():
    a, b = te.placeholder((64, 4), "int8", name="a"), te.placeholder((64, 4), "int8", name="b")

    def emit(ins, outs):
        axis = tir.IterVar(tir.Range(0, 64), tir.Var("t"), "thread", "threadIdx.x")
        lanes = [tir.cast("int32x4", tir.BufferLoad(i, (axis.var, tir.ramp(0, 1, 4)))) for i in ins]
        dot = tir.call_intrin("int32", "vector_reduce_add", lanes[0] * lanes[1])
        return tir.AttrStmt("thread_extent", axis, tir.const(64), tir.BufferStore(outs[0], dot, (axis.var,)))

    out = te.extern((64,), [a, b], emit, name="out", dtype="int32")
    counts = instruction_counts(compiled(te.create_schedule(out.op), [a, b, out], "sm_80").get_source("sass"))
    assert counts["f_kernel0"]["IDP.4A.S8.S8"] == 1
