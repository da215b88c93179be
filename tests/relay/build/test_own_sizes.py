"""Kernels that differ only in whose sizes they are about are one."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from backend.runtime import device, graph_executor
from relay import op
from relay.build.own_sizes import OwnSizes
from relay.sizes import smaller
from te.tir import SizeVar

RNG = np.random.default_rng(5)


def largest(size: SizeVar) -> relay.Function:
    """The three largest values of each column of `size` lines, or all of fewer; a size is an attribute here too."""
    x = relay.var("x", (size, 6))
    return relay.Function((x,), op.topk(x, k=smaller(size, 3), axis=0)[0])


def test_functions_of_different_sizes_become_equal() -> None:
    sizes, n, m = OwnSizes(), SizeVar("n"), SizeVar("m")
    (first, names), (second, others) = sizes.rename(largest(n)), sizes.rename(largest(m))
    assert str(first) == str(second)
    assert names["#0"] is n and others["#0"] is m


def test_a_function_of_known_sizes_stays_as_it_is() -> None:
    x = relay.var("x", (4, 6))
    function = relay.Function((x,), op.nn.relu(x))
    renamed, names = OwnSizes().rename(function)
    assert renamed is function and not names


@pytest.mark.parametrize("target", ["llvm", "interp"])
def test_one_kernel_serves_several_sizes(target: str) -> None:
    sizes = [SizeVar(f"n{i}") for i in range(4)]
    params = [relay.var(f"x{i}", (n, 6)) for i, n in enumerate(sizes)]
    results = [op.topk(x, k=smaller(n, 3), axis=0)[0] for x, n in zip(params, sizes, strict=True)]
    lib = relay.build(relay.Function(tuple(params), relay.Tuple(tuple(results))), target=target)
    assert lib.build_report.kernels == 1 and lib.build_report.nodes == 4
    executor = graph_executor.GraphModule(lib["default"](device(lib.graph.device, 0)))
    data = [RNG.standard_normal((lines, 6), dtype=np.float32) for lines in (5, 1, 8, 2)]
    for i, x in enumerate(data):
        executor.set_input(f"x{i}", x)
    executor.run()
    for i, x in enumerate(data):
        np.testing.assert_array_equal(executor.get_output(i).numpy(), -np.sort(-x, axis=0)[:3])
