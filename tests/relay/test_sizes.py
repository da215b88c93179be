"""Arithmetic of symbolic dimensions."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, strategies as st

from relayc.backend.runtime import sizes as runtime_sizes
from relayc.backend.size_json import size_to_json
from relayc.relay import sizes
from relayc.relay.type import TensorType, broadcast_shapes
from relayc.te.index import IndexMath
from relayc.te.ir import collect
from relayc.te.tir import SizeVar

N, M = SizeVar("n"), SizeVar("m")


def test_equal_sizes_are_one_object():
    assert sizes.normal(N * M + N) is sizes.normal((M + 1) * N)
    assert sizes.product((N, 2, M)) is sizes.normal(2 * M * N)
    assert TensorType((N + 0, M)) is TensorType((N, M * 1))
    assert sizes.quotient((N, 12, M), (M, 4)) is sizes.normal(N * 3)
    assert sizes.quotient((N, 7), (2,)) is None and sizes.quotient((0,), (0,)) == 1


def test_sizes_not_known_to_differ_may_be_assumed_equal():
    assert not sizes.dims_match(N, M)
    with sizes.assuming() as assumed:
        assert sizes.dims_match(N, M) and sizes.dims_match(N, 3)
        assert not sizes.dims_match(sizes.normal(N + 1), N)
        assert not sizes.dims_match(sizes.normal(N + 5), 4)
        assert broadcast_shapes((N,), (8,)) == (8,)
    assert [(a, b) for a, b in assumed.equal] == [(N, M), (N, 3), (N, 8)]


def test_assumptions_are_local_to_a_thread():
    with sizes.assuming() as assumed, ThreadPoolExecutor(1) as other:
        assert not other.submit(sizes.dims_match, N, M).result(30)
        assert not assumed.equal


leaves = st.one_of(st.integers(0, 9), st.sampled_from([N, M]))
trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda f, a, b: f(a, b),
        st.sampled_from([sizes.add_sizes, lambda a, b: sizes.product((a, b)), sizes.smaller, sizes.larger]),
        inner,
        inner,
    ),
    max_leaves=6,
)


@given(trees, st.integers(0, 20), st.integers(0, 20))
def test_the_runtime_evaluates_sizes_like_the_compiler(size, n, m):
    """to_json and back is the same object; its value at run time is that of substitution."""
    value = {"n": n, "m": m}
    text = size_to_json(size)
    assert sizes.dims_equal(sizes.size_from_json(text, {"n": N, "m": M}), size)
    assert runtime_sizes.evaluate(text if not isinstance(text, list) else _tuples(text), value) == sizes.evaluate(
        size, value
    )


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def test_lengths_after_several_strides_are_one_division():
    once, twice = sizes.floor_divide(sizes.add_sizes(N, 63), 64), N
    for _ in range(6):
        twice = sizes.floor_divide(sizes.add_sizes(twice, 1), 2)
    assert once is twice
    length = N
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (2, 2)):
        length = sizes.add_sizes(sizes.floor_divide(sizes.add_sizes(length, -kernel), stride), 1)
    for size in range(60, 200):
        expected = size
        for kernel, stride in ((10, 5), (3, 2), (3, 2), (2, 2)):
            expected = (expected - kernel) // stride + 1
        assert sizes.evaluate(length, {"n": size}) == expected


def test_normal_forms_are_freed_with_their_variables():
    def alive() -> int:
        gc.collect()
        return sum(isinstance(x, SizeVar) and x.name == "fleeting" for x in gc.get_objects())

    n, m = SizeVar("fleeting"), SizeVar("fleeting")
    assert sizes.product((n, m, 3)) is sizes.product((m, 3, n))
    assert sizes.smaller(sizes.add_sizes(n, 1), m) is sizes.smaller(sizes.normal(1 + n), m)
    assert TensorType((n, sizes.floor_divide(m, 2))) is TensorType((n, sizes.normal(m // 2)))
    del n, m
    assert alive() == 0


def test_normal_forms_of_different_variables_are_merged():
    a, b, c = SizeVar("a"), SizeVar("b"), SizeVar("c")
    half, twice, rest = sizes.floor_divide(a, 2), sizes.product((b, 2)), sizes.smaller(c, 4)
    both = sizes.add_sizes(half, twice, rest)
    assert both is sizes.add_sizes(rest, sizes.normal(2 * b), sizes.normal(a // 2))
    assert sizes.floor_divide(a, 2) is half and sizes.product((2, b)) is twice and sizes.smaller(c, 4) is rest
    copied = copy.deepcopy(both)
    assert copied is not both and [v.name for v in collect(copied, SizeVar)] == ["a", "b", "c"]
    assert not sizes.dims_equal(copied, both)


def test_polynomials_of_sums_are_cached(monkeypatch):
    names = [SizeVar(f"n{i}") for i in range(100)]
    total = sizes.add_sizes(*[sizes.smaller(n, 300) for n in names])
    taken_apart: list[object] = []
    monkeypatch.setattr(IndexMath, "poly", lambda _, expr, values: taken_apart.append(expr))
    assert sizes.product((total, 4)) is sizes.product((4, total))
    assert sizes.dims_equal(sizes.add_sizes(total, 1), sizes.add_sizes(1, total))
    assert not taken_apart


def test_an_estimate_assumes_one_value_for_all_variables():
    n, m = SizeVar("n"), SizeVar("m")
    total = sizes.add_sizes(sizes.smaller(n, 100), sizes.product((m, 2)))
    assert sizes.likely(total) == sizes.likely(total) == 100 + 2 * sizes.LIKELY_SIZE
    assert sizes.likely(7) == 7


def test_an_estimate_of_the_windows_of_an_audio_signal_is_positive():
    """With the usual number of samples there are no windows, and a quotient by their number has no value."""
    samples = SizeVar("samples")
    windows = sizes.add_sizes(sizes.normal((samples - 400) // 320), 1)
    assert sizes.likely(windows) == (16 * sizes.LIKELY_SIZE - 400) // 320 + 1
    none = sizes.normal((samples + 240) // 320 - 1)
    assert sizes.likely(sizes.floor_divide(sizes.product((none, 12)), none)) == 12
    assert sizes.likely(sizes.normal((samples * 0 + 5) // (samples * 0 + 7))) == 0
