"""Constants of sub-byte types, packed in the compiled model and its file."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor, load_model
from relayc.relay.op.packing import pack_bits

KINDS = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3fn")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_packed_saved_and_read_back(kind, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, kind))
    bits = {"4": 4, "2": 2, "8": 8}[kind.removeprefix("u").removeprefix("int").removeprefix("float")[0]]
    rng = np.random.default_rng(0)
    table = rng.integers(0, 1 << bits, 7 * 5).astype(np.uint8).view(dtype).reshape(7, 5)
    index = relay.var("i", shape=(3,), dtype="int64")
    rows = relay.op.cast(relay.op.take(relay.const(table), index, axis=0), "float32")
    compiled = relay.build(relay.Function((index,), rows), "llvm")
    assert sum(v.nbytes for v in compiled.params.values()) == -(-35 * bits // 8)
    compiled.save(tmp_path / "model.rlc")
    module = graph_executor.GraphModule(load_model(tmp_path / "model.rlc")["default"](device("cpu", 0)))
    at = np.array([6, 0, 3])
    module.set_input("i", at)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), table[at].astype(np.float32))


def test_elements_lie_from_the_low_bits_on():
    assert pack_bits(np.array([1, -2, 3], ml_dtypes.int4)).tolist() == [0xE1, 0x03]
    assert pack_bits(np.array([1, 2, 3, 0, 2], ml_dtypes.uint2)).tolist() == [0b00111001, 2]
