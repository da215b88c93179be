"""Results larger than the cache are written by non-temporal stores if aligned, with equal values in either case."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.llvm.codegen.nontemporal import divides
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.target import Target
from relayc.te.tir import decl_buffer

ROWS, COLUMNS = 64, 256
SMALL_CACHES = Target("llvm -l3-bytes=4096")


def scaled(columns: int, lanes: int, ahead: bool = False) -> tuple[te.Schedule, list[te.Tensor]]:
    """2 a + 1 by vectors of `lanes`, rows in parallel; with `ahead` the addresses of later results are prefetched."""
    a = te.placeholder((ROWS, columns), name="a")
    c = te.compute((ROWS, columns), lambda i, j: a[i, j] * 2.0 + 1.0, name="c")
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.op.axis[1], factor=lanes)
    s[c].vectorize(inner)
    s[c].parallel(c.op.axis[0])
    if ahead:
        s[c].prefetch(c, outer, te.Prefetch(columns))
    return s, [a, c]


def assembly(s: te.Schedule, arguments: list[te.Tensor], target: Target) -> str:
    return Compiler(target).emit([te.lower(s, arguments, name="f")["f"]]).text


def at(offset: int, values: np.ndarray) -> np.ndarray:
    """A copy of `values` at an offset, in elements, from a multiple of 64 bytes."""
    memory = np.zeros(values.size + 32, values.dtype)
    start = -memory.ctypes.data % 64 // values.itemsize + offset
    found = memory[start : start + values.size].reshape(values.shape)
    found[...] = values
    return found


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_results_are_equal_at_any_alignment(offset):
    s, arguments = scaled(COLUMNS, 16, ahead=True)
    anywhere = decl_buffer((ROWS, COLUMNS), name="c", data_alignment=4)
    module = te.lower(s, arguments, binds={arguments[1]: anywhere})
    function = backend.build(module, target=SMALL_CACHES)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    result = at(offset, np.zeros_like(x))
    function(backend.nd.array(x), backend.nd.from_dlpack(result))
    np.testing.assert_array_equal(result, x * np.float32(2) + np.float32(1))


def test_large_results_use_nontemporal_stores():
    text = assembly(*scaled(COLUMNS, 16), SMALL_CACHES)
    main, streaming = text.split("define void @f(")[1], text.split("define void @f(")[0]
    assert streaming.count("!nontemporal") == 1 and streaming.count("fence seq_cst") == 2  # and its body
    assert "@f.streaming(ptr %ctx, ptr %p0, ptr %p1)" in main and "!nontemporal" not in main.split("\n}")[0]


@pytest.mark.parametrize(("result", "of", "nontemporal"), [(150, 400, True), (150, 200, False), (100, 900, False)])
def test_the_cached_part_of_a_result_decides(result: int, of: int, nontemporal: bool):
    """A part of a tensor, of so many rows, and a cache of 256 rows."""
    a = te.placeholder((of, COLUMNS), name="a")
    c = te.compute((result, COLUMNS), lambda i, j: a[i, j], name="c")
    s = te.create_schedule(c)
    s[c].vectorize(s[c].split(c.op.axis[1], factor=16)[1])
    text = assembly(s, [a, c], Target(f"llvm -l3-bytes={256 * COLUMNS * 4}"))
    assert ("nontemporal" in text) == nontemporal


def by_lines(columns: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """2 a + 1 by cache lines as they are in memory, four of them for a tile of a row."""
    a = te.placeholder((ROWS, columns), name="a")
    c = te.compute((ROWS, columns), lambda i, j: a[i, j] * 2.0 + 1.0, name="c")
    s = te.create_schedule(c)
    _, line, element = s[c].split_lines(64, 16)
    s[c].unroll(line)
    s[c].vectorize(element)
    return s, [a, c]


def test_cache_lines_of_unaligned_rows_use_nontemporal_stores():
    s, arguments = by_lines(COLUMNS + 5)
    streaming = assembly(s, arguments, SMALL_CACHES).split("define void @f(")[0]
    assert streaming.count("!nontemporal") == 4
    function = backend.build(te.lower(s, arguments), target=SMALL_CACHES)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS + 5), dtype=np.float32)
    result = at(0, np.zeros_like(x))
    function(backend.nd.array(x), backend.nd.from_dlpack(result))
    np.testing.assert_array_equal(result, x * np.float32(2) + np.float32(1))


def test_divisibility_follows_from_a_subtracted_remainder():
    i, j = te.var("i"), te.var("j")
    begin = i * 37 + te.min(j * 8, 21)
    assert divides(16, begin - begin % 16 + 32) and divides(8, begin - begin % 16 + 8) and divides(4, i * 12 - j * 4)
    assert divides(16, i * 20 - i * 5 % 4 * 4) and divides(16, i * 12 + i * 5 % 4 * 4) and divides(8, i % 2 * 8)
    assert not divides(16, i * 20 - i * 5 % 2 * 4) and not divides(16, i * 8 - i * 5 % 4 * 4)
    assert not divides(16, begin - begin % 16 + 8) and not divides(16, begin - begin % 8) and not divides(2, begin)


@pytest.mark.parametrize(
    ("columns", "lanes", "options"),
    [(COLUMNS, 16, "-l3-bytes=1000000"), (COLUMNS, 16, "-mcpu=haswell"), (COLUMNS, 8, "-l3-bytes=4096"),
     (COLUMNS + 8, 16, "-l3-bytes=4096")], ids=["fits", "unknown", "halves of lines", "rows not aligned"],
)  # fmt: skip
def test_other_stores_are_ordinary(columns: int, lanes: int, options: str):
    text = assembly(*scaled(columns, lanes), Target(f"llvm -mtriple=x86_64-unknown-linux-gnu {options}"))
    assert "nontemporal" not in text and "streaming" not in text


def test_buffers_that_are_read_use_ordinary_stores():
    a = te.placeholder((ROWS, COLUMNS), name="a")
    k = te.reduce_axis((0, ROWS), name="k")
    c = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(a[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    i, j = c.op.axis
    s[c].reorder(i, k, j)
    s[c].vectorize(s[c].split(j, factor=16)[1])
    assert "nontemporal" not in assembly(s, [a, c], SMALL_CACHES)


def test_nontemporal_results_are_not_prefetched():
    text = assembly(*scaled(COLUMNS, 16, ahead=True), SMALL_CACHES)
    functions = text.split("define ")[1:]
    streaming, usual = [f for f in functions if "!nontemporal" in f], [f for f in functions if "@llvm.prefetch" in f]
    assert len(streaming) == len(usual) == 1 and streaming != usual


@pytest.mark.parametrize("computed", [False, True], ids=["moved", "computed"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("cpu", ["haswell", "znver4", "sapphirerapids"])
def test_nontemporal_instructions_of_every_type(cpu: str, dtype: str, computed: bool):
    lanes = 64 // np.dtype("float16" if dtype == "bfloat16" else dtype).itemsize
    a = te.placeholder((ROWS, 2048), dtype, name="a")
    c = te.compute((ROWS, 2048), lambda i, j: a[i, j] + a[i, j] if computed else a[i, j], name="c")
    s = te.create_schedule(c)
    s[c].vectorize(s[c].split(c.op.axis[1], factor=lanes)[1])
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -l3-bytes=4096")
    assert "vmovnt" in backend.build(s, [a, c], target).get_source("asm")


@pytest.mark.parametrize("lanes", [32, 64, 96])
def test_nontemporal_half_precision_values_are_correct(lanes: int):
    a = te.placeholder((ROWS, 96), "float16", name="a")
    c = te.compute((ROWS, 96), lambda i, j: a[i, j] + a[i, j], name="c")
    s = te.create_schedule(c)
    s[c].vectorize(s[c].split(s[c].fuse(*c.op.axis), factor=lanes)[1])
    assert "nontemporal" in assembly(s, [a, c], SMALL_CACHES)
    x = np.random.default_rng(0).standard_normal((ROWS, 96)).astype("float16")
    result = at(0, np.zeros_like(x))
    backend.build(te.lower(s, [a, c]), target=SMALL_CACHES)(backend.nd.array(x), backend.nd.from_dlpack(result))
    np.testing.assert_array_equal(result, x + x)
