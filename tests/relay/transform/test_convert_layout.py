"""ConvertLayout: channels last inside, transposes only where they can't be avoided."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, Tuple, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import CanonicalizeOps, ConvertLayout, SimplifyExpr, SimplifyInference
from relayc.te.tir import SizeVar


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def conv(x: Expr, channels: int, kernel: int = 3, strides: int = 1, groups: int = 1) -> Expr:
    w = weights(channels, int(x.shape[1]) // groups, kernel, kernel)
    return nn.conv2d(x, w, strides=strides, padding=kernel // 2, groups=groups)


def image(channels: int = 4, size: int = 8):
    return var("x", (1, channels, size, size))


def bias(channels: int) -> Expr:
    return weights(channels, 1, 1)


def test_a_residual_network_is_transposed_once(transformed, operators):
    x = image()
    y = nn.relu(op.add(conv(x, 8), bias(8)))
    y = nn.max_pool2d(y, 2, strides=2)
    shortcut = conv(y, 16, kernel=1)
    z = op.add(conv(nn.relu(conv(y, 16)), 16), shortcut)
    z = nn.global_avg_pool2d(nn.relu(z))
    z = nn.dense(op.reshape(z, (1, 16)), weights(10, 16))
    after = transformed(Function((x,), z), CanonicalizeOps(), ConvertLayout())
    assert operators(after)["transpose"] == 1


def test_concatenation_padding_and_batch_norm_stay_inside(transformed, operators):
    x = image()
    y = conv(x, 4)
    scaled = nn.batch_norm(y, *[op.add(weights(4), const(5.0)) for _ in range(4)])[0]
    z = op.concatenate([y, nn.relu(scaled)], axis=1)
    z = nn.pad(z, ((0, 0), (0, 0), (1, 1), (1, 1)))
    z = op.mean(conv(z, 4), axis=(2, 3), keepdims=False)
    after = transformed(Function((x,), z), CanonicalizeOps(), SimplifyInference(), ConvertLayout(), SimplifyExpr())
    assert operators(after)["transpose"] == 1


def test_squeeze_and_excite_multiplies_by_channel(transformed, operators):
    x = image()
    y = conv(x, 8)
    gate = op.sigmoid(conv(op.mean(y, axis=(2, 3), keepdims=True), 8, kernel=1))
    z = nn.global_avg_pool2d(conv(op.multiply(y, gate), 4))
    assert operators(transformed(Function((x,), z), CanonicalizeOps(), ConvertLayout()))["transpose"] == 1


@pytest.mark.parametrize("size", [8, SizeVar("s")], ids=["known", "open"])
def test_patches_become_tokens_without_a_transpose(transformed, operators, size):
    x = var("x", (1, 3, size, size))
    y = nn.conv2d(x, weights(16, 3, 4, 4), strides=4, padding=2)
    tokens = op.transpose(op.reshape(y, (1, 16, -1)), (0, 2, 1))
    after = transformed(Function((x,), tokens), CanonicalizeOps(), ConvertLayout())
    assert operators(after)["transpose"] == 1


@pytest.mark.parametrize("sizes", [(1, 8, 8), tuple(map(SizeVar, "nhw"))], ids=["known", "open"])
def test_a_channel_shuffle_costs_one_transpose(transformed, operators, sizes):
    n, h, w = sizes
    x = var("x", (n, 8, h, w))
    y = conv(x, 8, groups=2)
    y = op.reshape(op.transpose(op.reshape(y, (n, 2, 4, h, w)), (0, 2, 1, 3, 4)), (n, 8, h, w))
    z = nn.global_avg_pool2d(conv(y, 8, groups=8))
    after = transformed(Function((x,), z), CanonicalizeOps(), ConvertLayout())
    assert operators(after)["transpose"] == 2


def test_flattening_an_image_restores_its_order(transformed, operators):
    x = image()
    y = nn.dense(op.reshape(conv(x, 8), (1, -1)), weights(3, 8 * 8 * 8))
    after = transformed(Function((x,), y), CanonicalizeOps(), ConvertLayout())
    assert operators(after)["transpose"] == 2


def test_split_slice_and_several_results(transformed):
    x = image()
    y = conv(x, 8)
    first, second = op.split(y, 2, axis=1)
    part = op.strided_slice(first, (0, 1), (1, 3))
    after_sum = op.add(first, second)
    transformed(Function((x,), Tuple((part, after_sum, y))), CanonicalizeOps(), ConvertLayout())


def test_transposes_in_pairs_disappear(transformed, operators):
    x = var("x", (2, 3, 4))
    y = op.transpose(nn.relu(op.add(op.transpose(x, (0, 2, 1)), weights(3))), (0, 2, 1))
    assert operators(transformed(Function((x,), y), ConvertLayout()))["transpose"] == 0


def test_softmax_keeps_the_order_it_reads(transformed, operators):
    x = var("x", (2, 3, 4))
    y = nn.softmax(op.transpose(x, (1, 2, 0)), axis=-1)
    after = transformed(Function((x,), y), ConvertLayout())
    assert operators(after)["transpose"] == 1
    assert after.body.op.axis == -1


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks_of_convolution(transformed, rank: int):
    shape = (1, 4, 6, 6, 6)[: 2 + rank]
    x = var("x", shape)
    w = weights(8, 4, *[3] * rank)
    layer = nn.conv1d if rank == 1 else nn.conv3d
    y = nn.relu(layer(x, w, padding=1))
    after = transformed(Function((x,), y), ConvertLayout())
    assert after.body.args[0].args[0].op.data_layout == ("NWC" if rank == 1 else "NDHWC")
