"""Products that store their results transposed: which do, in how many kernels, and that results are unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.analysis import well_formed
from relayc.relay.expr import Call, Expr, Function, Tuple, Var, var
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op import nn
from relayc.relay.op.common import numpy_dtype
from relayc.relay.op.nn.dense_bits import dense_bits
from relayc.relay.sizes import assuming
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import Dim, SizeVar
from relayc.topi.cpu.convolution.winograd_plan import WinogradShape, plan_winograd
from relayc.topi.groups import constant_size
from tests.processors import avx2_target

RANDOM = np.random.default_rng(5)
SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")
HASWELL = avx2_target(2)
NEON = Target("llvm -mtriple=aarch64-unknown-linux-gnu -num-cores=2")
TARGETS = ["llvm -num-cores=2", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"]


def projected(x: Expr, columns: int) -> Expr:
    """A dense layer with a bias."""
    depth, dtype = constant_size(x.shape[-1:]), numpy_dtype(str(x.dtype))
    weight, bias = RANDOM.standard_normal((columns, depth)) / depth**0.5, RANDOM.standard_normal(columns)
    return nn.dense(x, relay.const(weight.astype(dtype))) + relay.const(bias.astype(dtype))


def heads(batch: int, positions: int, count: int, width: int, depth: int = 24) -> tuple[Expr, list[Var]]:
    """A projection (B, S, H * D) as (B, H, S, D)."""
    x = var("x", (batch, positions, depth))
    split = relay.reshape(projected(x, count * width), (batch, positions, count, width))
    return relay.transpose(split, (0, 2, 1, 3)), [x]


def channels_first(
    batch: Dim, height: int, width: int, channels: int, kernel: int = 1
) -> tuple[Expr, list[Var]]:
    """A convolution of channels-last data with a residual and an activation, channels first."""
    x, residual = var("x", (batch, height, width, 8)), var("r", (batch, height, width, channels))
    weight = relay.const(RANDOM.standard_normal((channels, 8, kernel, kernel), dtype=np.float32))
    image = nn.conv2d(x, weight, padding=kernel // 2, data_layout="NHWC")
    return relay.transpose(nn.relu(image + residual), (0, 3, 1, 2)), [x, residual]


def kernels(body: Expr, params: list[Var], target: Target = SERVER) -> list[tuple[str, ...]]:
    """The operators of each kernel."""
    optimized = relay.optimize(IRModule({"main": Function(tuple(params), body)}), target)
    well_formed(optimized)
    return [node.workload.operators for node in make_graph(optimized["main"]).nodes]


def check(
    body: Expr, params: list[Var], target: str, *sizes: dict[str, int], rtol: float = 1e-4, atol: float = 1e-4
) -> None:
    """Compile and compare with the operators' references, for each of the `sizes` that dimensions may have."""
    module = IRModule({"main": Function(tuple(params), body)})
    executor = graph_executor.GraphModule(relay.build(module, target)["default"](device("cpu", 0)), num_threads=2)
    for known in sizes or ({},):
        data = [of_type(p, [d if isinstance(d, int) else known[str(d)] for d in p.shape]) for p in params]
        expected = evaluate(module, data)
        assert isinstance(expected, np.ndarray)
        result = executor(*data)[0].numpy().astype(np.float64)
        np.testing.assert_allclose(result, expected.astype(np.float64), rtol=rtol, atol=atol)


def of_type(param: Var, shape: list[int]) -> np.ndarray:
    """Random values; 8-bit quantised values if the parameter has such a type."""
    if param.dtype == "uint8":
        return RANDOM.integers(0, 256, shape).astype(np.uint8)
    return RANDOM.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(str(param.dtype)))


