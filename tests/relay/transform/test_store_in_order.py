"""Products that store their results transposed: which do, in how many kernels, and that results stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from backend.runtime import device, graph_executor
from backend.target import Target
from relay.analysis import well_formed
from relay.build.graph import make_graph
from relay.build.lower import lower
from relay.expr import Expr, Function, Tuple, Var, var
from relay.interpreter import evaluate
from relay.op import nn
from te.ir import IRModule, PassContext

RANDOM = np.random.default_rng(5)
SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")
HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
NEON = Target("llvm -mtriple=aarch64-unknown-linux-gnu -num-cores=2")
TARGETS = ["llvm -num-cores=2", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"]


def projected(x: Expr, columns: int) -> Expr:
    """A dense layer with a bias."""
    depth = x.tensor_type.static_shape[-1]
    weight, bias = RANDOM.standard_normal((columns, depth)) / depth**0.5, RANDOM.standard_normal(columns)
    return nn.dense(x, relay.const(weight.astype(np.float32))) + relay.const(bias.astype(np.float32))


def heads(batch: int, positions: int, count: int, width: int, depth: int = 24) -> tuple[Expr, list[Var]]:
    """What is projected, (B, S, H * D), as (B, H, S, D)."""
    x = var("x", (batch, positions, depth))
    split = relay.reshape(projected(x, count * width), (batch, positions, count, width))
    return relay.transpose(split, (0, 2, 1, 3)), [x]


def channels_first(
    batch: int, height: int, width: int, channels: int, kernel: int = 1
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


def check(body: Expr, params: list[Var], target: str) -> None:
    """Compile and compare with the operators' references."""
    module = IRModule({"main": Function(tuple(params), body)})
    data = [RANDOM.standard_normal(p.tensor_type.static_shape, dtype=np.float32) for p in params]
    executor = graph_executor.GraphModule(relay.build(module, target)["default"](device("cpu", 0)), num_threads=2)
    expected = evaluate(module, data)
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(executor(*data)[0].numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [SERVER, HASWELL, NEON])
@pytest.mark.parametrize("made", [heads(1, 20, 4, 32), heads(2, 7, 3, 48), channels_first(1, 9, 9, 24),
                                  channels_first(3, 5, 7, 150, 3)])  # fmt: skip
def test_transposed_results_of_products_are_one_kernel(made: tuple[Expr, list[Var]], target: Target):
    body, params = made
    (operators,) = kernels(body, params, target)
    assert operators[-1] == "transpose"


def test_what_others_read_or_what_runs_are_too_short_for_stays_apart():
    body, params = heads(1, 20, 4, 24)  # vectors of 16 would reach over two heads
    assert len(kernels(body, params)) == 2
    assert len(kernels(body, params, HASWELL)) == 1
    x = var("x", (1, 20, 24))
    shared = projected(x, 64)
    assert len(kernels(Tuple((shared, relay.transpose(shared, (0, 2, 1)))), [x])) == 2
    panels = relay.const(RANDOM.standard_normal((2, 24, 32), dtype=np.float32))
    whole, short = projected(x, 64), nn.dense_packed(x, panels, 33)  # a last panel of one column
    assert len(kernels(relay.transpose(whole, (0, 2, 1)), [x])) == 1
    assert len(kernels(relay.transpose(short, (0, 2, 1)), [x])) == 2
    assert len(kernels(relay.transpose(relay.reshape(whole, (1, 4, 5, 64)), (0, 2, 1, 3)), [x])) == 1
    assert len(kernels(relay.transpose(relay.reshape(whole, (1, 5, 128, 2)), (0, 2, 1, 3)), [x])) == 2


def test_dimensions_of_one_change_place_without_a_kernel():
    x = var("x", (1, 20, 24))
    moved = relay.transpose(relay.reshape(projected(x, 64), (20, 1, 64)), (1, 0, 2))
    assert ("nn.dense_packed", "add") in kernels(moved, [x])


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


def test_windows_are_put_together_again():
    """(windows of 7 x 7, columns) as an image: rows are exchanged, columns stay."""
    x = var("x", (8, 49, 24))
    windows = relay.reshape(projected(x, 32), (2, 2, 2, 7, 7, 32))
    image = relay.reshape(relay.transpose(windows, (0, 1, 3, 2, 4, 5)), (2, 14, 14, 32))
    assert len(kernels(image, [x])) == 1
    check(image, [x], "llvm")


@pytest.mark.parametrize("target", [SERVER, HASWELL])
def test_vectors_are_stored_whole(target: Target):
    """A head is one vector and a half of two, or three of one: none is taken apart, and none is gathered again."""
    body, params = heads(1, 28, 4, 48)
    lib = relay.build(Function(tuple(params), body), target)
    assembly = lib.module.get_source("asm")
    assert "scatter" not in assembly and "vextractf" not in assembly


def test_blocks_of_a_turned_result_stay_in_the_first_level_cache():
    """A block is of whole tiles of rows x a panel, in half of 32 KB at most, whatever the number of rows."""
    x = var("x", (4000, 64))
    optimized = relay.optimize(
        IRModule({"main": Function((x,), relay.transpose(projected(x, 64), (1, 0)))}), HASWELL
    )
    (node,) = make_graph(optimized["main"]).nodes
    text = str(lower(node.workload, HASWELL).function)
    sizes = [int(line.split("allocate([")[1].split("]")[0]) for line in text.splitlines() if "allocate([" in line]
    assert 2048 < max(sizes) <= 4096
