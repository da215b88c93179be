"""Generated kernels run on a GPU if there is one, else the same text on the host; compared with numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.runtime import ArgumentError
from relayc.backend.target import Target
from relayc.te import tir
from tests.backend.cuda import cuda_programs as programs

FLOATS = ("float32", "float16", "bfloat16", "float64")


def numpy_type(dtype: str):
    return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


def run(schedule, args, arrays, device, outputs: int = 1):
    """Build for the device, call with numpy arrays (the last ones are written), return the outputs."""
    function = backend.build(schedule, args, Target("cuda -arch=sm_90" if device is None else "cuda"), name="f")
    passed = [backend.nd.array(a, device) if isinstance(a, np.ndarray) else a for a in arrays]
    function(*passed)
    results = [a.numpy() for a in passed[-outputs:]]
    return results[0] if outputs == 1 else results


def elementwise(fn, dtypes, n=70, vector=1):
    """One thread per element (or per `vector` of them): (schedule, arguments)."""
    ins = [te.placeholder((n,), d, name=f"in{i}") for i, d in enumerate(dtypes)]
    out = te.compute((n,), lambda i: fn(*[t[i] for t in ins]), name="out")
    s = te.create_schedule(out.op)
    block, thread = s[out].split(out.op.axis[0], factor=32 * vector)
    if vector > 1:
        thread, lanes = s[out].split(thread, factor=vector)
        s[out].vectorize(lanes)
    s[out].bind(block, te.thread_axis("blockIdx.x"))
    s[out].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [*ins, out]


def values(dtype: str, n: int = 70, seed: int = 0, low=-20, high=20):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, n).astype(bool)
    if dtype.startswith(("int", "uint")):
        return random.integers(max(low, 0) if dtype[0] == "u" else low, high, n).astype(dtype)
    return random.uniform(low, high, n).astype(numpy_type(dtype))


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int16", "int32", "int64"])
def test_vector_add(cuda_device, dtype, vector):
    a, b = values(dtype, 1003), values(dtype, 1003, 1)
    out = run(*programs.vector_add(1003, dtype, vector), [a, b, np.zeros_like(a)], cuda_device)
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("vector", [1, 4])
def test_a_misaligned_address_is_rejected(cuda_device, vector):
    s, args = programs.vector_add(64, vector=vector)
    function = backend.build(s, args, Target("cuda"), name="f")
    memory = backend.nd.array(np.arange(72, dtype="float32"), cuda_device)
    moved = memory._create_view((64,), byte_offset=4)
    out = backend.nd.array(np.zeros(64, "float32"), cuda_device)
    if vector == 1:
        function(moved, moved, out)
        np.testing.assert_array_equal(out.numpy(), 2 * np.arange(1, 65))
    else:
        with pytest.raises(ArgumentError, match=r"'A' lies at address .* multiple of 16"):
            function(moved, moved, out)


@pytest.mark.parametrize("n", [0, 1, 64, 1000])
def test_symbolic_size(cuda_device, n):
    a, b = values("float32", n), values("float32", n, 1)
    out = run(*programs.vector_add(te.var("n"), vector=4), [a, b, np.zeros_like(a)], cuda_device)
    np.testing.assert_array_equal(out, a + b)


def test_a_size_given_as_an_argument(cuda_device):
    n = te.var("n")
    s, args = programs.vector_add(n)
    a, b = values("float32", 100), values("float32", 100, 1)
    out = run(s, [n, *args], [100, a, b, np.zeros_like(a)], cuda_device)
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("vector", [1, 4])
def test_indices_with_divisions(cuda_device, vector):
    """Quotients and remainders of positions, and of values that may be negative."""
    a = te.placeholder((7, 12), "int32", name="a")
    out = te.compute((84,), lambda i: a[i % 7, i // 7] // 5 + a[i % 7, i // 7] % 5 * 1000, name="out")
    s = te.create_schedule(out.op)
    thread, lanes = s[out].split(out.op.axis[0], factor=vector)
    if vector > 1:
        s[out].vectorize(lanes)
    s[out].bind(thread, te.thread_axis("threadIdx.x"))
    x = values("int32", 84).reshape(7, 12)
    transposed = x.T.reshape(-1)
    result = run(s, [a, out], [x, np.zeros(84, "int32")], cuda_device)
    np.testing.assert_array_equal(result, transposed // 5 + transposed % 5 * 1000)


FUNCTIONS = {
    "exp": (np.exp, -5, 5), "exp2": (np.exp2, -5, 5), "expm1": (np.expm1, -2, 2), "log": (np.log, 0.1, 9),
    "log2": (np.log2, 0.1, 9), "log10": (np.log10, 0.1, 9), "log1p": (np.log1p, -0.5, 9), "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9), "sin": (np.sin, -9, 9), "cos": (np.cos, -9, 9), "tan": (np.tan, -1, 1),
    "asin": (np.arcsin, -1, 1), "acos": (np.arccos, -1, 1), "atan": (np.arctan, -5, 5), "sinh": (np.sinh, -3, 3),
    "cosh": (np.cosh, -3, 3), "tanh": (np.tanh, -3, 3), "asinh": (np.arcsinh, -5, 5), "acosh": (np.arccosh, 1.1, 5),
    "atanh": (np.arctanh, -0.9, 0.9), "erf": (np.vectorize(math.erf, otypes=[float]), -3, 3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -5, 5), "floor": (np.floor, -9, 9), "ceil": (np.ceil, -9, 9),
    "trunc": (np.trunc, -9, 9), "fabs": (np.abs, -9, 9), "round": (np.round, -9, 9),
}  # fmt: skip


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", FLOATS)
def test_mathematical_functions(cuda_device, dtype, part):
    """Several functions in one kernel: a column of the input and an output each."""
    n, names = 40, list(FUNCTIONS)[part * 7 : part * 7 + 7]
    xs = np.stack([values(dtype, n, i, *FUNCTIONS[name][1:]) for i, name in enumerate(names)], 1)
    x = te.placeholder((n, len(names)), dtype, name="x")
    outs = te.compute(
        (n,), lambda i: tuple(te.tir.call_intrin(dtype, name, x[i, j]) for j, name in enumerate(names)), name="y"
    )
    s = te.create_schedule(outs[0].op)
    s[outs[0]].bind(s[outs[0]].op.axis[0], te.thread_axis("threadIdx.x"))
    arrays = [xs, *[np.zeros(n, xs.dtype) for _ in names]]
    results = run(s, [x, *outs], arrays, cuda_device, len(names))
    tolerance = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    for j, name in enumerate(names):
        expected = FUNCTIONS[name][0](xs[:, j].astype("float64"))
        np.testing.assert_allclose(results[j].astype("float64"), expected, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integer_operators(cuda_device, dtype):
    a, b = values(dtype), values(dtype, seed=1)
    b[b == 0] = 3
    fns = {
        "floordiv": (lambda x, y: x // y, lambda x, y: x // y),
        "floormod": (lambda x, y: x % y, lambda x, y: x % y),
        "min": (te.tir.minimum, np.minimum),
        "max": (te.tir.maximum, np.maximum),
        "and": (lambda x, y: x & y, np.bitwise_and),
        "xor": (lambda x, y: x ^ y, np.bitwise_xor),
        "mul": (lambda x, y: x * y, np.multiply),
    }
    for name, (fn, reference) in fns.items():
        out = run(*elementwise(fn, [dtype, dtype]), [a, b, np.zeros_like(a)], cuda_device)
        np.testing.assert_array_equal(out, reference(a, b), err_msg=name)


@pytest.mark.parametrize("of", ["float32", "float16", "bfloat16", "float64", "int32", "int8", "bool", "int64"])
def test_casts(cuda_device, of):
    x = values(of)
    for to in ("float32", "float16", "bfloat16", "float64", "int32", "int8", "int64", "bool"):
        out = run(*elementwise(lambda v, to=to: v.astype(to), [of]), [x, np.zeros(70, numpy_type(to))], cuda_device)
        expected = x.astype("float32").astype(numpy_type(to)) if to == "bfloat16" else x.astype(numpy_type(to))
        np.testing.assert_array_equal(out, expected, err_msg=to)
    for to in ("uint8", "uint16", "uint32", "uint64"):
        out = run(*elementwise(lambda v, to=to: v.astype(to), [of]), [x, np.zeros(70, to)], cuda_device)
        np.testing.assert_array_equal(out, x.astype("int64").astype(to), err_msg=to)


def test_min_and_max_propagate_nan(cuda_device):
    a, b = values("float32"), values("float32", seed=1)
    a[::3], b[::5] = np.nan, np.nan
    for fn, reference in ((te.tir.minimum, np.minimum), (te.tir.maximum, np.maximum)):
        out = run(*elementwise(fn, ["float32", "float32"]), [a, b, np.zeros_like(a)], cuda_device)
        np.testing.assert_array_equal(out, reference(a, b))


def test_special_values(cuda_device):
    x = np.array([1, np.nan, np.inf, -np.inf, -0.0, 3] * 12, "float32")[:70]
    inf = te.tir.ops.infinity("float32")
    for fn, reference in (
        (lambda v: te.tir.call_intrin("bool", "isnan", v), np.isnan),
        (lambda v: te.tir.call_intrin("bool", "isinf", v), np.isinf),
        (lambda v: te.tir.call_intrin("bool", "isfinite", v), np.isfinite),
    ):
        out = run(*elementwise(fn, ["float32"]), [x, np.zeros(70, bool)], cuda_device)
        np.testing.assert_array_equal(out, reference(x))
    out = run(*elementwise(lambda v: te.tir.select(v > 2.0, inf, -inf), ["float32"]), [x, x], cuda_device)
    np.testing.assert_array_equal(out, np.where(x > 2, np.inf, -np.inf))


def test_bits(cuda_device):
    x = values("int32")
    popcount = run(*elementwise(lambda v: te.tir.call_intrin("int32", "popcount", v), ["int32"]), [x, x], cuda_device)
    np.testing.assert_array_equal(popcount, np.bitwise_count(x.view("uint32")))
    clz = run(*elementwise(lambda v: te.tir.call_intrin("int32", "clz", v), ["int32"]), [x, x * 0], cuda_device)
    np.testing.assert_array_equal(clz, [32 - int(v).bit_length() for v in x.view("uint32")])
    bits = run(
        *elementwise(lambda v: te.tir.call_intrin("float32", "reinterpret", v), ["int32"]),
        [x, np.zeros(70, "float32")], cuda_device,
    )  # fmt: skip
    np.testing.assert_array_equal(bits.view("int32"), x)


def test_a_padded_vector_load_stays_in_bounds(cuda_device):
    """A condition that is uniform over the lanes guards the whole vector."""
    a = te.placeholder((8, 16), name="a")
    b = te.compute(
        (10, 16), lambda i, j: te.if_then_else(te.all(i >= 1, i < 9), a[i - 1, j], te.const(0.0)), name="b"
    )
    s = te.create_schedule(b.op)
    outer, lanes = s[b].split(b.op.axis[1], factor=4)
    s[b].vectorize(lanes)
    s[b].bind(b.op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].bind(outer, te.thread_axis("threadIdx.x"))
    x = values("float32", 128).reshape(8, 16)
    out = run(s, [a, b], [x, np.ones((10, 16), "float32")], cuda_device)
    np.testing.assert_array_equal(out, np.pad(x, ((1, 1), (0, 0))))


@pytest.mark.parametrize("threads", [16, 64, 96, 7, 200])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_reductions_across_threads(cuda_device, threads, dtype):
    a = te.placeholder((3, 2 * threads), dtype, name="a")
    k = te.reduce_axis((0, 2 * threads), name="k")
    out = te.compute((3,), lambda i: te.max(a[i, k], axis=k), name="out")
    s = te.create_schedule(out.op)
    _, bound = s[out].split(out.op.reduce_axis[0], factor=threads)
    s[out].bind(bound, te.thread_axis("threadIdx.x"))
    s[out].bind(out.op.axis[0], te.thread_axis("blockIdx.x"))
    x = values(dtype, 6 * threads).reshape(3, -1)
    np.testing.assert_array_equal(run(s, [a, out], [x, np.zeros(3, x.dtype)], cuda_device), x.max(1))


def test_temporaries_between_kernels(cuda_device):
    a = te.placeholder((20, 64), name="a")
    k = te.reduce_axis((0, 64), name="k")
    row = te.compute((20,), lambda i: te.sum(a[i, k], axis=k), name="row")
    out = te.compute((20, 64), lambda i, j: a[i, j] - row[i], name="out")
    s = te.create_schedule(out.op)
    s[row].bind(row.op.axis[0], te.thread_axis("threadIdx.x"))
    s[out].bind(out.op.axis[0], te.thread_axis("blockIdx.x"))
    s[out].bind(out.op.axis[1], te.thread_axis("threadIdx.x"))
    x = values("float32", 20 * 64).reshape(20, 64)
    result = run(s, [a, out], [x, np.zeros_like(x)], cuda_device)
    np.testing.assert_allclose(result, x - x.sum(1, keepdims=True), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [64, 8000])
def test_shared_memory_of_any_size(cuda_device, n):
    """Two arrays of 8000 floats exceed static shared memory."""
    a = te.placeholder((2, n), name="a")
    double = te.compute((2, n), lambda i, j: a[i, j] * 2.0, name="double")
    flipped = te.compute((2, n), lambda i, j: double[i, n - 1 - j] + 1.0, name="flipped")
    out = te.compute((2, n), lambda i, j: flipped[i, n - 1 - j] - double[i, j], name="out")
    s = te.create_schedule(out.op)
    row = out.op.axis[0]
    s[out].bind(row, te.thread_axis("blockIdx.x"))
    for stage in (double, flipped, out):
        _, thread = s[stage].split(stage.op.axis[1], factor=64)
        s[stage].bind(thread, te.thread_axis((0, 64), "threadIdx.x"))
    for stage in (double, flipped):
        s[stage].set_scope("shared")
        s[stage].compute_at(s[out], row)
    x = values("float32", 2 * n).reshape(2, n)
    function = backend.build(s, [a, out], Target("cuda"), name="f")
    (kernel,) = function.imported_modules[0].functions["f"]["kernels"]
    assert (kernel["dynamic_shared"] > 48 << 10) == (n == 8000)
    result = backend.nd.array(np.zeros_like(x), cuda_device)
    function(backend.nd.array(x, cuda_device), result)
    np.testing.assert_allclose(result.numpy(), 1.0, atol=1e-4)


def test_virtual_threads(cuda_device):
    a = te.placeholder((256,), name="a")
    b = te.compute((256,), lambda i: a[i] * 2.0, name="b")
    s = te.create_schedule(b.op)
    staged = s.cache_write(b, "local")
    virtual, thread = s[b].split(b.op.axis[0], nparts=2)
    thread, _ = s[b].split(thread, nparts=32)
    s[b].bind(virtual, te.thread_axis("vthread"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    s[staged].compute_at(s[b], thread)
    x = values("float32", 256)
    np.testing.assert_array_equal(run(s, [a, b], [x, np.zeros_like(x)], cuda_device), x * 2)


def test_a_scan_in_one_block(cuda_device):
    """Running sums down the rows, a thread per column."""
    m, n = 9, 40
    x = te.placeholder((m, n), name="x")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, j: x[0, j], name="init")
    update = te.compute((m, n), lambda t, j: state[t - 1, j] + x[t, j], name="update")
    scan = te.scan(init, update, state, inputs=[x])
    s = te.create_schedule(scan.op)
    block, thread = te.thread_axis((0, 1), "blockIdx.x"), te.thread_axis((0, n), "threadIdx.x")
    s[scan].env_threads([block, thread])
    s[init].bind(init.op.axis[1], thread)
    s[update].bind(update.op.axis[1], thread)
    data = values("float32", m * n).reshape(m, n)
    out = run(s, [x, scan], [data, np.zeros_like(data)], cuda_device)
    np.testing.assert_allclose(out, np.cumsum(data, 0), rtol=1e-5, atol=1e-4)


def launched(emit, dtype_in, dtype_out, n_in, n_out):
    """An extern operation whose statements `emit` makes from (input buffer, output buffer)."""
    a = te.placeholder((n_in,), dtype_in, name="a")
    out = te.extern((n_out,), [a], lambda ins, outs: emit(ins[0], outs[0]), name="out", dtype=dtype_out)
    return te.create_schedule(out.op), [a, out]


def test_atomics_and_loops_in_extern_code(cuda_device):
    """A histogram, zeroed by one kernel and counted by the next; and a count of halvings, by a while loop."""
    n = 300

    def emit(a, out):
        zero = tir.IterVar(tir.Range(0, 8), tir.Var("z"), "thread", "threadIdx.x")
        clear = tir.BufferStore(out, tir.const(0), (zero.var,))
        clear = tir.AttrStmt("thread_extent", zero, tir.const(8), clear)
        axis = tir.IterVar(tir.Range(0, n), tir.Var("t"), "thread", "threadIdx.x")
        left = tir.decl_buffer((1,), "int32", "left", scope="local")
        steps = tir.decl_buffer((1,), "int32", "steps", scope="local")
        at = (tir.const(0),)
        value, count = tir.BufferLoad(left, at), tir.BufferLoad(steps, at)
        step = tir.seq(tir.BufferStore(left, value // 2, at), tir.BufferStore(steps, count + 1, at))
        place = tir.call_intrin("handle", "address_of", tir.BufferLoad(out, (count,)))
        body = tir.seq(
            tir.BufferStore(left, tir.BufferLoad(a, (axis.var,)), at), tir.BufferStore(steps, tir.const(0), at),
            tir.While(value > 0, step), tir.Evaluate(tir.call_intrin("int32", "atomic_add", place, tir.const(1))),
        )  # fmt: skip
        for buffer in (left, steps):
            body = tir.Allocate(buffer, body)
        return tir.seq(clear, tir.AttrStmt("thread_extent", axis, tir.const(n), body))

    data = values("int32", n, low=0, high=128)
    out = run(*launched(emit, "int32", "int32", n, 8), [data, np.zeros(8, "int32")], cuda_device)
    np.testing.assert_array_equal(out, np.bincount([int(v).bit_length() for v in data], minlength=8))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_atomics_of_types(cuda_device, dtype):
    def emit(a, out):
        axis = tir.IterVar(tir.Range(0, 64), tir.Var("t"), "thread", "threadIdx.x")
        value = tir.BufferLoad(a, (axis.var,))
        places = [tir.call_intrin("handle", "address_of", tir.BufferLoad(out, (tir.const(i),))) for i in range(2)]
        body = tir.seq(
            tir.IfThenElse(axis.var < 2, tir.BufferStore(out, tir.const(0, dtype), (axis.var,))),
            tir.Evaluate(tir.call_intrin("int32", "storage_sync", "shared")),
            tir.Evaluate(tir.call_intrin(dtype, "atomic_add", places[0], value)),
            tir.Evaluate(tir.call_intrin(dtype, "atomic_max", places[1], value)),
        )
        return tir.AttrStmt("thread_extent", axis, tir.const(64), body)

    data = values("int32", 64, low=-8, high=8).astype(dtype)
    out = run(*launched(emit, dtype, dtype, 64, 2), [data, np.zeros(2, dtype)], cuda_device)
    np.testing.assert_array_equal(out, [data.sum(), data.max()])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_small_floats(cuda_device, dtype):
    a, b = values(dtype), values(dtype, seed=1)
    out = run(*elementwise(lambda x, y: x + y, [dtype, dtype]), [a, b, np.zeros_like(a)], cuda_device)
    expected = (a.astype("float32") + b.astype("float32")).astype(a.dtype)
    np.testing.assert_array_equal(out.view("uint8"), expected.view("uint8"))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_byte_dot_product_is_one_instruction(cuda_device, dtype):
    n = 64

    def emit(a, out):
        axis = tir.IterVar(tir.Range(0, n), tir.Var("t"), "thread", "threadIdx.x")
        bytes_ = tir.BufferLoad(a, (tir.ramp(axis.var * 4, 1, 4),))
        wide = tir.cast("int32x4", bytes_)
        dot = tir.call_intrin("int32", "vector_reduce_add", wide * wide)
        store = tir.BufferStore(out, dot + axis.var, (axis.var,))
        return tir.AttrStmt("thread_extent", axis, tir.const(n), store)

    data = np.random.default_rng(0).integers(*((-128, 128) if dtype == "int8" else (0, 256)), n * 4).astype(dtype)
    s, args = launched(emit, dtype, "int32", n * 4, n)
    source = backend.build(s, args, Target("cuda"), name="f").imported_modules[0].get_source()
    assert "__dp4a(" in source[source.index('extern "C"') :]
    out = run(s, args, [data, np.zeros(n, "int32")], cuda_device)
    np.testing.assert_array_equal(out, (data.astype("int32").reshape(n, 4) ** 2).sum(1) + np.arange(n))


def test_a_loop_at_the_root_interleaves_its_kernels(cuda_device):
    """Each step of a dynamic number has two launches that read each other's results."""
    steps, size = te.var("steps"), 70
    a = te.placeholder((size,), name="a")
    noted = te.placeholder((steps,), name="noted")

    def shifted(ib: tir.ir_builder.IRBuilder, source: Any, out: Any, value: Any) -> None:
        with ib.scope():
            thread = ib.thread_axis(size, "threadIdx.x")
            out[thread] = source[(thread + 1) % size] + value

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        first, add, out = ib.buffer(ins[0]), ib.buffer(ins[1]), ib.buffer(outs[0])
        between = ib.allocate("float32", (size,), "between", scope="global")
        shifted(ib, first, out, te.const(0.0))
        with ib.for_range(0, steps, "step") as step:
            shifted(ib, out, between, add[step])
            shifted(ib, between, out, te.cast("float32", step))
        return ib.get()

    c = te.extern((size,), [a, noted], body, name="c", dtype="float32")
    first_input, more = values("float32"), values("float32", 3, 1)
    result = run(te.create_schedule(c.op), [a, noted, c], [first_input, more, np.zeros(size, "float32")], cuda_device)
    np.testing.assert_allclose(result, np.roll(first_input, -7) + more.sum() + 3, atol=1e-5)