def split_heads(x: Expr, count: int) -> Expr:
    """(B, S, H * D) as (B, H, S, D)."""
    *rows, columns = x.shape
    return relay.transpose(relay.reshape(x, (*rows, count, columns // count)), (0, 2, 1, 3))


def summed_bytes(x: Expr, columns: int) -> Expr:
    """8-bit quantised values, less their zero point, times int8 weights: int32."""
    weight = np.clip(RANDOM.normal(0, 12, (constant_size(x.shape[-1:]), columns)), -128, 127).astype(np.int32)
    centred = relay.op.subtract(relay.op.cast(x, "int32"), relay.const(np.int32(120)))
    return nn.batch_matmul(centred, relay.const(weight), transpose_b=False)


def requantised(sums: Expr, dtype: str) -> Expr:
    """int32 as floats, or as 8-bit quantised values."""
    scaled = relay.op.cast(sums, "float32") * relay.const(np.float32(1e-2))
    if dtype == "float32":
        return scaled
    return relay.op.cast(relay.op.clip(relay.op.round(scaled) + relay.const(np.float32(128)), 0, 255), dtype)


def of_four_bits(x: Expr, columns: int) -> Expr:
    """A product with 4-bit weights, 32 of a column with one scale and a zero point."""
    depth = constant_size(x.shape[-1:])
    quantized = RANDOM.integers(0, 256, (columns, depth // 2)).astype(np.uint8)
    scales = RANDOM.random((columns, depth // 32), dtype=np.float32) / depth
    return dense_bits(x, quantized, scales, np.full(scales.shape, 7), 4)


@pytest.mark.parametrize("target", [SERVER, HASWELL, NEON])
@pytest.mark.parametrize("made", [heads(1, 20, 4, 32), heads(2, 7, 3, 48), channels_first(1, 9, 9, 24),
                                  channels_first(3, 5, 7, 150, 3)])  # fmt: skip
def test_transposed_results_of_products_are_one_kernel(made: tuple[Expr, list[Var]], target: Target):
    body, params = made
    (operators,) = kernels(body, params, target)
    assert operators[-1] == "transpose"


def test_shared_results_and_short_runs_keep_a_transpose():
    for count, width, apart in ((4, 24, 1), (3, 24, 2), (3, 20, 2), (8, 18, 2)):
        body, params = heads(1, 20, count, width)  # 72 columns and 60 are no whole vectors of 16
        assert len(kernels(body, params)) == apart
    assert len(kernels(*heads(1, 20, 3, 24), HASWELL)) == 1
    x = var("x", (1, 20, 24))
    shared = projected(x, 64)
    assert len(kernels(Tuple((shared, relay.transpose(shared, (0, 2, 1)))), [x])) == 2
    panels = relay.const(RANDOM.standard_normal((2, 24, 32), dtype=np.float32))
    whole, short = projected(x, 64), nn.dense_packed(x, panels, 33)  # a last panel of one column
    assert len(kernels(relay.transpose(whole, (0, 2, 1)), [x])) == 1
    assert len(kernels(relay.transpose(short, (0, 2, 1)), [x])) == 2
    assert len(kernels(relay.transpose(relay.reshape(whole, (1, 4, 5, 64)), (0, 2, 1, 3)), [x])) == 1
    assert len(kernels(relay.transpose(relay.reshape(whole, (1, 5, 128, 2)), (0, 2, 1, 3)), [x])) == 2


def test_transposed_dimensions_of_one_need_no_kernel():
    x = var("x", (1, 20, 24))
    moved = relay.transpose(relay.reshape(projected(x, 64), (20, 1, 64)), (1, 0, 2))
    assert ("nn.dense_packed", "add") in kernels(moved, [x])


@pytest.mark.parametrize(("columns", "packed"), [(64, False), (16, False), (40, True)])
def test_products_of_products_store_packed_panels(columns: int, packed: bool):
    """A graph convolution. A single panel is the matrix itself; one that needs padding keeps a transpose."""
    a, x = var("a", (48, 56)), var("x", (56, 24))
    body = nn.relu(nn.batch_matmul(a, projected(x, columns), transpose_b=False))
    made = kernels(body, [a, x])
    assert any("nn.pack_panels" in names for names in made) == packed
    assert not any(names == ("transpose",) for names in made)
    check(body, [a, x], "llvm")


def test_without_fusion_nothing_is_stored_in_another_order():
    body, params = heads(1, 20, 4, 32)
    with PassContext(config={"relay.FuseOps.max_size": 1}):
        assert ("transpose",) in kernels(body, params)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("batch", "positions", "count", "width", "depth"),
    [(1, 64, 4, 32, 24), (2, 37, 3, 48, 40), (1, 5, 4, 64, 33), (2, 20, 5, 16, 24), (1, 113, 2, 32, 4500)],
)
def test_heads(batch: int, positions: int, count: int, width: int, depth: int, target: str):
    check(*heads(batch, positions, count, width, depth), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "kernel"),
    [(1, 14, 14, 64, 1), (2, 13, 13, 40, 3), (1, 33, 35, 21, 3), (3, 7, 1, 255, 1), (1, 2, 2, 4, 1),
     (1, 41, 50, 150, 1)],
)
def test_channels_first(batch: int, height: int, width: int, channels: int, kernel: int, target: str):
    check(*channels_first(batch, height, width, channels, kernel), target)


def test_windows_are_merged():
    """(windows of 7 x 7, columns) as an image: rows are exchanged, columns stay."""
    x = var("x", (8, 49, 24))
    windows = relay.reshape(projected(x, 32), (2, 2, 2, 7, 7, 32))
    image = relay.reshape(relay.transpose(windows, (0, 1, 3, 2, 4, 5)), (2, 14, 14, 32))
    assert len(kernels(image, [x])) == 1
    check(image, [x], "llvm")


@pytest.mark.parametrize("target", [SERVER, HASWELL])
def test_vectors_are_stored_whole(target: Target):
    """A head is one vector and a half of two, or three of one: none is split, and none is gathered again."""
    body, params = heads(1, 28, 4, 48)
    lib = relay.build(Function(tuple(params), body), target)
    assembly = lib.module.get_source("asm")
    assert "scatter" not in assembly and "vextractf" not in assembly


def test_blocks_of_a_transposed_result_fit_the_first_level_cache():
    """A block consists of whole tiles of rows x a panel, in half of 32 KB at most, for any number of rows."""
    x = var("x", (4000, 64))
    optimized = relay.optimize(
        IRModule({"main": Function((x,), relay.transpose(projected(x, 64), (1, 0)))}), HASWELL
    )
    (node,) = make_graph(optimized["main"]).nodes
    text = str(lower(node.workload, HASWELL).function)
    sizes = [int(line.split("allocate([")[1].split("]")[0]) for line in text.splitlines() if "allocate([" in line]
    assert 2048 < max(sizes) <= 4096


OPEN = (SizeVar("b"), SizeVar("s"))
SOME_SIZES = ({"b": 1, "s": 40}, {"b": 3, "s": 7}, {"b": 1, "s": 1}, {"b": 2, "s": 33})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [OPEN[0], 1, 2])
@pytest.mark.parametrize(("count", "width"), [(4, 32), (3, 48), (4, 20), (4, 40)])
def test_heads_of_dynamic_rows(count: int, width: int, batch: Dim, target: str):
    x = var("x", (batch, OPEN[1], 24))
    body = nn.gelu(projected(x, count * width))
    assert len(kernels(split_heads(body, count), [x])) == 1
    check(split_heads(body, count), [x], target, *SOME_SIZES)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [(2, 37), OPEN, (1, OPEN[1])])
@pytest.mark.parametrize(("count", "width"), [(4, 32), (4, 40)])
def test_heads_with_4_bit_weights(count: int, width: int, rows: tuple[Dim, Dim], target: str):
    x = var("x", (*rows, 64))
    body = split_heads(of_four_bits(x, count * width), count)
    sums, product = kernels(body, [x])  # of the data of each block; then all else
    assert "transpose" not in sums and product[-1] == "transpose"
    check(body, [x], target, *(SOME_SIZES if OPEN[1] in rows else ()))


def test_a_single_row_with_4_bit_weights():
    """Permuting its columns takes another kernel."""
    x = var("x", (1, 1, 64))
    body = relay.transpose(relay.reshape(of_four_bits(x, 128), (2, 4, 16)), (1, 0, 2))
    assert len(kernels(body, [x])) == 3
    check(body, [x], "llvm")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("rows", "count", "width"), [((2, 37), 4, 32), ((1, 20), 4, 20), (OPEN, 3, 48)])
def test_heads_of_8_bit_products(rows: tuple[Dim, Dim], count: int, width: int, dtype: str, target: str):
    x = var("x", (*rows, 24), "uint8")
    body = split_heads(requantised(summed_bytes(x, count * width), dtype), count)
    assert kernels(body, [x])[-1][-1] == "transpose" and ("transpose",) not in kernels(body, [x])
    check(body, [x], target, *(SOME_SIZES if OPEN[1] in rows else ()))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [32, 20])
def test_heads_of_half_precision(width: int, dtype: str, target: str):
    x = var("x", (2, 37, 24), dtype)
    body = split_heads(projected(x, 4 * width), 4)
    assert ("transpose",) not in kernels(body, [x])
    check(body, [x], target, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("batch", "rows", "columns"), [(1, 196, 64), (2, 75, 48), (3, 20, 100)])
def test_8_bit_products_are_transposed(batch: int, rows: int, columns: int, dtype: str, target: str):
    x = var("x", (batch, rows, 24), "uint8")
    body = relay.transpose(requantised(summed_bytes(x, columns), dtype), (0, 2, 1))
    check(body, [x], target)
    if columns == 64:
        assert ("transpose",) not in kernels(body, [x])


def test_transposed_blocks_divide_the_rows_if_possible():
    """A shifted block would not know at which column its tiles begin, and compute the address of each window."""
    x = var("x", (1, 112, 112, 16), "uint8")
    weight = np.clip(RANDOM.normal(0, 12, (32, 16, 3, 3)), -128, 127).astype(np.int32)
    centred = relay.op.subtract(relay.op.cast(x, "int32"), relay.const(np.int32(120)))
    sums = nn.conv2d(centred, relay.const(weight), padding=1, data_layout="NHWC")
    body = relay.transpose(requantised(sums, "uint8"), (0, 3, 1, 2))
    optimized = relay.optimize(IRModule({"main": Function((x,), body)}), SERVER)
    (node,) = make_graph(optimized["main"]).nodes
    text = str(lower(node.workload, SERVER).function)
    (blocks,) = [int(line.split("parallel(")[1].split(")")[0]) for line in text.splitlines() if "parallel(" in line]
    assert 112 * 112 % blocks == 0 and 112 * 112 // blocks % 7 == 0


def joined_heads(rows: tuple[Dim, Dim], keys: Dim, count: int, width: int) -> tuple[Expr, list[Var]]:
    """Matrices (B, H, S, T) times (B, H, T, D) as (B, S, H * D)."""
    batch, positions = rows
    a, v = var("a", (batch, count, positions, keys)), var("v", (batch, count, keys, width))
    product = nn.relu(nn.batch_matmul(a, v, transpose_b=False))
    return relay.reshape(relay.transpose(product, (0, 2, 1, 3)), (batch, positions, count * width)), [a, v]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "keys", "count", "width"),
    [((1, 37), 20, 4, 32), ((3, 20), 37, 3, 48), ((2, 5), 9, 2, 80), (OPEN, SizeVar("t"), 4, 32)],
)
def test_heads_are_merged_by_the_product(rows: tuple[Dim, Dim], keys: Dim, count: int, width: int, target: str):
    body, params = joined_heads(rows, keys, count, width)
    assert ("transpose",) not in kernels(body, params)
    sizes = [{**known, "t": t} for known, t in zip(SOME_SIZES, (7, 32, 1, 40), strict=True)]
    check(body, params, target, *(sizes if rows == OPEN else ()))


