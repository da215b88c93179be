"""Reductions, softmax and normalisations on CPUs, against numpy: contiguous and strided axes, threads, tails."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.ir import collect
from relayc.te.ir.decisions import recording
from relayc.te.tir import BufferLoad, For, ForKind, Ramp
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(12)
TARGETS = [Target("llvm -num-cores=1"), Target("llvm -num-cores=16")]


def check(out, inputs, arrays, expected, target):
    module = te.lower(schedule_for([out], target), [*inputs, out])
    result = backend.nd.empty(out.shape, out.dtype)
    backend.build(module, target=target)(*map(backend.nd.array, arrays), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(expected).max())))
    return str(module)


SMALL_L2 = Target("llvm -mtune=x86-64 -num-cores=2 -l2-bytes=262144")
SHAPES = [
    ((37, 1024), 0), ((37, 1024), 1), ((5, 203), 0), ((5, 203), 1), ((301, 9), 0), ((2000, 64), 0), ((3, 50, 70), 1),
    ((2, 41, 43, 24), (1, 2)), ((2, 24, 41, 43), (2, 3)), ((1, 300, 300), None), ((70, 3, 1000), (0, 2)),
]  # fmt: skip
ROWS = [((4, 77), 1), ((256, 333), 0), ((2, 21, 5, 40), 1), ((3, 2, 7), 0)]
CHANNELS = [((2, 24, 9, 11), 1), ((2, 12, 40), 1), ((2, 9, 11, 24), 3), ((1, 40, 41, 6), 3)]
LINES = [((2, 5, 6, 40), 3), ((2, 5, 6, 13), 3), ((2, 9, 5, 7), 1), ((3, 30), 1)]
HALVES = [((70, 130), 0), ((70, 130), 1), ((33, 7), 1), ((3, 40, 65), 1), ((50,), None)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "mean"])
def test_reduction(kind, shape, axis, target):
    a = RNG.standard_normal(shape).astype("float32")
    x = te.placeholder(shape, "float32", "x")
    check(getattr(topi, kind)(x, axis), [x], [a], getattr(np, kind)(a.astype("float64"), axis), target)


@pytest.mark.parametrize("kind", ["sum", "max", "mean", "softmax"])
def test_dynamic_lines_are_vectors_with_scalar_tails(kind):
    n, h, w = te.size_var("n"), te.size_var("h"), te.size_var("w")
    x = te.placeholder((n, h, w), "float32", "x")
    axes = 2 if kind == "softmax" else (1, 2)
    out = topi.nn.softmax(x, axes) if kind == "softmax" else getattr(topi, kind)(x, axes)
    module = te.lower(schedule_for([out], TARGETS[0]), [x, out])
    assert "ramp" in str(module)
    function = backend.build(module, target=TARGETS[0])
    for shape in ((2, 1, 1), (3, 2, 5), (2, 4, 8), (1, 3, 31), (2, 1, 32), (1, 2, 100)):
        a = RNG.standard_normal(shape).astype("float32")
        exps = np.exp(a.astype("float64"))
        expected = exps / exps.sum(-1, keepdims=True) if kind == "softmax" else getattr(np, kind)(a, axes)
        result = backend.nd.empty(expected.shape, "float32")
        function(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


LONG = [
    ((100_000, 8), 0), ((300_001, 3), 0), ((1, 224, 224, 16), (1, 2)), ((2, 40_000, 30), 1), ((3, 100_000), 1),
    ((20, 8, 5000), (0, 2)), ((200, 300, 7), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), LONG, ids=str)
@pytest.mark.parametrize(("kind", "dynamic"), [("mean", False), ("mean", True), ("var", False)])
def test_rounding_errors_of_long_sums_stay_small(kind, dynamic, shape, axes):
    """Added up in sequence, 100,000 values have an error of 50 units in the last place."""
    a = RNG.random(shape, dtype=np.float32)
    sizes = [te.size_var(f"n{k}") for k in range(len(shape))] if dynamic else shape
    x = te.placeholder(sizes, "float32", "x")
    out = (topi.variance if kind == "var" else getattr(topi, kind))(x, axes)
    function = backend.build(te.lower(schedule_for([out], TARGETS[0]), [x, out]), target=TARGETS[0])
    expected = getattr(np, kind)(a.astype("float64"), axes)
    result = backend.nd.empty(expected.shape, "float32")
    function(backend.nd.array(a), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=3e-6 if dynamic else 1e-6)


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize(("shape", "axes"), [((60, 50, 30), (0, 2)), ((2, 60, 50, 3), (1, 3)), ((60, 9, 7), (0, 2))])
def test_a_short_last_dimension_is_reduced_after_whole_lines(kind, shape, axes):
    x = te.placeholder(shape, "float32", "x")
    out, a = getattr(topi, kind)(x, axes), RNG.standard_normal(shape).astype("float32")
    check(out, [x], [a], getattr(np, kind)(a.astype("float64"), axes), TARGETS[1])
    main = te.lower(schedule_for([out], TARGETS[0]), [x, out])["main"]
    loads = [load for load in collect(main.body, BufferLoad) if load.buffer.data is main.params[0]]
    assert loads and all(isinstance(load.indices[0], Ramp) for load in loads)


BYTES = [((1000, 200), 0), ((300, 33), 0), ((3, 521, 50), 1), ((2, 9, 31, 64), (1, 2)), ((20, 64), 0), ((257, 9), 0)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("shape", "axes"), BYTES, ids=str)
@pytest.mark.parametrize(("kind", "wide"), [("int8", "int32"), ("uint8", "int64"), ("bool", "int32")])
def test_sums_of_bytes_are_exact(kind, wide, shape, axes, target):
    x = te.placeholder(shape, kind, "x")
    total = topi.sum(topi.cast(x, wide), axes)
    module = te.lower(schedule_for([total], target), [x, total])
    assert "int16" in str(module)
    function = backend.build(module, target=target)
    lowest, highest = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    for a in (RNG.integers(lowest, highest + 1, shape), np.full(shape, lowest), np.full(shape, highest)):
        result = backend.nd.empty(total.shape, wide)
        function(backend.nd.array(a.astype(kind)), result)
        np.testing.assert_array_equal(result.numpy(), a.sum(axes))


SHORT = [((140, 10), 1), ((67, 4), 1), ((3, 41, 21), 2), ((65, 3), 1), ((5, 40, 2, 5), (2, 3)), ((9, 1, 23), 2)]


@pytest.mark.parametrize(("shape", "axes"), SHORT, ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "var", "argmax"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
def test_short_rows_are_transposed_in_registers(dtype, kind, shape, axes):
    a = RNG.integers(-3, 4, shape).astype(dtype)
    x = te.placeholder(shape, dtype, "x")
    if kind == "argmax":
        out, expected = topi.argmax(x, axes), positions(a, axes if isinstance(axes, tuple) else (axes,), kind, False)
    elif kind == "var":
        out, expected = topi.variance(topi.cast(x, "float64"), axes), a.astype("float64").var(axes)
    else:
        out, expected = getattr(topi, kind)(x, axes), getattr(np, kind)(a.astype("float64"), axes)
    text = check(out, [x], [a], expected, Target("llvm -mtune=x86-64 -num-cores=2 -l2-bytes=5200"))
    if (dtype, kind, shape) == ("float32", "argmax", (140, 10)):
        assert "shuffle" in text and "prefetch" in text


@pytest.mark.parametrize(("vector_bytes", "by_parts"), [(64, True), (32, False)])
def test_lanes_of_long_vectors_are_added_by_quarters(vector_bytes, by_parts):
    """Sixteen lanes are added by four quarters first, then four lanes, not as a chain of sixteen additions."""
    a = RNG.standard_normal((37, 1024)).astype("float32")
    x = te.placeholder(a.shape, "float32", "x")
    target = Target(f"llvm -num-cores=1 -vector-bytes={vector_bytes}")
    text = check(topi.sum(x, 1), [x], [a], a.astype("float64").sum(1), target)
    assert ("sum.rf_2 = allocate([4]" in text) == by_parts


def test_short_lines_are_taken_pages_apart():
    x = te.placeholder((512, 256), "float32", "x")
    out = topi.sum(x, 0)
    text = str(te.lower(schedule_for([out], Target("llvm -num-cores=1 -mattr=-avx512f")), [x, out]))
    assert "+ 2048, 1, 8)" in text and "+ 14336, 1, 8)" in text  # eight lines, every eighth


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_position_of_an_extremum_along_memory(dtype, kind, last):
    a = RNG.integers(0, 200, (9, 3, 205)).astype(dtype)
    a[0, 0], a[0, 1, 77:], a[0, 2, :5] = 3, a[0, 1].max(), a[0, 2].min()
    if a.dtype.kind == "f":
        a[1, 0, 50:60], a[1, 1], a[2, 0], a[2, 1, 100:], a[2, 2, :9] = np.nan, np.nan, -np.inf, np.inf, -np.inf
        a[3, 0, 7], a[3, 0, 200], a[3, 1, 204], a[3, 2, 0], a[4, 0] = np.nan, np.nan, np.nan, np.nan, np.inf
    find = getattr(np, kind)
    expected = 204 - find(a[..., ::-1], -1) if last else find(a, -1)
    x = te.placeholder(a.shape, dtype, "x")
    for keepdims in (False, True):
        wanted = expected[..., None] if keepdims else expected
        index = getattr(topi, kind)(x, 2, keepdims, last, "int64")
        check(index, [x], [a], wanted, TARGETS[0])
    doubled = topi.add(index, index)
    check(doubled, [x], [a], 2 * wanted, TARGETS[1])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(("shape", "axis"), [((21, 19500), 0), ((2, 5, 400, 70), 1), ((32, 9001), 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_position_of_an_extremum_of_a_few_lines_from_memory(dtype, shape, axis, kind, last):
    a = RNG.integers(0, 9, shape).astype(dtype)  # many ties
    if a.dtype.kind == "f":
        a.reshape(-1)[RNG.integers(0, a.size, 99)] = np.nan
    x = te.placeholder(shape, dtype, "x")
    index = getattr(topi, kind)(topi.add(x, x), axis, False, last)
    text = check(index, [x], [a], positions(a, (axis,), kind, last), SMALL_L2)
    assert dtype != "float32" or "prefetch" in text


@pytest.mark.parametrize(
    ("rows", "target", "at_once"),
    [
        (21, "llvm -mcpu=x86-64-v4", True),
        (21, "llvm -mcpu=x86-64-v3", True),
        (21, "llvm -mcpu=x86-64-v2", False),  # a cache line's results would take half of the registers
        (21, "llvm -mtriple=aarch64-linux-gnu", True),
        (48, "llvm -mcpu=x86-64-v4", False),  # more lines than are read well at once
    ],
)
def test_a_few_lines_from_memory_are_read_together(rows, target, at_once):
    def lowered(columns: int) -> str:
        x = te.placeholder((rows, columns), "float32", "x")
        out = topi.argmax(x, 0)
        return str(te.lower(schedule_for([out], Target(f"{target} -num-cores=1 -l2-bytes=524288")), [x, out]))

    assert (lowered(50000).count("prefetch(address_of(x[") == rows) == at_once
    assert "prefetch" not in lowered(5000)  # what the cache holds


def positions(a: np.ndarray, axes: tuple[int, ...], kind: str, last: bool) -> np.ndarray:
    """The first (last) row-major positions within `axes`."""
    kept = [i for i in range(a.ndim) if i not in axes]
    rows = a.transpose((*kept, *axes)).reshape([*[a.shape[i] for i in kept], -1])
    find = getattr(np, kind)
    return rows.shape[-1] - 1 - find(rows[..., ::-1], -1) if last else find(rows, -1)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 5003), (1,)), ((4001, 40), (0,)), ((31, 77), (0, 1)), ((5, 31, 77), (1, 2)), ((7, 31, 77), (0, 1)),
     ((70, 3, 41), (0, 2)), ((500, 10), (1,)), ((20, 9, 21), (2,)), ((2, 3, 5), (1, 2))],
    ids=str,
)  # fmt: skip
def test_position_of_an_extremum_by_parts(shape, axes, kind, last):
    small = Target("llvm -mtune=x86-64 -num-cores=2 -l2-bytes=8192")
    a = RNG.integers(0, 900, shape).astype("float32")
    holes = a.copy()
    holes.reshape(-1)[RNG.integers(0, a.size, 9)] = np.nan
    x = te.placeholder(shape, "float32", "x")
    index = getattr(topi, kind)(x, axes, False, last, "int64")
    for array in (a, holes):
        check(index, [x], [array], positions(array, axes, kind, last), small)


@pytest.mark.parametrize("axis", [1, 2])
def test_position_of_an_extremum_with_a_dynamic_number_of_rows(axis):
    n = te.size_var("n")
    x = te.placeholder((n, 700, 24), "float32", "x")
    out = topi.argmax(x, axis)
    target = Target("llvm -mtune=x86-64 -num-cores=2 -l2-bytes=8192")
    function = backend.build(te.lower(schedule_for([out], target), [x, out]), target=target)
    for rows in (1, 3):
        a = RNG.integers(0, 900, (rows, 700, 24)).astype("float32")
        result = backend.nd.empty(a.argmax(axis).shape, "int64")
        function(backend.nd.array(a), result)
        np.testing.assert_array_equal(result.numpy(), a.argmax(axis))


@pytest.mark.parametrize("shape", [(300, 7), (40, 9, 3), (5, 2, 2, 2), (33, 23)], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_short_rows_are_reduced_as_vectors_of_rows(kind, shape):
    a = RNG.standard_normal(shape).astype("float32")
    x = te.placeholder(shape, "float32", "x")
    for keepdims in (False, True):
        expected = getattr(np, kind)(a, -1, keepdims=keepdims)
        check(getattr(topi, kind)(x, -1, keepdims), [x], [a], expected, TARGETS[0])


@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 1000), 1), ((7, 77), 1), ((3, 5, 49), 2), ((4, 3, 9, 13), (2, 3))], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "int8"])
def test_ends_of_lines_are_shorter_vectors_without_masks(dtype, shape, axis):
    a = RNG.integers(-9, 9, shape).astype(dtype)
    x = te.placeholder(shape, dtype, "x")
    text = check(topi.max(x, axis), [x], [a], a.max(axis), TARGETS[0])
    assert "ramp" in text
    assert "where=" not in text


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 50, 30), (0, 2)), ((3, 4, 5, 70, 7), (0, 2, 4)), ((1, 9, 40, 3), (1, 3))], ids=str
)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_short_rows_of_several_blocks_are_reduced_across_blocks_first(kind, shape, axis, keepdims):
    a = RNG.standard_normal(shape).astype("float32")
    x = te.placeholder(shape, "float32", "x")
    expected = getattr(np, kind)(a, axis, keepdims=keepdims)
    text = check(getattr(topi, kind)(x, axis, keepdims), [x], [a], expected, TARGETS[0])
    assert "_of_lines[ramp(" in text


def test_cores_share_the_lines_of_a_large_reduction_with_few_results():
    a = np.ones((4096, 64), "float32")
    x = te.placeholder(a.shape, "float32", "x")
    text = check(topi.sum(x, 0), [x], [a], np.full(64, 4096.0), TARGETS[1])
    assert "in parallel(16)" in text


def test_equal_results_in_every_run():
    a = RNG.standard_normal((5000, 96)).astype("float32")
    x = te.placeholder(a.shape, "float32", "x")
    out = topi.sum(x, 0)
    function = backend.build(te.lower(schedule_for([out], TARGETS[1]), [x, out]), target=TARGETS[1])
    results = [backend.nd.empty((96,), "float32") for _ in range(5)]
    for result in results:
        function(backend.nd.array(a), result)
    assert len({r.numpy().tobytes() for r in results}) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), ROWS, ids=str)
def test_softmax(shape, axis, target):
    a = RNG.standard_normal(shape).astype("float32") * 5
    e = np.exp(a.astype("float64") - a.max(axis, keepdims=True))
    x = te.placeholder(shape, "float32", "x")
    check(topi.nn.softmax(x, axis), [x], [a], e / e.sum(axis, keepdims=True), target)
    check(topi.nn.log_softmax(x, axis), [x], [a], np.log(e / e.sum(axis, keepdims=True)), target)


def test_the_prefetch_distance_is_in_whole_rows():
    x = te.placeholder((700, 200), "float32", "x")
    out = topi.nn.softmax(x, 1)
    target = Target("llvm -num-cores=1 -l2-bytes=262144 -mtune=znver5")
    text = str(te.lower(schedule_for([out], target), [x, out]))
    assert "+ 2200]), 3, 0)" in text  # eleven rows: 8 KB at least


def test_rows_are_prefetched_within_the_page_with_a_high_latency_llc():
    x = te.placeholder((7000, 200), "float32", "x")
    out = topi.nn.softmax(x, 1)
    near, far = (
        str(te.lower(schedule_for([out], Target(f"llvm -num-cores=1 -l2-bytes=2097152 -mtune={name}")), [x, out]))
        for name in ("znver5", "sapphirerapids")
    )
    assert "+ 2200]), 3, 0)" in near
    assert "+ 600]), 3, 0)" in far  # three rows: 2 KB at least, half a page


@pytest.mark.parametrize(("processor", "prefetches"), [("sapphirerapids", True), ("znver4", False)])
@pytest.mark.parametrize("axes", [(1,), (0, 1)], ids=str)
def test_sums_prefetch_with_a_high_latency_llc(axes, processor, prefetches):
    x = te.placeholder((3000, 1000), "float32", "x")
    out = topi.sum(x, axes)
    for cores in (1, 4):
        target = Target(f"llvm -num-cores={cores} -l2-bytes=2097152 -mtune={processor}")
        text = str(te.lower(schedule_for([out], target), [x, out]))
        assert ("prefetch(address_of(x[" in text) == prefetches


@pytest.mark.parametrize(("processor", "ahead"), [("sapphirerapids", 512), ("znver5", 30_000)])
def test_rows_read_once_are_prefetched_within_the_page_with_a_high_latency_llc(processor, ahead):
    """Not a whole row ahead, as for two passes."""
    x = te.placeholder((100, 30_000), "float32", "x")
    out = topi.log_sum_exp(x, (1,))
    target = Target(f"llvm -num-cores=1 -l2-bytes=2097152 -mtune={processor}")
    text = str(te.lower(schedule_for([out], target), [x, out]))
    assert f" + {ahead}" in next(line for line in text.splitlines() if "prefetch(address_of(x[" in line)


def test_masked_rows_are_prefetched_and_vectorised():
    a, kept = RNG.standard_normal((700, 200)).astype("float32"), RNG.integers(0, 2, 200).astype(bool)
    x, m = te.placeholder(a.shape, "float32", "x"), te.placeholder(kept.shape, "bool", "m")
    e = np.exp(np.where(kept, a, -1e9).astype("float64") - np.where(kept, a, -1e9).max(1, keepdims=True))
    low = te.compute((), lambda: te.const(-1e9, "float32"), name="low", tag="elemwise")
    out = topi.nn.softmax(topi.where(m, x, low), 1)
    text = check(out, [m, x], [kept, a], e / e.sum(1, keepdims=True), SMALL_L2)
    assert "prefetch(address_of(x[" in text
    assert "where=" not in text


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), CHANNELS, ids=str)
@pytest.mark.parametrize("groups", [None, 3])
def test_norms_of_channels(shape, axis, groups, target):
    a = (RNG.standard_normal(shape) + 3).astype("float32")
    gamma, beta = (RNG.standard_normal(shape[axis]).astype("float32") for _ in range(2))
    x, g, b = (te.placeholder(v.shape, "float32", n) for v, n in ((a, "x"), (gamma, "g"), (beta, "b")))
    first = np.moveaxis(a.astype("float64"), axis, 1)
    rows = first.reshape(shape[0], groups or shape[axis], -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    standard = np.moveaxis(rows.reshape(first.shape), 1, axis)
    per_channel = [1] * len(shape)
    per_channel[axis] = -1
    expected = standard * gamma.reshape(per_channel) + beta.reshape(per_channel)
    if groups is None:
        norm = topi.nn.instance_norm(x, g, b, axis, 1e-5)
    else:
        norm = topi.nn.group_norm(x, g, b, groups, axis, 1e-5)
    text = check(norm, [x, g, b], [a, gamma, beta], expected, target)
    assert ("group_norm_mean_group" in text) == (axis == 3)


@pytest.mark.parametrize(("shape", "axis"), LINES, ids=str)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_local_response_normalisation(shape, axis, size):
    a = RNG.standard_normal(shape).astype("float32")
    squares = np.moveaxis(a.astype("float64") ** 2, axis, -1)
    padded = np.pad(squares, [(0, 0)] * (len(shape) - 1) + [((size - 1) // 2, size // 2)])
    total = sum(padded[..., i : i + squares.shape[-1]] for i in range(size))
    expected = a / (2.0 + 0.01 / size * np.moveaxis(total, -1, axis)) ** 0.75
    x = te.placeholder(shape, "float32", "x")
    text = check(topi.nn.lrn(x, size, axis, 0.01, 0.75, 2.0), [x], [a], expected, TARGETS[1])
    assert "allocate" not in text


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 300), 1), ((5, 33), 1), ((40, 6), 0), ((40, 700), 0), ((21, 1100), 0)], ids=str
)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_position_of_an_extremum(kind, shape, axis, last):
    a = RNG.integers(0, 4, shape).astype("float32")  # many ties
    a[0] = np.nan if axis else a[0]
    a[-1, -1] = np.nan
    x = te.placeholder(shape, "float32", "x")
    flipped = np.flip(a, axis) if last else a
    expected = getattr(np, kind)(flipped, axis)
    expected = shape[axis] - 1 - expected if last else expected
    check(getattr(topi, kind)(x, axis, False, last), [x], [a], expected, TARGETS[1])


def test_planes_that_enter_a_window_of_channels_are_prefetched():
    def prefetches(side: int) -> int:
        x = te.placeholder((1, 8, side, side), name="x")
        y = topi.nn.lrn(x, 5, 1, 1e-4, 0.75, 2.0)
        s = schedule_for([y], Target("llvm -mcpu=haswell -l2-bytes=524288 -num-cores=2"))
        return str(te.lower(s, [x, y], simple_mode=True)).count("prefetch(")

    assert prefetches(256) > 0 and prefetches(16) == 0


@pytest.mark.parametrize(("side", "prefetches"), [(55, True), (27, True), (56, False), (13, False)])
@pytest.mark.parametrize("features", ["", " -mattr=-avx512f"])
def test_results_of_unaligned_planes_are_prefetched_for_writing(side, prefetches, features):
    shape = (64, 6, side, side)
    x = te.placeholder(shape, name="x")
    y = topi.nn.lrn(x, 5, 1, 1e-4, 0.75, 2.0)
    target = Target(f"llvm -mtune=x86-64 -l1-bytes=8192 -l2-bytes=65536 -l3-bytes=262144 -num-cores=1{features}")
    a = RNG.standard_normal(shape).astype("float32")
    squares = np.pad(a.astype("float64") ** 2, [(0, 0), (2, 2), (0, 0), (0, 0)])
    expected = a / (2 + 1e-4 / 5 * sum(squares[:, i : i + 6] for i in range(5))) ** 0.75
    text = check(y, [x], [a], expected, target)
    assert ("prefetch(address_of(lrn[" in text) == prefetches


def test_planes_are_prefetched_at_the_group_of_vectors_that_reads_them():
    x = te.placeholder((1, 8, 260, 260), name="x")
    y = topi.nn.lrn(x, 5, 1, 1e-4, 0.75, 2.0)
    s = schedule_for([y], Target("llvm -mcpu=haswell -l2-bytes=524288 -num-cores=2"))
    prefetches = [line for line in str(te.lower(s, [x, y], simple_mode=True)).splitlines() if "prefetch(" in line]
    assert prefetches and not any("//" in line for line in prefetches)  # not the beginning of the row


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"] if platform.machine() == "x86_64" else ["llvm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "axis"), HALVES, ids=str)
def test_extrema_of_16_bit_floats_are_compared_as_integers(shape, axis, dtype, target) -> None:
    """16-bit vectors compare any bit patterns, with infinities and NaN of either sign."""
    random = np.random.default_rng(0)
    for function, oracle in ((topi.max, np.max), (topi.min, np.min)):
        x = te.placeholder(shape, dtype, "x")
        y = function(x, axis=axis)
        lowered = te.lower(schedule_for([y], Target(target)), [x, y])
        assert "uint16" in str(lowered)
        module = backend.build(lowered, target=Target(target))
        for nan in (None, 0x7FFF, 0xFFFF):
            bits = random.integers(0, 65536, shape).astype("uint16")
            infinity = 0x7C00 if dtype == "float16" else 0x7F80
            bits[(bits & 0x7FFF) > infinity] &= 0x8000 | infinity
            if nan is not None:
                bits.ravel()[random.integers(bits.size)] = nan
            values = bits.view(backend.nd.empty((1,), dtype).numpy().dtype)
            result = backend.nd.empty(y.shape, dtype)
            module(backend.nd.array(values), result)
            expected = oracle(values.astype("float32"), axis=axis)
            np.testing.assert_array_equal(result.numpy().astype("float32"), expected)


@pytest.mark.parametrize("cores", [1, 16])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (2.0, 3.0), (-3.0, -2.0), (0.0, 0.0), (-1.0, np.nan)])
def test_the_range_of_bytes_is_found_in_one_pass(low, high, cores):
    """On one core and several; ranges that contain 0, end at 0 or are extended to it, and NaN."""
    target, length = Target(f"llvm -num-cores={cores}"), 320_000
    a = np.full(length, low, "float32")
    a[length // 3] = high
    x = te.placeholder((length,), "float32", "x")
    scale, point = topi.choose_qparams(x)
    module = te.lower(schedule_for([scale, point], target), [x, scale, point])
    passes = [loop for loop in collect(module["main"].body, For) if _reads_alone(loop, module["main"].params[0])]
    assert len([loop for loop in passes if loop.extent.value > 100]) == 1
    assert any(loop.kind is ForKind.PARALLEL for loop in collect(module["main"].body, For)) == (cores > 1)
    found = backend.nd.empty((), "float32"), backend.nd.empty((), "uint8")
    backend.build(module, target=target)(backend.nd.array(a), *found)
    width = np.float32(max(high, 0.0) - min(low, 0.0))
    expected = np.float32(1) if width == 0 else width / np.float32(255)
    np.testing.assert_array_equal(found[0].numpy(), expected)
    if not np.isnan(width):
        assert found[1].numpy() == np.rint(-min(low, 0.0) / expected)


def _reads_alone(loop, source):
    """True if a loop reads an argument, and no loop inside of it does."""
    inside = [other for other in collect(loop.body, For) if other.kind is not ForKind.VECTORIZED]
    return not inside and any(load.buffer.data is source for load in collect(loop.body, BufferLoad))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_positions_of_extrema_along_a_dynamic_dimension(last, kind, axis):
    x = te.placeholder([te.size_var(name) for name in "abc"], "float32", "x")
    out = getattr(topi, kind)(x, axis, select_last_index=last)
    main = te.lower(schedule_for([out], TARGETS[1]), [x, out])["main"]
    loads = [load for load in collect(main.body, BufferLoad) if load.buffer.data is main.params[0]]
    assert last or any(isinstance(load.indices[0], Ramp) for load in loads)
    function = backend.build(main, target=TARGETS[1])
    for shape in ((3, 40, 70), (67, 5, 3), (1, 1, 1), (2, 300, 1025)):
        a = RNG.integers(-9, 9, shape).astype("float32")
        if shape[0] == 3:
            a[1, 7:9, 5] = a[2, 5, 3:8] = np.nan
        along = np.flip(a, axis) if last else a
        found = np.where(np.isnan(along), np.inf if kind == "argmax" else -np.inf, along)
        expected = getattr(np, kind)(found, axis)
        result = backend.nd.empty(expected.shape, out.dtype)
        function(backend.nd.array(a), result)
        np.testing.assert_array_equal(result.numpy(), shape[axis] - 1 - expected if last else expected)


@pytest.mark.parametrize(
    ("subject", "make", "choice", "refused"),
    [
        ("schedule of lrn", lambda x: topi.nn.lrn(x, 5, 1, 1e-4, 0.75, 2.0), "window in registers", {}),
        (
            "schedule of lrn", lambda x: topi.nn.lrn(x, 17, 1, 1e-4, 0.75, 2.0), "stage by stage",
            {"window in registers": "a window of 17 channels"},
        ),
        (
            "schedule of comm_reduce_idx", lambda x: topi.argmax(x, 1), "stage by stage",
            {"two passes": "fewer columns than a vector has lanes"},
        ),
        ("schedule of log_sum_exp", lambda x: topi.log_sum_exp(x, 1), "two passes", {}),
    ],
)  # fmt: skip
def test_candidates_that_do_not_serve_say_why(subject, make, choice, refused) -> None:
    x = te.placeholder((2, 32, 9, 4), "float32", "x")
    with recording() as decisions:
        schedule_for([make(x)], Target("llvm -mcpu=x86-64-v4 -num-cores=1"))
    decision = next(d for d in decisions if d.subject == subject)
    reasons = dict(decision.refused)
    assert decision.choice == choice and all(text in reasons[name] for name, text in refused.items())


@pytest.mark.parametrize(("stride", "choice"), [(2, "unrolled"), (100, "loops")])
def test_taps_of_overlap_add_are_unrolled_if_they_are_few(stride: int, choice: str) -> None:
    windows = te.placeholder((1, 8, 1, 2 * stride, 16), "float32", "windows")
    total = topi.nn.overlap_add(windows, (9 * stride,), (stride,), (1,), (0,))
    with recording() as decisions:
        schedule_for([total], Target("llvm -mcpu=x86-64-v4 -num-cores=1"))
    decision = next(d for d in decisions if d.subject == "taps")
    assert (decision.choice, bool(decision.refused)) == (choice, choice == "loops")
