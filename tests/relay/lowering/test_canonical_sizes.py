"""Kernels that differ only in the names of their size variables are one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.relay import op
from relayc.relay.lowering.canonical_sizes import CanonicalSizes
from relayc.relay.op.base import make_call
from relayc.relay.sizes import add_sizes, assuming, floor_divide, larger, normal, product, smaller
from relayc.te.tir import Dim, SizeVar

RNG = np.random.default_rng(5)


def largest(size: SizeVar) -> relay.Function:
    """The three largest values of each column of `size` rows, or all of fewer; a size is an attribute here too."""
    x = relay.var("x", (size, 6))
    return relay.Function((x,), op.topk(x, k=smaller(size, 3), axis=0)[0])


def test_functions_that_differ_in_size_variables_become_equal() -> None:
    sizes, n, m = CanonicalSizes(), SizeVar("n"), SizeVar("m")
    (first, names), (second, others) = sizes.rename(largest(n)), sizes.rename(largest(m))
    assert str(first) == str(second)
    assert names["#0"] is n and others["#0"] is m


def test_a_function_of_static_sizes_is_unchanged() -> None:
    x = relay.var("x", (4, 6))
    function = relay.Function((x,), op.nn.relu(x))
    renamed, names = CanonicalSizes().rename(function)
    assert renamed is function and not names


def bent(*shape: Dim) -> relay.Function:
    x = relay.var("x", shape)
    return relay.Function((x,), op.nn.relu(x))


def test_a_formula_becomes_one_variable_if_it_contains_all_occurrences() -> None:
    samples, batch = SizeVar("samples"), SizeVar("batch")
    frames = normal((samples + 240) // 320 - 1)
    renamed, names = CanonicalSizes().rename(bent(batch, frames, 8))
    assert str(renamed) == str(CanonicalSizes().rename(bent(SizeVar("n"), SizeVar("m"), 8))[0])
    assert names == {"#0": batch, "#1": frames}


def test_a_sum_of_extrema_becomes_a_variable() -> None:
    """Sequences joined of two parts of limited lengths: the rows of a product, whose tiles are then constant."""
    n, m = SizeVar("n"), SizeVar("m")
    length = add_sizes(smaller(n, m), larger(m - n * 2 - 1, 0))
    renamed, names = CanonicalSizes().rename(bent(length, 8))
    assert str(renamed) == str(CanonicalSizes().rename(bent(n, 8))[0])
    assert names == {"#0": length}


@pytest.mark.parametrize(
    ("frames", "own"),
    [(lambda n: n * 12, "#0*12"), (lambda n: n // 4 * 4, "#0*4"), (lambda n: 100 // n, "100 // #0"),
     (lambda n: n % 7, "#0 % 7")],
)  # fmt: skip
def test_a_size_keeps_what_is_known_of_its_factors_and_divisors(frames: Callable[[SizeVar], Dim], own: str) -> None:
    renamed, _ = CanonicalSizes().rename(bent(normal(frames(SizeVar("n")))))
    assert str(renamed.params[0].tensor_type.shape[0]).replace(" * ", "*") == own


def test_convolutions_tiled_over_pixels_abstract_multiples() -> None:
    def convolution(lines: Dim, more: Dim) -> relay.Function:
        x, weight = relay.var("x", (1, lines, 8, 16)), relay.var("w", (2, 1, 1, 16, 16))
        y = make_call("nn.conv2d_nhwc_packed", (x, weight), channels=32)
        return relay.Function((x, weight), op.add(y, relay.var("r", (1, more, 8, 32))))

    n = SizeVar("n")
    renamed, names = CanonicalSizes().rename(convolution(normal(n * 4), normal(n * 4)))
    assert [str(size) for size in names.values()] == ["n * 4"]
    assert str(renamed) == str(CanonicalSizes().rename(convolution(n, n))[0])
    halves = normal((n + 1) // 2 * 2)
    assert str(CanonicalSizes().rename(convolution(halves, halves))[0]) == str(renamed)


def test_a_variable_that_occurs_alone_stays() -> None:
    n = SizeVar("n")
    x, y = relay.var("x", (n, 4)), relay.var("y", (normal(n // 2), 4))
    _, names = CanonicalSizes().rename(relay.Function((x, y), op.concatenate([x, y], axis=0)))
    assert names == {"#0": n}


def test_sizes_assumed_equal_are_unified() -> None:
    n = SizeVar("n")
    cut = add_sizes(larger(add_sizes(n, product((-1, smaller(n, 1)))), 0), 1)  # n without a first one, and one more
    x, w, y = relay.var("x", (2, cut, 8)), relay.var("w", (4, 8)), relay.var("y", (1, n, 4))
    with assuming():
        body = op.add(op.nn.dense(x, w), y)
    renamed, names = CanonicalSizes().rename(relay.Function((x, w, y), body))
    assert names == {"#0": n}
    assert [str(p.tensor_type.shape[1]) for p in renamed.params] == ["#0", "8", "#0"]


def test_sizes_are_unified_where_any_operator_requires_it() -> None:
    n = SizeVar("n")
    more = smaller(floor_divide(n, 2), 5)
    long, longer = add_sizes(n, more), add_sizes(n, more, more)
    parts = [relay.var(name, (2, size, 8)) for name, size in zip("xyz", (longer, n, long), strict=True)]
    with assuming():
        body = op.concatenate([op.concatenate(parts[:2], axis=2), parts[2]], axis=2)
    renamed, names = CanonicalSizes().rename(relay.Function(tuple(parts), body))
    assert [str(p.tensor_type.shape[1]) for p in renamed.params] == ["#0", "#0", "#0"]
    assert names == {"#0": n}


def test_a_number_replaces_sizes_that_must_be_equal_to_it() -> None:
    n = SizeVar("n")
    x, y = relay.var("x", (4, 2)), relay.var("y", (n, 2))
    with assuming():
        function = relay.Function((x, y), op.add(x, y))
    renamed, _ = CanonicalSizes().rename(function)
    assert [p.tensor_type.shape[0] for p in renamed.params] == [4, 4]


def test_a_sum_of_multiples_becomes_a_multiple_of_one_variable() -> None:
    n = SizeVar("n")
    total = add_sizes(*[product((scale * scale, floor_divide(add_sizes(n, 3), scale))) for scale in (2, 4, 6)])
    renamed, names = CanonicalSizes().rename(bent(total))
    assert str(renamed.params[0].tensor_type.shape[0]) == "#0 * 4"
    assert product((4, names["#0"])) is total


def test_a_sum_of_products_becomes_a_variable() -> None:
    """Images of several sides as rows of one product."""
    n, m = SizeVar("n"), SizeVar("m")
    halves = [product([floor_divide(add_sizes(size, side - 1), side) for size in (n, m)]) for side in (2, 4, 8)]
    renamed, names = CanonicalSizes().rename(bent(add_sizes(*halves), 8))
    assert str(renamed) == str(CanonicalSizes().rename(bent(n, 8))[0])
    assert names == {"#0": add_sizes(*halves)}


def test_a_product_of_sizes_becomes_a_variable_times_its_number() -> None:
    """The pixels of an image after two upsamplings."""
    n, m = SizeVar("n"), SizeVar("m")
    pixels = product((n, 2, m, 2))
    renamed, names = CanonicalSizes().rename(bent(SizeVar("batch"), pixels, 8))
    assert str(renamed.params[0].tensor_type) == "Tensor[(#0, #1 * 4, 8), float32]"
    assert names["#1"] == product((n, m))
    assert CanonicalSizes().rename(bent(n, product((n, m))))[1] == {"#0": n, "#1": m}, "n occurs alone as well"


def test_products_abstract_multiples_unless_rows_are_those_of_images() -> None:
    def dense(*rows: Dim) -> relay.Function:
        x, weight = relay.var("x", (*rows, 16)), relay.var("w", (2, 16, 16))
        return relay.Function((x, weight), make_call("nn.dense_packed", (x, weight), units=32))

    n, m = SizeVar("n"), SizeVar("m")
    levels = [CanonicalSizes().rename(dense(n, product((m, number))))[0] for number in (1, 4, 16)]
    assert len({str(level) for level in levels}) == 1
    windows, names = CanonicalSizes().rename(dense(product((n, 64)), 49))
    assert str(windows.params[0].tensor_type.shape[0]) == "#0 * 64"
    assert names == {"#0": n}


def test_norms_abstract_multiples_with_channels_last() -> None:
    def norm(axis: int) -> str:
        gamma = relay.var("gamma", (8,))
        sides = product((SizeVar("n"), 2)), product((SizeVar("m"), 4))
        x = relay.var("x", (2, 8, *sides) if axis == 1 else (2, *sides, 8))
        function = relay.Function((x, gamma), op.nn.group_norm(x, gamma, gamma, num_groups=4, axis=axis))
        return str(CanonicalSizes().rename(function)[0].params[0].tensor_type)

    assert norm(3) == "Tensor[(2, #0, #1, 8), float32]"
    assert norm(1) == "Tensor[(2, 8, #0 * 2, #1 * 4), float32]"


def test_levels_of_a_pyramid_become_quotients_of_the_largest() -> None:
    def joined(size: Dim, half: Dim, eighth: Dim) -> relay.Function:
        params = [relay.var(f"x{i}", (d, 8)) for i, d in enumerate((half, size, eighth))]
        return relay.Function(tuple(params), op.concatenate(params, axis=0))

    n = SizeVar("n")
    first = joined(n, floor_divide(n + 1, 2), floor_divide(n + 7, 8))
    third = joined(floor_divide(n + 3, 4), floor_divide(n + 7, 8), floor_divide(n + 31, 32))
    renamed, names = CanonicalSizes().rename(third)
    assert str(renamed) == str(CanonicalSizes().rename(first)[0])
    assert names == {"#0": floor_divide(n + 3, 4)}
    assert CanonicalSizes().rename(joined(n // 4, n // 8, (n + 1) // 16))[1] == {"#0": n}, "not a quotient of n // 4"


def test_a_size_of_at_most_one_is_not_unified() -> None:
    n = SizeVar("n")
    x, y = relay.var("x", (smaller(n, 1), 4)), relay.var("y", (n, 4))
    with assuming():
        function = relay.Function((x, y), op.add(x, y))
    renamed, _ = CanonicalSizes().rename(function)
    assert [str(p.tensor_type.shape[0]) for p in renamed.params] == ["min(#0, 1)", "#0"]


def test_a_size_of_at_most_one_is_no_variable_of_its_own() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    x, y = relay.var("x", (smaller(n, 1), 4)), relay.var("y", (m, 4))
    with assuming():
        function = relay.Function((x, y), op.add(x, y))
    renamed, _ = CanonicalSizes().rename(function)
    assert [str(p.tensor_type.shape[0]) for p in renamed.params] == ["min(#0, 1)", "#1"]
    assert str(renamed.body.tensor_type.shape[0]) == "#1"


def test_sizes_of_results_follow_from_the_formula() -> None:
    n = SizeVar("n")
    x = relay.var("x", (1, 4, normal((n + 1) // 2)))
    function = relay.Function((x,), op.nn.max_pool1d(x, pool_size=2, strides=2))
    renamed, names = CanonicalSizes().rename(function)
    assert names == {"#0": normal((n + 1) // 2)}
    assert str(renamed.body.tensor_type.shape[2]) == "#0 // 2"


@pytest.mark.parametrize("target", ["llvm", "interp"])
def test_layers_share_a_kernel_that_takes_the_values_of_their_formulas(target: str) -> None:
    n = SizeVar("n")
    x = relay.var("x", (1, 4, n))
    layers = [x]
    for _ in range(3):
        layers.append(op.nn.max_pool1d(layers[-1], pool_size=3, strides=2, padding=(1, 1)))
    lib = relay.build(relay.Function((x,), layers[-1]), target=target)
    assert lib.build_report.kernels == 1 and lib.build_report.nodes == 3
    if target == "llvm":
        lib = CompiledModel.from_bytes(lib.to_bytes())
    executor = graph_executor.GraphModule(lib["default"](device(lib.graph.device, 0)))
    for length in (1, 2, 7, 64, 133):
        data = RNG.standard_normal((1, 4, length), dtype=np.float32)
        executor.set_input("x", data)
        executor.run()
        expected = data
        for _ in range(3):
            padded = np.pad(expected, ((0, 0), (0, 0), (1, 2)), constant_values=-np.inf)
            lines = -(-expected.shape[2] // 2)
            expected = np.stack([padded[:, :, k : k + 2 * lines : 2][:, :, :lines] for k in range(3)]).max(0)
        np.testing.assert_array_equal(executor.get_output(0).numpy(), expected)


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