def test_merged_batches_of_products_are_split_and_merged():
    a, v = var("a", (6, 20, 24)), var("v", (6, 24, 32))
    product = relay.reshape(nn.batch_matmul(a, v, transpose_b=False), (2, 3, 20, 32))
    body = relay.transpose(product, (0, 2, 1, 3))
    assert ("transpose",) not in kernels(body, [a, v])
    check(body, [a, v], "llvm")


def test_batched_products_with_split_rows_or_columns_stay():
    a, v = var("a", (6, 20, 24)), var("v", (6, 24, 32))
    product = nn.batch_matmul(a, v, transpose_b=False)
    apart = relay.transpose(relay.reshape(product, (6, 4, 5, 32)), (0, 2, 1, 3))
    for body in (apart, relay.transpose(product, (0, 2, 1)), relay.transpose(product, (2, 0, 1))):
        assert any("transpose" in operators and len(operators) == 1 for operators in kernels(body, [a, v]))
        check(body, [a, v], "llvm")


def test_batches_of_as_many_matrices_by_a_check_only_stay():
    """The sizes of the batch are only taken to be those of the view: an index can't be split by them."""
    b, h, s = SizeVar("b"), SizeVar("h"), SizeVar("s")
    a, v = var("a", (b, h, s, s)), var("v", (b, h, s, 16))
    with assuming():
        product = relay.reshape(nn.batch_matmul(a, v, transpose_b=False), (b, 4, s, 16))
        body = relay.transpose(product, (0, 2, 1, 3))
        assert ("transpose",) in kernels(body, [a, v])
    check(body, [a, v], "llvm", {"b": 2, "h": 4, "s": 40})


