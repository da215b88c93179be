"""Depthwise convolutions on CPUs, against numpy: padding, tails of channels and columns, batches."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.relay.op.nn.conv import convolve
from relayc.te.ir import collect, post_order
from relayc.te.tir import Allocate, BufferStore
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(11)
TARGET = Target("llvm")


def expected(x, w, strides, padding, dilation):
    """x (N, H, W, C), w (KH, KW, C, M): (N, H, W, C * M)."""
    (kh, kw), (dh, dw) = w.shape[:2], dilation
    padded = np.pad(x, [(0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0)])
    rows = (padded.shape[1] - (kh - 1) * dh - 1) // strides[0] + 1
    columns = (padded.shape[2] - (kw - 1) * dw - 1) // strides[1] + 1
    total = np.zeros((x.shape[0], rows, columns, w.shape[2], w.shape[3]), x.dtype)
    for i in range(kh):
        for j in range(kw):
            part = padded[:, i * dh :: strides[0], j * dw :: strides[1]][:, :rows, :columns]
            total += part[..., None] * w[i, j]
    return total.reshape(*total.shape[:3], -1)


def scheduled(shape, kernel, multiplier, strides, padding, dilation):
    """A lowered depthwise convolution followed by a relu."""
    channels = shape[-1]
    x = te.placeholder(shape, "float32", "x")
    w = te.placeholder((*kernel, 1, channels * multiplier), "float32", "w")
    out = topi.nn.conv(x, w, strides, padding, dilation, channels, "NHWC", "HWIO")
    last = te.compute(out.shape, lambda *i: te.max(out(*i), te.const(0, "float32")), name="relu", tag="elemwise")
    return te.lower(schedule_for([last], TARGET), [x, w, last]), last


CASES = [
    ((1, 56, 56, 24), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((2, 14, 14, 20), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 7, 7, 40), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((3, 29, 31, 17), (3, 3), 1, (2, 2), (1, 1, 1, 1), (1, 1)),
    ((2, 12, 13, 9), (5, 3), 1, (2, 1), (2, 1, 0, 2), (1, 2)),
    ((1, 23, 22, 16), (7, 7), 1, (1, 1), (3, 3, 3, 3), (1, 1)),
    ((1, 5, 5, 4), (3, 3), 2, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 3, 2, 8), (5, 5), 1, (1, 1), (2, 2, 2, 2), (1, 1)),
    ((1, 9, 33, 8), (1, 3), 1, (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 61, 1, 20), (9, 1), 1, (2, 1), (4, 0, 4, 0), (1, 1)),
    ((1, 43, 3, 8), (5, 3), 1, (1, 1), (2, 0, 2, 0), (1, 1)),
]


def stores_of_a_tile(shape, kernel, strides, padding):
    module, _ = scheduled(shape, kernel, 1, strides, padding, (1, 1))
    main = module["main"]
    return len([store for store in collect(main.body, BufferStore) if store.buffer.data is main.params[-1]])


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (31, 1), (7, 2)])
def test_an_image_of_one_column_has_tiles_of_its_lines(taps, stride):
    pad = taps // 2
    column = stores_of_a_tile((1, 200, 1, 32), (taps, 1), (stride, 1), (pad, 0, pad, 0))
    line = stores_of_a_tile((1, 1, 200, 32), (1, taps), (1, stride), (0, pad, 0, pad))
    assert column >= 8 and column >= line


@pytest.mark.parametrize("width", [3, 7, 14, 28])
def test_mathematical_functions_after_depthwise(width):
    x, w = te.placeholder((1, 9, width, 24), "float32", "x"), te.placeholder((3, 3, 1, 24), "float32", "w")
    out = topi.nn.conv(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 24, "NHWC", "HWIO")
    last = te.compute(out.shape, lambda *i: te.sigmoid(out(*i)), name="sigmoid", tag="elemwise")
    a, b = (RNG.standard_normal(t.shape).astype("float32") for t in (x, w))
    result = backend.nd.empty(last.shape, "float32")
    module = te.lower(schedule_for([last], TARGET), [x, w, last])
    backend.build(module, target=TARGET)(backend.nd.array(a), backend.nd.array(b), result)
    plain = expected(a, b.reshape(3, 3, 24, 1), (1, 1), (1, 1, 1, 1), (1, 1))
    np.testing.assert_allclose(result.numpy(), 1 / (1 + np.exp(-plain)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise(case):
    shape, kernel, multiplier, strides, padding, dilation = case
    a = RNG.standard_normal(shape).astype("float32")
    b = RNG.standard_normal((*kernel, shape[-1], multiplier)).astype("float32")
    module, last = scheduled(*case)
    result = backend.nd.empty(last.shape, "float32")
    flat = b.reshape(*kernel, 1, -1)
    backend.build(module, target=TARGET)(backend.nd.array(a), backend.nd.array(flat), result)
    wanted = np.maximum(expected(a, b, strides, padding, dilation), 0)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "padding", "dilation"),
    [
        ((1, 50, 24), (31,), (1,), (15, 15), (1,)),
        ((3, 17, 9), (5,), (2,), (2, 1), (2,)),
        ((2, 64, 16), (3,), (1,), (2, 0), (1,)),
        ((1, 5, 6, 20, 12), (3, 3, 3), (1, 1, 1), (1,) * 6, (1, 1, 1)),
        ((2, 4, 7, 9, 17), (1, 3, 2), (2, 1, 3), (0, 1, 0, 0, 1, 1), (1, 2, 1)),
    ],
    ids=str,
)
def test_depthwise_of_other_ranks(shape, kernel, strides, padding, dilation):
    rank, channels = len(kernel), shape[-1]
    layout = f"N{'DHW'[-rank:]}C"
    data = RNG.standard_normal(shape).astype("float32")
    weight = RNG.standard_normal((channels, 1, *kernel)).astype("float32")
    x, w = te.placeholder(shape, "float32", "x"), te.placeholder((*kernel, 1, channels), "float32", "w")
    out = topi.nn.conv(x, w, strides, padding, dilation, channels, layout, f"{layout[1:-1]}IO")
    result = backend.nd.empty(out.shape, "float32")
    kernels = backend.build(te.lower(schedule_for([out], TARGET), [x, w, out]), target=TARGET)
    kernels(backend.nd.array(data), backend.nd.array(np.moveaxis(weight, (0, 1), (-1, -2)).copy()), result)
    wanted = convolve(np.moveaxis(data, -1, 1), weight, strides, padding, dilation, channels)
    np.testing.assert_allclose(result.numpy(), np.moveaxis(wanted, 1, -1), rtol=1e-5, atol=1e-5)


def test_padding_is_not_stored():
    module, _ = scheduled((1, 56, 56, 96), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1))
    allocated = [n.buffer for n in post_order(module["main"].body) if isinstance(n, Allocate)]
    assert allocated
    assert {b.scope for b in allocated} == {"local"}


@pytest.mark.parametrize("processor, copies, unguarded", [("znver4", 2, 1), ("haswell", 6, 3)])
def test_inner_tiles_have_no_guards(processor, copies, unguarded):
    """With many registers there is one copy of the code for all borders, with few there are several."""
    x, w = te.placeholder((1, 56, 56, 96), "float32", "x"), te.placeholder((3, 3, 1, 96), "float32", "w")
    out = topi.nn.conv(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 96, "NHWC", "HWIO")
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor} -num-cores=2")
    tiles = str(te.lower(schedule_for([out], target), [x, w, out])).split('scope="local"')[1:]
    assert len(tiles) == copies
    assert sum("if_then_else" not in tile for tile in tiles) == unguarded


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_maps_of_any_width(strides):
    """One kernel for every height and width: narrower than a tile, with remainders, and of one column."""
    h, w = te.var("h"), te.var("w")
    x, weights = te.placeholder((1, h, w, 20), "float32", "x"), te.placeholder((3, 3, 1, 20), "float32", "w")
    out = topi.nn.conv(x, weights, strides, (1, 1, 1, 1), (1, 1), 20, "NHWC", "HWIO")
    run = backend.build(schedule_for([out], TARGET), [x, weights, out], TARGET)
    kernel = RNG.standard_normal((3, 3, 1, 20)).astype("float32")
    for height, width in [(1, 1), (2, 3), (3, 5), (5, 6), (4, 7), (3, 8), (6, 13), (7, 14), (9, 31)]:
        data = RNG.standard_normal((1, height, width, 20)).astype("float32")
        wanted = expected(data, kernel.reshape(3, 3, 20, 1), strides, (1, 1, 1, 1), (1, 1))
        result = backend.nd.array(np.full_like(wanted, np.nan))
        run(backend.nd.array(data), backend.nd.array(kernel), result)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_maps_narrower_than_a_tile_have_one_copy_of_the_code():
    h, w = te.size_var("h"), te.size_var("w")
    x, weights = te.placeholder((1, h, w, 32), "float32", "x"), te.placeholder((3, 3, 1, 32), "float32", "w")
    out = topi.nn.conv(x, weights, (1, 1), (1, 1, 1, 1), (1, 1), 32, "NHWC", "HWIO")
    text = str(te.lower(schedule_for([out], TARGET), [x, weights, out]))
    wide, _, narrow = text.rpartition("\n    else:")
    assert narrow.count('scope="local"') == 1 < wide.count('scope="local"')


@pytest.mark.parametrize("target", [TARGET, Target("llvm -mattr=-avx512f")], ids=["native", "no AVX-512"])
@pytest.mark.parametrize(("kernel", "strides", "padding"), [
    ((3, 3), (1, 1), (1, 1, 1, 1)), ((5, 5), (1, 1), (2, 2, 2, 2)), ((7, 7), (1, 1), (3, 3, 3, 3)),
    ((3, 5), (2, 2), (0, 2, 1, 1)), ((3, 3), (1, 2), (0, 0, 0, 0)), ((9, 1), (1, 1), (8, 0, 0, 0)),
])  # fmt: skip
def test_depthwise_of_images_of_any_size(kernel, strides, padding, target):
    """Of fewer columns than a tile, as many, and more; lines of padding are skipped, in two copies of the code."""
    sizes = [te.size_var(name) for name in "nhw"]
    x, w = te.placeholder((*sizes, 24), "float32", "x"), te.placeholder((*kernel, 1, 24), "float32", "w")
    out = topi.nn.conv(x, w, strides, padding, (1, 1), 24, "NHWC", "HWIO")
    module = te.lower(schedule_for([out], target), [x, w, out])
    assert not re.search(r"if_then_else\([^,]* and ", str(module))  # tests of columns only
    built = backend.build(module, target=target)
    weight = RNG.standard_normal((*kernel, 1, 24)).astype("float32")
    for batch, height, width in ((1, 9, 3), (2, 5, 7), (1, 7, 8), (1, 4, 9), (2, 10, 14), (1, 11, 31)):
        data = RNG.standard_normal((batch, height, width, 24)).astype("float32")
        wanted = expected(data, weight.reshape(*kernel, 24, 1), strides, padding, (1, 1))
        result = backend.nd.empty(wanted.shape, "float32")
        built(backend.nd.array(data), backend.nd.array(weight), result)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
