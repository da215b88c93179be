"""The memory traffic and the work attributed to a kernel."""

from __future__ import annotations

import numpy as np

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.sizes import evaluate
from relayc.relay.lowering.lower import Workload
from relayc.te.tir import SizeVar


def bytes_of(body: relay.Expr) -> int:
    return Workload.of(relay.Function(tuple(relay.analysis.free_vars(body)), body)).nbytes


def test_arguments_and_results_are_touched_once():
    x, y = relay.var("x", (10, 20)), relay.var("y", (20,))
    assert bytes_of(x + y) == 4 * (200 + 20 + 200)


def test_a_gather_reads_only_the_gathered_rows():
    table, rows = relay.var("table", (1000, 8)), relay.var("rows", (3,), "int32")
    picked = relay.take(table, rows, axis=0)
    assert bytes_of(picked) == 4 * (3 * 8 + 3 + 3 * 8)
    assert bytes_of(relay.add(picked, relay.sum(table, axis=(0,)))) == 4 * (1000 * 8 + 3 + 3 * 8)
    assert bytes_of(relay.take(relay.var("few", (2, 8)), rows, axis=0)) == 4 * (2 * 8 + 3 + 3 * 8)


def test_a_slice_reads_its_part():
    x = relay.var("x", (100, 8))
    assert bytes_of(relay.strided_slice(x, (10,), (20,), (1,), (0,))) == 4 * (80 + 80)


def test_the_work_of_a_product():
    x = relay.var("x", (4, 16))
    body = relay.nn.dense(x, relay.const(np.zeros((8, 16), np.float32)))
    assert Workload.of(relay.Function((x,), body)).flops == 2 * 4 * 16 * 8
    assert Workload.of(relay.Function((x,), body)).multiplied == "float32"


def test_work_of_dynamic_sizes_is_a_formula_of_them_in_exact_arithmetic():
    n = SizeVar("n")
    x, w = relay.var("x", shape=(n, 1 << 12)), relay.var("w", shape=(1 << 20, 1 << 12))
    workload = Workload.of(relay.Function((x, w), relay.nn.dense(x, w)))
    assert evaluate(workload.operations, {"n": 3}) == 2 * 3 << 32  # more than 32 bits hold
    assert evaluate(workload.traffic, {"n": 3}) == 4 * ((3 << 12) + (1 << 32) + (3 << 20))
    assert (workload.flops, workload.nbytes) == (0, 4 << 32)  # of static extents only


def test_functions_that_differ_in_the_sign_of_zero_only_are_different():
    x = relay.var("x", (4,))
    padded = [relay.nn.pad(x, ((0, 1),), pad_value=value) for value in (0.0, -0.0)]
    lib = relay.build(relay.Function((x,), relay.Tuple(tuple(padded))))
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    module.run(x=np.ones(4, np.float32))
    assert [bool(np.signbit(module.get_output(i).numpy()[-1])) for i in range(2)] == [False, True]


def test_a_profile_counts_the_work_of_the_sizes_that_ran():
    n = SizeVar("n")
    x, w = relay.var("x", shape=(n, 64)), relay.const(np.ones((32, 64), np.float32))
    function = relay.Function((x,), relay.nn.softmax(relay.nn.dense(x, w)))
    module = graph_executor.GraphModule(relay.build(function, "llvm")["default"](device("cpu", 0)))
    for rows in (3, 50):
        product, softmax = module.profile(repeat=1, x=np.ones((rows, 64), np.float32))
        assert (product.flops, product.bytes) == (2 * rows * 64 * 32, 4 * (rows * 64 + 64 * 32 + rows * 32))
        assert product.shapes == f"float32[{rows},32]" and product.multiplied == "float32"
        assert (softmax.flops, softmax.bytes, softmax.multiplied) == (0, 4 * 2 * rows * 32, "")