def test_dynamic_columns_stay_in_order():
    a, k = var("a", (*OPEN, 24)), var("k", (OPEN[0], SizeVar("t"), 24))
    body = relay.transpose(nn.batch_matmul(a, k), (1, 0, 2))
    assert ("transpose",) in kernels(body, [a, k])
    check(body, [a, k], "llvm", {"b": 2, "s": 20, "t": 7})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "rows", "columns"), [(1, 196, 64), (2, 75, 48), (1, 41, 100)])
@pytest.mark.parametrize("dtype", ["float16", "four bits"])
def test_products_that_widen_weights_by_panel_are_transposed(
    batch: int, rows: int, columns: int, dtype: str, target: str
):
    x = var("x", (batch, rows, 64), "float32" if dtype == "four bits" else dtype)
    result = of_four_bits(x, columns) if dtype == "four bits" else nn.relu(projected(x, columns))
    body = relay.transpose(result, (0, 2, 1))
    check(body, [x], target, rtol=2e-2, atol=2e-2)
    if columns == 64:
        assert ("transpose",) not in kernels(body, [x])


@pytest.mark.parametrize("target", [*TARGETS, "llvm -num-cores=64"])
@pytest.mark.parametrize(("channels", "kernel"), [(64, 1), (100, 1), (48, 3)])
def test_columns_of_an_open_batch_are_transposed(channels: int, kernel: int, target: str):
    """Blocks of rows are of one image, however many there are."""
    body, params = channels_first(OPEN[0], 13, 17, channels, kernel)
    assert len(kernels(body, params, Target(target))) == len(kernels(*channels_first(3, 13, 17, channels, kernel)))
    check(body, params, target, {"b": 1}, {"b": 3})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "four bits"])
