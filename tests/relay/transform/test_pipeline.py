"""The whole pipeline: equal results, few kernels for well-known networks, long graphs in bounded time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.backend.target import Target
from relayc.relay import Call, Expr, Function, IRModule, const, op, var
from relayc.relay.analysis import evaluation_order
from relayc.relay.op import nn
from relayc.relay.transform import CanonicalizeOps, FuseOps, PackWeights, PassContext, Sequential, default_pipeline
from relayc.te.errors import CompileError

CPU = Target("llvm -mcpu=haswell")


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") * 0.2)


def positive(n: int) -> Expr:
    return const(np.random.default_rng(n).uniform(0.5, 2.0, n).astype("float32"))


def conv_bn(x: Expr, channels: int, kernel: int = 3, groups: int = 1) -> Expr:
    w = weights(channels, int(x.shape[1]) // groups, kernel, kernel)
    y = nn.conv2d(x, w, padding=kernel // 2, groups=groups)
    return nn.batch_norm(y, positive(channels), weights(channels), weights(channels), positive(channels))[0]


def kernels(function: Function) -> list[list[str]]:
    """Operator names of each fused function, in order of evaluation."""
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call) and isinstance(e.op, Function)]
    return [[e.op.name for e in evaluation_order(c.op.body) if isinstance(e, Call)] for c in calls]


def test_a_residual_block_is_one_kernel_per_convolution(transformed):
    x = var("x", (1, 8, 8, 8))
    y = nn.relu(conv_bn(x, 16))
    y = nn.relu(op.add(conv_bn(nn.relu(conv_bn(y, 16)), 16), y))
    y = nn.dense(op.reshape(nn.global_avg_pool2d(y), (1, 16)), weights(10, 16))
    after = transformed(Function((x,), op.add(y, weights(10))), *default_pipeline(3, CPU))
    assert kernels(after) == [
        ["transpose"],
        ["nn.conv2d_nhwc_packed", "add", "nn.relu"],
        ["nn.conv2d_nhwc_packed", "add", "nn.relu"],
        ["nn.conv2d_nhwc_packed", "add", "add", "nn.relu"],
        ["mean"],
        ["reshape"],
        ["nn.dense_packed", "add"],
    ]


def test_depthwise_and_pointwise_convolutions(transformed):
    x = var("x", (1, 8, 8, 8))
    y = op.clip(conv_bn(x, 8, groups=8), 0.0, 6.0)
    after = transformed(Function((x,), conv_bn(y, 16, kernel=1)), *default_pipeline(3, CPU))
    names = kernels(after)
    pointwise = ["nn.conv2d_nhwc_packed", "add", "reshape", "transpose"]  # stores channels first, like the input
    assert names[1:3] == [["nn.conv2d", "add", "clip"], pointwise]


def test_a_transformer_layer(transformed):
    heads, size, tokens = 2, 8, 4
    x = var("x", (1, tokens, heads * size))

    def project(y: Expr, units: int) -> Expr:
        return op.add(nn.dense(y, weights(units, int(y.shape[-1]))), weights(units))

    def split_heads(y: Expr) -> Expr:
        return op.transpose(op.reshape(y, (1, tokens, heads, size)), (0, 2, 1, 3))

    q, k, v = (split_heads(project(x, heads * size)) for _ in range(3))
    scores = op.divide(nn.batch_matmul(q, op.transpose(k, (0, 1, 3, 2)), transpose_b=False), const(8.0**0.5))
    mixed = nn.batch_matmul(nn.softmax(scores), v, transpose_b=False)
    merged = op.reshape(op.transpose(mixed, (0, 2, 1, 3)), (1, tokens, heads * size))
    y = nn.layer_norm(op.add(project(merged, heads * size), x), positive(16), weights(16))
    hidden = project(y, 32)
    gelu = op.multiply(op.multiply(hidden, op.add(op.erf(op.divide(hidden, const(2.0**0.5))), const(1.0))), const(0.5))
    z = nn.layer_norm(op.add(project(gelu, 16), y), positive(16), weights(16))
    names = [n for n in kernels(transformed(Function((x,), z), *default_pipeline(3, CPU))) if n != ["reshape"]]
    assert names == [
        ["nn.dense_packed", "add"],
        ["nn.blocked_attention"],
        ["nn.dense_packed", "add", "add"],
        ["nn.layer_norm"],
        ["nn.dense_packed", "add", "nn.gelu"],
        ["nn.dense_packed", "add", "add"],
        ["nn.layer_norm"],
    ]


def test_packing_follows_the_target(transformed):
    x = var("x", (2, 3, 24))
    function = Function((x,), nn.dense(x, weights(40, 24)))
    wide, narrow = [
        transformed(function, PackWeights(Target(t))).body.args[1].shape
        for t in ("llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell")
    ]
    assert wide[-1] % 16 == 0 and narrow[-1] % 8 == 0


@pytest.mark.parametrize(("channels", "groups"), [(32, 2), (24, 2), (20, 4), (12, 4), (36, 12)])
def test_grouped_convolutions_of_any_width(transformed, channels: int, groups: int):
    x = var("x", (1, channels, 5, 5))
    y = nn.conv2d(x, weights(channels, channels // groups, 3, 3), groups=groups, padding=1)
    names = kernels(transformed(Function((x,), y), *default_pipeline(3, CPU)))
    assert ["nn.conv2d_nhwc_packed"] in names


def test_a_weight_used_twice_is_packed_once(transformed):
    x, w = var("x", (4, 24)), weights(24, 24)
    after = transformed(Function((x,), nn.dense(nn.relu(nn.dense(x, w)), w)), PackWeights(CPU))
    assert after.body.args[1] is after.body.args[0].args[0].args[1]


def test_low_levels_keep_operators_apart(transformed):
    x = var("x", (2, 3))
    after = transformed(Function((x,), nn.relu(op.tanh(x))), CanonicalizeOps(), FuseOps())
    assert kernels(after) == [["tanh", "nn.relu"]]


def test_contexts_force_passes_and_forbid_them():
    module = IRModule.from_expr(Function((x := var("x", (4,)),), op.add(x, op.add(const(1.0), const(2.0)))))

    def constants(**settings: Any) -> int:
        with PassContext(**settings):
            return str(relay.optimize(module, CPU)).count("float32(3.0)")

    assert constants(opt_level=0) == constants(opt_level=3, disabled_pass=["FoldConstant"]) == 0
    assert constants(opt_level=0, required_pass=["FoldConstant"]) == constants(opt_level=3) == 1


@pytest.mark.parametrize("setting", ["required_pass", "disabled_pass"])
def test_unknown_pass_names_are_reported_with_the_known_ones(setting):
    module = IRModule.from_expr(Function((x := var("x", (4,)),), nn.relu(x)))
    with (
        PassContext(**{setting: ["FoldConstant", "PackWeigths"]}),
        pytest.raises(CompileError, match=r"no pass is named PackWeigths; known are: .*FoldConstant, .*PackWeights"),
    ):
        relay.build(module, CPU)


def chain(pairs: int) -> IRModule:
    """A function of `pairs` additions, each with a relu after it."""
    x = var("x", (4,))
    y: Expr = x
    for i in range(pairs):
        y = nn.relu(op.add(y, const([float(i + 1)])))
    return IRModule({"main": Function((x,), y)})


def test_a_chain_of_ten_thousand_operators():
    module = Sequential(default_pipeline(3, CPU))(chain(5_000))
    assert sum(len(k) for k in kernels(module["main"])) == 10_000


def test_the_work_of_the_pipeline_is_linear_in_the_operators():
    def calls(pairs: int) -> int:
        module, count = chain(pairs), 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            Sequential(default_pipeline(3, CPU))(module)
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # tables that are made once
    few, many = calls(100), calls(400)
    assert few > 1000
    assert many < 5 * few


def test_norms_over_the_channels_of_images_are_norms_of_rows(transformed):
    """Recognised once channels are the last dimension."""
    x = var("x", (1, 8, 6, 6))
    image = nn.conv2d(x, weights(8, 8, 1, 1))
    distance = op.subtract(image, op.mean(image, axis=1, keepdims=True))
    total = op.add(op.mean(op.multiply(distance, distance), axis=1, keepdims=True), const(1e-6))
    normal = op.multiply(op.divide(distance, op.sqrt(total)), op.reshape(positive(8), (8, 1, 1)))
    function = Function((x,), nn.conv2d(normal, weights(8, 8, 1, 1)))
    assert ["nn.layer_norm"] in kernels(transformed(function, *default_pipeline(3, CPU)))
