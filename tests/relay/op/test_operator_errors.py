"""Calls that violate a constraint of an operator: the error names it, and the actual value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relayc import relay
from relayc.relay.errors import TypeInferenceError
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.nn.attention import Attention
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError


def x(*shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var("x", shape, dtype)


BROKEN: list[tuple[Callable[[], Any], str]] = [
    (lambda: relay.exp(x(2, dtype="int32")), r"exp\(.*\(C1\) the element type must be a float; got int32"),
    (lambda: relay.logical_and(x(2), x(2)), r"\(C1\) the element type must be a bool; got float32"),
    (lambda: relay.add(x(2), x(2, dtype="float64")), r"\(C2\) .*one element type; got float32 and float64: cast one"),
    (lambda: relay.add(x(2, 3), x(2)), r"\(C3\) shapes \(2, 3\) and \(2,\) do not broadcast: 3 against 2 on axis 1"),
    (lambda: relay.where(x(2), x(2), x(2)), r"\(C1\) the condition must be bool; got float32"),
    (lambda: relay.reshape(x(2, 3), (4, -1)), r"\(C2\) Tensor\[\(2, 3\), float32\] can't be reshaped to \(4, -1\)"),
    (lambda: relay.reshape(x(2, 3), (-1, -1)), r"\(C1\) at most one dimension may be -1"),
    (lambda: relay.transpose(x(2, 3), (0, 0)), r"\(C1\) axes \(0, 0\) must be a permutation of the 2 dimensions"),
    (lambda: relay.squeeze(x(2, 3), 0), r"\(C1\) dimension 0 of \(2, 3\) is 2, not 1"),
    (lambda: relay.concatenate([x(2, 3), x(3, 3)], 1), r"\(C4\) .* must have equal dimensions but for axis 1"),
    (lambda: relay.concatenate([x(2), x(2)], 3), r"\(C3\) axis 3 must be at least -1 and below 1"),
    (lambda: relay.split(x(7), 2), r"\(C2\) a size of 7 can't be cut into 2 equal parts"),
    (lambda: relay.split(x(7), (5, 3)), r"\(C3\) cuts \(5, 3\) must ascend within \[0, 7\]"),
    (lambda: relay.strided_slice(x(7), (0,), (7,), (0,)), r"\(C3\) a stride must not be 0"),
    (lambda: relay.layout_transform(x(1, 2, 3, 4), "NCHW", "NHWK"), r"\(C1\) layouts NCHW and NHWK must name the same"),
    (lambda: relay.layout_transform(x(1, 2), "nc", "NC"), r"'nc' is not a layout; examples: NCHW"),
    (lambda: relay.sum(x(2, 3), (0, 0)), r"\(C2\) an axis occurs twice in \(0, 0\)"),
    (lambda: relay.argmax(x(0, 3), 0), r"\(C3\) .* has no values along \(0,\)"),
    (lambda: relay.take(x(3), x(2), 0), r"\(C1\) indices must be integers; got float32"),
    (lambda: relay.take(x(3), x(2, dtype="int64"), 0, mode="raise"), r"\(C4\) mode 'raise' is not one of clip, wrap"),
    (lambda: relay.topk(x(3), 4), r"\(C3\) k = 4 must be in \[0, 3\]"),
    (lambda: relay.scatter_nd(x(3), x(1, 2, dtype="int32"), x(2), "xor"), r"\(C5\) reduction 'xor' is unknown; known"),
    (lambda: relay.nn.bias_add(x(1, 3, 2), x(2)), r"\(C3\) bias must have shape \(3,\); got Tensor\[\(2,\), float32\]"),
    (lambda: relay.nn.dense(x(2, 3), x(4, 5)), r"\(C3\) K differs"),
    (lambda: relay.nn.dense(x(2, 3), x(4, 3), units=5), r"units=5, but the weights are"),
    (lambda: relay.nn.dense_packed(x(2, 3), x(2, 3, 8), units=17), r"\(C4\) 2 blocks of 8 do not hold 17 columns"),
    (
        lambda: relay.op.nn.conv2d_nhwc_packed(x(1, 5, 5, 6), x(4, 1, 1, 3, 16), channels=48, groups=2),
        r"\(C5\) 4 blocks of 16 do not hold 48 outputs in 2 groups",
    ),
    (lambda: relay.nn.matmul(x(2, 3, 4), x(3, 4, 5)), r"\(C4\) shapes \(2,\) and \(3,\) do not broadcast"),
    (
        lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(8, 3, 3, 3)),
        r"nn.conv2d\(.*\(C5\) 4 input channels, weights for 3 in each of 1 groups of 8 outputs",
    ),
    (lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(4, 1, 3, 3), groups=0), r"\(C5\) a convolution of 0 groups"),
    (
        lambda: Conv2D(strides=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=0)(x(1, 4, 8, 8), x(4, 1, 3, 3)),
        r"\(C5\) 4 input channels, weights for 1 in each of 0 groups of 4 outputs",
    ),
    (lambda: relay.nn.conv2d(x(1, 4, 2, 2), x(8, 4, 3, 3)), r"\(C6\) the kernel reaches over more than the 2 \+ 0"),
    (lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(8, 4, 3, 3), data_layout="NCHT"), r"\(C1\) layouts NCHT and OIHW"),
    (lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(8, 4, 3, 3), kernel_size=5), r"kernel_size=5, but the weights are"),
    (lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(8, 4, 3, 3), strides=0), r"\(C2\) strides and dilation must be at least"),
    (lambda: relay.nn.max_pool2d(x(1, 4, 2, 2), 3), r"\(C3\) dimension 2 of .* holds no window of 3"),
    (lambda: relay.nn.max_pool2d(x(1, 4, 2), 3), r"\(C1\) layout NCHW does not fit an input of 3 dimensions"),
    (lambda: relay.nn.softmax(x(3), 1), r"\(C2\) axis 1 must be at least -1 and below 1"),
    (lambda: relay.nn.layer_norm(x(2, 3), x(2), x(3)), r"\(C4\) gamma and beta must be Tensor\[\(3,\), float32\]"),
    (lambda: relay.nn.group_norm(x(1, 6, 2), x(6), x(6), 4), r"\(C5\) 6 channels do not divide into 4 groups"),
    (lambda: relay.nn.pad(x(3), ((-2, -2),)), r"\(C3\) a size of 3 can't lose 2 and 2 elements"),
    (lambda: relay.nn.pad(x(3), ((1, 1),), pad_mode="mirror"), r"\(C2\) mode 'mirror' is unknown; known are constant"),
    (lambda: relay.nn.attention(x(1, 3, 2, 4), x(1, 2, 2, 4), x(1, 2, 2, 4)), r"\(C3\) query \(B, H, S, D\)"),
    (
        lambda: Attention(scale=1.0)(*[x(1, 1, 2, 4)] * 3, x(2, 2), x(2, 2, dtype="bool")),
        r"\(C4\) a bias Tensor\[\(2, 2\), bool\]; expected floats",
    ),
    (
        lambda: relay.nn.rnn(x(3, 2, 4), x(1, 4, 4), x(1, 2, 4), activations=("sine",)),
        r"\(C5\) 1 of sigmoid, tanh, .* expected; got \('sine',\)",
    ),
]


@pytest.mark.parametrize(("call", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_a_broken_constraint_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        call()


def test_attributes_may_not_hide_methods() -> None:
    with pytest.raises(CompileError, match=r"operator 'test.hiding': attributes infer hide members of OpDef"):

        @register_op("test.hiding", pattern=OpPattern.ELEMWISE)
        class Hiding(OpDef):  # pyright: ignore[reportUnusedClass]
            infer: int = 0  # type: ignore[assignment]

            def compute(self, x: TensorType) -> TensorType:
                return x


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_channels_and_kernel_sizes_of_convolutions_are_checked(rank: int, transposed: bool) -> None:
    name = f"conv{rank}d{'_transpose' if transposed else ''}"
    convolve = getattr(relay.op.nn, name)
    x = relay.var("x", (1, 4, *[8] * rank))
    w = relay.var("w", (4, 3, *[2] * rank) if transposed else (6, 2, *[2] * rank))
    y = convolve(x, w, 2, groups=2, channels=6, kernel_size=2)
    assert convolve.__name__ == name and y.op.name == f"nn.{name}"
    assert y.shape == (1, 6, *[16 if transposed else 4] * rank)
    with pytest.raises(TypeInferenceError, match=r"channels=5, but the weights .* make 6"):
        convolve(x, w, groups=2, channels=5)
    with pytest.raises(TypeInferenceError, match="kernel_size=3, but the weights are"):
        convolve(x, w, groups=2, kernel_size=3)
