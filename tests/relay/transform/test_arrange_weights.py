"""ArrangeWeights: constant weights in the order that GPUs read, with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Call, Function, const, op, var
from relayc.relay.analysis import evaluation_order
from relayc.relay.op import nn
from relayc.relay.transform import ArrangeWeights


def weights(*shape: int):
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def operators(function: Function) -> list:
    return [e.op for e in evaluation_order(function.body) if isinstance(e, Call)]


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_weights_of_convolutions_end_with_the_output_channels(transformed, groups):
    x, w = var("x", (1, 6, 6, 8)), weights(8, 8 // groups, 3, 3)
    y = nn.conv2d(x, w, groups=groups, data_layout="NHWC", kernel_layout="OIHW")
    after = transformed(Function((x,), y), ArrangeWeights())
    assert [o.kernel_layout for o in operators(after)] == ["HWIO"]


@pytest.mark.parametrize(("rank", "data", "wanted"), [(1, "NWC", "WIO"), (2, "NHWC", "HWIO"), (3, "NDHWC", "DHWIO")])
def test_every_rank_and_the_transposed_ones(transformed, rank, data, wanted):
    x = var("x", (1, *[5] * rank, 4))
    plain = getattr(nn, f"conv{rank}d")(x, weights(6, 4, *[2] * rank), data_layout=data)
    back = getattr(nn, f"conv{rank}d_transpose")(x, weights(4, 6, *[2] * rank), data_layout=data)
    for call in (plain, back):
        after = transformed(Function((x,), call), ArrangeWeights())
        assert [o.kernel_layout for o in operators(after)] == [wanted]


def test_a_shared_weight_is_transposed_once(transformed):
    x, w = var("x", (1, 6, 6, 8)), weights(8, 8, 3, 3)
    y = nn.conv2d(nn.conv2d(x, w, padding=1, data_layout="NHWC"), w, padding=1, data_layout="NHWC")
    after = transformed(Function((x,), y), ArrangeWeights())
    arranged = [e.args[1] for e in evaluation_order(after.body) if isinstance(e, Call)]
    assert arranged[0] is arranged[1]


def test_products_with_a_constant_matrix_read_contiguous_columns(transformed):
    x = var("x", (2, 3, 8))
    y = nn.batch_matmul(x, weights(8, 5), transpose_b=False) + nn.batch_matmul(x, weights(5, 8))
    after = transformed(Function((x,), y + nn.dense(x, weights(5, 8))), ArrangeWeights())
    products = [e for e in evaluation_order(after.body) if isinstance(e, Call) and e.op.name == "nn.batch_matmul"]
    assert [p.args[1].shape for p in products] == [(8, 5)] * 3 and not any(p.op.transpose_b for p in products)
    assert transformed(after, ArrangeWeights()) is after


def test_narrow_products_read_along_the_depth(transformed):
    x, w = var("x", (3, 8), "float16"), const(np.ones((8, 5), "float16"))
    y = nn.batch_matmul(x, w, transpose_b=False) + nn.dense(x, const(np.ones((5, 8), "float16")))
    after = transformed(Function((x,), y), ArrangeWeights())
    assert [o.name for o in operators(after)] == ["nn.dense", "nn.dense", "add"]


def test_a_vector_stays_a_dense_layer(transformed):
    x = var("x", (8,))
    function = Function((x,), nn.dense(x, weights(5, 8)))
    assert transformed(function, ArrangeWeights()) is function


def test_computed_weights_stay(transformed):
    x, w = var("x", (1, 6, 6, 8)), var("w", (8, 8, 3, 3))
    first = nn.conv2d(x, w, data_layout="NHWC")
    second = nn.conv2d(op.transpose(x, (0, 3, 1, 2)), weights(4, 8, 1, 1))
    for call in (first, second):
        parameters = (x, w) if call is first else (x,)
        function = Function(parameters, call)
        assert transformed(function, ArrangeWeights()) is function
