"""Results reuse the memory of dying inputs, only where that is safe."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import backend, relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay.expr import Function, var
from relayc.relay.lowering.lower import Workload, lower
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import SizeVar


def build(*outputs: relay.Expr, params: list[relay.Var]):
    body = outputs[0] if len(outputs) == 1 else relay.Tuple(tuple(outputs))
    with PassContext(config={"relay.FuseOps.max_size": 1}):
        return relay.build(IRModule({"main": Function(tuple(params), body)}), target="llvm")


def run(lib, *inputs: np.ndarray) -> list[np.ndarray]:
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for i, x in enumerate(inputs):
        module.set_input(i, x)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


@pytest.mark.parametrize("size", [64, 61, 7, 1])
def test_a_chain_of_elementwise_kernels_is_right_in_place(size: int):
    x = var("x", (size,))
    y = x
    for _ in range(6):
        y = relay.op.add(relay.nn.relu(y), relay.const(1.0))
    data = np.linspace(-3, 3, size, dtype=np.float32)
    expected = data
    for _ in range(6):
        expected = np.maximum(expected, 0) + 1
    np.testing.assert_array_equal(run(build(y, params=[x]), data)[0], expected)


def test_whole_vectors_need_one_buffer_only():
    x = var("x", (64,))
    y = x
    for _ in range(6):
        y = relay.nn.relu(relay.op.add(y, x))
    assert build(y, params=[x]).build_report.arena_bytes == 256


def test_a_value_that_is_read_later_is_kept():
    x = var("x", (64,))
    y = relay.op.add(x, relay.const(1.0))
    z = relay.nn.relu(y)
    w = relay.op.multiply(z, y)
    data = np.linspace(-3, 3, 64, dtype=np.float32)
    out = run(build(relay.op.add(w, relay.const(0.5)), params=[x]), data)[0]
    np.testing.assert_array_equal(out, np.maximum(data + 1, 0) * (data + 1) + np.float32(0.5))


def test_a_transpose_does_not_work_in_place():
    x = var("x", (16, 16))
    y = relay.op.add(x, relay.const(1.0))
    z = relay.op.add(relay.op.transpose(y, (1, 0)), relay.const(2.0))
    data = np.arange(256, dtype=np.float32).reshape(16, 16)
    np.testing.assert_array_equal(run(build(z, params=[x]), data)[0], data.T + 3)


def test_only_what_is_overwritten_may_overlap():
    x, bias = var("x", (64, 64)), var("bias", (64,))
    kernel = lower(Workload.of(Function((x, bias), relay.op.add(x, bias))), backend.Target("llvm"))
    assert kernel.in_place == (0,) and kernel.function.attrs["overlapping"] == (0, 2)
    text = backend.build(IRModule({kernel.name: kernel.function}), target="llvm").get_source("raw-ll")
    (declared,) = [line for line in text.splitlines() if line.startswith("define") and f"@{kernel.name}(" in line]
    assert re.findall(r"ptr (\w*).*?%p(\d)", declared) == [("", "0"), ("noalias", "1"), ("", "2")]


def test_prefetching_leaves_kernels_in_place():
    target = backend.Target("llvm -mtune=znver4 -l1-bytes=32768 -l2-bytes=524288 -l3-bytes=8192")
    x, bias = var("x", (64, 512)), var("bias", (512,))
    kernel = lower(Workload.of(Function((x, bias), relay.tanh(relay.op.add(x, bias)))), target)
    assert "prefetch(" in str(kernel.function) and kernel.in_place == (0,)


def test_unrolled_tiles_that_overlap_do_not_work_in_place():
    n, m = SizeVar("n"), SizeVar("m")
    left, right, x = var("left", (n, m, 10)), var("right", (n, m, 10)), var("x", (n, m, 20))
    both = relay.op.concatenate((left, right), axis=2)
    kernel = lower(Workload.of(Function((left, right, x), relay.op.add(both, x))), backend.Target("llvm -mcpu=znver4"))
    assert kernel.in_place == ()
