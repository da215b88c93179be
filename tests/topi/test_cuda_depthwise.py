"""Depthwise convolutions on GPUs, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.tir.values import numpy_dtype
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(4)
TARGET = Target("cuda -arch=sm_90")


def expected(x, w, strides, padding, dilation):
    """x (N, H, W, C), w (KH, KW, C, M): (N, H, W, C * M)."""
    x, w = x.astype("float32"), w.astype("float32")
    (kh, kw), (dh, dw) = w.shape[:2], dilation
    padded = np.pad(x, [(0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0)])
    rows = (padded.shape[1] - (kh - 1) * dh - 1) // strides[0] + 1
    columns = (padded.shape[2] - (kw - 1) * dw - 1) // strides[1] + 1
    total = np.zeros((x.shape[0], rows, columns, w.shape[2], w.shape[3]), "float32")
    for i in range(kh):
        for j in range(kw):
            part = padded[:, i * dh :: strides[0], j * dw :: strides[1]][:, :rows, :columns]
            total += part[..., None] * w[i, j]
    return total.reshape(*total.shape[:3], -1)


CASES = [
    ((1, 9, 10, 8), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((2, 7, 8, 6), (3, 5), 1, (2, 1), (1, 2, 0, 2), (1, 2)),
    ((1, 5, 5, 4), (3, 3), 2, (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 70, 66, 96), (3, 3), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise(cuda_device, case, channels_last, dtype):
    shape, kernel, multiplier, strides, padding, dilation = case
    channels = shape[-1]
    a = RNG.standard_normal(shape).astype(dtype)
    b = RNG.standard_normal((*kernel, channels, multiplier)).astype(dtype)
    wanted = expected(a, b, strides, padding, dilation)
    b = b.reshape(*kernel, 1, channels * multiplier)
    if not channels_last:
        a, b, wanted = np.moveaxis(a, -1, 1), np.moveaxis(b, (-1, -2), (0, 1)), np.moveaxis(wanted, -1, 1)
    x, w = te.placeholder(a.shape, dtype, "x"), te.placeholder(b.shape, dtype, "w")
    layouts = ("NHWC", "HWIO") if channels_last else ("NCHW", "OIHW")
    out = topi.nn.conv(x, w, strides, padding, dilation, channels, *layouts)
    last = te.compute(out.shape, lambda *i: te.max(out(*i), te.const(0, dtype)), name="relu", tag="elemwise")
    library = backend.build(te.lower(schedule_for([last], TARGET), [x, w, last]), target=TARGET)
    result = backend.nd.empty(last.shape, dtype, cuda_device)
    library(*[backend.nd.array(np.ascontiguousarray(v), cuda_device) for v in (a, b)], result)
    assert numpy_dtype(last.dtype) == result.numpy().dtype
    tolerance = 1e-4 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(result.numpy().astype("float32"), np.maximum(wanted, 0), rtol=tolerance, atol=tolerance)
