"""Index arithmetic is exact: properties of random expressions, checked at every point of small boxes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from relayc.te.index import IndexMath
from relayc.te.poly import Poly, number
from relayc.te.tir import Add, FloorDiv, FloorMod, IntImm, Max, Min, Mul, PrimExpr, SizeVar, Sub, Var, const

VARS = [Var("i"), Var("j"), Var("k")]


def evaluate(expr: PrimExpr, at: dict[Var, int]) -> int:
    if isinstance(expr, IntImm):
        return expr.value
    if isinstance(expr, Var):
        return at[expr]
    a, b = evaluate(expr.a, at), evaluate(expr.b, at)
    table: dict[type, Any] = {Add: int.__add__, Sub: int.__sub__, Mul: int.__mul__, FloorDiv: int.__floordiv__,
                              FloorMod: int.__mod__, Min: min, Max: max}  # fmt: skip
    return table[type(expr)](a, b)


leaves = st.one_of(st.sampled_from(VARS), st.integers(-6, 12).map(const))


def combine(inner: st.SearchStrategy[PrimExpr]) -> st.SearchStrategy[PrimExpr]:
    divisor = st.sampled_from([1, 2, 3, 4, 6, 8]).map(const)
    return st.one_of(
        st.builds(lambda op, a, b: op(a, b), st.sampled_from([Add, Add, Sub, Min, Max]), inner, inner),
        st.builds(Mul, inner, st.integers(-4, 8).map(const)),
        st.builds(lambda op, a, b: op(a, b), st.sampled_from([FloorDiv, FloorMod]), inner, divisor),
    )


expressions = st.recursive(leaves, combine, max_leaves=10)
boxes = st.tuples(*[st.integers(1, 7)] * 3)


def make(box: tuple[int, ...]) -> IndexMath:
    math = IndexMath()
    for var, extent in zip(VARS, box, strict=True):
        math.declare(var, number(extent))
    return math


def points(box: tuple[int, ...]) -> list[dict[Var, int]]:
    return [dict(zip(VARS, p, strict=True)) for p in itertools.product(*[range(n) for n in box])]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions, boxes)
def test_a_polynomial_has_the_values_of_its_expression_within_its_bounds(expr, box):
    math = make(box)
    poly = math.poly(expr, {})
    back = math.expr(poly)
    low, high = math.bounds(poly)
    values = [evaluate(expr, at) for at in points(box)]
    assert [evaluate(back, at) for at in points(box)] == values
    assert low is None or low <= min(values)
    assert high is None or high >= max(values)
    if math.nonneg(poly):
        assert min(values) >= 0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions, boxes, st.sets(st.sampled_from(VARS)))
def test_relaxing_covers_every_value_and_keeps_the_other_variables(expr, box, free):
    math = make(box)
    interval = math.relax(math.poly(expr, {}), frozenset(free))
    if interval is None:
        return
    first, span = math.expr(interval.lo), math.expr(interval.span)
    for poly in (interval.lo, interval.span):
        assert all(atom.vars.isdisjoint(free) for atom in poly.atoms())
    for at in points(box):
        assert 0 <= evaluate(expr, at) - evaluate(first, at) <= evaluate(span, at)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(expressions, expressions, boxes)
def test_quotients_and_remainders_of_polynomials(a, b, box):
    math = make(box)
    x = math.poly(a, {})
    for k in (1, 3, 8):
        quotient, rest = math.expr(math.floordiv(x, number(k))), math.expr(math.floormod(x, number(k)))
        for at in points(box):
            assert divmod(evaluate(a, at), k) == (evaluate(quotient, at), evaluate(rest, at))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (lambda f, i, n: (f * 6 + i) // 6 * 6 + (f * 6 + i) % 6, "f * 6 + i"),
        (lambda f, i, n: (f * 6 + i) // 3, "f * 2 + i // 3"),
        (lambda f, i, n: (f * 6 + i) // 6, "f"),
        (lambda f, i, n: (f * 7 // 7 // 5 * 5 + f * 7 // 7 % 5) * 2, "f * 2"),
        (lambda f, i, n: (f * n + n * 2) // n, "f + 2"),
        (lambda f, i, n: (i + 1) * n - i * n, "n"),
    ],
)
def test_split_and_fused_indices_simplify_to_the_original(expr, expected):
    math = IndexMath()
    f, i, n = Var("f"), Var("i"), SizeVar("n")
    math.declare(f, number(9))
    math.declare(i, number(6))
    assert str(math.expr(math.poly(expr(f, i, n), {}))) == expected


@pytest.mark.parametrize("inner", [2, 3, -3])
@pytest.mark.parametrize("outer", [4, 6])
@pytest.mark.parametrize("added", [-5, 0, 3])
def test_parts_of_parts_of_a_size_are_parts_of_it(inner: int, outer: int, added: int):
    n, math = SizeVar("n"), IndexMath()
    expr = FloorDiv(Add(FloorDiv(Add(n, const(2)), const(inner)), const(added)), const(outer))
    parts = math.poly(expr, {})
    if inner > 0:
        assert parts.key() == math.poly(FloorDiv(Add(n, const(2 + inner * added)), const(inner * outer)), {}).key()
    for size in range(40):
        assert evaluate(math.expr(parts), {n: size}) == evaluate(expr, {n: size})


def test_sizes_are_compared_symbolically():
    math, n, i = IndexMath(), SizeVar("n"), Var("i")
    size = math.var(n)
    math.declare(i, math.ceildiv(size, number(4)))
    assert math.nonneg(math.ceildiv(size, number(4)).scale(4) - size)
    assert math.nonneg(size - math.floordiv(size, number(4)).scale(4))
    assert not math.nonneg(size - 1 - math.var(i).scale(4) - 3)
    assert math.nonneg(math.ceildiv(size, number(4)) - 1 - math.var(i))


@pytest.mark.parametrize("size", [lambda n, m: Max(Sub(n, m), const(0)), lambda n, m: Sub(n, Min(n, const(512)))])
def test_a_tile_ends_within_a_size_that_is_an_extremum_itself(size: Any) -> None:
    math = IndexMath()
    math.may_assume = True
    extent = math.poly(size(SizeVar("n"), SizeVar("m")), {})
    math.assume(extent - 9)
    start = math.minimum(math.var(Var("start")), extent - 9)
    assert math.nonneg(extent - 9 - start) and not math.nonneg(extent - 10 - start)


class Counting(IndexMath):
    """Counts the calls of `nonneg`."""

    questions = 0

    def nonneg(self, p: Poly) -> bool:
        self.questions += 1
        return super().nonneg(p)


def minima(math: IndexMath, count: int) -> Poly:
    """``min(n0, 300) + min(n1, 300) + ...``"""
    sizes = [math.var(SizeVar(f"n{i}")) for i in range(count)]
    return sum([math.minimum(n, number(300)) for n in sizes], number(0))


def test_a_sum_of_many_extrema_is_not_tried_in_all_combinations() -> None:
    math = Counting()
    math.may_assume = True
    math.assume(math.var(SizeVar("a")) - math.var(SizeVar("b")))
    total = minima(math, 60)
    math.questions = 0
    assert math.nonneg(total) and not math.nonneg(total - math.var(SizeVar("c")))
    assert math.questions < 1000


def test_a_bounded_size_lies_between_0_and_its_largest_value() -> None:
    math = IndexMath()
    size = math.dim(SizeVar("n", most=15)) + 17
    assert math.bounds(size) == (17, 32)
    assert math.ceildiv(size, number(32)).const == 1
    assert math.ceildiv(size, number(8)).const is None
    assert math.ceildiv(size + 1, number(32)).const is None


N = SizeVar("n")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [(Min(N, const(1)) + Max(N - 1, const(0)), N), (Max(const(0), N - 1) * 3 + Min(const(1), N) * 3, N * 3),
     (Max(N // 2 - 1, const(0)) * N + Min(const(1), N // 2) * N, N // 2 * N)],
)  # fmt: skip
def test_a_size_cut_at_a_position_and_joined_again_is_the_size(expr, expected):
    math = IndexMath()
    assert math.poly(expr, {}).key() == math.poly(expected, {}).key()


def test_other_pairs_of_extrema_stay():
    math = IndexMath()
    for expr in (Min(N, const(1)) + Max(N - 2, const(0)), Min(N, const(1)) * 2 + Max(N - 1, const(0)),
                 Min(N, const(1)) - Max(N - 1, const(0))):  # fmt: skip
        assert {atom.kind for atom in math.poly(expr, {}).atoms()} >= {"min", "max"}


def test_a_quotient_is_at_least_its_minimum_with_a_number():
    math = IndexMath()
    quotient = (N + 3) // 4
    assert math.nonneg(math.poly(quotient - Min(const(1), quotient), {}))


def test_quotients_by_one_number_are_compared_by_what_is_divided():
    math = IndexMath()
    larger = (N + 6) // 4
    for expr, expected in ((Min((N + 1) // 2 + 1, N // 2 + 1), N // 2 + 1), (Max(larger, N // 4 + 1), larger),
                           (Min(larger, N // 4 + 3), larger),
                           (Max((N + 31) // 32 * 8, (N + 3) // 4), (N + 31) // 32 * 8)):  # fmt: skip
        assert math.poly(expr, {}).key() == math.poly(expected, {}).key()
    assert {atom.kind for atom in math.poly(Min((N + 6) // 4, N // 3 + 2), {}).atoms()} >= {"min"}


M = SizeVar("m")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [(N * 1040 // (N * 4), const(260)), (N * 1042 // (N * 4), N * 2 // (N * 4) + 260), (N * M * 8 // (N * 4), M * 2),
     (N * 1040 % (N * 4), const(0)), ((N * M * 8 + N * 3) // (N * 4), N * 3 // (N * 4) + M * 2)],
)  # fmt: skip
def test_a_quotient_by_a_multiple_of_a_size_takes_out_what_it_divides(expr, expected):
    math = IndexMath()
    poly = math.poly(expr, {})
    assert poly.key() == math.poly(expected, {}).key()
    for n, m in itertools.product(range(1, 4), range(4)):
        assert evaluate(math.expr(poly), {N: n, M: m}) == evaluate(expr, {N: n, M: m})
