"""Variances, and norms of channels, by parts that a cache holds, against numpy in float64."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.llvm.codegen import PassSelection
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.target import Target
from relayc.te.tir import SizeVar
from relayc.topi.cpu.reductions.parts import part_sizes
from relayc.topi.registry import schedule_for
from tests.processors import runnable

RNG = np.random.default_rng(21)
TARGETS = [Target("llvm -num-cores=1"), Target("llvm -num-cores=16")]
TINY = Target("llvm -mtune=x86-64 -num-cores=2 -l1-bytes=6144 -l2-bytes=8192")
"""A target whose caches hold 512 floats of a part."""

CASES = [  # shape, axes
    ((37, 77), 1), ((37, 77), 0), ((37, 77), None), ((3, 5003), 1), ((4001, 9), 0), ((131, 777), 0),
    ((2, 6, 31, 37), (0, 2, 3)), ((2, 3, 401, 64), 2), ((90, 1300), 0), ((70, 3, 100), (0, 2)), ((7001,), 0),
    ((2, 5, 31, 37), (0, 1)), ((5, 3, 4), (0, 2)), ((1, 29, 31, 24), (1, 2)),
]  # fmt: skip


def run(out: te.Tensor, inputs, arrays, target: Target) -> np.ndarray:
    module = te.lower(schedule_for([out], target), [*inputs, out])
    result = backend.nd.empty([int(d) for d in out.shape], out.dtype)
    backend.build(module, target=target)(*map(backend.nd.array, arrays), result)
    return result.numpy()


@pytest.mark.parametrize("target", [*TARGETS, TINY], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_variance(shape, axes, keepdims, target):
    a = (RNG.standard_normal(shape) * np.linspace(0.5, 2, shape[-1]) + 3).astype("float32")
    x = te.placeholder(shape, "float32", "x")
    result = run(topi.variance(x, axes, keepdims), [x], [a], target)
    np.testing.assert_allclose(result, a.astype("float64").var(axes, keepdims=keepdims), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_variance_of_other_floats(dtype):
    a = RNG.standard_normal((3, 31, 57)).astype(dtype)
    x = te.placeholder(a.shape, dtype, "x")
    result = run(topi.variance(x, 1), [x], [a], TINY)
    np.testing.assert_allclose(result, a.astype("float64").var(1), rtol=1e-3 if dtype == "float16" else 1e-12)


def test_variance_far_from_zero():
    """E[x^2] - E[x]^2 would cancel for a variance of 1 around 4096."""
    a = (RNG.standard_normal((6, 20011)) + 4096).astype("float32")
    x, y = te.placeholder(a.shape, "float32", "x"), te.placeholder(a.T.shape, "float32", "y")
    expected = a.astype("float64").var(1)
    np.testing.assert_allclose(run(topi.variance(x, 1), [x], [a], TINY), expected, rtol=1e-4)
    np.testing.assert_allclose(run(topi.variance(y, 0), [y], [np.ascontiguousarray(a.T)], TINY), expected, rtol=1e-4)


def test_variance_with_operators_in_front_and_behind():
    a = RNG.standard_normal((41, 50, 16)).astype("float32")
    x = te.placeholder(a.shape, "float32", "x")
    out = topi.sqrt(topi.variance(topi.exp(x), (0, 1), True))
    expected = np.exp(a.astype("float64")).std((0, 1), keepdims=True)
    np.testing.assert_allclose(run(out, [x], [a], TINY), expected, rtol=1e-5)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (1, 2)], ids=str)
def test_variance_of_dynamic_shapes(axes):
    n, m = te.size_var("n"), te.size_var("m")
    x = te.placeholder((n, m, 24), "float32", "x")
    out = topi.variance(x, axes)
    function = backend.build(te.lower(schedule_for([out], TINY), [x, out]), target=TINY)
    for shape in ((1, 1, 24), (3, 40, 24), (5, 333, 24)):
        a = RNG.standard_normal(shape).astype("float32")
        expected = a.astype("float64").var(axes)
        result = backend.nd.empty(expected.shape, "float32")
        function(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-7)


CHANNELS = [((2, 9, 11, 24), 4), ((1, 40, 41, 6), 3), ((2, 37, 64), 8), ((1, 3, 1031, 16), 16), ((1, 3, 4, 5, 600), 10)]


@pytest.mark.parametrize("target", [*TARGETS, TINY], ids=str)
@pytest.mark.parametrize(("shape", "groups"), CHANNELS, ids=str)
def test_norms_of_channels_in_the_last_dimension(shape, groups, target):
    channels = shape[-1]
    a = (RNG.standard_normal(shape) + 20).astype("float32")
    g, b = (RNG.standard_normal(channels).astype("float32") for _ in range(2))
    x = te.placeholder(shape, "float32", "x")
    gamma, beta = (te.placeholder((channels,), "float32", name) for name in "gb")
    for count, out in (
        (groups, topi.nn.group_norm(x, gamma, beta, groups, len(shape) - 1, 1e-5)),
        (channels, topi.nn.instance_norm(x, gamma, beta, len(shape) - 1, 1e-5)),
    ):
        wide = a.astype("float64").reshape(shape[0], -1, count, channels // count)
        wide = (wide - wide.mean((1, 3), keepdims=True)) / np.sqrt(wide.var((1, 3), keepdims=True) + 1e-5)
        result = run(out, [x, gamma, beta], [a, g, b], target)
        np.testing.assert_allclose(result, wide.reshape(shape) * g + b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_norms_of_planes_that_no_cache_holds(groups):
    a = (RNG.standard_normal((2, 6, 61, 67)) + 20).astype("float32")
    g, b = (RNG.standard_normal(6).astype("float32") for _ in range(2))
    x = te.placeholder(a.shape, "float32", "x")
    gamma, beta = (te.placeholder((6,), "float32", name) for name in "gb")
    wide = a.astype("float64").reshape(2, groups, -1)
    wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    expected = wide.reshape(a.shape) * g.reshape(6, 1, 1) + b.reshape(6, 1, 1)
    outs = [topi.nn.group_norm(x, gamma, beta, groups, 1, 1e-5)]
    outs += [topi.nn.instance_norm(x, gamma, beta, 1, 1e-5)] if groups == 6 else []
    for out in outs:
        np.testing.assert_allclose(run(out, [x, gamma, beta], [a, g, b], TINY), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shift", ["none", "own", "the scale"])
@pytest.mark.parametrize("shape", [(2, 3, 41, 43), (1, 7, 31, 64), (5, 5003)], ids=str)
def test_layer_norm_of_rows_that_no_cache_holds(shape, shift):
    rows, reduced = shape[:1], shape[1:]
    a = (RNG.standard_normal(shape) + 20).astype("float32")
    g, b = (RNG.standard_normal(reduced).astype("float32") for _ in range(2))
    x = te.placeholder(shape, "float32", "x")
    gamma, beta = (te.placeholder(reduced, "float32", name) for name in "gb")
    chosen = {"none": None, "own": beta, "the scale": gamma}[shift]
    out = topi.nn.relu(topi.nn.layer_norm(x, gamma, chosen, 1, 1e-5))
    wide = a.astype("float64").reshape(*rows, -1)
    wide = ((wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)).reshape(shape) * g
    expected = np.maximum(wide + {"none": 0.0, "own": b, "the scale": g}[shift], 0)
    result = run(out, [x, gamma, beta] if shift == "own" else [x, gamma], [a, g, b][: 3 if shift == "own" else 2], TINY)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_norm_of_channels_with_one_tensor_as_scale_and_shift():
    a, g = RNG.standard_normal((1, 20, 30, 8)).astype("float32"), RNG.standard_normal(8).astype("float32")
    x, gamma = te.placeholder(a.shape, "float32", "x"), te.placeholder((8,), "float32", "g")
    out = topi.nn.instance_norm(x, gamma, gamma, 3, 1e-5)
    expected = (a - a.mean((1, 2))) / np.sqrt(a.var((1, 2)) + 1e-5) * g + g
    np.testing.assert_allclose(run(out, [x, gamma], [a, g], TINY), expected, rtol=1e-4, atol=1e-4)


def test_norm_of_channels_of_dynamic_sides():
    h, w = te.size_var("h"), te.size_var("w")
    x = te.placeholder((1, h, w, 12), "float32", "x")
    gamma, beta = (te.placeholder((12,), "float32", name) for name in "gb")
    out = topi.nn.group_norm(x, gamma, beta, 3, 3, 1e-5)
    module = te.lower(schedule_for([out], TINY), [x, gamma, beta, out])
    assert len(re.findall(r"part_beginning\w* = allocate", str(module["main"]))) == 1, "one version of the parts"
    function = backend.build(module, target=TINY)
    g, b = (RNG.standard_normal(12).astype("float32") for _ in range(2))
    for shape in ((1, 1, 2, 12), (1, 17, 3, 12), (1, 5, 200, 12), (1, 333, 40, 12)):
        a = RNG.standard_normal(shape).astype("float32")
        wide = a.reshape(-1, 3, 4).astype("float64")
        wide = (wide - wide.mean((0, 2), keepdims=True)) / np.sqrt(wide.var((0, 2), keepdims=True) + 1e-5)
        result = backend.nd.empty(shape, "float32")
        function(*map(backend.nd.array, (a, g, b)), result)
        np.testing.assert_allclose(result.numpy(), wide.reshape(shape) * g + b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 6), (96, 4), (512, 32)])
def test_norms_of_dynamic_sides_leave_llvm_no_loop_to_vectorize(channels, groups):
    """Neither those over groups of channels, nor sums in memory: few of LLVM's passes take half the time."""
    x = te.placeholder((te.size_var("n"), te.size_var("h"), te.size_var("w"), channels), "float32", "x")
    gamma, beta = (te.placeholder((channels,), "float32", name) for name in "gb")
    out = topi.nn.group_norm(x, gamma, beta, groups, 3, 1e-5)
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512 -num-cores=2")
    sizes = [d for d in x.shape if isinstance(d, SizeVar)]
    function = te.lower(schedule_for([out], target), [*sizes, x, gamma, beta, out])["main"]
    assert Compiler(target).emit([function]).passes is PassSelection.FEW