def test_columns_of_several_types_of_an_open_batch_are_transposed(dtype: str, target: str):
    x = var("x", (OPEN[0], 53, 64), "uint8" if dtype == "uint8" else "float32")
    result = {
        "float32": lambda: nn.relu(projected(x, 96)), "uint8": lambda: requantised(summed_bytes(x, 96), "float32"),
        "four bits": lambda: of_four_bits(x, 96),
    }[dtype]()  # fmt: skip
    body = relay.transpose(result, (0, 2, 1))
    assert ("transpose",) not in kernels(body, [x])
    check(body, [x], target, {"b": 1}, {"b": 3})


def winograd(
    batch: Dim, height: int, width: int, channels: int, dilation: int = 1, kernel: int = 3, groups: int = 1
) -> tuple[Expr, list[Var]]:
    """A convolution of 3 x 3 or 5 x 5 with a residual and an activation, channels first."""
    x, residual = var("x", (batch, height, width, 64)), var("r", (batch, height, width, channels))
    taps = RANDOM.standard_normal((channels, 64 // groups, kernel, kernel), dtype=np.float32) / kernel / 8
    reach = kernel // 2 * dilation
    image = nn.conv2d(
        x, relay.const(taps), padding=reach, dilation=dilation, groups=groups, data_layout="NHWC"
    )
    return relay.transpose(nn.relu(image + residual), (0, 3, 1, 2)), [x, residual]


@pytest.mark.parametrize("target", [*TARGETS, "llvm -num-cores=64"])
@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "kernel", "groups"),
    [(1, 57, 59, 64, 3, 1), (3, 33, 18, 96, 3, 1), (1, 34, 130, 64, 3, 1), (1, 31, 37, 64, 5, 1),
     (2, 19, 40, 64, 3, 2)],
)  # fmt: skip
def test_rows_of_winograd_tiles_are_transposed(
    batch: int, height: int, width: int, channels: int, kernel: int, groups: int, target: str, monkeypatch: Any
):
    """Images that are no whole tiles, and several; rows of tiles that are no whole blocks."""
    monkeypatch.setattr("relayc.relay.transform.fold_transpose_into_store.winograd_transposes", lambda *_: True)
    body, params = winograd(batch, height, width, channels, kernel=kernel, groups=groups)
    operators = kernels(body, params, Target(target))
    if any("nn.conv2d_nhwc_winograd" in of_kernel for of_kernel in operators):
        assert ("transpose",) not in operators
    check(body, params, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("height", "width", "channels", "kernel"), [(28, 28, 128, 3), (57, 59, 64, 3), (33, 18, 96, 3), (31, 37, 64, 5)]
)
def test_rows_of_winograd_tiles_of_an_open_batch_are_transposed(
    height: int, width: int, channels: int, kernel: int, target: str, monkeypatch: Any
):
    """Blocks are lines of an image, however many there are; weights read once are read once for each image."""
    monkeypatch.setattr("relayc.relay.transform.fold_transpose_into_store.winograd_transposes", lambda *_: True)
    body, params = winograd(OPEN[0], height, width, channels, kernel=kernel)
    operators = kernels(body, params, Target(target))
    if any("nn.conv2d_nhwc_winograd" in of_kernel for of_kernel in operators):
        assert ("transpose",) not in operators
    check(body, params, target, *[{"b": images} for images in (1, 3, 4, 5)])


