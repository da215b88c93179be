"""Pooling of images on CPUs, against numpy: borders, tails, batches; no copy of the input."""

from __future__ import annotations

import platform
import re

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.ir import post_order
from relayc.te.ir.decisions import recording
from relayc.te.tir import Allocate
from relayc.topi.cpu.pooling.window_lines import WindowLines, combined, reduce_groups
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(13)
TARGET = Target("llvm")

CASES = [
    ((1, 112, 112, 64), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((2, 13, 15, 20), (3, 2), (2, 1), (1, 1), (1, 0, 0, 1), False),
    ((1, 8, 8, 9), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((3, 14, 14, 24), (3, 3), (2, 2), (1, 1), (0, 0, 0, 0), True),
    ((1, 30, 31, 16), (7, 7), (1, 2), (1, 1), (3, 3, 3, 3), False),
    ((2, 13, 13, 40), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), False),
    ((1, 9, 12, 20), (7, 5), (1, 1), (1, 1), (3, 2, 3, 2), False),
    ((1, 20, 20, 8), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2), False),
    ((1, 21, 19, 24), (5, 5), (1, 1), (2, 1), (4, 2, 4, 2), False),
    ((1, 22, 21, 17), (7, 6), (2, 2), (1, 1), (3, 2, 2, 3), True),
    ((2, 14, 11, 16), (3, 4), (1, 1), (1, 1), (0, 2, 1, 0), False),
    ((1, 31, 40, 12), (3, 3), (2, 2), (2, 2), (2, 2, 2, 2), False),
    ((2, 22, 70, 4), (3, 2), (4, 4), (2, 2), (1, 1, 2, 2), False),
    ((1, 20, 66, 5), (2, 3), (2, 2), (4, 4), (1, 4, 3, 2), True),
    ((1, 19, 45, 6), (3, 3), (3, 3), (2, 2), (0, 0, 0, 0), False),
    ((2, 12, 90, 3), (3, 3), (1, 1), (3, 3), (3, 3, 3, 3), False),
]