def test_sizes_of_parts():
    def sizes(shape, axes, target=TINY):
        return part_sizes(shape, 4, axes, target)

    assert sizes((2, 3, 5), (1, 2)) == {1: 3, 2: 5}  # all of it fits
    assert sizes((2, 90, 30), (1, 2)) == {1: 45, 2: 30}  # whole lines, a number that divides them
    assert sizes((4, 97, 30), (0, 1, 2)) == {0: 1, 1: 51, 2: 30}  # or one that doesn't, where none is near
    assert sizes((1, 48, 48, 64), (1, 2)) == {1: 1, 2: 24}  # lines of channels
    near = Target("llvm -mtune=znver5 -l1-bytes=49152 -l2-bytes=1048576")
    assert sizes((1, 504, 504, 64), (1, 2), near) == {1: 1, 2: 252}  # lines for which two results are little
    assert sizes((1, 499 * 499, 64), (1,), near) == {1: 256}
    assert sizes((1, 504, 504, 2048), (1, 2), near) == {1: 1, 2: 126}  # fewer: the second-level cache
    assert sizes((1, 504, 504, 6000), (1, 2), near) == {1: 1, 2: 84}  # of columns that results are kept of at once
    shared = Target("llvm -mtune=znver5 -num-cores=8 -l1-bytes=49152 -l2-bytes=1048576")
    assert sizes((1, 16, 16, 1280), (1, 2), shared) == {1: 2, 2: 16}  # a core's share


