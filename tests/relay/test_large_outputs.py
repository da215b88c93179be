"""Large outputs are lent to numpy instead of being copied; what a user has is never written again."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, nd
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.relay import Function, IRModule, var
from relayc.relay.op import nn

N = 512


@pytest.fixture(params=["static", "dynamic"])
def executor(request):
    rows = N if request.param == "static" else relay.Any()
    x = var("x", (rows, N))
    model = relay.build(IRModule({"main": Function((x,), nn.relu(x))}), "llvm")
    return GraphModule(model["default"](device("cpu", 0)))


def address(array):
    return array.__array_interface__["data"][0]


def test_results_keep_their_values(executor):
    inputs = [np.full((N, N), value, "float32") for value in range(1, 6)]
    results = [executor.infer({"x": x})[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, x)
    assert len({address(result) for result in results}) == 5
    results[0][...] = 7  # it is the user's
    np.testing.assert_array_equal(results[1], inputs[1])


def test_memory_that_was_dropped_is_used_again(executor):
    x, addresses = np.ones((N, N), "float32"), []
    for _ in range(8):
        part = executor.infer({"x": x})[0][3:]  # a view keeps the memory
        addresses.append(address(part))
        np.testing.assert_array_equal(part, x[3:])
        del part
    assert len(set(addresses)) <= 2


def test_an_output_that_is_asked_for_twice_has_two_arrays(executor):
    first, second = executor.infer({"x": np.ones((N, N), "float32")}, [0, 0])
    first[...] = 2
    np.testing.assert_array_equal(second, np.ones((N, N)))


@pytest.mark.parametrize("executor", ["static"], indirect=True)
def test_memory_of_the_user_is_not_lent(executor):
    own = nd.empty((N, N))
    executor.set_input("x", np.ones((N, N), "float32"))
    executor.set_output_zero_copy(0, own)
    (result,) = executor.infer({})
    assert address(result) != own.handle
    np.testing.assert_array_equal(result, own.numpy())
