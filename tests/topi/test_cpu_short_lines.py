"""Lines shorter than a cache line: vectors of whole cache lines span several of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.te.ir import collect
from relayc.te.tir import PrimExpr
from relayc.topi.registry import schedule_for
from tests.topi import small_caches

_CACHES = "-mtune=znver4 -l1-bytes=32768 -l2-bytes=524288 -l3-bytes=8192"

lowered = partial(small_caches.lowered, caches=_CACHES)
result = partial(small_caches.result, caches=_CACHES)


def stored_lanes(out: te.Tensor, arguments: list[te.Tensor], target: str = "llvm") -> int:
    """Vector length, in elements, of the first store."""
    stores = [line for line in str(lowered(out, arguments, target)).splitlines() if line.strip().startswith("add[")]
    return int(stores[0].split("]")[0].rsplit(", ", 1)[1].rstrip(")"))


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("columns", [3, 7, 20, 21])
@pytest.mark.parametrize("rows", [64, 101])
def test_broadcast_rows_and_columns(rows, columns, kind) -> None:
    random = np.random.default_rng(0)
    for shape in ((columns,), (rows, 1)):
        a, b = (random.integers(0, 2 if kind == "bool" else 9, s).astype(kind) for s in ((rows, columns), shape))
        x, y = te.placeholder(a.shape, kind, "x"), te.placeholder(b.shape, kind, "y")
        out, expected = (topi.logical_or(x, y), a | b) if kind == "bool" else (topi.add(x, y), a + b)
        np.testing.assert_array_equal(result(out, [x, y], [a, b]), expected)


@pytest.mark.parametrize("rows", [40, 1001])
def test_functions_of_short_lines_and_of_two_short_factors(rows) -> None:
    random = np.random.default_rng(0)
    for columns in (4, 7, 20, 24):
        a, b = random.standard_normal((rows, columns), np.float32), random.standard_normal((rows, 1), np.float32)
        x, y = te.placeholder(a.shape, "float32", "x"), te.placeholder(b.shape, "float32", "y")
        np.testing.assert_allclose(result(topi.tanh(topi.add(x, y)), [x, y], [a, b]), np.tanh(a + b), atol=1e-6)
        row = te.placeholder((1, columns), "float32", "row")
        np.testing.assert_array_equal(result(topi.multiply(y, row), [y, row], [b, a[:1]]), b * a[:1])


@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_vectors_are_whole_cache_lines(processor) -> None:
    target = small_caches.PROCESSORS[processor]
    for kind, columns, lanes in (("float32", 3, 48), ("float16", 3, 96), ("int8", 3, 192), ("float32", 7, 112),
                                 ("float32", 10, 80), ("float64", 6, 24), ("float32", 8, 16)):  # fmt: skip
        x, y = te.placeholder((999, columns), kind, "x"), te.placeholder((columns,), kind, "y")
        assert stored_lanes(topi.add(x, y), [x, y], target) == lanes


def test_vector_length_is_bounded() -> None:
    x, y = te.placeholder((4999, 33), "int8", "x"), te.placeholder((33,), "int8", "y")
    assert stored_lanes(topi.add(x, y), [x, y]) <= 64  # not the 2112 elements of 33 cache lines


def test_the_tail_has_fewer_lines() -> None:
    x, y = te.placeholder((1001, 3), "float32", "x"), te.placeholder((3,), "float32", "y")
    *_, loop, inside, rest = str(lowered(topi.add(x, y), [x, y])).rstrip().splitlines()
    assert " in range(62):" in loop and "1, 48)] = " in inside and "add[ramp(2976, 1, 27)] = " in rest


def test_few_lines_are_not_combined() -> None:
    x, y = te.placeholder((3, 7), "float32", "x"), te.placeholder((7,), "float32", "y")
    out = topi.add(x, y)
    text = str(te.lower(schedule_for([out], backend.Target("llvm")), [x, y, out]))
    assert "112" not in text


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize("widths", [(2, 2), (3, 1), (5, 5), (1, 4)])
@pytest.mark.parametrize("rows", [999, 9])
def test_short_lines_are_concatenated(rows, widths, kind) -> None:
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 99, (rows, width)).astype(kind) for width in widths]
    parts = [te.placeholder(a.shape, kind, "part") for a in arrays]
    np.testing.assert_array_equal(result(topi.concatenate(parts, 1), parts, arrays), np.concatenate(arrays, 1))


def test_concatenated_vectors_are_four_cache_lines_loaded_without_masks() -> None:
    x, y = te.placeholder((9999, 3), "float32", "x"), te.placeholder((9999, 1), "float32", "y")
    module = lowered(topi.concatenate([x, y], 1), [x, y])
    assert "ramp(i0.i1.fused.outer * 64, 1, 64)] = " in str(module)
    code = backend.build(module, target=backend.Target("llvm -mcpu=x86-64-v4")).get_source("raw-ll")
    main = code[: code.index("icmp")] if "icmp" in code else code
    assert "gather" not in code and "shufflevector" in code and "masked.load" not in main


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32"])
def test_short_rows_padded_at_both_ends_are_loaded_as_vectors(kind) -> None:
    x, array = te.placeholder((9984, 6), kind, "x"), np.random.default_rng(0).integers(0, 99, (9984, 6)).astype(kind)
    out = topi.nn.pad(x, (0, 1), (0, 1), 0)
    module = lowered(out, [x])
    code = backend.build(module, target=backend.Target("llvm -mcpu=x86-64-v4")).get_source("raw-ll")
    assert "gather" not in code and "shufflevector" in code
    np.testing.assert_array_equal(result(out, [x], [array]), np.pad(array, ((0, 0), (1, 1))))


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("by_pair", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotated_pairs_are_loaded_as_vectors(interleaved, by_pair, kind) -> None:
    shape = (3, 50, 64)
    table = (50, 32 if by_pair else 64)
    x, *angles = [te.placeholder(s, kind, n) for s, n in ((shape, "x"), (table, "cos"), (table, "sin"))]
    module = lowered(topi.nn.rotary_embedding(x, *angles, interleaved), [x, *angles])
    code = backend.build(module, target=backend.Target("llvm")).get_source("raw-ll")
    assert "gather" not in code and "masked" not in code


@pytest.mark.parametrize(("cpu", "prefetches"), [("skylake-avx512", True), ("haswell", False)])
def test_masked_loads_are_prefetched(cpu, prefetches) -> None:
    """64-byte vectors have masked loads then, in which hardware prefetchers detect no stream."""
    x, mask = te.placeholder((4000, 7), "float32", "x"), te.placeholder((7,), "bool", "mask")
    chosen = topi.where(mask, x, te.compute((1,), lambda _: te.const(0.0), tag="broadcast"))
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}"
    assert ("prefetch(" in str(lowered(chosen, [mask, x], target))) == prefetches
    assert "prefetch(" not in str(lowered(topi.nn.relu(topi.add(x, x)), [x], target))


@pytest.mark.parametrize("leading", [1, 2, 5])
@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_the_last_vector_of_lines_inside_a_fused_loop_has_no_mask(leading, kind) -> None:
    """LLVM took minutes for masked gathers of 384 lanes, which a loop over planes and vectors had in its body."""
    x = te.placeholder((leading, 1201, 6), kind, "x")
    out = topi.strided_slice(x, (0, 0, 0), (1, 1, 1), (leading, 1201, 3))
    module = te.lower(schedule_for([out], backend.Target("llvm -mcpu=haswell -num-cores=2")), [x, out])
    masks = [e for e in collect(module["main"].body, PrimExpr) if e.dtype.element == "bool" and e.dtype.lanes > 1]
    assert not masks
    a = np.arange(leading * 1201 * 6).reshape(x.shape).astype(kind)
    np.testing.assert_array_equal(result(out, [x], [a]), a[..., :3])
