"""Transposes on GPUs go through tiles in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.topi.cuda.transpose import strided_reads
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(15)
TARGET = Target("cuda -arch=sm_90")


def execute(device, inputs, out, *arrays):
    library = backend.build(te.lower(schedule_for([out], TARGET), [*inputs, out]), target=TARGET)
    result = backend.nd.empty(out.shape, str(out.dtype), device)
    library(*[backend.nd.array(a, device) for a in arrays], result)
    return result.numpy()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("shape", "axes"), [((64, 96), (1, 0)), ((33, 71), (1, 0)), ((9, 8), (1, 0)),
                                             ((2, 5, 9, 35), (0, 3, 1, 2)), ((11, 3, 45), (2, 1, 0))])  # fmt: skip
def test_transpositions_of_any_size(cuda_device, shape, axes, dtype):
    x, y = te.placeholder(shape, dtype, "x"), te.placeholder([shape[a] for a in axes], dtype, "y")
    out = topi.add(topi.transpose(topi.nn.relu(x), axes), topi.transpose(x, axes))
    a = RNG.integers(-9, 9, shape).astype(dtype)
    assert strided_reads(out) is not None
    np.testing.assert_array_equal(execute(cuda_device, [x], out, a), (np.maximum(a, 0) + a).transpose(axes))
    mixed = topi.add(topi.transpose(x, axes), y)
    assert strided_reads(mixed) is None
    b = RNG.integers(-9, 9, y.shape).astype(dtype)
    np.testing.assert_array_equal(execute(cuda_device, [x, y], mixed, a, b), a.transpose(axes) + b)


def test_a_tile_has_no_bank_conflicts():
    x = te.placeholder((64, 96), "float32", "x")
    out = topi.transpose(x, (1, 0))
    text = str(te.lower(schedule_for([out], TARGET), [x, out]))
    assert 'scope="shared"' in text
    assert "threadIdx.x * 33" in text


def test_contiguous_reads_need_no_tile():
    x = te.placeholder((64, 96, 32), "float32", "x")
    assert strided_reads(topi.transpose(x, (1, 0, 2))) is None
    assert strided_reads(topi.nn.relu(x)) is None
    assert strided_reads(topi.transpose(topi.reshape(x, (64, 96 * 32)), (1, 0))) is None
    assert strided_reads(topi.transpose(te.placeholder((64, 3), "float32", "y"), (1, 0))) is None
