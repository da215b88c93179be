"""Cores with few line-fill buffers: what is prefetched, and to which cache."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.topi.cpu.prefetch import prefetch_next
from tests.topi.small_caches import PROCESSORS, lowered, result, stored_by_lines

SIZES = {"znver4": 32 << 10, "znver5": 48 << 10}
FEW, MANY = (
    f"-mtune={name} -num-cores=2 -l1-bytes={l1} -l2-bytes=1048576 -l3-bytes=1048576" for name, l1 in SIZES.items()
)
ZEN4 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4"


def prefetch_hints(
    build: Callable[[te.Tensor], te.Tensor], shape: tuple[int, ...], caches: str, target: str = "llvm"
) -> set[int]:
    """Locality hints of the prefetches of an input: 3 is L1, 2 is L2."""
    x = te.placeholder(shape, name="x")
    text = str(lowered(build(x), [x], target, caches=caches))
    return {int(hint) for hint in re.findall(r"prefetch\(address_of\(x\[.*\]\), (\d), 0\)", text)}


@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda x: topi.transpose(x, (1, 0)), (1280, 960)), (lambda x: topi.transpose(x, (0, 2, 1)), (2000, 49, 49)),
     (lambda x: topi.nn.softmax(x, 1), (2000, 256)), (lambda x: topi.nn.softmax(x, 1), (9600, 49)),
     (lambda x: topi.max(x, axis=1), (8, 64, 4096)), (lambda x: topi.nn.softmax(x, 1), (64, 13000))],
    ids=["matrix", "matrices", "softmax", "softmax of short rows", "max of planes", "softmax of long rows"],
)  # fmt: skip
def test_prefetches_go_to_l2_on_cores_with_few_fill_buffers(
    build: Callable[[te.Tensor], te.Tensor], shape: tuple[int, ...]
) -> None:
    assert prefetch_hints(build, shape, FEW) == {2} and prefetch_hints(build, shape, MANY) == {3}


@pytest.mark.parametrize("processor", ["skylake-avx512", "cascadelake", "haswell", "x86-64-v3", "neoverse-n1"])
def test_other_processors_with_such_caches_prefetch_to_l1(processor: str) -> None:
    """An L1 cache of 32 KiB says nothing about line-fill buffers."""
    x = te.placeholder((2000, 256), name="x")
    target = f"llvm -mcpu={processor}"
    caches = FEW.replace("-mtune=znver4", "")
    text = str(lowered(topi.nn.softmax(x, 1), [x], target, caches=caches))
    assert ", 3, 0)" in text and ", 2, 0)" not in text


def test_gathered_rows_are_prefetched_to_l2_and_copied_rows_to_l1() -> None:
    x, table = te.placeholder((2000, 256), name="x"), te.placeholder((2000,), "int64", "table")
    out = te.compute(x.shape, lambda i, j: x[table[i], j], name="picked", tag="injective")
    text = str(lowered(out, [x, table], caches=FEW))
    assert set(re.findall(r"prefetch\(address_of\(x\[.*\]\), (\d), 0\)", text)) == {"2"}
    assert prefetch_hints(lambda x: topi.transpose(x, (0, 2, 1, 3)), (4, 200, 12, 64), FEW) == {3}


@pytest.mark.parametrize(("channels", "hints"), [(64, set()), (384, {2})], ids=["in registers", "in the first cache"])
def test_moments_of_channels_are_prefetched_where_accumulators_exceed_registers(
    channels: int, hints: set[int]
) -> None:
    """The hardware prefetcher covers a single sequential stream."""

    def variance(x: te.Tensor) -> te.Tensor:
        return topi.variance(x, axis=1)

    assert prefetch_hints(variance, (1, 30_000, channels), FEW) == hints
    assert prefetch_hints(variance, (1, 30_000, channels), MANY) == {3}


def test_contiguous_rows_are_left_to_the_hardware_prefetcher() -> None:
    """Norms without exponentials leave rows to the hardware prefetcher."""
    assert prefetch_hints(lambda x: topi.variance(x, axis=1), (2000, 256), FEW) == set()
    assert prefetch_hints(lambda x: topi.variance(x, axis=1), (2000, 256), MANY) == {3}
    x, gamma = te.placeholder((2000, 256), name="x"), te.placeholder((256,), name="gamma")
    out = topi.nn.rms_norm(x, gamma, 1, 1e-5)
    few, many = ("prefetch(address_of(x[" in str(lowered(out, [x, gamma], caches=caches)) for caches in (FEW, MANY))
    assert many and not few


@pytest.mark.parametrize("columns", [197, 729, 1001])
def test_long_unaligned_rows_use_nontemporal_stores(columns: int) -> None:
    """The two ends of a row are read before they are written, which stalls cores with few line-fill buffers."""
    data = np.random.default_rng(0).standard_normal((2000, columns), dtype=np.float32)
    x = te.placeholder(data.shape, name="x")
    out = topi.nn.softmax(x, 1)
    exponentials = np.exp(data - data.max(1, keepdims=True))
    for caches, least in ((FEW, 48), (MANY, 8)):
        (func,) = lowered(out, [x], caches=caches).functions.values()
        assert stored_by_lines(func) == (columns >= least * 16)
        found = result(out, [x], [data], caches=caches)
        np.testing.assert_allclose(found, exponentials / exponentials.sum(1, keepdims=True), rtol=2e-5, atol=1e-7)


def planes(channels: int, side: int, images: int = 8) -> tuple[tuple[int, ...], Callable[[te.Tensor], te.Tensor]]:
    return (images, channels, side * side), lambda x: topi.nn.standardize(x, (1,), 1e-5, 0.0, centred=True)


def prefetches_per_run(text: str) -> list[int]:
    """Prefetches of the input in each straight-line run of statements."""
    return [part.count("prefetch(address_of(x[") for part in re.split(r"\n *(?:for|else)\b", text)]


@pytest.mark.parametrize(("channels", "side"), [(768, 7), (384, 14)], ids=["in registers", "in the first cache"])
def test_small_images_are_prefetched_an_image_ahead_and_once_more(channels: int, side: int) -> None:
    """Cores with few line-fill buffers drop some of the prefetches issued while the image before is stored."""
    shape, build = planes(channels, side, 50)
    x = te.placeholder(shape, name="x")
    cases = [caches.replace("-l3-bytes=1048576", "-l3-bytes=4194304") for caches in (FEW, MANY)]
    few, many = (prefetches_per_run(str(lowered(build(x), [x], caches=caches))) for caches in cases)
    assert sum(many) == 1 and few[-1] == 1 and sum(few) > 1


@pytest.mark.parametrize(("rows", "is_prefetched"), [(16, True), (15, False)], ids=["as large as the LLC", "smaller"])
def test_long_rows_are_prefetched_where_no_cache_holds_them(rows: int, is_prefetched: bool) -> None:
    """The next row, while results are stored; a row of more than half of L2 only if it comes from memory."""
    x = te.placeholder((rows, 16384), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")
    s, target = te.create_schedule(y.op), backend.Target("llvm -mtune=x86-64 -l2-bytes=65536 -l3-bytes=1048576")
    vectors, _ = s[y].split(s[y].op.axis[1], factor=16)
    assert prefetch_next(s, y, vectors, 16384, 16, target) == is_prefetched


@pytest.mark.parametrize("side", [64, 65], ids=["whole lines", "begin anywhere"])
def test_channels_of_planes_prefetch_few_lines_in_a_row(side: int) -> None:
    shape, build = planes(96, side)
    x = te.placeholder(shape, name="x")
    few, many = (max(prefetches_per_run(str(lowered(build(x), [x], caches=caches)))) for caches in (FEW, MANY))
    assert few == 1 and many == 8


def test_transposes_with_set_conflicts_write_longer_runs() -> None:
    """Where results are unaligned, one cache line of each run is transposed in vain."""
    x = te.placeholder((2049, 1024), name="x")
    out = topi.transpose(x, (1, 0))
    sizes = [re.search(r"x\.local = allocate\(\[(\d+)\]", str(lowered(out, [x], caches=c))) for c in (FEW, MANY)]
    assert [int(found[1]) for found in sizes if found] == [5 * 16 * 16, 3 * 16 * 16]


@pytest.mark.parametrize(("length", "few"), [(1001, {2}), (700, set()), (1024, set())])
def test_norms_prefetch_rows_with_masked_stores_at_their_ends(length: int, few: set[int]) -> None:
    """Aligned rows, and rows with plain stores, are left to the hardware prefetcher."""
    ones = te.compute((length,), lambda i: te.const(1.0, "float32"), name="ones", tag="elemwise")
    norm = lambda x: topi.nn.rms_norm(x, ones, 1, 1e-5)  # noqa: E731
    assert prefetch_hints(norm, (900, length), FEW) == few


@pytest.mark.parametrize("scale", [1.0, 300.0], ids=["speculation holds", "speculation fails"])
def test_softmax_along_a_strided_axis_is_unshifted(scale: float) -> None:
    data = scale * np.random.default_rng(0).standard_normal((44, 7003), dtype=np.float32)
    x = te.placeholder(data.shape, name="x")
    out = topi.nn.softmax(x, 0)
    exponentials = np.exp(data.astype(float) - data.max(0))
    expected = exponentials / exponentials.sum(0)
    for caches in (FEW, MANY):
        assert "softmax_sum.doubted" in str(lowered(out, [x], caches=caches))
        np.testing.assert_allclose(result(out, [x], [data], caches=caches), expected, rtol=2e-5, atol=1e-7)


def test_argmax_of_channels_prefetches_the_next_image_in_its_second_pass() -> None:
    x = te.placeholder((40, 255, 169), name="x")
    out = topi.argmax(x, 1)
    distances = [set(re.findall(r"\+ (\d{5,})", line)) for line in str(lowered(out, [x], caches=FEW)).splitlines()
                 if "prefetch" in line]  # fmt: skip
    assert any(str(255 * 169) in found for found in distances)
    assert "prefetch" not in str(lowered(out, [x], caches=MANY))


@pytest.mark.parametrize(
    ("shape", "kind", "few", "many"),
    [((80, 28, 28), "int8", False, True), ((80, 28, 28), "float32", True, True),
     ((50, 55, 55), "float32", False, True), ((8, 200, 504), "float32", True, True)],
    ids=["planes of short lines", "short chunks", "long chunks of short lines", "long lines"],
)  # fmt: skip
def test_padded_lines_are_packed_in_short_chunks_or_where_they_are_long(
    shape: tuple[int, ...], kind: str, few: bool, many: bool
) -> None:
    """Packing and storing have to overlap within the out-of-order window."""
    data = np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    x = te.placeholder(shape, kind, name="x")
    out = topi.nn.pad(x, (0, 1, 1), (0, 1, 1), 0.0)
    for caches, is_buffered in ((FEW, few), (MANY, many)):
        small = caches.replace("-l3-bytes=1048576", "-l3-bytes=32768")
        text = str(lowered(out, [x], ZEN4, caches=small))
        assert ('scope="local"' in text) == is_buffered
        np.testing.assert_array_equal(result(out, [x], [data], caches=small), np.pad(data, ((0, 0), (1, 1), (1, 1))))


@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda x: topi.split(x, [32, 32], 1)[1], (20_000, 64)), (lambda x: topi.split(x, [32, 32], 2)[0], (100, 100, 64)),
     (lambda x: topi.split(x, [1024, 1024], 1)[1], (600, 2048))],
    ids=["columns", "channels", "long parts"],
)  # fmt: skip
def test_parts_of_lines_are_prefetched_to_l2(
    build: Callable[[te.Tensor], te.Tensor], shape: tuple[int, ...]
) -> None:
    assert prefetch_hints(build, shape, FEW) == {2} and 2 not in prefetch_hints(build, shape, MANY)


def test_lines_read_at_two_places_are_prefetched_to_l2() -> None:
    def rolled(x: te.Tensor) -> te.Tensor:
        return topi.concatenate(topi.split(x, [93, 7], 1)[::-1], 1)

    assert prefetch_hints(rolled, (3000, 100), FEW) == {2} and prefetch_hints(rolled, (3000, 100), MANY) == {3}


@pytest.mark.parametrize(
    ("window", "stride", "width", "few"),
    [(3, 1, 504, set()), (3, 2, 504, {2}), (3, 2, 112, {3}), (5, 1, 504, {2}), (5, 2, 112, {2})],
)  # fmt: skip
def test_prefetches_of_planes_depend_on_the_window_height(
    window: int, stride: int, width: int, few: set[int]
) -> None:
    """The hardware prefetcher covers windows of three lines; 64-byte vectors prefetch whole cache lines."""

    def pooled(x: te.Tensor) -> te.Tensor:
        windows = topi.nn.Windows((2, 3), (window, window), (stride, stride), (1, 1), (window // 2,) * 4)
        return topi.nn.max_pool(x, windows)

    shape = (1, 1_000_000 // width**2 + 8, width, width)
    assert prefetch_hints(pooled, shape, FEW, ZEN4) == few and prefetch_hints(pooled, shape, MANY, ZEN4) == {3}
    assert prefetch_hints(pooled, shape, FEW, PROCESSORS["haswell"]) == ({3} if few else set())