def test_which_winograd_convolutions_are_transposed():
    """Where whole rows of tiles are as good as other blocks, and rows are whole cache lines."""
    for target in (SERVER, HASWELL):
        assert len(kernels(*winograd(1, 80, 80, 64), target)) == 1
        assert len(kernels(*winograd(2, 112, 112, 64), target)) == 1
        assert len(kernels(*winograd(OPEN[0], 112, 112, 64), target)) == 1
        assert len(kernels(*winograd(1, 14, 14, 64), target)) == 2
        dilated = kernels(*winograd(1, 80, 80, 64, dilation=2), target)
        assert len(dilated) == 2 and "nn.conv2d_nhwc_winograd" in dilated[0]


def test_heads_of_winograd_convolutions_keep_a_transpose():
    """Only channels first is supported; permuted columns take another kernel."""
    body, params = winograd(1, 80, 80, 64)
    assert isinstance(body, Call)
    grouped = relay.transpose(relay.reshape(body.args[0], (6400, 4, 16)), (1, 0, 2))
    assert len(kernels(grouped, params)) == 2


def test_whole_rows_of_tiles_are_planned():
    shape = WinogradShape(1, 57, 80, 64, 64)
    plan = plan_winograd(SERVER, shape, 4, 32, by_lines=True)
    assert plan.block % 20 == 0