def loops_of(out: te.Tensor, inputs, target: Target) -> str:
    return str(te.lower(schedule_for([out], target), [*inputs, out]))


@pytest.mark.parametrize(("channels", "block"), [(1280, 1280), (2560, 2560), (3072, 1536)])
def test_lines_of_channels_are_whole_where_l1_holds_their_results(channels, block):
    target = Target("llvm -mtune=znver5 -num-cores=1 -l1-bytes=49152 -l2-bytes=1048576")
    x = te.placeholder((1, 32, 32, channels), "float32", "x")
    loops = loops_of(topi.variance(x, (1, 2)), [x], target)
    assert f"variance_part_beginning = allocate([{block}]" in loops


@pytest.mark.parametrize(("shape", "step"), [((1, 90, 90, 16), 96), ((2, 3, 130, 64), 32)], ids=str)
def test_one_pass_over_memory_prefetches_ahead(shape, step):
    """One loop sums distances and their squares, `step` elements at a time, and prefetches 8 KB ahead."""
    target = Target("llvm -mtune=x86-64 -num-cores=2 -l1-bytes=6144 -l2-bytes=65536 -mattr=-avx512f")
    x = te.placeholder(shape, "float32", "x")
    axes = (1, 2) if shape[-1] == 16 else (1, 2, 3)
    out = topi.variance(x, axes)
    text = loops_of(out, [x], target)
    loops = re.split(r"\n +for ", text)
    passes = [loop for loop in loops if "prefetch(" in loop]
    assert len(passes) == 2  # the beginning of a part, and all of it
    assert "distances.v0" in passes[1] and "distances.v1" in passes[1]
    prefetches = [int(n) for n in re.findall(r"prefetch.* \+ (\d+)\]", passes[1])]
    assert prefetches == list(range(2048, 2048 + step, 16))
    a = (RNG.standard_normal(shape) + 3).astype("float32")
    np.testing.assert_allclose(run(out, [x], [a], target), a.astype("float64").var(axes), rtol=1e-5)


