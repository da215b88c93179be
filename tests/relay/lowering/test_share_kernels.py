"""Fused functions that differ only in scalar constants share one kernel, which takes them as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend import Target
from relayc.backend.runtime import CompiledModel, device, graph_executor
from relayc.relay import op
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.load_scalars import LoadScalars
from relayc.relay.lowering.lower import lower
from relayc.relay.lowering.share_kernels import ShareKernels
from relayc.relay.sizes import assuming
from relayc.te.ir import IRModule, collect
from relayc.te.tir import BufferLoad, LetStmt, SizeVar

RNG = np.random.default_rng(17)


def number(value: float, dtype: str = "float32") -> relay.Constant:
    return relay.Constant(np.asarray(value, dtype))


def scaled(values: Sequence[tuple[float, float]], dtype: str = "float32") -> relay.Function:
    """One output for each (factor, shift)."""
    x = relay.var("x", (4, 24), dtype)
    outputs = [op.add(op.multiply(x, number(a, dtype)), number(b, dtype)) for a, b in values]
    return relay.Function((x,), relay.Tuple(outputs))


def built(function: relay.Function, target: str = "llvm") -> CompiledModel:
    return relay.build(function, target)


def run(lib: CompiledModel, **inputs: Any) -> list[np.ndarray[Any, Any]]:
    executor = graph_executor.GraphModule(lib["default"](device(lib.graph.device, 0)))
    for name, value in inputs.items():
        executor.set_input(name, value)
    executor.run()
    return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]


def alone(function: relay.Function, target: str, **inputs: Any) -> list[np.ndarray[Any, Any]]:
    """The outputs of a function computed one by one, each by a kernel with its constants in the code."""
    assert isinstance(function.body, relay.Tuple)
    return [run(built(relay.Function(function.params, body), target), **inputs)[0] for body in function.body.fields]


def test_assumed_size_equalities_hold_for_shared_kernels() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    x, y = relay.var("x", (n, 8)), relay.var("y", (m, 4, 2))
    with assuming():
        parts = [op.add(op.reshape(op.multiply(x, number(c)), (m, 4, 2)), y) for c in (2.5, -0.5)]
    lib = built(relay.Function((x, y), relay.Tuple(parts)))
    assert lib.build_report.kernels == 1
    a = RNG.standard_normal((3, 8), dtype=np.float32)
    b = RNG.standard_normal((3, 4, 2), dtype=np.float32)
    for found, c in zip(run(lib, x=a, y=b), (2.5, -0.5), strict=True):
        np.testing.assert_allclose(found, a.reshape(3, 4, 2) * np.float32(c) + b, rtol=1e-6)


@pytest.mark.parametrize("target", ["llvm", "c", "interp"])
def test_one_kernel_serves_several_constants(target: str) -> None:
    function = scaled([(2.5, 0.25), (0.3, -7.5), (1e-3, 1e20)])
    lib = built(function, target)
    assert lib.build_report.kernels == 1 and lib.build_report.nodes == 3
    x = RNG.standard_normal((4, 24), dtype=np.float32)
    for got, expected in zip(run(lib, x=x), alone(function, target, x=x), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int16", "int64"])
def test_constants_of_every_type(dtype: str) -> None:
    function = scaled([(3, 5), (6, 9), (7, 5)], dtype)
    lib = built(function)
    assert lib.build_report.kernels == 1
    x = RNG.integers(0, 6, (4, 24)).astype(relay.expr.numpy_dtype(dtype))
    for got, expected in zip(run(lib, x=x), alone(function, "llvm", x=x), strict=True):
        np.testing.assert_array_equal(got, expected)


def parameters(*bodies: relay.Expr) -> list[list[float]]:
    """The constants that the kernels of these expressions take as parameters."""
    x = next(e for e in relay.analysis.free_vars(relay.Tuple(bodies)))
    module = relay.optimize(relay.Function((x,), relay.Tuple(bodies)), "llvm")
    graph = make_graph(module["main"])
    ShareKernels()(IRModule({"main": graph}))
    numbers = {name: float(data) for name, data in graph.params.items()}
    given = [[graph.tensors[i].storage or () for i in node.inputs] for node in graph.nodes]
    return [[numbers[str(place[1])] for place in places if place[0] == "param"] for places in given]


def x_of(*shape: int) -> relay.Var:
    return relay.var("x", shape)


def test_constants_common_to_all_functions_stay_in_the_code() -> None:
    x = x_of(4, 8)
    assert parameters(*[op.tanh(op.maximum(op.add(x, number(b)), number(0.2))) for b in (0.5, 0.75)]) == [[0.5], [0.75]]


def test_constants_that_coincide_are_one_parameter() -> None:
    x = x_of(4, 8)
    bodies = [op.maximum(op.multiply(op.add(x, number(c)), number(3 * c)), number(c)) for c in (0.5, 0.7)]
    assert parameters(*bodies) == [pytest.approx([0.5, 1.5]), pytest.approx([0.7, 2.1])]


def test_a_unique_function_keeps_its_constants() -> None:
    x = x_of(4, 8)
    assert parameters(op.add(x, number(0.3)), op.multiply(x, number(0.4)), op.add(op.tanh(x), number(0.5))) == [[]] * 3


@pytest.mark.parametrize(("a", "b"), [(0.0, 3.5), (1.0, 3.5), (-1.0, 3.5), (float("-inf"), -3.5)])
def test_constants_that_specialise_code_stay_in_it(a: float, b: float) -> None:
    x = x_of(4, 8)
    assert parameters(*[op.maximum(x, number(value)) for value in (a, b)]) == [[], []]


@pytest.mark.parametrize("binary", [op.power, op.floor_divide])
def test_exponents_and_power_of_two_divisors_stay_in_the_code(binary: Any) -> None:
    x = x_of(4, 8)
    assert parameters(binary(x, number(2.0)), binary(x, number(4.0))) == [[], []]


def test_other_divisors_become_data() -> None:
    x = x_of(4, 8)
    assert parameters(*[op.floor_divide(x, number(value)) for value in (3.0, 5.5)]) == [[3.0], [5.5]]


def test_integer_divisors_and_shifts_stay_in_the_code() -> None:
    x = relay.var("x", (4, 8), "int32")
    for binary in (op.divide, op.floor_mod, op.left_shift):
        assert parameters(*[binary(x, number(value, "int32")) for value in (3, 5)]) == [[], []]


def test_one_kernel_picks_any_column() -> None:
    x = relay.var("x", (40, 5))
    columns = [op.take(x, number(i, "int64"), axis=1, mode=mode) for i in range(5) for mode in ("fast", "numpy")]
    lib = built(relay.Function((x,), relay.Tuple(columns)))
    assert lib.build_report.kernels == 2
    data = RNG.standard_normal((40, 5), dtype=np.float32)
    for i, got in enumerate(run(lib, x=data)):
        np.testing.assert_array_equal(got, data[:, i // 2])


def test_kernels_of_different_sizes_and_constants_are_one() -> None:
    rows = [SizeVar(f"n{i}") for i in range(3)]
    params = [relay.var(f"x{i}", (n, 6)) for i, n in enumerate(rows)]
    factors = (0.5, 0.7, 0.9)
    results = [op.nn.softmax(op.multiply(x, number(f))) for x, f in zip(params, factors, strict=True)]
    lib = built(relay.Function(tuple(params), relay.Tuple(results)))
    assert lib.build_report.kernels == 1 and lib.build_report.nodes == 3
    data = [RNG.standard_normal((lines, 6), dtype=np.float32) for lines in (5, 1, 8)]
    for x, factor, got in zip(data, factors, run(lib, **{f"x{i}": x for i, x in enumerate(data)}), strict=True):
        powers = np.exp(x * np.float32(factor))
        np.testing.assert_allclose(got, powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_equal_constants_of_a_graph_are_one_tensor() -> None:
    lib = built(scaled([(2.5, 0.25), (0.25, 2.5), (0.25, 0.25)]))
    assert sorted(float(p) for p in lib.params.values()) == [0.25, 2.5]


def test_scalars_are_loaded_before_the_loops() -> None:
    a = te.placeholder((4, 8), name="a")
    b = te.placeholder((), name="b")
    c = te.compute(a.shape, lambda i, j: a[i, j] * b() + b(), name="c")
    s = te.create_schedule(c.op)
    function = LoadScalars(2)(te.lower(s, [a, b, c], name="f"))["f"]
    assert isinstance(function.body, LetStmt)
    assert [load.buffer.name for load in collect(function.body.value, BufferLoad)] == ["b"]
    assert "b" not in {load.buffer.name for load in collect(function.body.body, BufferLoad)}


def test_in_place_kernels_load_their_scalars_once() -> None:
    x = x_of(4, 8)
    bodies = [op.multiply(x, number(value)) for value in (0.5, 0.7)]
    graph = make_graph(relay.optimize(relay.Function((x,), relay.Tuple(bodies)), "llvm")["main"])
    ShareKernels()(IRModule({"main": graph}))
    kernel = lower(graph.nodes[0].workload, Target("llvm"))
    assert kernel.in_place == (0,)
    assert isinstance(kernel.function.body, LetStmt)


@pytest.mark.parametrize("target", ["llvm", "c", "interp"])
@pytest.mark.parametrize("stride", [1, -1])
def test_many_slices_share_a_kernel_that_takes_their_positions(target: str, stride: int) -> None:
    x = relay.var("x", (3, 40))

    def sliced(i: int) -> relay.Expr:
        first, last = (i, i + 4) if stride > 0 else (i + 3, i - 1 - 40 * (i == 0))
        return op.tanh(relay.strided_slice(x, (first,), (last,), (stride,), axes=(1,)))

    parts = [sliced(i) for i in range(36)]
    lib = built(relay.Function((x,), relay.Tuple(parts)), target)
    assert lib.build_report.kernels == 1
    few = built(relay.Function((x,), relay.Tuple(parts[:4])), target)
    assert few.build_report.kernels == 4
    data = RNG.standard_normal((3, 40), dtype=np.float32)
    for i, found in enumerate(run(lib, x=data)):
        np.testing.assert_allclose(found, np.tanh(data[:, i : i + 4][:, ::stride]), rtol=1e-5, atol=1e-6)
