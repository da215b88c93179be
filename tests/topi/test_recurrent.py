"""Recurrences of batches: register tiles of entries and gates, with and without remainders."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.dtype import to_numpy
from relayc.relay.interpreter import evaluate
from relayc.relay.op.nn.recurrent import GRU, LSTM
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar
from relayc.topi.nn.gates import Gates
from relayc.topi.nn.recurrence import _sums_per_step

RNG = np.random.default_rng(7)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("hidden", [16, 21])
def test_batched_entries_match_the_reference(batch, hidden):
    cells = [
        (LSTM(activations=("sigmoid", "tanh", "tanh"), reverse=(False, True)), 4, 2),
        (GRU(activations=("sigmoid", "tanh"), reset_after=False, reverse=(True, False)), 3, 1),
    ]
    for op, gates, states in cells:
        packed = np.zeros((2, -(-hidden // 16), gates, hidden, 16), np.float32)
        for unit in range(hidden):
            packed[:, unit // 16, :, :, unit % 16] = 0.3 * _normal(2, gates, hidden)
        inputs = [_normal(3, batch, 2 * gates * hidden), *[_normal(2, batch, hidden) for _ in range(states)]]
        if gates == 3:
            inputs.append(_normal(2, hidden))
        products, *rest = [relay.var(f"x{i}", shape=a.shape) for i, a in enumerate(inputs)]
        call = relay.Call(op, (products, relay.const(packed), *rest))
        lib = relay.build(IRModule({"main": relay.Function((products, *rest), call)}), "llvm")
        module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
        for i, a in enumerate(inputs):
            module.set_input(f"x{i}", a)
        module.run()
        expected = op.reference(inputs[0], packed, *inputs[1:])
        for i, e in enumerate(expected):
            np.testing.assert_allclose(module.get_output(i).numpy(), e, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("hidden", [16, 21])
def test_states_and_sums_of_16_bit_floats_are_float32(where, dtype, hidden):
    """Results of many steps are those in float32, rounded once; states that are rounded in each step drift."""
    steps, batch, kind = 60, 2, to_numpy(dtype)
    inputs = [(0.3 * _normal(*shape)).astype(kind) for shape in
              ((steps, batch, 3 * hidden), (1, 3 * hidden, hidden), (1, batch, hidden), (1, hidden))]  # fmt: skip

    def recurrence(values: Sequence[np.ndarray]) -> relay.Function:
        products, weight, h0, bias = values
        of = [relay.var(name, shape=a.shape, dtype=str(a.dtype)) for name, a in (("products", products), ("h0", h0))]
        results = relay.nn.gru(of[0], relay.const(weight), of[1], relay.const(bias))
        return relay.Function(tuple(of), relay.Tuple(results))

    widened = [a.astype("float32") for a in inputs]
    function, expected = recurrence(inputs), evaluate(recurrence(widened), widened[::2])
    target = "llvm" if where.kind == "cpu" else "cuda"
    module = graph_executor.GraphModule(relay.build(IRModule({"main": function}), target)["default"](where))
    module.run(products=inputs[0], h0=inputs[2])
    for i, values in enumerate(expected):
        found = module.get_output(i).numpy().astype("float32")
        np.testing.assert_allclose(found, values, rtol=float(ml_dtypes.finfo(kind).eps) * 0.51, atol=1e-6)


def test_recurrences_of_dynamic_length_and_batch_are_launched(cuda_device):
    steps, batch, hidden = SizeVar("steps"), SizeVar("batch"), 21
    products = relay.var("products", shape=(steps, batch, 2 * 3 * hidden))
    h0 = relay.var("h0", shape=(2, batch, hidden))
    weight, bias = 0.3 * _normal(2, 3 * hidden, hidden), _normal(2, hidden)
    results = relay.nn.gru(products, relay.const(weight), h0, relay.const(bias), reverse=(False, True))
    function = relay.Function((products, h0), relay.Tuple(results))
    inputs = [_normal(5, 6, 2 * 3 * hidden), _normal(2, 6, hidden)]
    module = graph_executor.GraphModule(
        relay.build(IRModule({"main": function}), "cuda -arch=sm_90")["default"](cuda_device)
    )
    module.run(products=inputs[0], h0=inputs[1])
    for i, expected in enumerate(evaluate(function, inputs)):
        np.testing.assert_allclose(module.get_output(i).numpy(), expected, rtol=2e-5, atol=2e-6)


def test_register_tiles_of_many_entries_hold_few_gates():
    room = Gates(())  # twelve of sixteen registers
    assert _sums_per_step(1, 4, room) == (1, 4)
    assert _sums_per_step(8, 4, room) == (4, 1)
    assert _sums_per_step(2, 4, room) == (2, 2)
    assert _sums_per_step(3, 3, room) == (3, 1)
    wide = Gates((), sums=24, vectors=1)  # of 32, each of a whole block
    assert _sums_per_step(8, 4, wide) == (8, 2)
    assert _sums_per_step(3, 4, wide) == (3, 4)


def test_products_of_several_entries_are_prefetched_during_the_sums():
    def text(batch: int) -> str:
        shapes = [(3, batch, 2 * 64), (2, 1, 4, 16, 16), (2, batch, 16), (2, batch, 16)]
        products, weight, h0, c0 = [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
        gates = Gates(("sigmoid", "tanh", "tanh"), (False, True))
        results = topi.nn.lstm(products, weight, h0, c0, None, None, gates)
        return str(te.lower(te.create_schedule([r.op for r in results]), [products, weight, h0, c0, *results]))

    assert text(1).count("prefetch") == 0
    assert text(8).count("prefetch") == 4  # one of each gate
