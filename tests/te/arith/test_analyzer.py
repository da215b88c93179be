"""The analyzer against brute force: simplification, bounds, proofs and intervals are correct for all values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT32, INT64
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Call,
    Cast,
    Compare,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Range,
    Select,
    SizeVar,
    Sub,
    Var,
    broadcast,
    const,
    decl_buffer,
    likely,
    maximum,
    minimum,
    ramp,
    select,
)  # fmt: skip
from relayc.te.tir.expr import BufferLoad

X, J, K = Var("i"), Var("j"), Var("k")
N, M = SizeVar("n"), SizeVar("m")
EXTENTS = {X: 6, J: 4, K: 3}

_MEANING = {
    Add: lambda a, b: a + b, Sub: lambda a, b: a - b, Mul: lambda a, b: a * b, FloorDiv: lambda a, b: a // b,
    FloorMod: lambda a, b: a % b, Min: min, Max: max, LT: lambda a, b: a < b, LE: lambda a, b: a <= b,
    GT: lambda a, b: a > b, GE: lambda a, b: a >= b, EQ: lambda a, b: a == b, NE: lambda a, b: a != b,
    And: lambda a, b: a and b, Or: lambda a, b: a or b,
}  # fmt: skip


def evaluate(expr: PrimExpr, env: Mapping[Var, int]) -> int:
    if isinstance(expr, IntImm):
        return expr.value
    if isinstance(expr, Var):
        return env[expr]
    if isinstance(expr, Not):
        return int(not evaluate(expr.a, env))
    if isinstance(expr, Call) and expr.op == "likely":
        return evaluate(expr.args[0], env)
    if isinstance(expr, Select):
        return evaluate(expr.true_value if evaluate(expr.condition, env) else expr.false_value, env)
    return int(_MEANING[type(expr)](evaluate(expr.a, env), evaluate(expr.b, env)))


def points(extents: Mapping[Var, int]):
    for values in itertools.product(*[range(e) for e in extents.values()]):
        yield dict(zip(extents, values, strict=True))


def bound_analyzer() -> Analyzer:
    analyzer = Analyzer()
    for var, extent in EXTENTS.items():
        analyzer.bind(var, Range(0, extent))
    return analyzer


_leaf = st.one_of(st.sampled_from([X, J, K]), st.integers(-9, 20).map(const))
_divisor = st.sampled_from([2, 3, 4, 6, 8, 12, -3]).map(const)


def _grow(inner):
    return st.one_of(
        st.builds(Add, inner, inner), st.builds(Sub, inner, inner),
        st.builds(Mul, inner, st.sampled_from([2, 3, 4, 8, -1, -4]).map(const)),
        st.builds(FloorDiv, inner, _divisor), st.builds(FloorMod, inner, _divisor),
        st.builds(Min, inner, inner), st.builds(Max, inner, inner),
        st.builds(lambda a, b, c: Select(LT(a, b), a, c), inner, inner, inner),
    )  # fmt: skip


INDEX = st.recursive(_leaf, _grow, max_leaves=9)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(INDEX)
def test_simplify_keeps_the_value(expr):
    analyzer = bound_analyzer()
    simple = analyzer.simplify(expr)
    low, high = analyzer.const_bounds(expr)
    for env in points(EXTENTS):
        value = evaluate(expr, env)
        assert evaluate(simple, env) == value, str(simple)
        assert low <= value <= high
    assert Analyzer.simplify(analyzer, simple) is simple


@settings(max_examples=200, deadline=None, derandomize=True)
@given(INDEX, INDEX, st.sampled_from([LT, LE, GT, GE, EQ, NE]))
def test_comparisons_keep_their_truth(a, b, sign):
    analyzer = bound_analyzer()
    condition = sign(a, b)
    simple = analyzer.simplify(condition)
    negated = analyzer.simplify(Not(condition))
    truths = [evaluate(condition, env) for env in points(EXTENTS)]
    assert truths == [evaluate(simple, env) for env in points(EXTENTS)], str(simple)
    assert truths == [1 - evaluate(negated, env) for env in points(EXTENTS)], str(negated)
    assert not analyzer.can_prove(condition) or all(truths)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(INDEX, st.sets(st.sampled_from([X, J, K]), min_size=1))
def test_int_set_holds_every_value(expr, relaxed):
    analyzer = bound_analyzer()
    interval = analyzer.int_set(expr, {v: Range(0, EXTENTS[v]) for v in relaxed})
    for env in points(EXTENTS):
        value = evaluate(expr, env)
        assert interval.min is None or evaluate(interval.min, env | dict.fromkeys(relaxed, -99)) <= value
        assert interval.max is None or value <= evaluate(interval.max, env | dict.fromkeys(relaxed, -99))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(INDEX, INDEX, st.sampled_from([LT, LE, GT, GE]))
def test_deduced_bounds_imply_the_condition(a, b, sign):
    analyzer = bound_analyzer()
    condition = sign(a, b)
    interval = analyzer.deduce_bound(condition, X, {J: Range(0, 4), K: Range(0, 3)})
    if interval is None:
        return
    for env in points(EXTENTS):
        inside = (interval.min is None or evaluate(interval.min, env) <= env[X]) and (
            interval.max is None or env[X] <= evaluate(interval.max, env)
        )
        assert not inside or evaluate(condition, env)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(INDEX, INDEX, INDEX)
def test_constraints_are_used_soundly(a, b, expr):
    analyzer = bound_analyzer()
    condition = LT(a, b)
    with analyzer.constraint(condition):
        simple = analyzer.simplify(expr)
        low, high = analyzer.const_bounds(expr)
    for env in points(EXTENTS):
        if evaluate(condition, env):
            value = evaluate(expr, env)
            assert evaluate(simple, env) == value
            assert low <= value <= high


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ((X * 4 + J) // 4, "i"),
        ((X * 4 + J) % 4, "j"),
        (X // 4 * 4 + X % 4, "i"),
        (N // 8 * 8 + N // 4 % 2 * 4 + N % 4, "n"),
        (N - N // 4 * 4, "n % 4"),
        (K // M // N * N * M + K // M % N * M + K % M, "k"),
        (((K // M // N + J) * N + K // M % N) * M + K % M, "k + j * m * n"),
        ((N % 12 * 5 + J) // 3 * 3 + (N % 12 * 5 + J) % 3, "j + n % 12 * 5"),
        (N // 2 // 4, "n // 8"),
        (N % 12 % 4, "n % 4"),
        ((N * 4 + J) // 4, "n"),
        ((X * 32 + J * 8 + K) // 64, "i // 2"),
        (minimum(N, N + 1), "n"),
        (maximum(minimum(N, 5), 7), "7"),
        (minimum(minimum(N, 5), 3), "min(n, 3)"),
        (minimum(X * 4 + 4, N) - X * 4, "min(4, n - i * 4)"),
        (X * 4 + 3 < J * 8, "i < j * 2"),
        (EQ(N * 2 + 1, M * 4), "False"),
        (N * 16 + J * 4 + K < 192, "n < 12"),
        (N * 16 + J * 4 >= M * 16 + 5, "m * 4 + 1 < j + n * 4"),
        (N > M, "m < n"),
        (const(3) >= N, "n < 4"),
        (likely(X < 6), "True"),
        (select(X < 6, X, J), "i"),
        (N * M - M * N, "0"),
    ],
)
def test_identities(expr, expected):
    assert str(bound_analyzer().simplify(expr)) == expected


def test_symbolic_ranges():
    analyzer = Analyzer()
    p, q, outer = Var("p"), Var("q"), Var("outer")
    analyzer.bind(p, Range(0, N))
    analyzer.bind(q, Range(0, M))
    analyzer.bind(outer, Range(0, (N + 3) // 4))
    assert str(analyzer.simplify((p * M + q) // M)) == "p"
    assert str(analyzer.simplify((p * M + q) % M)) == "q"
    assert analyzer.can_prove(p * M + q < N * M)
    assert analyzer.can_prove(outer * 4 < N)
    assert not analyzer.can_prove(outer * 4 + 1 < N)
    x = Var("x")
    assert str(analyzer.simplify(x % M + x // M * M)) == "x"
    assert analyzer.can_prove(x % M < M), "a divisor is not 0"
    assert not analyzer.can_prove(x % M < N)
    with analyzer.constraint(x < N * M):
        assert analyzer.can_prove(x // M < N)
    half = analyzer.deduce_bound(x // 4 >= 2, x)
    assert half is not None and str(half.min) == "8"
    interval = analyzer.int_set(p * M + q, {p: Range(0, N), q: Range(0, M)})
    assert (str(interval.min), str(interval.max)) == ("0", "n * m - 1")
    inner = Var("inner")
    bound = analyzer.deduce_bound(likely(outer * 4 + inner < N), outer, {inner: Range(0, 4)})
    assert bound is not None and str(bound.max) == "n // 4 - 1"


def test_values_from_memory_may_overflow():
    data = decl_buffer((8,), "int32", "data")
    x = BufferLoad(data, (X,))
    analyzer = bound_analyzer()
    assert str(analyzer.simplify((x * 4) // 4)) == "data[i] * 4 // 4"
    assert not analyzer.can_prove(x + 1 > x)
    assert str(analyzer.simplify(x < 5)) == "data[i] < 5"
    assert str(analyzer.simplify(x + 1 - x)) == "1"
    with analyzer.constraint(And(x >= 0, x < 8)):
        assert str(analyzer.simplify(x)) == "data[i]"


def test_rebinding_a_variable_drops_derived_facts():
    analyzer, x = Analyzer(), Var("x")
    analyzer.bind(x, Range(0, 4))
    assert str(analyzer.simplify(x // 4)) == "0"
    analyzer.bind(x, Range(0, 8))
    assert str(analyzer.simplify(x // 4)) == "x // 4"
    analyzer.bind(x, X + 1)
    assert str(analyzer.simplify(x - 1)) == "i"


def test_detect_linear():
    analyzer = Analyzer()
    found = analyzer.detect_linear(X * 4 + N * J + K + 3, [X, J])
    assert found is not None
    assert [str(c) for c in found[0]] == ["4", "n"] and str(found[1]) == "k + 3"
    assert analyzer.detect_linear(X // 2, [X]) is None
    assert analyzer.modular(X * 4 + 3) == (4, 3)


def test_bounds_are_deduced_through_minima():
    analyzer, x = Analyzer(), Var("x")
    analyzer.bind(x, Range(0, N))
    shifted = minimum(x * 4, N - 4) * 2
    with analyzer.constraint(N >= 5):
        bound = analyzer.deduce_bound(shifted >= 1, x)
        assert bound is not None and (str(bound.min), bound.max) == ("1", None)
    assert analyzer.deduce_bound(shifted >= 1, x) is None
    bound = analyzer.deduce_bound(shifted + 3 < M, x)
    assert bound is not None and (bound.min, str(bound.max)) == (None, "(m + 4) // 8 - 1")


def test_constraints_apply_to_dividends_and_factors():
    analyzer = Analyzer()
    with analyzer.constraint((N + 1) // 2 >= 7):
        assert analyzer.can_prove(N >= 13)
        assert analyzer.can_prove(4 * ((N + 1) // 2) + 3 >= 31)
        assert not analyzer.can_prove(N >= 14)


def test_constraints_bound_remainders():
    analyzer = Analyzer()
    with analyzer.constraint(Not(X % 7 < 6)):
        assert analyzer.const_bounds(13 - X % 7 * 2) == (1, 1)
        assert str(analyzer.simplify(X % 7 * 2 < 12)) == "False"
    assert analyzer.const_bounds(13 - X % 7 * 2) == (1, 13)


def clamped(value: PrimExpr) -> PrimExpr:
    return Max(Min(value, const(197, "int64")), const(0, "int64"))


def test_positions_that_are_brought_between_bounds_keep_them_as_narrower_integers():
    """Whatever is read, and whether or not its arithmetic overflows; other bounds of what overflows are none."""
    analyzer = bound_analyzer()
    position = BufferLoad(decl_buffer((6,), "int64", name="D"), (X,))
    for value in (position, position + const(1, "int64"), position * const(2**40, "int64")):
        assert analyzer.const_bounds(Cast(INT32, clamped(value))) == (0, 197)
    byte = BufferLoad(decl_buffer((6,), "uint8", name="E"), (X,))
    large = Cast(INT64, byte) * const(2**60, "int64")  # negative where it overflows
    assert analyzer.const_bounds(Cast(INT32, Min(large, const(197, "int64")))) == (-(2**31), 2**31 - 1)
    assert analyzer.const_bounds(Cast(INT32, Cast(INT64, byte) + const(3, "int64"))) == (3, 258)
    assert analyzer.const_bounds(Cast(INT32, position)) == (-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("sign", "start", "truth"),
    [
        (LT, 1, "True"), (LT, 2, None), (LT, 12, None), (LT, 13, "False"), (GE, 13, "True"), (LE, 2, "True"),
        (GT, 13, None), (GT, 14, "True"),
    ],
)  # fmt: skip
def test_comparisons_of_ramps_with_uniform_results(sign: type[Compare], start: int, truth: str | None):
    """The ramp covers `start` to `start` + 11, since i is at most 5, and is compared with 13."""
    analyzer = bound_analyzer()
    expr = sign(ramp(X + start, 2, 4), broadcast(const(13), 4))
    assert str(analyzer.simplify(expr)) == (str(expr) if truth is None else f"broadcast({truth}, 4)")


@pytest.mark.parametrize(("start", "chosen"), [(1, "i"), (13, "j"), (2, None)])
def test_selections_by_uniform_conditions(start: int, chosen: str | None):
    analyzer = bound_analyzer()
    expr = Select(ramp(X + start, 2, 4) < broadcast(const(13), 4), broadcast(X, 4), broadcast(J, 4))
    assert str(analyzer.simplify(expr)) == (str(expr) if chosen is None else f"broadcast({chosen}, 4)")


def test_an_expression_is_written_alike_inside_and_outside_of_a_constraint():
    """The terms of sums and the factors of products keep the order in which their variables were first seen."""
    rows, columns, i, j = SizeVar("rows", INT32), SizeVar("columns", INT32), Var("i", INT32), Var("j", INT32)
    analyzer = Analyzer()
    analyzer.simplify(rows * columns)
    analyzer.bind(i, Range(0, columns))
    analyzer.bind(j, Range(0, rows))
    expr = rows * columns * j + i * columns + rows
    before = str(analyzer.simplify(expr))
    with analyzer.constraint(i < rows):
        assert str(analyzer.simplify(expr)) == before
        assert analyzer.can_prove(i < rows)
        with analyzer.constraint(j < i):
            assert str(analyzer.simplify(expr)) == before


def test_ranges_follow_the_facts_that_hold_where_they_are_asked_for():
    n, i, j = SizeVar("n", INT32), Var("i", INT32), Var("j", INT32)
    analyzer = Analyzer()
    analyzer.bind(i, Range(0, n))
    analyzer.bind(j, Range(0, Min(i + 1, const(8))))
    with analyzer.constraint(i >= 7):
        assert analyzer.const_bounds(j) == (0, 7)
        analyzer.bind(j, Range(0, 8))  # the same range under this fact
        assert analyzer.can_prove(j <= i)
    assert not analyzer.can_prove(j + 1 >= i)


def test_a_bounded_size_lies_between_0_and_its_largest_value() -> None:
    size = SizeVar("n", most=15)
    assert str(Analyzer().simplify((size + 48) // 32)) == "1"
    assert str(Analyzer().simplify((size + 49) // 32)) != "1"


def test_equal_index_expressions_become_one_object() -> None:
    i, j, n = Var("i", INT32), Var("j", INT32), SizeVar("n", INT32)
    analyzer = Analyzer()
    first, second = [i * 16 + (j + 3) for _ in range(2)]
    assert analyzer.simplify(first) is analyzer.simplify(second)
    with analyzer.constraint(i < n):
        assert str(analyzer.simplify(Min(i, n))) == "i"
    assert str(analyzer.simplify(Min(i, n))) != "i"
