"""AlignChannels: channels of zeros where tensor cores need whole words, with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Call, Function, const, var
from relayc.relay.analysis import evaluation_order
from relayc.relay.op import nn
from relayc.relay.transform import AlignChannels

RNG = np.random.default_rng(4)


def convolution(channels, dtype="float16", **attrs):
    groups = attrs.get("groups", 1)
    x = var("x", (2, 9, 8, channels), dtype)
    w = const((RNG.standard_normal((6, channels // groups, 3, 3)) / 4).astype("float32").astype(dtype))
    return Function((x,), nn.conv2d(x, w, strides=2, padding=1, data_layout="NHWC", **attrs))


def channels_read(function):
    return [e.args[0].shape[-1] for e in evaluation_order(function.body) if isinstance(e, Call) and "conv" in e.op.name]


@pytest.mark.parametrize(("channels", "read"), [(3, 4), (6, 8), (4, 4), (1, 1)])
def test_channels_are_whole_words(transformed, channels, read):
    assert channels_read(transformed(convolution(channels), AlignChannels())) == [read]


@pytest.mark.parametrize("rank", [1, 3])
def test_every_rank(transformed, rank):
    x = var("x", (1, *[5] * rank, 3), "float16")
    w = const((RNG.standard_normal((4, 3, *[2] * rank)) / 4).astype("float16"))
    y = getattr(nn, f"conv{rank}d")(x, w, data_layout=f"N{'DHW'[-rank:]}C")
    assert channels_read(transformed(Function((x,), y), AlignChannels())) == [4]


def test_wide_floats_and_groups_stay(transformed):
    for function in (convolution(3, "float32"), convolution(6, groups=2)):
        assert transformed(function, AlignChannels()) is function