def depthwise(
    batch: Dim, height: int, width: int, channels: int, kernel: int = 3, stride: int = 1
) -> tuple[Expr, list[Var]]:
    """A depthwise convolution with a residual and an activation, channels first."""
    x, lines, columns = var("x", (batch, height, width, channels)), -(-height // stride), -(-width // stride)
    residual = var("r", (batch, lines, columns, channels))
    taps = relay.const(RANDOM.standard_normal((channels, 1, kernel, kernel), dtype=np.float32))
    image = nn.conv2d(x, taps, strides=stride, padding=kernel // 2, groups=channels, data_layout="NHWC")
    return relay.transpose(nn.gelu(image + residual), (0, 3, 1, 2)), [x, residual]


@pytest.mark.parametrize("target", [*TARGETS, "llvm -num-cores=64"])
@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "kernel", "stride"),
    [(1, 17, 19, 48, 3, 1), (3, 5, 40, 32, 5, 1), (2, 33, 37, 16, 3, 2), (1, 3, 300, 144, 3, 1), (1, 6, 16, 16, 7, 1)],
)
def test_rows_of_depthwise_convolutions_are_transposed(
    batch: int, height: int, width: int, channels: int, kernel: int, stride: int, target: str
):
    body, params = depthwise(batch, height, width, channels, kernel, stride)
    assert len(kernels(body, params, Target(target))) == 1
    check(body, params, target)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_depthwise_convolutions_of_an_open_batch_are_transposed(target: str):
    body, params = depthwise(OPEN[0], 17, 40, 48)
    assert len(kernels(body, params, Target(target))) == 1
    check(body, params, target, {"b": 1}, {"b": 3})


def test_short_rows_and_partial_vectors_keep_a_transpose():
    assert len(kernels(*depthwise(1, 14, 14, 64))) == 2
    assert len(kernels(*depthwise(1, 56, 56, 40))) == 2
    assert len(kernels(*depthwise(1, 56, 56, 40), HASWELL)) == 1


@pytest.mark.parametrize(("cpu", "kernel"), [("sapphirerapids", 1), ("sapphirerapids", 3), ("cooperlake", 3)])
def test_products_on_amx_tiles_keep_a_transpose(cpu: str, kernel: int):
    x, weight = var("x", (1, 28, 28, 64), "bfloat16"), RANDOM.standard_normal((64, 64, kernel, kernel))
    weight = relay.const(weight.astype(numpy_dtype("bfloat16")))
    image = nn.conv2d(x, weight, padding=kernel // 2, data_layout="NHWC")
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    found = kernels(relay.transpose(image, (0, 3, 1, 2)), [x], target)
    assert (found[-1] == ("transpose",)) == (cpu == "sapphirerapids")


@pytest.mark.parametrize("made", [depthwise(1, 20, 40, 32), winograd(1, 80, 80, 64)])
def test_rows_of_other_types_keep_a_transpose(made: tuple[Expr, list[Var]]):
    body, params = made
    assert isinstance(body, Call)
    rounded = relay.transpose(requantised(body.args[0], "uint8"), (0, 3, 1, 2))
    assert ("transpose",) in kernels(rounded, params)
