"""UnpackWeights: products with packed weights become dense layers of floats."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.interpreter import create_executor
from relayc.relay.transform import UnpackWeights
from relayc.te.ir import IRModule


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_become_floats(bits):
    random = np.random.default_rng(0)
    quantized = random.integers(0, 256, (20, 32 * bits // 8)).astype(np.uint8)
    scales, zeros = random.uniform(0.1, 1, (20, 2)), random.integers(0, 16, (20, 2))
    x = relay.var("x", (3, 32))
    before = IRModule({"main": relay.Function((x,), relay.nn.dense_bits(x, quantized, scales, zeros, bits))})
    after = UnpackWeights()(before)
    assert str(after["main"].body.op) == "nn.dense"
    value = random.normal(size=(3, 32)).astype(np.float32)
    results = [create_executor("debug", module).evaluate()(value) for module in (before, after)]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-4)
    fields = quantized if bits == 8 else np.stack([quantized & 15, quantized >> 4], -1).reshape(20, 32)
    real = (fields.reshape(20, 2, 16) - zeros[..., None]) * scales[..., None]
    np.testing.assert_allclose(results[0], value @ real.reshape(20, 32).T, rtol=1e-4, atol=1e-3)
