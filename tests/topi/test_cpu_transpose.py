"""Injective groups that read along a strided axis: which axis that is, and the tiles that transpose in registers."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.dtype import dtype
from relayc.te.ir import collect
from relayc.te.ir.decisions import recording
from relayc.te.tir import Buffer, BufferLoad, BufferStore, Call, For, IfThenElse, PrimFunc, Shuffle, Stmt, Var, as_int
from relayc.te.tir.interpreter import Interpreter
from relayc.te.tir.stmt import ForKind
from relayc.te.tir.values import Memory
from relayc.topi.cpu.register_transpose import Bindings, block_of, transpose_by_shuffles, transposed_vectors
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.packed import packed_blocks, packed_matrices
from relayc.topi.cpu.transposes.tiles import ordered_tiles
from relayc.topi.cpu.transposes.transpose import strided_axis
from relayc.topi.registry import schedule_for


def placeholder(*shape: int) -> te.Tensor:
    return te.placeholder(shape, "float32", "x")


def test_a_transpose_reads_along_a_strided_axis() -> None:
    x = placeholder(1, 28, 30, 64)
    assert strided_axis(topi.transpose(x, (0, 3, 1, 2))) == 1
    assert strided_axis(topi.transpose(x, (0, 2, 1, 3))) is None


def test_strided_axis_is_found_through_elementwise_operations() -> None:
    x = placeholder(32, 64)
    assert strided_axis(topi.nn.relu(topi.transpose(topi.nn.relu(x), (1, 0)))) == 0
    assert strided_axis(topi.nn.relu(x)) is None


def test_mixed_access_orders_and_views_have_no_strided_axis() -> None:
    x, y = placeholder(64, 64), placeholder(64, 64)
    assert strided_axis(topi.add(topi.transpose(x, (1, 0)), y)) is None
    assert strided_axis(topi.transpose(topi.reshape(x, (32, 128)), (1, 0))) is None


def test_small_inputs_do_not_determine_the_strided_axis() -> None:
    bias, x = placeholder(64, 1), placeholder(64, 32)
    assert strided_axis(topi.add(topi.transpose(x, (1, 0)), topi.transpose(bias, (1, 0)))) == 0


@pytest.mark.parametrize(
    ("kind", "lanes"), [("float32", 4), ("float32", 8), ("float32", 16), ("int8", 16), ("int8", 4), ("int8", 32),
                        ("int8", 64), ("float16", 8), ("int16", 16), ("float64", 2), ("int64", 8)])  # fmt: skip
def test_shuffles_transpose_a_tile(kind: str, lanes: int) -> None:
    block = block_of(lanes, dtype(kind))
    rows = [Var("row", dtype(f"{kind}x{block}")) for _ in range(lanes)]
    values = {id(row): np.arange(block) + block * i for i, row in enumerate(rows)}
    bindings = Bindings()
    columns = transpose_by_shuffles(rows, bindings)
    for variable, shuffle in bindings.values:
        both = np.concatenate([values[id(v)] for v in shuffle.vectors])
        values[id(variable)] = both[list(shuffle.indices)]
    assert np.array_equal([values[id(c)] for c in columns], np.arange(lanes * block).reshape(lanes, block).T)
    assert len(bindings.values) == lanes - block + block * (block.bit_length() - 1)


@pytest.mark.parametrize("twice", [True, False], ids=["with itself", "with another"])
def test_tiles_do_not_reach_over_concatenated_inputs(twice) -> None:
    """A tile of the result may want more lanes than one of the joined tensors has."""
    x, y = te.placeholder((1, 4, 6, 6), "float32", "x"), te.placeholder((1, 4, 1, 1), "float32", "y")
    other = x if twice else topi.broadcast_to(y, (1, 4, 6, 6))
    out = topi.transpose(topi.concatenate([x, other], 1), (0, 2, 3, 1))
    arrays = [np.random.default_rng(k).random(t.shape, np.float32) for k, t in enumerate((x, y))]
    second = arrays[0] if twice else np.broadcast_to(arrays[1], x.shape)
    result = backend.nd.empty(out.shape)
    function = backend.build(te.lower(schedule_for([out], Target("llvm")), [x, y, out]), target=Target("llvm"))
    function(*[backend.nd.array(a) for a in arrays], result)
    np.testing.assert_array_equal(result.numpy(), np.concatenate([arrays[0], second], 1).transpose(0, 2, 3, 1))


INTERLEAVED = [((3, 200), (1, 0)), ((2, 7, 40), (0, 2, 1)), ((5, 33), (1, 0)), ((200, 3), (1, 0)), ((50, 4), (1, 0)),
               ((2, 3, 9, 64), (0, 2, 3, 1))]  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32"])
@pytest.mark.parametrize(("shape", "axes"), INTERLEAVED, ids=str)
def test_few_rows_are_interleaved(shape, axes, kind) -> None:
    a = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    out = topi.transpose(x, axes)
    result = backend.nd.empty(out.shape, kind)
    backend.build(te.lower(schedule_for([out], Target("llvm")), [x, out]), target=Target("llvm"))(
        backend.nd.array(a), result
    )
    assert np.array_equal(result.numpy(), a.transpose(axes))


CASES = [
    ((40, 33), (1, 0)), ((8, 8), (1, 0)), ((7, 30), (1, 0)), ((2, 16, 9, 11), (0, 2, 3, 1)),
    ((1, 24, 8, 8), (0, 2, 3, 1)), ((2, 9, 70, 24), (0, 3, 1, 2)), ((3, 20, 4, 12), (0, 2, 1, 3)),
    ((9, 10, 11), (2, 1, 0)), ((3, 5, 64), (2, 0, 1)),
]  # fmt: skip


def test_tiles_are_as_high_as_vectors_are_long() -> None:
    v2, v3 = Target("llvm -mcpu=x86-64-v2"), Target("llvm -mcpu=haswell")
    assert [transposed_vectors(v3, dtype(kind)) for kind in ("float32", "int8", "float16", "int64")] == [
        [8, 4], [32, 16, 8, 4], [16, 8, 4], [4]]  # fmt: skip
    assert [block_of(32, dtype("int8")), block_of(8, dtype("float32")), block_of(4, dtype("int8"))] == [16, 4, 4]
    assert transposed_vectors(v2, dtype("float64")) == [2]
    assert transposed_vectors(v3, dtype("bool")) == transposed_vectors(v3, dtype("float8_e4m3fn")) == []


def test_narrow_elements_are_transposed_and_widened() -> None:
    a = np.arange(3 * 70 * 40, dtype="uint8").reshape(3, 70, 40)
    x = te.placeholder(a.shape, "uint8", "x")
    out = topi.cast(topi.transpose(x, (0, 2, 1)), "float32")
    module = te.lower(schedule_for([out], Target("llvm")), [x, out])
    result = backend.nd.empty(out.shape, "float32")
    backend.build(module, target=Target("llvm"))(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.transpose(0, 2, 1).astype("float32"))
    assert "shuffle" in str(module)


@pytest.mark.parametrize("kind", ["float32", "int64", "float16", "int8"])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2"] if platform.machine() == "x86_64" else ["llvm"])
def test_transposes(shape, axes, kind, target) -> None:
    a = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    zeros, ones, last = [0] * len(shape), [1] * len(shape), (*shape[:-1], shape[-1] - 1)
    moved = topi.transpose(topi.strided_slice(x, [*zeros[:-1], 1], ones, last), axes)
    out = topi.add(moved, te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    expected = np.transpose(a[..., 1:], axes) + np.array(1, kind)
    module = te.lower(schedule_for([out], Target(target)), [x, out])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=Target(target))(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), expected)


LARGE = {
    "whole lines": ((320, 160), (1, 0)), "short lines": ((33, 1600), (1, 0)), "powers of two": ((256, 2048), (1, 0)),
    "few rows": ((2048, 40), (1, 0)), "planes": ((2, 6, 256, 33), (0, 3, 1, 2)), "batch": ((9, 256, 49), (0, 2, 1)),
    "odd lines": ((333, 190), (1, 0)), "odd planes": ((2, 6, 259, 33), (0, 3, 1, 2)),
    "page rows": ((1501, 512), (1, 0)),
}  # fmt: skip
PROCESSORS = ["x86-64-v2", "haswell"] if platform.machine() == "x86_64" else ["generic"]
PROCESSORS += ["x86-64-v4"] if "avx512vl" in Target("llvm").features else []


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_transposes_larger_than_the_caches(name, kind, processor) -> None:
    shape, axes = LARGE[name]
    caches = "-l2-bytes=49152 -l3-bytes=49152 -num-cores=2"
    target = Target(f"llvm -mcpu={processor} {caches}" if processor != "generic" else "llvm")
    a = (np.arange(np.prod(shape)) * 7919 % 251).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    out = topi.add(topi.transpose(x, axes), te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    module = te.lower(schedule_for([out], target), [x, out])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), np.transpose(a, axes) + np.array(1, kind))
    tile = max(map(int, re.findall(r"allocate\(\[(\d+)\]", str(module)))) * dtype(kind).nbytes
    short = kind == "uint8" and name in ("odd lines", "odd planes")  # and unaligned
    square = 64 * min(64 // dtype(kind).nbytes, shape[axes[-1]])  # a cache line of both sides
    assert (tile >= square) != short or name in ("powers of two", "page rows") or processor == "generic"


@pytest.mark.parametrize("inside", [False, True])
def test_unaligned_rows_with_dynamic_batches(inside) -> None:
    """The address of a row is static for any outer batch, but not for a dynamic number of groups inside of it.

    A batch may be one, so that another loop is parallel with it.
    """
    n, target = te.size_var("n"), Target("llvm -mtune=x86-64 -l2-bytes=49152 -l3-bytes=49152")
    x = te.placeholder((2, n, 259, 33) if inside else (n, 2, 259, 33), "float32", "x")
    out = topi.transpose(x, (0, 1, 3, 2))
    module = te.lower(schedule_for([out], target), [x, out])
    assert "parallel(n)" not in str(module)
    transpose = backend.build(module, target=target)
    for size in (1, 3):
        shape = (2, size, 259, 33) if inside else (size, 2, 259, 33)
        a = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        result = backend.nd.empty((*shape[:2], 33, 259), "float32")
        transpose(backend.nd.array(a), result)
        assert np.array_equal(result.numpy(), a.swapaxes(2, 3))


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2)], ids=str)
def test_transposes_of_images_of_dynamic_sides(axes) -> None:
    h, w = te.size_var("h"), te.size_var("w")
    x = te.placeholder((1, 24, h, w) if axes[1] == 2 else (1, h, w, 24), "float32", "x")
    out = topi.transpose(x, axes)
    module = te.lower(schedule_for([out], Target("llvm")), [x, out])
    assert "shuffle" in str(module)
    transpose = backend.build(module, target=Target("llvm"))
    for sides in ((9, 21), (3, 8), (5, 3)):  # the last are shorter than a square
        shape = [24 if d == 24 else sides[i - 1 - (axes[1] == 2)] for i, d in enumerate(x.shape[1:], start=1)]
        a = np.arange(np.prod(shape), dtype="float32").reshape(1, *shape)
        result = backend.nd.empty(a.transpose(axes).shape, "float32")
        transpose(backend.nd.array(a), result)
        assert np.array_equal(result.numpy(), a.transpose(axes))


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_padding_around_transposes(kind) -> None:
    a = np.arange(2 * 32 * 9 * 10).reshape(2, 32, 9, 10).astype(kind)
    x = te.placeholder(a.shape, kind, "x")
    out = topi.nn.pad(topi.transpose(x, (0, 2, 3, 1)), (0, 1, 1, 0), (0, 1, 2, 0), 7)
    module = te.lower(schedule_for([out], Target("llvm")), [x, out])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=Target("llvm"))(backend.nd.array(a), result)
    expected = np.pad(a.transpose(0, 2, 3, 1), ((0, 0), (1, 1), (1, 2), (0, 0)), constant_values=7)
    assert np.array_equal(result.numpy(), expected)


def test_lengths_that_are_expressions_of_sizes_have_no_register_tiles() -> None:
    n, k = te.size_var("n"), te.size_var("k")
    length = n + te.maximum(k - 1, 0) - k + 1
    x = te.placeholder((2, length, length, 32), "float32", "x")
    out = topi.transpose(x, (0, 3, 1, 2))
    assert "shuffled" not in str(te.lower(schedule_for([out], Target("llvm -mcpu=haswell")), [x, out]))


@pytest.mark.parametrize("processor", ["haswell", "x86-64-v4"])
def test_tiles_of_long_rows_are_a_line_of_input_rows_and_four_of_output_rows(processor) -> None:
    x = te.placeholder((640, 1000), "float32", "x")
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor} -l2-bytes=49152 -l3-bytes=49152")
    out = topi.transpose(x, (1, 0))
    text = str(te.lower(schedule_for([out], target), [x, out]))
    assert "allocate([1024]" in text and " * 16, 984)" in text  # output rows of a tile


RUNS = {
    "channels last": (3, 48, 64, 64), "unaligned rows": (1, 49, 128, 128), "one plane": (1, 40, 64, 128),
    "no set conflicts": (2, 40, 100, 72),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "float16"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_runs_of_rows_with_set_conflicts_are_copied_before_they_are_transposed(name, kind, processor) -> None:
    """The next runs are prefetched with the tiles that are transposed."""
    n, c, h, w = RUNS[name]
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    target = Target(f"llvm {cpu} -l2-bytes=262144 -l3-bytes=65536")
    a = (np.arange(n * c * h * w) * 7919 % 251).reshape(n, c, h * w).astype(kind)
    x = te.placeholder(a.shape, kind, "x")
    out = topi.transpose(x, (0, 2, 1))
    module = te.lower(schedule_for([out], target), [x, out])
    tiles = [loop for loop in collect(module["main"].body, For) if _prefetches(loop) and collect(loop, Shuffle)]
    copies = [store for store in collect(module["main"].body, BufferStore) if isinstance(store.value, BufferLoad)
              and store.value.buffer.name == "x"]  # fmt: skip
    assert tiles
    assert bool(copies) == (h * w * dtype(kind).nbytes % 2048 == 0)
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.swapaxes(1, 2))


def _prefetches(stmt: Stmt) -> bool:
    return any(call.op == "prefetch" for call in collect(stmt, Call))


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_small_matrices_that_are_no_whole_cache_lines_are_stored_together(kind, processor) -> None:
    """Left-over matrices, too; each tile that is transposed prefetches some of the next matrices."""
    rows, columns, size = 17, 19, dtype(kind).nbytes
    matrices = 150_000 // (rows * columns * size)
    a = (np.arange(matrices * rows * columns) * 7919 % 251).reshape(matrices, rows, columns).astype(kind)
    x = te.placeholder(a.shape, kind, "x")
    out = topi.add(topi.transpose(x, (0, 2, 1)), te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    target = Target(f"llvm {cpu} -l2-bytes=131072 -l3-bytes=65536 -num-cores=1")
    module = te.lower(schedule_for([out], target), [x, out])
    together = 64 // size * rows * columns
    assert matrices % (64 // size) and f"allocate([{together}]" in str(module)
    assert any(_prefetches(loop) and collect(loop, Shuffle) for loop in collect(module["main"].body, For))
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.swapaxes(1, 2) + np.array(1, kind))


ORDERED = {
    "matrix": ((640, 300), (1, 0), "float32"), "odd lines": ((635, 300), (1, 0), "float32"),
    "set conflicts": ((640, 512), (1, 0), "float32"), "odd lines, set conflicts": ((1100, 512), (1, 0), "float16"),
    "wide": ((640, 150), (1, 0), "int64"),
    "bytes": ((1280, 1100), (1, 0), "uint8"), "odd lines of bytes": ((1285, 1030), (1, 0), "int8"),
    "bytes, set conflicts": ((1280, 1024), (1, 0), "uint8"),
    "batch": ((3, 600, 520), (0, 2, 1), "float16"), "heads": ((2, 640, 6, 80), (0, 2, 3, 1), "float32"),
    "pages": ((320, 2048), (1, 0), "float32"), "odd lines, more than pages": ((341, 2100), (1, 0), "float32"),
    "pages of bytes": ((1280, 4096), (1, 0), "uint8"), "odd pages of bytes": ((1285, 5000), (1, 0), "int8"),
    "long heads": ((2, 200, 4, 512), (0, 2, 3, 1), "float32"), "batch of pages": ((3, 320, 4096), (0, 2, 1), "float16"),
    "planes": ((3, 64, 4096), (0, 2, 1), "float32"), "odd planes": ((2, 300, 3025), (0, 2, 1), "float16"),
    "planes of bytes": ((6, 64, 4096), (0, 2, 1), "uint8"),
    "half a kilobyte": ((2, 640, 128), (0, 2, 1), "float32"), "255 channels": ((1285, 255), (1, 0), "float16"),
    "40 channels": ((5120, 40), (1, 0), "float32"), "128 channels of bytes": ((2, 2560, 128), (0, 2, 1), "uint8"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_long_rows_are_read_in_memory_order(name, processor) -> None:
    """A block of rows is prefetched in pieces while the one before is transposed and what was transposed is stored."""
    shape, axes, kind = ORDERED[name]
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    target = Target(f"llvm {cpu} -l2-bytes=524288 -l3-bytes=65536 -num-cores=1")
    a = (np.arange(np.prod(shape)) * 7919 % 251).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    out = topi.add(topi.transpose(x, axes), te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    module = te.lower(schedule_for([out], target), [x, out])
    assert _loops_of_blocks(module["main"])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), np.transpose(a, axes) + np.array(1, kind))


@pytest.mark.parametrize(
    ("rows", "kind", "lines"),
    [(1280 + 16, "float32", 1), (1280 + 64, "float32", 1), (1280 + 128, "float32", 2), (1280, "float16", 2),
     (1280 + 64, "float16", 1), (1280 + 3, "float32", 2), (1280 + 3, "float16", 1)],
)  # fmt: skip
def test_output_rows_with_set_conflicts_are_written_by_two_cache_lines(rows, kind, lines) -> None:
    """So are unaligned rows, of which one more is transposed, except where that would be many elements."""
    x = te.placeholder((rows, 300), kind, "x")
    out = topi.transpose(x, (1, 0))
    target = Target("llvm -mcpu=x86-64-v4 -l2-bytes=1048576 -num-cores=1")
    tiles = ordered_tiles(TransposeFacts(out, 0, x, 0, vector_lanes(target, x.dtype.nbytes), 64, target))
    assert tiles and tiles.steps[0] == (1, lines * 64 // x.dtype.nbytes)


def _loops_of_blocks(function: PrimFunc) -> list[For]:
    """Loops in which a block is stored, the next transposed and the one after prefetched; the first block is peeled."""

    def does_all(stmt: Stmt) -> bool:
        stored = {store.buffer.name for store in collect(stmt, BufferStore)}
        return len(stored) > 1 and _prefetches(stmt) and bool(collect(stmt, Shuffle))

    return [loop for loop in collect(function.body, For) for test in collect(loop.body, IfThenElse)
            if any(does_all(inner) for inner in collect(test.then_case, For))]  # fmt: skip


@pytest.mark.parametrize("rows", [1280, 1285])
def test_each_transposed_tile_prefetches_its_share_of_the_next_block(rows) -> None:
    """64 rows of 16 columns are 16 cache lines: prefetched with the vector that is transposed, or with each of two."""
    x = te.placeholder((rows, 1152), "int8", "x")
    out = topi.transpose(x, (1, 0))
    target = Target("llvm -mcpu=x86-64-v4 -l2-bytes=524288 -l3-bytes=65536 -num-cores=1")
    loops = _loops_of_blocks(te.lower(schedule_for([out], target), [x, out])["main"])
    tiles = [loop for loop in collect(loops[0].body, For) if collect(loop, Shuffle) and not
             any(collect(inner, Shuffle) for inner in collect(loop.body, For))]  # fmt: skip
    transposed_lines = 128 if rows % 64 else 64
    for loop in tiles:
        prefetched = [call for call in collect(loop, Call) if call.op == "prefetch"]
        assert len(prefetched) == 64 * 16 // 64 // (transposed_lines // 64)
    assert tiles


class _Reads(Interpreter):
    """Records which cache lines of arguments are read and prefetched, by iterations of the parallel loop."""

    def __init__(self, function: PrimFunc, arguments: Sequence[np.ndarray]) -> None:
        super().__init__({function.name: function})
        self.read: list[set[int]] = []
        self.prefetched: list[set[int]] = []
        self.call(function, tuple(arguments))

    def visit_For(self, node: For) -> None:
        if node.kind is not ForKind.PARALLEL:
            return super().visit_For(node)
        for i in range(self.visit(node.extent)):
            self.env[node.loop_var] = i
            self.read.append(set())
            self.prefetched.append(set())
            self.visit(node.body)

    def visit_Call(self, node: Call) -> Any:
        if node.op == "prefetch":
            address = node.args[0]
            assert isinstance(address, Call)
            load = address.args[0]
            assert isinstance(load, BufferLoad)
            self.prefetched[-1].add(self.visit(load.indices[0]) * load.buffer.dtype.nbytes // 64)
            return 0
        return super().visit_Call(node)

    def check_read(
        self, buffer: Buffer, memory: Memory, view: np.ndarray, position: np.ndarray, used: np.ndarray
    ) -> None:
        super().check_read(buffer, memory, view, position, used)
        if buffer.name == "x":
            self.read[-1].update((position * buffer.dtype.nbytes // 64).tolist())


@pytest.mark.parametrize("shape", [(128, 1024), (128, 1152), (288, 512), (2, 64, 1024)], ids=str)
def test_a_block_of_pieces_prefetches_all_of_the_next_one(shape) -> None:
    """Pieces of as many rows as fill two cache lines of the output; the next is below or beside."""
    x = te.placeholder(shape, "float32", "x")
    axes = (0, 2, 1) if len(shape) == 3 else (1, 0)
    out = topi.transpose(x, axes)
    target = Target("llvm -mcpu=haswell -l1-bytes=8192 -l2-bytes=524288 -l3-bytes=16384 -num-cores=1")
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    result = np.empty(np.transpose(a, axes).shape, np.float32)
    reads = _Reads(te.lower(schedule_for([out], target), [x, out])["main"], [a, result])
    assert np.array_equal(result, np.transpose(a, axes))
    assert all(len(block) % 32 == 0 and len(block) >= 32 * 512 // 64 for block in reads.read)
    below = shape[-2] // 32 if shape[-2] > 8 * 32 else 0  # the block after the last of these is not predicted
    pairs = enumerate(zip(reads.prefetched, reads.read[1:], strict=False))
    assert all(prefetched == read for k, (prefetched, read) in pairs if not below or (k + 1) % below)


@pytest.mark.parametrize("shape", [(9, 64, 100), (9, 90, 80), (17, 49, 64)], ids=str)
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_matrices_of_whole_cache_lines_prefetch_the_next_one(shape, kind) -> None:
    """All of it, in memory order, by the tiles that are transposed: block by block, the last shifted."""
    shape = (*shape[:2], shape[2] * 4) if kind == "int8" else shape
    x = te.placeholder(shape, kind, "x")
    out = topi.transpose(x, (0, 2, 1))
    target = Target("llvm -mcpu=haswell -l1-bytes=8192 -l2-bytes=131072 -l3-bytes=16384 -num-cores=1")
    a = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(kind)
    result = np.empty(a.swapaxes(1, 2).shape, kind)
    reads = _Reads(te.lower(schedule_for([out], target), [x, out])["main"], [a, result])
    assert np.array_equal(result, a.swapaxes(1, 2))
    assert len(reads.read) == shape[0]
    assert all(read <= prefetched for prefetched, read in zip(reads.prefetched, reads.read[1:], strict=False))


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("columns", [70, 101])
def test_blocks_of_large_matrices_are_stored_while_the_next_is_transposed(columns, kind) -> None:
    """Unaligned rows are transposed and stored in one loop, by whole cache lines, each line ahead prefetched once."""
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v4 -l2-bytes=1048576 -l3-bytes=65536 "
                    "-num-cores=1")  # fmt: skip
    shape = (41, columns, 128)
    x = te.placeholder(shape, kind, "x")
    out = topi.nn.relu(topi.transpose(x, (0, 2, 1)))
    module = te.lower(schedule_for([out], target), [x, out])
    (either,) = collect(module["main"].body, IfThenElse)
    (both,) = [loop for loop in collect(either.then_case, For) if len({s.buffer for s in _stores(loop)}) == 2
               and all(len({s.buffer for s in _stores(inner)}) < 2 for inner in collect(loop.body, For))]  # fmt: skip
    line = 64 // dtype(kind).nbytes
    assert {s.value.dtype.lanes for s in _stores(both) if s.buffer.name == out.name} == {line}
    prefetched = [call for call in collect(both, Call) if call.op == "prefetch"]
    blocks = next(loop for loop in collect(both.body, For) if collect(loop.body, Shuffle))
    assert len(prefetched) * as_int(blocks.extent) == line // 2  # lines of a vector of 32 bytes, a cache line of each
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= set(Target("llvm").features):
        a = np.random.default_rng(0).standard_normal(shape).astype(kind)
        found = backend.nd.empty((shape[0], shape[2], shape[1]), kind)
        backend.build(module, target=target)(backend.nd.array(a), found)
        assert np.array_equal(found.numpy(), np.maximum(a, 0).transpose(0, 2, 1))


@pytest.mark.parametrize(("processor", "columns"), [("haswell", 90), ("x86-64-v4", 70)])
def test_blocks_of_long_rows_prefetch_the_next_piece_of_each(columns, processor) -> None:
    """No cache holds the matrices: all but the very first piece is prefetched, none of it twice."""
    x = te.placeholder((2, columns, 2048), "float32", "x")
    out = topi.transpose(x, (0, 2, 1))
    target = Target(f"llvm -mcpu={processor} -l1-bytes=8192 -l2-bytes=131072 -l3-bytes=16384 -num-cores=1")
    function = te.lower(schedule_for([out], target), [x, out])["main"]
    assert _loops_of_blocks(function)
    a = np.arange(2 * columns * 2048, dtype=np.float32).reshape(2, columns, 2048)
    result = np.empty((2, 2048, columns), np.float32)
    reads = _Reads(function, [a, result])
    assert np.array_equal(result, a.swapaxes(1, 2))
    first = {(line * 2048 + i) // 16 for line in range(columns) for i in range(32)}
    assert set.union(*reads.read) - set.union(*reads.prefetched) == first
    assert all(len(ahead) <= 1.05 * len(read) for ahead, read in zip(reads.prefetched, reads.read, strict=True))


def _stores(stmt: Stmt) -> list[BufferStore]:
    return collect(stmt, BufferStore)


@pytest.mark.parametrize(
    ("shape", "plan"),
    [((64, 64), packed_blocks), ((96, 64), packed_blocks), ((64, 96), packed_blocks), ((48, 48), packed_matrices),
     ((32, 32), packed_matrices), ((64, 128), ordered_tiles)],
)  # fmt: skip
def test_schedules_of_matrices_that_fit_in_l1(shape, plan) -> None:
    """Blocks where they take more than a quarter of it, but ordered tiles for long rows; whole where they are small."""
    rows, columns = shape
    x = te.placeholder((2000, rows, columns), "float32", "x")
    target = Target("llvm -mcpu=x86-64-v4 -l1-bytes=49152 -l2-bytes=1048576 -num-cores=1")
    facts = TransposeFacts(topi.transpose(x, (0, 2, 1)), 1, x, 1, vector_lanes(target), 32, target)
    assert next(p for p in (packed_blocks, ordered_tiles, packed_matrices) if p(facts)) is plan


@pytest.mark.parametrize(
    ("l2_bytes", "processor", "lines", "columns", "share"),
    [(1 << 20, "znver5", 577, 1024, (4, 2)), (2 << 20, "sapphirerapids", 577, 512, (2, 2)),
     (2 << 20, "sapphirerapids", 255, 4096, (4, 4)), (2 << 20, "sapphirerapids", 577, 1024, None)],
)  # fmt: skip
def test_large_matrices_by_whole_or_long_pieces_with_a_high_latency_llc(
    l2_bytes, processor, lines, columns, share
) -> None:
    """Each piece is on another page; where pieces would be short, reading in memory order is faster (None).

    A tile prefetches four cache lines, two of them contiguous where a piece has no more; of whole matrices, which are
    transposed into shorter vectors, two.
    """
    x = te.placeholder((28, lines, columns), "float32", "x")
    target = Target(f"llvm -mcpu=x86-64-v4 -mtune={processor} -l1-bytes=49152 -l2-bytes={l2_bytes} -num-cores=1")
    facts = TransposeFacts(topi.transpose(x, (0, 2, 1)), 1, x, 1, vector_lanes(target), 32, target)
    blocks = packed_blocks(facts)
    assert (blocks.share and (blocks.share.lines, blocks.share.together) if blocks else None) == share
    assert blocks or ordered_tiles(facts)


@pytest.mark.parametrize("columns", [40, 255])
def test_few_unaligned_rows_are_not_split_into_pieces(columns) -> None:
    """Cache-line-aligned tiles would be longer than the rows, or a large part of them."""
    x = te.placeholder((3, columns, 4160), "float16", "x")
    out = topi.transpose(x, (0, 2, 1))
    target = Target("llvm -mtune=x86-64 -l2-bytes=262144 -l3-bytes=65536 -num-cores=2")
    assert not _loops_of_blocks(te.lower(schedule_for([out], target), [x, out])["main"])


@pytest.mark.parametrize("rows", [1280, 1285])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_bytes_are_widened_where_one_vector_covers_all_transposed_rows(rows, processor) -> None:
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    target = Target(f"llvm {cpu} -l2-bytes=524288 -l3-bytes=65536 -num-cores=1")
    x = te.placeholder((rows, 1100), "uint8", "x")
    out = topi.cast(topi.transpose(x, (1, 0)), "float32")
    module = te.lower(schedule_for([out], target), [x, out])
    assert _loops_of_blocks(module["main"])
    a = (np.arange(rows * 1100) * 7919 % 251).reshape(rows, 1100).astype("uint8")
    result = backend.nd.empty(out.shape, "float32")
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.T.astype("float32"))


def test_inputs_larger_than_the_caches_are_read_in_order_for_small_results() -> None:
    """A quantised result is a quarter of the size of its input."""
    x = te.placeholder((1280, 1100), "float32", "x")
    out = topi.cast(topi.transpose(x, (1, 0)), "int8")
    target = Target("llvm -mtune=x86-64 -l2-bytes=524288 -l3-bytes=2097152 -num-cores=1")
    module = te.lower(schedule_for([out], target), [x, out])
    assert _loops_of_blocks(module["main"])
    a = (np.arange(1280 * 1100) * 7919 % 251 - 125).reshape(1280, 1100).astype("float32")
    result = backend.nd.empty(out.shape, "int8")
    backend.build(module, target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), a.T.astype("int8"))


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_biases_do_not_prevent_register_tiles(first, beyond) -> None:
    """A bias along the input's rows is constant along a row of the output."""
    shape = (3, 640, 144) if first else (3, 144, 640)
    x, bias = te.placeholder(shape, "float32", "x"), te.placeholder((144,), "float32", "bias")
    if first:
        out = topi.transpose(topi.nn.relu(topi.add(x, bias)), (0, 2, 1))
    else:
        out = topi.nn.relu(topi.add(topi.transpose(x, (0, 2, 1)), bias))
    target = Target("llvm -mtune=x86-64 -l2-bytes=524288 -l3-bytes=65536 -num-cores=1" if beyond else "llvm")
    module = te.lower(schedule_for([out], target), [x, bias, out])
    assert collect(module["main"].body, Shuffle)
    a, b = [np.random.default_rng(k).random(t.shape, np.float32) - 0.5 for k, t in enumerate((x, bias))]
    result = backend.nd.empty(out.shape)
    backend.build(module, target=target)(backend.nd.array(a), backend.nd.array(b), result)
    expected = np.maximum(a + b, 0).swapaxes(1, 2) if first else np.maximum(a.swapaxes(1, 2) + b, 0)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(
    ("shape", "kind", "l2"),
    [((5000, 24), "float32", 524288), ((640, 6000), "float32", 65536), ((100, 1320), "float16", 524288)],
)
def test_short_or_few_rows_are_not_blocked(shape, kind, l2) -> None:
    """Short rows, blocks of which not even pieces fit into the L2 cache, and few rows."""
    x = te.placeholder(shape, kind, "x")
    out = topi.transpose(x, (1, 0))
    target = Target(f"llvm -mtune=x86-64 -l2-bytes={l2} -l3-bytes=16384 -num-cores=1")
    assert not _loops_of_blocks(te.lower(schedule_for([out], target), [x, out])["main"])


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_unaligned_image_planes_are_stored_by_whole_cache_lines(kind, processor) -> None:
    """Converted to floats and normalised on the way: whole vectors, at multiples of cache lines."""
    line = 64 // dtype(kind).nbytes
    x = te.placeholder((2, 3001, 3), "uint8", "x")
    half = te.compute((1,), lambda i: te.const(0.5, "float32"), tag="elemwise")
    out = topi.cast(topi.multiply(topi.cast(topi.transpose(x, (0, 2, 1)), "float32"), half), kind)
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    module = te.lower(schedule_for([out], Target(f"llvm {cpu} -l2-bytes=8192 -l3-bytes=8192")), [x, out])
    stores = collect(module["main"].body, BufferStore)
    if line <= 2 * Target(f"llvm {cpu}").vector_bytes // 4:  # otherwise a line is too many vectors
        assert all(store.value.dtype.lanes == line for store in stores)
        assert any(f"% {line}" in str(store) for store in stores)
    a = (np.arange(2 * 3001 * 3) * 7919 % 251).reshape(2, 3001, 3).astype("uint8")
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=Target(f"llvm {cpu}"))(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), (a.swapaxes(1, 2) * np.float32(0.5)).astype(kind))


@pytest.mark.parametrize(
    ("shape", "axes", "choice", "refusals"),
    [
        ((4096, 4096), (1, 0), "ordered tiles", {"packed blocks": "L2 doesn't hold blocks of 16 rows of 4096"}),
        (
            (2000, 48, 48), (0, 2, 1), "packed matrices",
            {"packed blocks": "matrices of 48 x 48 have few blocks", "ordered tiles": "48 columns are few"},
        ),
        (
            (128, 128), (1, 0), "tiles along the input",
            {"packed tiles": "the caches hold one", "tiles along the output": "hold both tensors, of 131072 bytes"},
        ),
    ],
)  # fmt: skip
def test_plans_that_do_not_serve_say_why(shape, axes, choice, refusals) -> None:
    """Each is refused for a reason of its own, before the one that is chosen."""
    target = Target("llvm -mcpu=x86-64-v4 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=16777216 -num-cores=1")
    with recording() as decisions:
        schedule_for([topi.transpose(te.placeholder(shape, "float32", "x"), axes)], target)
    decision = next(d for d in decisions if d.subject == "transpose")
    reasons = dict(decision.refused)
    assert decision.choice == choice and all(text in reasons[name] for name, text in refusals.items())