@pytest.mark.parametrize("mattr", ["-avx512f", "-avx"])
@pytest.mark.parametrize("norm", [False, True])
def test_only_the_last_part_has_bounds_checks(norm, mattr):
    """An image of 61 x 61 pixels has no divisor near a part's size, and its parts begin anywhere in its lines."""
    target = Target(f"llvm -mtune=x86-64 -num-cores=2 -l1-bytes=6144 -l2-bytes=65536 -mattr={mattr}")
    a = (RNG.standard_normal((1, 61, 61, 64)) + 3).astype("float32")
    x, one = te.placeholder(a.shape, "float32", "x"), te.placeholder((64,), "float32", "one")
    out = topi.nn.instance_norm(x, one, one, 3, 1e-5) if norm else topi.variance(x, (1, 2))
    inputs, arrays = ([x, one], [a, np.ones(64, "float32")]) if norm else ([x], [a])
    text = loops_of(out, inputs, target)
    assert text.count("if ") == 1 and "likely" not in text
    prefetches = re.findall(r"(.*\n) +prefetch", text)
    assert prefetches and not any("line" in loop for loop in prefetches), "single cache lines, not lines of the image"
    wide = a.astype("float64")
    variance = wide.var((1, 2))
    expected = (wide - wide.mean((1, 2))) / np.sqrt(variance + 1e-5) + 1 if norm else variance
    np.testing.assert_allclose(run(out, inputs, arrays, target), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("across", [False, True])
def test_variance_where_parts_begin_far_from_their_mean(across):
    """The shift is far from the mean of its part; the variance of equal elements is 0, never negative."""
    a = RNG.standard_normal((4, 20011)).astype("float32")
    a[0, ::128] += 1000
    a[1] = np.repeat(np.arange(20011 // 500 + 1), 500)[:20011] * 100
    a[2, :3000] = 0
    a[2, 3000:] += 4096
    a[3] = 0.1
    stored = np.ascontiguousarray(a.T) if across else a
    x = te.placeholder(stored.shape, "float32", "x")
    result = run(topi.variance(x, 0 if across else 1), [x], [stored], TINY)
    np.testing.assert_allclose(result, a.astype("float64").var(1), rtol=1e-4, atol=1e-12)
    assert (result >= 0).all()


@pytest.mark.parametrize("lanes", ["", " -mattr=-avx512f"])
def test_images_are_standardised_one_by_one_where_cores_share_them_evenly(lanes):
    target = Target(f"llvm -mtune=x86-64 -num-cores=2 -l1-bytes=6144 -l2-bytes=8192 -l3-bytes=1048576{lanes}")
    g, b = (RNG.standard_normal(16).astype("float32") for _ in range(2))
    gamma, beta = (te.placeholder((16,), "float32", name) for name in "gb")
    for images in (4, 3):
        a = (RNG.standard_normal((images, 23, 29, 16)) + 20).astype("float32")
        x = te.placeholder(a.shape, "float32", "x")
        out = topi.nn.group_norm(x, gamma, beta, 4, 3, 1e-5)
        assert (f"in parallel({images})" in loops_of(out, [x, gamma, beta], target)) == (images == 4)
        wide = a.astype("float64").reshape(images, -1, 4, 4)
        wide = (wide - wide.mean((1, 3), keepdims=True)) / np.sqrt(wide.var((1, 3), keepdims=True) + 1e-5)
        result = run(out, [x, gamma, beta], [a, g, b], target)
        np.testing.assert_allclose(result, wide.reshape(a.shape) * g + b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [6, 3])
def test_rows_that_private_caches_cannot_hold_are_standardised_one_by_one(groups):
    """The moments of a row's parts, their combination and the row's results come before the next row."""
    target = Target("llvm -mtune=x86-64 -num-cores=2 -l1-bytes=6144 -l2-bytes=8192 -l3-bytes=1048576")
    a = (RNG.standard_normal((2, 6, 41, 43)) + 20).astype("float32")
    g, b = (RNG.standard_normal(6).astype("float32") for _ in range(2))
    x = te.placeholder(a.shape, "float32", "x")
    gamma, beta = (te.placeholder((6,), "float32", name) for name in "gb")
    out = topi.nn.group_norm(x, gamma, beta, groups, 1, 1e-5)
    text = loops_of(out, [x, gamma, beta], target)
    assert text.count("in parallel(") == 1 and "group_norm_parts.v1" in text
    wide = a.astype("float64").reshape(2, groups, -1)
    wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    expected = wide.reshape(a.shape) * g.reshape(6, 1, 1) + b.reshape(6, 1, 1)
    np.testing.assert_allclose(run(out, [x, gamma, beta], [a, g, b], target), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("side", "groups", "prefetches"), [(14, 8, 2), (27, 64, 5), (64, 8, 2), (7, 64, 0)])
def test_rows_of_channels_prefetch_the_next(side, groups, prefetches):
    """A cache line per line stored, also of rows that only L2 holds; not of short rows."""
    shape = (300, 64, side, side)
    target = Target("llvm -mcpu=znver5 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432")
    x, gamma = te.placeholder(shape, "float32", "x"), te.placeholder((shape[1],), "float32", "gamma")
    norms = [topi.nn.group_norm(x, gamma, gamma, groups, 1, 1e-5)]
    norms += [topi.nn.instance_norm(x, gamma, gamma, 1, 1e-5)] if groups == shape[1] else []
    for out in norms:
        assert str(te.lower(schedule_for([out], target), [x, gamma, out])).count("prefetch(") == prefetches


@pytest.mark.parametrize("shape", [(1, 40, 26, 24), (2, 31, 16, 20), (4, 9, 13, 40), (3, 32, 32, 7)], ids=str)
@pytest.mark.parametrize("target", ["znver5", "haswell", "x86-64-v2"])
def test_channels_of_some_pixels_are_whole_vectors(shape, target):
    """A line has all channels of a few pixels; a channel's moments combine those of its elements in the line."""
    lanes = {"znver5": 16, "haswell": 8, "x86-64-v2": 4}[target]
    small = Target(f"llvm -mcpu={target} -num-cores=1 -l1-bytes=8192 -l2-bytes=16384 -l3-bytes=65536")
    a = (RNG.standard_normal(shape) + 3).astype("float32")
    g, b = (RNG.standard_normal(shape[-1]).astype("float32") for _ in range(2))
    x, gamma, beta = (te.placeholder(v.shape, "float32", n) for v, n in ((a, "x"), (g, "gamma"), (b, "beta")))
    out = topi.nn.instance_norm(x, gamma, beta, 3, 1e-5)
    loops = loops_of(out, [x, gamma, beta], small)
    pixels = shape[1] * shape[2]
    fitting = [n for n in (1, 2, 4, 8, 16, 32) if shape[3] * n % lanes == 0 and pixels % n == 0 and shape[3] * n <= 341]
    read = {int(n) for n in re.findall(r" x\[ramp\([^\]]*, 1, (\d+)\)\]", loops)}
    assert bool(fitting) == all(n % lanes == 0 for n in read)
    wide = a.astype("float64").reshape(shape[0], -1, shape[3])
    wide = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        run(out, [x, gamma, beta], [a, g, b], runnable(small)), wide.reshape(shape) * g + b, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("images", "side", "prefetches"), [(64, 16, True), (32, 16, False), (6, 64, False), (3, 16, False)]
)
def test_nhwc_images_prefetch_the_next(images, side, prefetches):
    """The next image is prefetched if it comes from memory, fits an eighth of the LLC, and cores get whole images."""
    target = Target("llvm -mcpu=znver5 -num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432")
    shape = (images, side, side, 640)
    x, gamma = te.placeholder(shape, "float32", "x"), te.placeholder((640,), "float32", "gamma")
    out = topi.nn.silu(topi.nn.group_norm(x, gamma, gamma, 32, 3, 1e-5))
    loops = loops_of(out, [x, gamma], target)
    assert (f"+ {side * side * 640}," in "".join(re.findall(r"prefetch.*", loops))) == prefetches
    if prefetches:
        assert loops.index("prefetch") > loops.index("group_norm_scale[")  # moments issue no prefetches themselves
