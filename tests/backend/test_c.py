"""The "c" target kind: compiled C against the interpreter of the loop IR."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from relayc.backend.c.compiler import compiler_flags
from relayc.backend.driver import build
from relayc.backend.runtime import ArtifactError, ModuleError, load_module_bytes, nd
from relayc.backend.target import Target
from relayc.te import tir
from relayc.te.dtype import FLOAT32, HANDLE
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    Broadcast,
    BufferLoad,
    BufferStore,
    Call,
    Evaluate,
    For,
    ForKind,
    IterVar,
    Let,
    LetStmt,
    PrimFunc,
    Ramp,
    Shuffle,
    StringImm,
    Var,
    call_intrin,
    const,
    decl_buffer,
    if_then_else,
    select,
    seq,
)
from relayc.te.tir.interpreter import interpret

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

LANES, SIZE = 8, 64
TARGET = "c -opt-level=1"


def function_of(compute, dtypes, result, vector):
    """out[i] = compute(in0[i], ...) for SIZE elements, LANES at a time when `vector`."""
    inputs = [decl_buffer((SIZE,), dtype, f"x{k}") for k, dtype in enumerate(dtypes)]
    out = decl_buffer((SIZE,), result, "out")
    i = Var("i")
    at = Ramp(i * LANES, const(1), LANES) if vector else i
    body = BufferStore(out, compute(*[BufferLoad(x, (at,)) for x in inputs]), (at,))
    loop = For(i, const(0), const(SIZE // LANES if vector else SIZE), ForKind.SERIAL, body)
    buffers = [*inputs, out]
    return PrimFunc(tuple(b.data for b in buffers), loop, {b.data: b for b in buffers}, {"global_symbol": "f"})


def run_both(function, *inputs, result):
    """The last argument after a run of the C code and of the interpreter."""
    return run_all({"f": function}, *inputs, result=result)["f"]


def run_all(functions, *inputs, result):
    """name -> the last argument after a run of the C code and of the interpreter; the C compiler runs once."""
    module = build(IRModule(functions), target=TARGET)
    found = {}
    for name, function in functions.items():
        expected = np.zeros(SIZE, result)
        interpret(function, *[x.copy() for x in inputs], expected)
        out = nd.array(np.zeros(SIZE, result))
        module[name](*[nd.array(x) for x in inputs], out)
        found[name] = out.numpy(), expected
    return found


def sample(dtype, seed, low=-20, high=20):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, SIZE).astype(bool)
    if np.dtype(dtype).kind in "iu":
        values = rng.integers(max(low, 0) if np.dtype(dtype).kind == "u" else low, high, SIZE)
        return np.where(values == 0, 3, values).astype(dtype)
    return rng.uniform(low, high, SIZE).astype(dtype)


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "truncdiv": tir.ops.truncdiv,
    "truncmod": tir.ops.truncmod,
    "minimum": tir.minimum,
    "maximum": tir.maximum,
    "by_8": lambda a, b: a // 8 + b % 8,
    "xor": lambda a, b: a ^ b,
    "shift": lambda a, b: (a << 3) >> 2,
    "select": lambda a, b: select(a < b, a, b + b),
    "not": lambda a, b: ~a,
    "and_or": lambda a, b: (a & b) | b,
}


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint32"])
def test_integer_operators(dtype, vector):
    functions = {name: function_of(op, [dtype, dtype], dtype, vector) for name, op in INTEGER.items()}
    for name, (got, want) in run_all(functions, sample(dtype, 1), sample(dtype, 2), result=dtype).items():
        np.testing.assert_array_equal(got, want, err_msg=f"{name} of {dtype}")


FLOAT = {
    "arithmetic": lambda a, b: (a + b) * a - a / b,
    "min": tir.minimum,
    "max": tir.maximum,
    "chosen": lambda a, b: if_then_else(a < b, a, b),
    "select": lambda a, b: select(a >= b, a * b, b - a),
    "math": lambda a, b: sum(
        (
            call_intrin(a.dtype, op, call_intrin(a.dtype, "fabs", a))
            for op in ("sqrt", "log1p", "tanh", "sigmoid", "rsqrt", "erf")
        ),
        b,
    ),
    "rounding": lambda a, b: sum((call_intrin(a.dtype, op, a) for op in ("floor", "ceil", "trunc", "round")), b),
    "exp": lambda a, b: (
        call_intrin(a.dtype, "exp", a) + call_intrin(a.dtype, "pow", call_intrin(a.dtype, "fabs", a), b / 20)
    ),
    "fma": lambda a, b: call_intrin(a.dtype, "fma", a, b, a),
    "fraction": lambda a, b: call_intrin(a.dtype, "fraction", a * 1.5) + call_intrin(a.dtype, "fraction", b / (b - b)),
    "scale": lambda a, b: call_intrin(a.dtype, "scale_by_power", a, b),
    "to int and back": lambda a, b: (
        a.astype(f"int32x{a.dtype.lanes}" if a.dtype.lanes > 1 else "int32").astype(a.dtype) + b
    ),
}


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_float_operators(dtype, vector):
    tolerance = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-14}[dtype]
    functions = {name: function_of(op, [dtype, dtype], dtype, vector) for name, op in FLOAT.items()}
    x, y = (sample(dtype, seed, -6, 6) for seed in (1, 2))
    for name, (got, want) in run_all(functions, x, y, result=dtype).items():
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"{name} of {dtype}")


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("of", ["float32", "float64", "int32"])
def test_casts_to_integers_wrap(of, vector):
    x, kinds = sample(of, 3), ("int8", "uint8", "uint16", "uint32", "uint64", "int64")
    for to in kinds:
        found, expected = run_both(function_of(lambda a, to=to: tir.cast(to, a), [of], to, vector), x, result=to)
        np.testing.assert_array_equal(found, expected, err_msg=to)
        np.testing.assert_array_equal(found, x.astype("int64").astype(to), err_msg=to)


def test_min_and_max_propagate_nan():
    x, y = sample("float32", 1), sample("float32", 2)
    x[::4], y[::5] = np.nan, np.nan
    for op in (tir.minimum, tir.maximum):
        got, want = run_both(function_of(op, ["float32"] * 2, "float32", True), x, y, result="float32")
        np.testing.assert_array_equal(got, want)
        assert np.isnan(got).sum() == (np.isnan(x) | np.isnan(y)).sum()


def test_bfloat16_rounds_after_every_operation():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x, y = (sample("float32", seed, -3, 3).astype(ml_dtypes.bfloat16) for seed in (1, 2))
    op = lambda a, b: (a + b) * a - b  # noqa: E731
    got, want = run_both(function_of(op, ["bfloat16"] * 2, "bfloat16", False), x, y, result=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


def test_vector_operations():
    """Shuffle, horizontal sum, masks, strided and reversed accesses, a vector held in a variable."""
    x, out = decl_buffer((SIZE,), "float32", "x"), decl_buffer((SIZE,), "float32", "out")
    low, high = Ramp(const(0), const(1), 4), Ramp(const(8), const(2), 4)
    v = Var("v", tir.Broadcast(const(0.0), 4).dtype)
    mask = Ramp(const(0), const(1), 4) < Broadcast(const(3), 4)
    total = Call(x.dtype, "vector_reduce_add", (BufferLoad(x, (Ramp(const(0), const(1), 8),)),))
    largest = Call(x.dtype, "vector_reduce_max", (BufferLoad(x, (Ramp(const(0), const(1), 8),)),))
    body = seq(
        BufferStore(out, Shuffle((BufferLoad(x, (low,)), BufferLoad(x, (high,))), (7, 0, 5, 2)), (low,)),
        LetStmt(v, BufferLoad(x, (high,)), BufferStore(out, v + v, (Ramp(const(20), const(-1), 4),))),
        BufferStore(out, BufferLoad(x, (low,), mask), (Ramp(const(24), const(1), 4),)),
        BufferStore(out, BufferLoad(x, (low,)), (Ramp(const(32), const(1), 4),), mask),
        BufferStore(out, total, (const(40),)),
        BufferStore(out, largest, (const(41),)),
        # lanes read what other lanes of the same store write
        BufferStore(out, BufferLoad(out, (Ramp(const(3), const(-1), 4),)), (low,)),
    )
    function = PrimFunc((x.data, out.data), body, {x.data: x, out.data: out}, {"global_symbol": "f"})
    got, want = run_both(function, sample("float32", 3), result="float32")
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.count_nonzero(got) > 10


def test_scratch_memory_small_and_large():
    x, out = decl_buffer((SIZE,), "float32", "x"), decl_buffer((SIZE,), "float32", "out")
    for count in (SIZE, 1 << 15):
        scratch = decl_buffer((count,), "float32", "scratch", scope="local")
        i, j = Var("i"), Var("j")
        body = Allocate(
            scratch,
            seq(
                For(
                    i,
                    const(0),
                    const(SIZE),
                    ForKind.UNROLLED,
                    BufferStore(scratch, BufferLoad(x, (i,)) * 2.0, (i * (count // SIZE),)),
                ),
                For(
                    j,
                    const(0),
                    const(SIZE),
                    ForKind.SERIAL,
                    BufferStore(out, BufferLoad(scratch, (j * (count // SIZE),)), (j,)),
                ),
            ),
        )
        function = PrimFunc((x.data, out.data), body, {x.data: x, out.data: out}, {"global_symbol": "f"})
        got, want = run_both(function, sample("float32", 3), result="float32")
        np.testing.assert_array_equal(got, want)
        assert ("alloc_workspace(ctx, " in build(function, target=TARGET).get_source().split("relayc_f", 1)[1]) == (
            count > SIZE
        )


def parallel_function(extent=SIZE):
    x, out = decl_buffer((extent,), "float32", "x"), decl_buffer((extent,), "float32", "out")
    scale, i, k = Var("scale", FLOAT32), Var("i"), Var("k")
    store = BufferStore(out, BufferLoad(x, (i,)) * scale, (i,))
    inner = For(k, const(0), const(1 << 30), ForKind.PARALLEL, store).replace(extent=const(2))
    body = LetStmt(
        scale, call_intrin("float32", "sqrt", const(4.0)), For(i, const(0), const(extent), ForKind.PARALLEL, inner)
    )
    return PrimFunc((x.data, out.data), body, {x.data: x, out.data: out}, {"global_symbol": "f"})


def test_parallel_loops_call_the_context():
    function = parallel_function()
    got, want = run_both(function, sample("float32", 4), result="float32")
    np.testing.assert_array_equal(got, want)
    source = build(function, target=TARGET).get_source()
    assert source.count("ctx->parallel(") == 1  # the inner loop runs serially
    parameters = "Ctx* ctx, void* closure_, int32_t task_, int32_t tasks_, int64_t step_, int32_t threads_"
    assert f"static void relayc_f_task0({parameters})" in source


def test_let_and_lazy_if_then_else():
    index = Var("t")
    compute = lambda a, b: Let(index, a + b, index * index) + if_then_else(a > 0, a, b)  # noqa: E731
    got, want = run_both(
        function_of(compute, ["int32"] * 2, "int32", False), sample("int32", 1), sample("int32", 2), result="int32"
    )
    np.testing.assert_array_equal(got, want)


def test_calls_of_kernels_and_libraries():
    callee = parallel_function()
    x, out = decl_buffer((SIZE,), "float32", "x"), decl_buffer((SIZE,), "float32", "out")
    call = Evaluate(Call(const(0).dtype, "call_kernel", (StringImm("f"), x.data, out.data)))
    root = Call(x.dtype, "call_extern", (StringImm("cbrtf"), BufferLoad(x, (const(1),))))
    body = seq(call, BufferStore(out, root, (const(0),)))
    caller = PrimFunc((x.data, out.data), body, {x.data: x, out.data: out}, {"global_symbol": "g"})
    module = build(IRModule({"g": caller, "f": callee}), target=TARGET)
    values, result = sample("float32", 5), nd.array(np.zeros(SIZE, "float32"))
    module["g"](nd.array(values), result)
    expected = 2 * values
    expected[0] = np.cbrt(values[1])
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_atomics():
    out = decl_buffer((2,), "float32", "out")
    at = lambda k: call_intrin("handle", "address_of", BufferLoad(out, (const(k),)))  # noqa: E731
    i = Var("i")
    body = For(
        i,
        const(0),
        const(100),
        ForKind.PARALLEL,
        seq(
            Evaluate(call_intrin("float32", "atomic_add", at(0), const(0.5))),
            Evaluate(call_intrin("float32", "atomic_max", at(1), i.astype("float32"))),
        ),
    )
    function = PrimFunc((out.data,), body, {out.data: out}, {"global_symbol": "f"})
    result = nd.array(np.zeros(2, "float32"))
    build(function, target=TARGET)(result)
    assert result.numpy().tolist() == [50.0, 99.0]


def test_source_and_saving():
    module = build(parallel_function(), target=TARGET)
    assert "#include <stdint.h>" in module.get_source("c")
    with pytest.raises(ModuleError, match="not 'ptx'"):
        module.get_source("ptx")
    data = module.save_to_bytes()
    loaded = load_module_bytes("c", data)
    x, out = sample("float32", 6), nd.array(np.zeros(SIZE, "float32"))
    loaded["f"](nd.array(x), out)
    np.testing.assert_array_equal(out.numpy(), 2 * x)
    assert loaded.get_source() == module.get_source() and loaded.save_to_bytes() == data
    for damaged in (b"", data[:-1], b"X" + data[1:]):
        with pytest.raises(ArtifactError):
            load_module_bytes("c", damaged)


def test_code_for_another_processor_is_rejected_before_it_runs():
    host = Target("c")
    lacking = next(f for f in ("avx512vbmi", "avx512ifma", "avx512f", "none") if f not in host.features)
    if lacking == "none" or not host.get("mtriple").startswith("x86_64"):
        pytest.skip("this processor has everything")
    module = build(parallel_function(), target=host.with_attrs(mattr=[*host.get("mattr"), f"+{lacking}"]))
    with pytest.raises(ArtifactError, match=f"needs the instructions {lacking}.*compile it for this machine"):
        module.get_function("f")


def test_code_follows_the_target_not_the_machine():
    flags = compiler_flags(Target("c -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512"))
    assert {"-march=x86-64", "-mavx512f", "-mfma", "-mprefer-vector-width=512"} <= set(flags)
    assert "-mavx2" not in compiler_flags(Target("c -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64"))


def test_a_missing_compiler_is_an_error():
    with pytest.raises(CompileError, match=r"needs a C compiler: none of no-such-cc.*-compiler=.*target llvm"):
        build(parallel_function(), target="c -compiler=no-such-cc")


def test_unsupported_code_is_an_error():
    out = decl_buffer((4,), "float32", "out")
    thread = IterVar(None, Var("threadIdx.x"), "thread", "threadIdx.x")
    bound = AttrStmt("thread_extent", thread, const(4), BufferStore(out, const(0.0), (thread.var,)))
    with pytest.raises(CompileError, match="C code has no threads"):
        build(PrimFunc((out.data,), bound, {out.data: out}, {"global_symbol": "f"}), target=TARGET)


def test_float16_is_rounded_after_every_operation():
    a, b = decl_buffer((37,), "float16", "A"), decl_buffer((37,), "float16", "B")
    i = Var("i")
    x = BufferLoad(a, (i,))
    handles = Var("A", HANDLE), Var("B", HANDLE)
    body = For(i, const(0), const(37), ForKind.SERIAL, BufferStore(b, x * x + x, (i,)))
    func = PrimFunc(handles, body, {handles[0]: a, handles[1]: b}, {"global_symbol": "f"})
    data = np.linspace(-2, 2, 37).astype(np.float16)
    out, expected = nd.array(np.zeros(37, np.float16)), np.zeros(37, np.float16)
    build(IRModule({"f": func}), target=TARGET)["f"](nd.array(data), out)
    interpret(func, data, expected)
    np.testing.assert_array_equal(out.numpy(), expected)
