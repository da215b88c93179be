"""PackWeights, convolutions with computed weights: packed at run time, with register tiles."""

from __future__ import annotations

import pytest

from relayc.backend import Target
from relayc.relay import Function, var
from relayc.relay.op import nn
from relayc.relay.transform import PackWeights

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["OIHW", "HWIO"])
def test_images(transformed, operators, groups: int, layout: str):
    channels = {"O": 22, "I": 10 // groups, "H": 3, "W": 2}
    x, w = var("x", (2, 6, 7, 10)), var("w", tuple(channels[axis] for axis in layout))
    made = nn.conv2d(x, w, padding=(1, 0, 2, 1), strides=(1, 2), groups=groups, data_layout="NHWC",
                     kernel_layout=layout)  # fmt: skip
    after = transformed(Function((x, w), made), PackWeights(HASWELL))
    found = operators(after)
    assert found["nn.conv2d_nhwc_packed"] == found["nn.pack_panels"] == 1
    assert "nn.conv2d" not in found


def test_one_and_three_dimensions(transformed, operators):
    x, w = var("x", (2, 9, 5)), var("w", (12, 5, 3))
    line = nn.conv1d(x, w, data_layout="NWC", kernel_layout="OIW")
    assert operators(transformed(Function((x, w), line), PackWeights(HASWELL)))["nn.conv1d_nwc_packed"] == 1
    x, w = var("x", (1, 3, 4, 5, 4)), var("w", (9, 4, 2, 2, 2))
    volume = nn.conv3d(x, w, data_layout="NDHWC", kernel_layout="OIDHW")
    assert operators(transformed(Function((x, w), volume), PackWeights(HASWELL)))["nn.conv3d_ndhwc_packed"] == 1


def test_depthwise_weights_are_contiguous_along_channels(transformed, operators):
    x, w = var("x", (1, 6, 7, 16)), var("w", (16, 1, 3, 3))
    before = Function((x, w), nn.conv2d(x, w, groups=16, data_layout="NHWC", kernel_layout="OIHW"))
    after = transformed(before, PackWeights(HASWELL))
    assert after.body.op.kernel_layout == "HWIO"
    assert operators(after) == {"transpose": 2, "nn.conv2d": 1}
