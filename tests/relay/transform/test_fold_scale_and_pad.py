"""FoldScaleAxis, FoldPad, SimplifyInference: what disappears into weights and padding."""

from __future__ import annotations

import numpy as np

from relay import Expr, Function, Tuple, const, op, var
from relay.op import nn
from relay.transform import FoldPad, FoldScaleAxis, SimplifyInference


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def positive(n: int) -> Expr:
    return const(np.random.default_rng(n).uniform(0.5, 2.0, n).astype("float32"))


def batch_norm(x: Expr, channels: int) -> Expr:
    return nn.batch_norm(x, positive(channels), weights(channels), weights(channels), positive(channels))[0]


def test_batch_norm_behind_a_convolution_leaves_a_bias(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = batch_norm(nn.conv2d(x, weights(8, 4, 3, 3), padding=1), 8)
    found = operators(transformed(Function((x,), y), SimplifyInference(), FoldScaleAxis()))
    assert found == {"nn.conv2d": 1, "add": 1}


def test_a_bias_in_between_is_scaled_too(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = op.add(nn.conv2d(x, weights(8, 2, 3, 3), groups=2), weights(8, 1, 1))
    found = operators(transformed(Function((x,), batch_norm(y, 8)), SimplifyInference(), FoldScaleAxis()))
    assert found == {"nn.conv2d": 1, "add": 1}


def test_dense_layers_fold_along_their_units(transformed, operators):
    x = var("x", (3, 4))
    y = op.multiply(nn.dense(op.multiply(x, weights(4)), weights(5, 4)), weights(5))
    assert operators(transformed(Function((x,), y), FoldScaleAxis())) == {"nn.dense": 1}


def test_factors_that_vary_along_other_axes_stay(transformed):
    x = var("x", (1, 4, 6, 6))
    before = Function((x,), op.multiply(nn.conv2d(x, weights(6, 4, 1, 1)), weights(6, 6)))
    assert transformed(before, FoldScaleAxis()) is before


def test_a_shared_convolution_is_not_scaled(transformed):
    x = var("x", (1, 4, 6, 6))
    y = nn.conv2d(x, weights(8, 4, 1, 1))
    before = Function((x,), Tuple((y, op.multiply(y, weights(8, 1, 1)))))
    assert transformed(before, FoldScaleAxis()) is before


def test_a_factor_before_a_convolution(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = nn.conv2d(op.multiply(x, weights(4, 1, 1)), weights(8, 4, 3, 3), padding=1)
    assert operators(transformed(Function((x,), y), FoldScaleAxis())) == {"nn.conv2d": 1}


def test_pads_become_padding(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    border = ((0, 0), (0, 0), (1, 0), (2, 1))
    y = nn.conv2d(nn.pad(x, border), weights(8, 4, 3, 3), padding=(0, 1, 1, 0))
    after = transformed(Function((x,), y), FoldPad())
    assert operators(after) == {"nn.conv2d": 1} and after.body.op.padding == (1, 3, 1, 1)
    z = nn.avg_pool2d(nn.pad(x, border), 2)
    assert operators(transformed(Function((x,), z), FoldPad())) == {"nn.avg_pool": 1}


def test_pads_of_channels_or_with_other_values_stay(transformed):
    x = var("x", (1, 4, 6, 6))
    for pad in (nn.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0))), nn.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), 1.0)):
        before = Function((x,), nn.conv2d(pad, weights(8, int(pad.shape[1]), 3, 3)))
        assert transformed(before, FoldPad()) is before