def windows(a, kernel, strides, dilation, padding, out_shape, value):
    """Elements that the window of each output covers, as an array (taps, N, H, W, C)."""
    grow = [(0, 0), (padding[0], padding[2] + kernel[0]), (padding[1], padding[3] + kernel[1]), (0, 0)]
    padded = np.pad(a, grow, constant_values=value)
    taps = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = padded[:, i * dilation[0] :: strides[0], j * dilation[1] :: strides[1]]
            taps.append(part[:, : out_shape[1], : out_shape[2]])
    return np.stack(taps)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pool(case, kind, channels):
    shape, kernel, strides, dilation, padding, ceil_mode = case
    a = RNG.standard_normal(shape).astype("float32")
    stored = np.ascontiguousarray(np.moveaxis(a, 3, channels))
    x = te.placeholder(stored.shape, "float32", "x")
    axes = (1, 2) if channels == 3 else (2, 3)
    covers = topi.nn.Windows(axes, kernel, strides, dilation, padding, ceil_mode)
    out = topi.nn.max_pool(x, covers) if kind == "max" else topi.nn.avg_pool(x, covers, count_include_pad=False)
    module = te.lower(schedule_for([out], TARGET), [x, out])
    result = backend.nd.empty(out.shape, "float32")
    backend.build(module, target=TARGET)(backend.nd.array(stored), result)
    got = np.moveaxis(result.numpy(), channels, 3)
    covered = windows(a, kernel, strides, dilation, padding, got.shape, np.nan)
    expected = np.nanmax(covered, 0) if kind == "max" else np.nanmean(covered, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert {n.buffer.scope for n in post_order(module["main"].body) if isinstance(n, Allocate)} == {"local"}


@pytest.mark.parametrize(
    ("stride", "dilation", "expected"),
    [(1, 1, (1, 1, 1)), (2, 1, (2, 1, 1)), (1, 3, (1, 3, 1)), (2, 2, (1, 1, 2)), (4, 2, (2, 1, 2)), (2, 4, (1, 2, 2)),
     (3, 2, None)],
)  # fmt: skip
def test_window_lines_skip_columns_that_no_window_reads(stride, dilation, expected):
    x = te.placeholder((2, 3, 40, 41), "float32", "x")
    covers = topi.nn.Windows((2, 3), (3, 3), (stride, stride), (dilation, dilation), (1, 1, 1, 1), ceil_mode=False)
    lines = WindowLines.of(topi.nn.max_pool(x, covers).op)
    assert (lines and (lines.stride, lines.dilation, lines.unit)) == expected


DYNAMIC_CASES = [
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2), False),
    ((3, 3), (2, 2), (1, 1), (0, 0, 0, 0), True),
    ((3, 3), (1, 1), (1, 2), (1, 2, 1, 2), False),
]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("case", DYNAMIC_CASES, ids=str)
def test_pool_of_dynamic_images(case, kind, channels):
    kernel, strides, dilation, padding, ceil_mode = case
    height, width = te.size_var("h"), te.size_var("w")
    shape = (1, height, width, 12) if channels == 3 else (2, 3, height, width)
    x = te.placeholder(shape, "float32", "x")
    axes = (1, 2) if channels == 3 else (2, 3)
    covers = topi.nn.Windows(axes, kernel, strides, dilation, padding, ceil_mode)
    out = topi.nn.max_pool(x, covers) if kind == "max" else topi.nn.avg_pool(x, covers, count_include_pad=False)
    module = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for side, other in ((7, 9), (9, 17), (40, 24), (6, 41), (5, 70), (8, 83)):
        a = RNG.standard_normal([{height: side, width: other}.get(d, d) for d in shape]).astype("float32")
        moved = np.moveaxis(a, channels, 3)
        spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
        room = [n + padding[k] + padding[k + 2] - spans[k] for k, n in enumerate((side, other))]
        counts = [(-(-r // s) if ceil_mode else r // s) + 1 for r, s in zip(room, strides, strict=True)]
        covered = windows(moved, kernel, strides, dilation, padding, (moved.shape[0], *counts, moved.shape[3]), np.nan)
        expected = np.moveaxis(np.nanmax(covered, 0) if kind == "max" else np.nanmean(covered, 0), 3, channels)
        result = backend.nd.empty(expected.shape, "float32")
        module(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("axes", "kernel", "strides", "padding"), [
    ((1,), (3,), (1,), (1, 1)), ((1,), (4,), (2,), (2, 1)),
    ((1, 2, 3), (3, 3, 3), (1, 1, 1), (1,) * 6), ((1, 2, 3), (2, 3, 2), (2, 1, 2), (0, 1, 0, 1, 2, 0)),
    ((2,), (3,), (1,), (1, 1)), ((1, 3), (3, 2), (2, 1), (1, 0, 1, 1)),
])  # fmt: skip
def test_windows_of_sequences_and_volumes(axes, kernel, strides, padding, kind, dynamic) -> None:
    """With channels last, in tiles of columns without a padded copy; over other dimensions, stage by stage."""
    sizes = (2, 12, 20) if axes == (1,) else (2, 9, 6, 17, 20)
    last = te.size_var("n") if dynamic else sizes[axes[-1]]
    x = te.placeholder([last if a == axes[-1] else d for a, d in enumerate(sizes)], "float32", "x")
    covers = topi.nn.Windows(axes, kernel, strides, (1,) * len(axes), padding)
    out = topi.nn.max_pool(x, covers) if kind == "max" else topi.nn.avg_pool(x, covers, count_include_pad=False)
    lowered = te.lower(schedule_for([out], TARGET), [x, out])
    scopes = {n.buffer.scope for n in post_order(lowered["main"].body) if isinstance(n, Allocate)}
    assert scopes <= {"local"} or axes != (*range(1, x.ndim - 1),)
    a = RNG.standard_normal(sizes).astype("float32")
    borders = {axis: (padding[i], padding[i + len(axes)]) for i, axis in enumerate(axes)}
    padded = np.pad(a, [borders.get(n, (0, 0)) for n in range(a.ndim)], constant_values=np.nan)
    steps = dict(zip(axes, strides, strict=True))
    covered = np.lib.stride_tricks.sliding_window_view(padded, kernel, axes)
    covered = covered[tuple(slice(None, None, steps.get(n, 1)) for n in range(a.ndim))]
    over = tuple(range(a.ndim, covered.ndim))
    expected = np.nanmax(covered, over) if kind == "max" else np.nanmean(covered, over)
    result = backend.nd.empty(expected.shape, "float32")
    backend.build(lowered, target=TARGET)(backend.nd.array(a), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("case", [DYNAMIC_CASES[i] for i in (0, 1, 3, 5)], ids=str)
def test_pool_positions(case, column_major, known):
    kernel, strides, dilation, padding, ceil_mode = case
    height, width = (19, 37) if known else (te.size_var("h"), te.size_var("w"))
    x = te.placeholder((2, 3, height, width), "float32", "x")
    outs = topi.nn.max_pool_with_argmax(
        x, topi.nn.Windows((2, 3), kernel, strides, dilation, padding, ceil_mode), column_major
    )
    module = backend.build(te.lower(schedule_for(list(outs), TARGET), [x, *outs]), target=TARGET)
    for side, other in [(19, 37)] if known else [(19, 37), (5, 6), (8, 83)]:
        a = RNG.integers(-4, 4, (2, 3, side, other)).astype("float32")  # many ties
        a[0, 1, 3, 2] = a[1, 2, 4, 5] = np.nan
        places = np.arange(a.size).reshape(2, 3, side, other)
        if column_major:
            places = np.arange(a.size).reshape(2, 3, other, side).transpose(0, 1, 3, 2)
        spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
        room = [n + padding[k] + padding[k + 2] - spans[k] for k, n in enumerate((side, other))]
        counts = [r // s + 1 for r, s in zip(room, strides, strict=True)]
        shape = (2, *counts, 3)
        moved = [np.moveaxis(v, 1, 3) for v in (a, places.astype("float64"))]
        values = windows(moved[0], kernel, strides, dilation, padding, shape, -np.inf)
        where = windows(moved[1], kernel, strides, dilation, padding, shape, -1)
        best, first = values.max(0), ((values == values.max(0)) | np.isnan(values)) & (where >= 0)
        expected = np.take_along_axis(where, first.argmax(0)[None], 0)[0]
        results = [backend.nd.empty((2, 3, *counts), kind) for kind in ("float32", "int64")]
        module(backend.nd.array(a), *results)
        np.testing.assert_array_equal(np.moveaxis(results[0].numpy(), 1, 3), best)
        np.testing.assert_array_equal(np.moveaxis(results[1].numpy(), 1, 3), expected.astype("int64"))


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("stride", [1, 2])
def test_vectors_are_aligned_with_lines(stride, target) -> None:
    """Vectors start after the border, as whole cache lines; with stride 2, even and odd elements are deinterleaved."""
    x = te.placeholder((1, 4, 224, 224), "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (3, 3), (stride, stride), (1, 1), (1, 1, 1, 1)))
    text = str(te.lower(schedule_for([out], Target(target)), [x, out]))
    loads = re.findall(r" x\[ramp\(([^,]+), 1, \d+\)\]", text)  # those without borders
    ends = [re.search(r"[-+*] (\d+)$", load) for load in loads]  # the last term of each place, or its factor
    assert ends and all(end is not None and int(end.group(1)) % 8 == 0 for end in ends)
    windows = [line for line in text.splitlines() if "max_pool.local" in line and "max(" in line]
    assert windows and not any(", 2, " in line for line in windows)
    assert ("max_pool_parts" in text) == (stride == 2)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"] if platform.machine() == "x86_64" else ["llvm"])
@pytest.mark.parametrize("width", [40, 119, 120])
@pytest.mark.parametrize("kernel", [3, 5])
def test_vectors_that_end_past_the_line(kernel, width, target):
    """Their last lanes lie in the next line, or outside of the image; one bounds check covers both."""
    a = RNG.integers(1, 100, (2, 2, 19, width)).astype("float32")
    x, border = te.placeholder(a.shape, "float32", "x"), (kernel // 2,) * 4
    out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (kernel, kernel), (1, 1), (1, 1), border))
    module, result = te.lower(schedule_for([out], Target(target)), [x, out]), backend.nd.empty(out.shape, "float32")
    backend.build(module, target=Target(target))(backend.nd.array(a), result)
    moved = np.moveaxis(a, 1, 3)
    covered = windows(moved, (kernel, kernel), (1, 1), (1, 1), border, moved.shape, -np.inf)
    np.testing.assert_array_equal(np.moveaxis(result.numpy(), 1, 3), covered.max(0))


def test_later_lines_are_prefetched_in_memory_order() -> None:
    """Each vector of a line prefetches its part of two lines, at least 8 KB ahead."""
    x = te.placeholder((1, 64, 224, 224), "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)))
    text = str(te.lower(schedule_for([out], Target("llvm -mcpu=haswell")), [x, out]))
    prefetches = [line for line in text.splitlines() if "prefetch(" in line and "i4" in line]  # whole vectors
    for first, second in zip(prefetches[::2], prefetches[1::2], strict=True):
        ahead = re.search(r" \* 32 \+ (\d+)[\],]", first)  # 16 elements of the line, by 2
        assert ahead is not None and int(ahead.group(1)) >= 2048
        assert "+ 16]" in second or str(int(ahead.group(1)) + 16) in second
    assert prefetches


@pytest.mark.parametrize("processor, ahead", [("znver5", 8192), ("sapphirerapids", 2048)])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("kernel", [3, 5])
def test_columns_prefetch_the_new_elements_of_later_windows(kernel, target, processor, ahead) -> None:
    """NHWC: each column prefetches the last line of its window, 8 KB ahead, or 2 KB with a high-latency LLC."""
    x, border = te.placeholder((8, 60, 60, 128), "float32", "x"), (kernel // 2,) * 4
    out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (kernel, kernel), (1, 1), (1, 1), border))
    func = te.lower(schedule_for([out], Target(f"{target} -l2-bytes=1048576 -mtune={processor}")), [x, out])["main"]
    lines = [line.strip() for line in str(func).splitlines()]
    prefetches, stored = ([line for line in lines if line.startswith(p)] for p in ("prefetch(", "max_pool["))
    vector = int(re.search(r", 1, (\d+)\)\] =", stored[0]).group(1))
    assert len(prefetches) * 16 == len(stored) * vector > 0, "a cache line for each that is stored"
    below = kernel // 2 * (60 - 1) * 128 + ahead // 4  # from the border on
    offsets = [int(found.group(1)) for found in (re.search(r"\+ (\d+)[],]", line) for line in prefetches) if found]
    assert below in [offset - offset % 128 for offset in offsets]


def test_windows_that_are_far_apart_are_not_prefetched() -> None:
    """NHWC: a prefetch for each column of a stride would be more code than the window."""
    x = te.placeholder((8, 256, 256, 128), "float32", "x")
    for stride, is_prefetched in ((4, True), (32, False)):
        out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (stride, stride), (stride, stride), (1, 1), (0, 0, 0, 0)))
        text = str(te.lower(schedule_for([out], Target("llvm -mtune=znver4 -l2-bytes=1048576")), [x, out]))
        assert ("prefetch(" in text) == is_prefetched


def test_lines_of_windows_that_are_far_apart_are_reduced_in_a_loop() -> None:
    """Lines of dynamic length: a buffer of a part of one has as many vectors more as windows are apart."""
    height, width = te.size_var("h"), te.size_var("w")
    x = te.placeholder((1, 3, height, width), "float32", "x")
    sizes = []
    for stride in (8, 32):
        out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (stride, stride), (stride, stride), (1, 1), (0, 0, 0, 0)))
        sizes.append(len(backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET).get_source()))
    assert sizes[1] < 2 * sizes[0]


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"] if platform.machine() == "x86_64" else ["llvm"])
@pytest.mark.parametrize("kernel, stride", [(3, 1), (5, 1), (5, 2), (7, 1), (9, 1)])
def test_adjacent_windows_share_partial_reductions(kernel, stride, target) -> None:
    """NHWC: groups of two and four windows combine less for each, and NaN propagate."""
    shape, border = (1, 23, 21, 40), (kernel // 2,) * 4
    x = te.placeholder(shape, "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (kernel, kernel), (stride, stride), (1, 1), border))
    lowered = te.lower(schedule_for([out], Target(target)), [x, out])
    lines = [line.strip() for line in str(lowered).partition("else:")[0].splitlines()]  # inside of the image
    combined, stored = (len([n for n in lines if re.search(p, n)]) for p in (r"= max\(", r"^max_pool\["))
    assert combined < (0.8 if kernel == 3 or stride == 2 else 0.6) * kernel * kernel * stored
    a = RNG.standard_normal(shape).astype("float32")
    a.ravel()[[3, 700, 5000, 9000]] = -np.inf, np.inf, np.nan, -np.nan
    result = backend.nd.empty(out.shape, "float32")
    backend.build(lowered, target=Target(target))(backend.nd.array(a), result)
    covered = windows(a, (kernel, kernel), (stride, stride), (1, 1), border, result.numpy().shape, -np.inf)
    np.testing.assert_array_equal(result.numpy(), covered.max(0))


@pytest.mark.parametrize("size, stride, copies", [(28, 1, 2), (27, 1, 6), (56, 2, 2)])
def test_tiles_at_borders_share_a_copy_of_the_code(size, stride, copies) -> None:
    """NHWC: one copy for tiles inside, one for those at any border; the last lines and columns may be half a tile."""
    x = te.placeholder((1, size, size, 64), "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (3, 3), (stride, stride), (1, 1), (1, 1, 1, 1)))
    lowered = te.lower(schedule_for([out], Target("llvm -mcpu=znver4 -num-cores=2")), [x, out])
    names = [n.buffer.name for n in post_order(lowered["main"].body) if isinstance(n, Allocate)]
    assert names.count("max_pool.local") == copies


@pytest.mark.parametrize(("axes", "kernel", "processor", "facts"), [
    ((1, 2), (5, 5), "znver4", {"rows": 2, "columns": 4, "levels": "(1, 2)"}),
    ((1, 2), (1, 5), "znver4", {"rows": 1, "columns": 1, "levels": "None"}),
    ((2, 3), (3, 3), "znver4", {"lanes": 16, "vectors": 8, "shared": "in registers"}),
    ((2, 3), (3, 3), "haswell", {"lanes": 8, "vectors": 2, "shared": "in a buffer"}),
    ((2, 3), (1, 3), "znver4", {"lanes": 16, "vectors": 2, "shared": "nothing"}),
])  # fmt: skip
def test_plans_say_what_windows_share(axes, kernel, processor, facts) -> None:
    x = te.placeholder((1, 64, 64, 64), "float32", "x")
    border = tuple(n // 2 for n in kernel) * 2
    out = topi.nn.max_pool(x, topi.nn.Windows(axes, kernel, (1, 1), (1, 1), border))
    with recording() as decisions:
        schedule_for([out], Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor} -num-cores=2"))
    plan = next(d for d in decisions if d.subject == "windows")
    assert facts.items() <= plan.facts.items()


def test_shared_windows_are_parallel() -> None:
    x = te.placeholder((1, 28, 28, 192), "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)))
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512 -num-cores=2")
    assert "in parallel(14)" in str(te.lower(schedule_for([out], target), [x, out]))


@pytest.mark.parametrize("size, stride, levels", [(3, 1, 1), (5, 1, 2), (9, 1, 3), (7, 2, 1), (7, 2, 0)])
def test_the_cost_model_counts_combine_operations(size, stride, levels) -> None:
    x = te.placeholder((8 * stride + size,), "float32", "x")
    k = te.reduce_axis((0, size), name="k")
    out = te.compute((8,), lambda i: te.sum(x[i * stride + k], axis=k), name="sums")
    s = te.create_schedule(out.op)
    stages = reduce_groups(s, out, 0, stride, levels)
    added = [te.tir.as_int(stage.shape[0]) * s[stage].op.reduce_axis[0].extent for stage in stages]
    assert (sum(added) - stages[0].shape[0]) / 8 == combined(size, stride, levels)
    a = RNG.standard_normal(x.shape).astype("float32")
    result = backend.nd.empty((8,), "float32")
    backend.build(te.lower(s, [x, out]), target=TARGET)(backend.nd.array(a), result)
    np.testing.assert_allclose(result.numpy(), [a[i * stride :][:size].sum() for i in range(8)], rtol=1e-5, atol=1e-5)


def test_bytes_are_not_prefetched() -> None:
    x = te.placeholder((8, 224, 224, 64), "uint8", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((1, 2), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)))
    assert "prefetch(" not in str(te.lower(schedule_for([out], Target("llvm -mcpu=haswell")), [x, out]))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembly of x86")
@pytest.mark.parametrize("width", [56, 100, 300])
def test_adjacent_windows_are_shuffled_from_registers(width) -> None:
    """Reductions across lines are not spilled and reloaded at an offset, which would stall on store forwarding."""
    x = te.placeholder((1, 4, 20, width), "float32", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)))
    target = Target("llvm -mcpu=znver4")
    module = backend.build(te.lower(schedule_for([out], target), [x, out]), target=target)
    text = module.get_source("asm")
    assert re.search(r"vpermt2ps|valignd", text) and not re.search(r"vmov[au]ps\s+%[yz]mm\d+, -?\d*\(%rsp", text)


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"] if platform.machine() == "x86_64" else ["llvm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("channels", "width", "stride"), [
    (3, 24, 2), (3, 40, 1), (3, 5, 1), (3, 1, 2),
    (1, 64, 1), (1, 100, 1), (1, 128, 2), (1, 40, 1), (1, 41, 1), (1, 56, 2), (1, 17, 1),
])  # fmt: skip
def test_windows_of_16_bits_are_compared_as_integers(channels, width, stride, dtype, target) -> None:
    """Infinities and NaN of either sign included."""
    stored = (2, 90, 11, width) if channels == 3 else (2, 3, 9, width)
    x, axes = te.placeholder(stored, dtype, "x"), (1, 2) if channels == 3 else (2, 3)
    out = topi.nn.max_pool(x, topi.nn.Windows(axes, (3, 3), (stride, stride), (1, 1), (1, 1, 1, 1)))
    lowered = te.lower(schedule_for([out], Target(target)), [x, out])
    assert '"uint16", scope="local"' in str(lowered)
    a = RNG.standard_normal(stored).astype("float32")
    a.ravel()[[3, 70, 500, 900]] = -np.inf, np.inf, np.nan, -np.nan
    result = backend.nd.empty(out.shape, dtype)
    rounded = a.astype(result.numpy().dtype)
    backend.build(lowered, target=Target(target))(backend.nd.array(rounded), result)
    moved = np.moveaxis(rounded.astype("float32"), channels, 3)
    got = np.moveaxis(result.numpy().astype("float32"), channels, 3)
    covered = windows(moved, (3, 3), (stride, stride), (1, 1), (1, 1, 1, 1), got.shape, -np.inf)
    np.testing.assert_array_equal(got, covered.max(0))


@pytest.mark.parametrize(("target", "integers"), [("sapphirerapids", False), ("icelake-server", True)])
def test_a_vector_of_float16_is_compared_as_it_is_where_that_is_native(target: str, integers: bool) -> None:
    x = te.placeholder((1, 4, 20, 28), "float16", "x")
    out = topi.nn.max_pool(x, topi.nn.Windows((2, 3), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)))
    cpu = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={target}")
    text = str(te.lower(schedule_for([out], cpu), [x, out]))
    assert ("uint16" in text) == integers and "float32" not in text
