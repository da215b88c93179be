"""SumParallelConvolutions: sums of branches on the same data become one convolution."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, Tuple, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import FoldScaleAxis, SimplifyInference, SumParallelConvolutions


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def batch_norm(x: Expr, channels: int) -> Expr:
    positive = const(np.random.default_rng(channels).uniform(0.5, 2.0, channels).astype("float32"))
    return nn.batch_norm(x, positive, weights(channels), weights(channels), positive)[0]


def test_a_training_block_becomes_one_convolution_and_its_bias(transformed, operators):
    """RepVGG: 3 x 3, 1 x 1 and the data itself, each with a batch norm."""
    x = var("x", (1, 8, 7, 7))
    three, one = nn.conv2d(x, weights(8, 8, 3, 3), padding=1), nn.conv2d(x, weights(8, 8, 1, 1))
    total = op.add(op.add(batch_norm(three, 8), batch_norm(one, 8)), batch_norm(x, 8))
    passes = (SimplifyInference(), FoldScaleAxis(), SumParallelConvolutions())
    assert operators(transformed(Function((x,), nn.relu(total)), *passes)) == {"nn.conv2d": 1, "add": 1, "nn.relu": 1}


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("strides", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_kernels_of_any_groups_strides_and_dilations(transformed, operators, groups: int, strides: int, dilation: int):
    x = var("x", (2, 8, 9, 11))
    attrs = {"strides": strides, "groups": groups}
    large = nn.conv2d(x, weights(8, 8 // groups, 5, 3), padding=(2 * dilation, dilation), dilation=dilation, **attrs)
    same = nn.conv2d(x, weights(8, 8 // groups, 3, 3), padding=dilation, dilation=dilation, **attrs)
    one = nn.conv2d(x, weights(8, 8 // groups, 1, 1), **attrs)
    found = operators(transformed(Function((x,), op.add(op.add(one, same), large)), SumParallelConvolutions()))
    assert found == {"nn.conv2d": 1}


@pytest.mark.parametrize("groups", [1, 4])
def test_an_identity_branch_is_a_kernel_of_one_tap(transformed, operators, groups: int):
    x = var("x", (1, 4, 6, 6))
    y = nn.conv2d(x, weights(4, 4 // groups, 3, 3), padding=1, groups=groups)
    scaled = op.multiply(weights(4, 1, 1), x)
    for total in (op.add(x, y), op.add(y, op.add(scaled, x)), op.add(x, op.add(x, y))):
        assert operators(transformed(Function((x,), total), SumParallelConvolutions())) == {"nn.conv2d": 1}


def test_other_layouts_and_ranks(transformed, operators):
    x, signal = var("x", (1, 6, 7, 4)), var("s", (1, 4, 9))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    three = nn.conv2d(x, weights(3, 3, 4, 4), padding=1, **layouts)
    image = op.add(three, nn.conv2d(x, weights(1, 1, 4, 4), **layouts))
    other = nn.conv2d(x, weights(4, 4, 3, 3), padding=1, data_layout="NHWC", kernel_layout="OIHW")
    line = op.add(nn.conv1d(signal, weights(4, 4, 5), padding=2), signal)
    before = Function((x, signal), Tuple((op.add(image, op.add(x, other)), line)))
    assert operators(transformed(before, SumParallelConvolutions())) == {"nn.conv2d": 1, "nn.conv1d": 1}


def test_other_terms_stay_and_constants_become_one(transformed, operators):
    x, y = var("x", (1, 4, 6, 6)), var("y", (1, 4, 6, 6))
    a, b = nn.conv2d(x, weights(4, 4, 3, 3), padding=1), nn.conv2d(x, weights(4, 4, 1, 1))
    total = op.add(op.add(op.add(a, weights(4, 1, 1)), op.add(weights(6), nn.relu(y))), op.add(b, weights(1, 4, 1, 1)))
    found = operators(transformed(Function((x, y), total), SumParallelConvolutions()))
    assert found == {"nn.conv2d": 1, "add": 2, "nn.relu": 1}


def test_kernels_that_do_not_contain_each_other_stay(transformed):
    x, y = var("x", (1, 4, 8, 8)), var("y", (1, 4, 8, 8))
    three = nn.conv2d(x, weights(4, 4, 3, 3), padding=1)
    across = nn.conv2d(x, weights(4, 4, 3, 1), padding=(1, 0)), nn.conv2d(x, weights(4, 4, 1, 3), padding=(0, 1))
    dilated = nn.conv2d(x, weights(4, 4, 3, 3), padding=2, dilation=2)
    grouped = nn.conv2d(x, weights(4, 1, 3, 3), padding=1, groups=4)
    elsewhere = nn.conv2d(x, weights(4, 4, 3, 3), padding=(0, 0, 2, 2))
    wide = nn.conv2d(x, weights(4, 4, 3, 3), padding=(2, 1, 0, 1))
    for total in (
        op.add(three, nn.conv2d(y, weights(4, 4, 3, 3), padding=1)), op.add(*across), op.add(three, y),
        op.add(elsewhere, wide), op.add(three, dilated), op.add(three, grouped), op.add(nn.relu(three), x),
        op.add(three, op.multiply(x, weights(8))),
    ):  # fmt: skip
        before = Function((x, y), total)
        assert transformed(before, SumParallelConvolutions()) is before


def test_shared_convolutions_and_computed_weights_stay(transformed):
    x, w = var("x", (1, 4, 8, 8)), var("w", (4, 4, 3, 3))
    three, one = nn.conv2d(x, weights(4, 4, 3, 3), padding=1), nn.conv2d(x, weights(4, 4, 1, 1))
    computed = nn.conv2d(x, w, padding=1)
    for result in (Tuple((op.add(three, one), three)), op.add(computed, computed), op.add(computed, x)):
        before = Function((x, w), result)
        assert transformed(before, SumParallelConvolutions()) is before
