"""RecognizeAttention and BlockAttention: decomposed attention as exporters write it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc.backend import Target
from relayc.relay import Call, Expr, Function, IRModule, Tuple, analysis, const, op, optimize, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.relay.sizes import product
from relayc.relay.transform import BlockAttention, EliminateCommonSubexpr, FuseOps, RecognizeAttention, SimplifyExpr
from relayc.relay.transform.builders import is_call_of
from relayc.te.ir import PassContext, Sequential
from relayc.te.tir import Dim, SizeVar

B, H, S, D = 1, 2, 9, 4
HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
LOWEST = float(np.finfo("float32").min)


def heads(x: Expr, axes: tuple[int, ...] = (0, 2, 1, 3)) -> Expr:
    """(B, S, H * D) by heads: (B, H, S, D), or (B, H, D, S) with axes (0, 2, 3, 1)."""
    return op.transpose(op.reshape(x, (B, -1, H, D)), axes)


def inputs() -> list[Expr]:
    return [var(name, (B, S, H * D)) for name in "qkv"]


def decomposed(score: Callable[[Expr], Expr], weight: Callable[[Expr], Expr] = lambda w: w, *more: Expr) -> Function:
    """softmax of `score` of the product of heads, changed by `weight`, times the values."""
    q, k, v = inputs()
    product = nn.batch_matmul(heads(q), heads(k, (0, 2, 3, 1)), transpose_b=False)
    mixed = nn.batch_matmul(weight(nn.softmax(score(product), axis=-1)), heads(v), transpose_b=False)
    result = op.reshape(op.transpose(mixed, (0, 2, 1, 3)), (B, S, H * D))
    return Function((q, k, v, *more), result)


def kernels(function: Function) -> list[str]:
    """The heads of the fused functions."""
    return [line for line in str(function).splitlines() if "primitive=True" in line]


def half(x: Expr) -> Expr:
    return op.multiply(x, const(0.5))


MASK = np.random.default_rng(0).uniform(-1, 1, (1, 1, S, S)).astype("float32")
SEEN = np.random.default_rng(1).uniform(size=(1, 1, S, S)) < 0.7
SEEN[..., 0] = True
KEPT = SEEN.astype("float32")
KEPT[..., 2, :] = 0  # one query sees no key: its scores are all equal, whatever the product
HEAD_SCALE = np.array([0.5, 3.0], "float32").reshape(H, 1, 1)

PATTERNS = {
    "plain": lambda x: x,
    "scaled": half,
    "divided": lambda x: op.divide(x, const(3.0)),
    "scaled, then masked": lambda x: op.add(half(x), const(MASK)),
    "masked, then scaled": lambda x: half(op.add(const(MASK), x)),
    "masked twice": lambda x: op.add(op.add(x, const(MASK)), const(MASK[:, :, :1])),
    "hidden by where": lambda x: op.where(const(SEEN), half(x), const(LOWEST)),
    "hidden where true": lambda x: op.where(const(~SEEN), const(-50.0), x),
    "hidden, then scaled": lambda x: half(op.where(const(SEEN), x, const(-20.0))),
    "limited": lambda x: op.add(op.multiply(op.tanh(op.divide(half(x), const(3.0))), const(3.0)), const(MASK)),
    "biased and hidden": lambda x: op.where(const(SEEN), op.add(x, const(MASK)), const(float("-inf"))),
    "hidden, then masked": lambda x: op.add(op.where(const(SEEN), half(x), const(LOWEST)), const(MASK)),
    "a mask subtracted": lambda x: half(op.subtract(x, const(MASK))),
    "factor, subtracted": lambda x: op.subtract(op.multiply(half(x), const(KEPT)), const(1e4 * (1 - KEPT))),
    "factor, added": lambda x: op.add(const(-1e10 * (1 - KEPT)), op.multiply(const(KEPT), x)),
    "factor and scale in one": lambda x: op.subtract(op.multiply(x, const(KEPT / 8)), const(1e4 * (1 - KEPT))),
    "factor, then scaled": lambda x: half(op.add(op.multiply(x, const(KEPT)), const(KEPT * 50 - 50))),
    "factor alone": lambda x: op.multiply(x, const(KEPT)),
    "factor, numbers of any kind": lambda x: op.add(op.multiply(x, const(KEPT)), const(MASK * (1 - KEPT))),
    "factor, what is seen is shifted": lambda x: op.add(op.multiply(x, const(KEPT)), const(MASK)),
    "factor, then masked": lambda x: op.add(op.subtract(op.multiply(x, const(KEPT)), const(9 - 9 * KEPT)), const(MASK)),
    "biased, then factor": lambda x: op.add(op.multiply(op.add(x, const(MASK)), const(KEPT)), const(9 * KEPT - 9)),
    "biased and hidden in part": lambda x: op.where(const(SEEN), op.add(x, const(MASK)), const(-2.0)),
    "hidden in part, then masked": lambda x: half(op.add(op.where(const(SEEN), x, const(-2.0)), const(MASK))),
    "scaled for each head, then masked": lambda x: op.add(op.multiply(half(x), const(HEAD_SCALE)), const(MASK)),
    "queries and keys exchanged": lambda x: op.add(half(op.transpose(x, (0, 1, 3, 2))), const(MASK)),
    "biased, hidden and masked": lambda x: op.add(
        op.where(const(SEEN), op.add(x, const(MASK)), const(LOWEST)), const(MASK[..., :1, :])
    ),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_decomposed_patterns(transformed, operators, pattern: str):
    found = operators(transformed(decomposed(PATTERNS[pattern]), RecognizeAttention()))
    assert found["nn.attention"] == 1 and "nn.softmax" not in found and "nn.batch_matmul" not in found


def test_zero_one_factors_mask_by_their_constant(transformed):
    after = transformed(decomposed(PATTERNS["factor, subtracted"]), RecognizeAttention())
    (call,) = [e for e in analysis.evaluation_order(after) if is_call_of(e, "nn.attention")]
    assert call.op.masked_value == -1e4 and call.args[3].dtype == "bool"


FACTORS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "subtracted": lambda x, m: op.subtract(
        op.multiply(half(x), m), op.multiply(const(1e4), op.subtract(const(1.0), m))
    ),
    "added": lambda x, m: half(op.add(op.multiply(x, m), op.multiply(op.subtract(const(1.0), m), const(-20.0)))),
    "a mask less one": lambda x, m: op.add(op.multiply(x, m), op.multiply(op.add(m, const(-1.0)), const(1e4))),
}
"""Scores under a computed mask of zeros and ones."""


@pytest.mark.parametrize("pattern", FACTORS)
@pytest.mark.parametrize("cut", [False, True])
def test_computed_factors_of_zeros_and_ones(transformed, operators, pattern: str, cut: bool):
    limit = var("limit", (B, 1, S + 1, S + 1) if cut else (B, 1, S, S))
    mask = op.cast(op.greater(limit, const(0.3)), "float32")
    mask = op.strided_slice(mask, (1, 0), (S + 1, S), axes=(2, 3)) if cut else mask
    before = decomposed(lambda x: FACTORS[pattern](x, mask), lambda w: w, limit)
    found = operators(transformed(before, EliminateCommonSubexpr(), RecognizeAttention()))
    assert found["nn.attention"] == 1 and not {"nn.softmax", "nn.batch_matmul", "multiply"} & set(found)


def test_factors_before_batch_and_heads_are_split(transformed, operators):
    for leading in (1, 6):
        q, k, v = [var(name, (6, S, D)) for name in "qkv"]
        kept = np.broadcast_to(KEPT[0], (leading, S, S))
        scores = op.multiply(nn.batch_matmul(q, k, transpose_b=True), const(kept))
        scores = op.reshape(op.subtract(scores, const(1e4 * (1 - kept))), (2, 3, S, S))
        weights = op.reshape(nn.softmax(scores, axis=-1), (6, S, S))
        before = Function((q, k, v), nn.batch_matmul(weights, v, transpose_b=False))
        found = operators(transformed(before, RecognizeAttention()))
        assert found["nn.attention"] == 1 and not {"nn.softmax", "nn.batch_matmul"} & set(found)


OTHER_MASKS: dict[str, Callable[[Expr], Expr]] = {
    "a factor of several numbers": lambda x: op.multiply(x, const(MASK)),
    "selected twice": lambda x: op.where(const(SEEN), op.multiply(x, const(KEPT)), const(-20.0)),
    "subtracted from": lambda x: op.subtract(const(MASK), x),
    "limited": lambda x: op.maximum(op.add(x, const(MASK)), const(-1.0)),
    "biased, then scaled for each head": lambda x: op.multiply(op.add(x, const(MASK)), const(HEAD_SCALE)),
    "scaled for each query": lambda x: op.multiply(x, const(MASK[..., :1])),
    "queries and keys exchanged and masked": lambda x: op.transpose(op.add(x, const(MASK)), (0, 1, 3, 2)),
}


@pytest.mark.parametrize("pattern", OTHER_MASKS)
def test_other_masks_stay(transformed, operators, pattern: str):
    after = transformed(decomposed(OTHER_MASKS[pattern]), RecognizeAttention())
    assert operators(after)["nn.softmax"] == 1 and "nn.attention" not in operators(after)


@pytest.mark.parametrize("hidden", [float("-inf"), LOWEST])
@pytest.mark.parametrize("added", [True, False])
def test_constant_lower_triangle_is_causal(transformed, operators, added: bool, hidden: float):
    seen = np.tri(S, dtype=bool)
    bias = np.where(seen, 0, hidden).astype("float32")

    def score(x: Expr) -> Expr:
        return op.add(half(x), const(bias)) if added else op.where(const(seen), half(x), const(hidden))

    after = transformed(decomposed(score), RecognizeAttention())
    assert operators(after)["nn.attention"] == 1 and "causal=True" in str(after)


def test_mask_of_zeros_is_none(transformed):
    after = transformed(decomposed(lambda x: op.add(x, const(np.zeros((1, 1, S, S), "float32")))), RecognizeAttention())
    assert "add" not in str(after)


def test_zero_instead_of_nan(transformed, operators):
    seen = SEEN.copy()
    seen[..., 2, :] = False
    before = decomposed(
        lambda x: op.where(const(seen), x, const(float("-inf"))),
        lambda w: op.where(op.isnan(w), const(0.0), w),
    )
    assert operators(transformed(before, RecognizeAttention()))["nn.attention"] == 1


def test_scale_on_both_operands(transformed, operators):
    q, k, v = inputs()
    scaled = [op.multiply(heads(x), const(0.7)) for x in (q, k)]
    product = nn.batch_matmul(scaled[0], scaled[1], transpose_b=True)
    before = Function((q, k, v), nn.batch_matmul(nn.softmax(product, axis=3), heads(v), transpose_b=False))
    found = operators(transformed(before, RecognizeAttention()))
    assert found["nn.attention"] == 1 and "multiply" not in found


def test_three_dimensions(transformed, operators):
    q, k, v = [var(name, (3, S, D)) for name in "qkv"]
    score = op.add(nn.batch_matmul(q, k, transpose_b=True), const(MASK[0]))
    before = Function((q, k, v), nn.batch_matmul(nn.softmax(score, axis=-1), v, transpose_b=False))
    assert operators(transformed(before, RecognizeAttention()))["nn.attention"] == 1


def test_shared_keys_and_values_are_read_once(transformed, operators):
    q, k, v = var("q", (B, 4, S, D)), var("k", (B, 2, S, D)), var("v", (B, 2, S, D))

    def repeated(x: Expr) -> Expr:
        return op.reshape(op.broadcast_to(op.reshape(x, (B, 2, 1, S, D)), (B, 2, 2, S, D)), (B, 4, S, D))

    transposed = op.transpose(op.reshape(repeated(k), (B * 4, S, D)), (0, 2, 1))
    products = [
        nn.batch_matmul(q, repeated(k), transpose_b=True),
        nn.batch_matmul(half(q), half(op.reshape(transposed, (B, 4, D, S))), transpose_b=False),
    ]
    for scores in products:
        before = Function((q, k, v), nn.batch_matmul(nn.softmax(scores, axis=-1), repeated(v), transpose_b=False))
        found = operators(transformed(before, RecognizeAttention()))
        assert found["nn.attention"] == 1 and "broadcast_to" not in found


@pytest.mark.parametrize("shape", ["groups", "batch and heads in one"])
def test_products_of_other_shapes_than_the_scores(transformed, operators, shape: str):
    def function(batch: Dim) -> Function:
        heads, groups = 6, 2 if shape == "groups" else 6
        q, k, v = var("q", (batch, heads, S, D)), var("k", (batch, groups, S, D)), var("v", (batch, groups, S, D))
        mask = var("m", (batch, 1, S, S))
        lead = (batch, groups) if shape == "groups" else (product((batch, heads)),)
        rows = heads // groups * S
        query, key, value = op.reshape(half(q), (*lead, rows, D)), *[op.reshape(x, (*lead, S, D)) for x in (k, v)]
        scores = op.reshape(nn.batch_matmul(query, key, transpose_b=True), (batch, heads, S, S))
        weights = nn.softmax(op.add(scores, mask), axis=-1)
        blind = op.equal(op.max(mask, axis=(-1,), keepdims=True), const(float("-inf")))
        weights = op.reshape(op.where(blind, const(0.0), weights), (*lead, rows, S))
        mixed = nn.batch_matmul(weights, value, transpose_b=False)
        return Function((q, k, v, mask), op.reshape(mixed, (batch, heads, S, D)))

    open_batch = RecognizeAttention()(IRModule({"main": function(SizeVar("batch"))}))["main"]
    for after in (transformed(function(2), RecognizeAttention()), open_batch):
        found = operators(after)
        assert found["nn.attention"] == 1 and set(found) <= {"nn.attention", "reshape"}


@pytest.mark.parametrize("leading", [1, 6])
def test_masks_before_batch_and_heads_are_split(transformed, operators, leading: int):
    q, k, v = [var(name, (6, S, D)) for name in "qkv"]
    bias, seen = var("bias", (leading, S, S)), var("seen", (2, 1, S, S), "bool")
    scores = op.reshape(op.add(bias, nn.batch_matmul(q, k, transpose_b=True)), (2, 3, S, S))
    weights = nn.softmax(op.where(seen, const(LOWEST), scores), axis=-1)
    mixed = nn.batch_matmul(op.reshape(weights, (6, S, S)), v, transpose_b=False)
    found = operators(transformed(Function((q, k, v, bias, seen), mixed), RecognizeAttention()))
    assert found["nn.attention"] == 1 and not {"nn.softmax", "nn.batch_matmul"} & set(found)


def test_scores_used_elsewhere_stay(transformed):
    q, k, v = inputs()
    weights = nn.softmax(nn.batch_matmul(heads(q), heads(k), transpose_b=True), axis=-1)
    both = op.concatenate([nn.batch_matmul(weights, heads(v), transpose_b=False), weights], axis=-1)
    before = Function((q, k, v), both)
    assert transformed(before, RecognizeAttention()) is before


def test_softmax_along_the_queries_stays(transformed):
    q, k, v = inputs()
    weights = nn.softmax(nn.batch_matmul(heads(q), heads(k), transpose_b=True), axis=2)
    before = Function((q, k, v), nn.batch_matmul(weights, heads(v), transpose_b=False))
    assert transformed(before, RecognizeAttention()) is before


@pytest.mark.parametrize("transposed", [False, True])
def test_few_queries_are_recognised_if_keys_are_contiguous_by_rows(transformed, operators, transposed: bool):
    q, v = var("q", (1, 2, 2, D)), var("v", (1, 2, 64, D))
    k = var("k", (1, 2, D, 64) if transposed else (1, 2, 64, D))
    weights = nn.softmax(nn.batch_matmul(q, k, transpose_b=not transposed), axis=-1)
    before = Function((q, k, v), nn.batch_matmul(weights, v, transpose_b=False))
    after = transformed(before, RecognizeAttention())
    assert after is before if transposed else operators(after) == {"nn.attention": 1}


def test_blocks_read_projections_in_place(transformed, operators):
    passes = (RecognizeAttention(), BlockAttention(HASWELL), SimplifyExpr(), EliminateCommonSubexpr(), FuseOps())
    q, k, v = inputs()
    after = transformed(decomposed(half), *passes)
    found = operators(after)
    assert found == {"nn.blocked_attention": 1, "reshape": 4}, "no transposes are left"
    whole = var("qkv", (B, S, 3 * H * D))
    parts = [op.strided_slice(whole, (i * H * D,), ((i + 1) * H * D,), axes=(2,)) for i in range(3)]
    q, k, v = [heads(x) for x in parts]
    mixed = nn.batch_matmul(nn.softmax(nn.batch_matmul(q, k, transpose_b=True), axis=-1), v, transpose_b=False)
    after = transformed(Function((whole,), op.transpose(mixed, (0, 2, 1, 3))), *passes)
    assert len(kernels(after)) == 2, "slices are part of the kernel; the view of the input stands apart"


def test_masks_are_not_computed_again_for_every_head(transformed):
    q, k, v = [var(name, (B, S, H, D)) for name in "qkv"]
    m = var("m", (1, 1, S, S))
    mask = op.where(op.greater(m, const(0.0)), const(0.0), const(-1.0))
    call = make_call("nn.blocked_attention", (q, k, v, mask), None, scale=0.5, queries=3, panel=8)
    after = transformed(Function((q, k, v, m), call), FuseOps())
    assert len(kernels(after)) == 2


def test_rotary_embedding_is_computed_in_the_copies(transformed):
    whole, cosine, sine = var("x", (B, S, 3 * H, D)), var("cos", (S, D // 2)), var("sin", (S, D // 2))
    parts = [op.strided_slice(whole, (i * H,), ((i + 1) * H,), axes=(2,)) for i in range(3)]
    q, k, v = [op.transpose(x, (0, 2, 1, 3)) for x in parts]
    transposed = [nn.rotary_embedding(x, cosine, sine) for x in (q, k)]
    call = nn.attention(*transposed, v, scale=0.5)
    before = Function((whole, cosine, sine), op.transpose(call, (0, 2, 1, 3)))
    after = transformed(before, BlockAttention(HASWELL), SimplifyExpr(), FuseOps())
    assert len(kernels(after)) == 1


NARROW_PATTERNS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "all narrow": lambda x, m: nn.softmax(op.add(x, m), axis=-1),
    "wide softmax": lambda x, m: op.cast(nn.softmax(wide(op.add(x, m)), axis=-1), x.dtype),
    "wide mask": lambda x, m: op.cast(nn.softmax(op.add(wide(x), wide(m)), axis=-1), x.dtype),
    "wide weights": lambda x, m: nn.softmax(wide(op.add(x, m)), axis=-1),
}
"""Weights of scores and a mask, of one narrow type; the last ones of float32, as the product is then."""


def wide(x: Expr) -> Expr:
    return op.cast(x, "float32")


def narrow_attention(pattern: str, kind: str, heads: int = 2) -> Function:
    """`heads` of queries for two of keys, with a mask."""
    q, k, v = var("q", (1, heads, S, D), kind), var("k", (1, 2, S, D), kind), var("v", (1, 2, S, D), kind)
    mask, concatenated = var("m", (1, 1, S, S), kind), (1, 2, heads // 2 * S)
    scaled = op.multiply(q, const(np.asarray(0.5).astype(kind)))
    product = nn.batch_matmul(op.reshape(scaled, (*concatenated, D)), k, transpose_b=True)
    weights = NARROW_PATTERNS[pattern](op.reshape(product, (1, heads, S, S)), mask)
    values = v if weights.dtype == kind else wide(v)
    mixed = nn.batch_matmul(op.reshape(weights, (*concatenated, S)), values, transpose_b=False)
    return Function((q, k, v, mask), op.reshape(op.cast(mixed, kind), (1, heads, S, D)))


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("pattern", NARROW_PATTERNS)
def test_narrow_types(operators, pattern: str, kind: str, heads: int):
    before = narrow_attention(pattern, kind, heads)
    after = Sequential([SimplifyExpr(), RecognizeAttention()])(IRModule({"main": before}))["main"]
    assert operators(after)["nn.attention"] == 1 and "nn.softmax" not in operators(after)
    (call,) = [e for e in analysis.evaluation_order(after) if is_call_of(e, "nn.attention")]
    assert call.dtype == kind and call.op.rounded == (pattern != "wide mask")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(d) for d in p.shape]).astype(kind) for p in before.params]
    expected, found = [evaluate(f, inputs).astype("float64") for f in (before, after)]
    digits = 10 if kind == "float16" else 7
    np.testing.assert_allclose(found, expected, rtol=4 * 2.0**-digits, atol=4 * 2.0**-digits)


def test_lowest_value_of_a_narrow_type_hides_a_score():
    before = narrow_attention("all narrow", "float16")
    after = RecognizeAttention()(IRModule({"main": before}))["main"]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal([int(d) for d in p.shape]).astype("float16") for p in before.params]
    inputs[3][...] = np.finfo("float16").min
    mean = np.broadcast_to(inputs[2].astype("float32").mean(2, keepdims=True), (1, 2, S, D))
    np.testing.assert_allclose(evaluate(after, inputs).astype("float32"), mean, atol=1e-3)


def test_lower_triangle_of_a_narrow_type_is_causal(transformed):
    q, k, v = [var(name, (1, 2, S, D), "float16") for name in "qkv"]
    hidden = const(np.where(np.tri(S, dtype=bool), 0, np.finfo("float16").min).astype("float16"))
    weights = nn.softmax(op.add(nn.batch_matmul(q, k, transpose_b=True), hidden), axis=-1)
    before = Function((q, k, v), nn.batch_matmul(weights, v, transpose_b=False))
    after = RecognizeAttention()(IRModule({"main": before}))["main"]
    assert is_call_of(after.body, "nn.attention") and after.body.op.causal and len(after.body.args) == 3


def test_results_and_weights_that_are_used_wider_stay(transformed):
    q, k, v = [var(name, (1, 2, S, D), "float16") for name in "qkv"]
    weights = op.cast(nn.softmax(wide(nn.batch_matmul(q, k, transpose_b=True)), axis=-1), "float16")
    before = Function((q, k, v), nn.batch_matmul(wide(weights), wide(v), transpose_b=False))
    assert transformed(before, RecognizeAttention()) is before
    both = Function((q, k, v), Tuple((nn.batch_matmul(weights, v, transpose_b=False), weights)))
    assert transformed(both, RecognizeAttention()) is both


@pytest.mark.parametrize("keys", [300, 333])
def test_causal_attention_skips_blocks_of_hidden_keys(transformed, operators, keys: int):
    q, k, v = var("q", (1, 2, 300, D)), var("k", (1, 2, keys, D)), var("v", (1, 2, keys, D))
    before = Function((q, k, v), nn.attention(q, k, v, causal=True))
    after = transformed(before, BlockAttention(HASWELL))
    assert operators(after)["nn.blocked_attention"] == 2
    calls = [e for e in analysis.evaluation_order(after) if isinstance(e, Call)]
    seen = [c.args[1].shape[1] for c in calls if c.operator.name == "nn.blocked_attention"]
    assert sorted(seen) == [150 + keys - 300, keys]


def of_positions(condition: Callable[[Expr, Expr, Dim], Expr], hidden: float = float("-inf")) -> Function:
    """Attention of new queries behind past ones, with a mask where a condition of positions is false."""
    new, past = SizeVar("new"), SizeVar("past")
    keys = new + past
    q, k, v = var("q", (B, H, new, D)), var("k", (B, H, keys, D)), var("v", (B, H, keys, D))
    at, of_key = op.expand_dims(op.arange(0, new, 1, "int64"), 1), op.arange(0, keys, 1, "int64")
    mask = op.where(condition(at, of_key, past), const(0.0), const(hidden))
    weights = nn.softmax(op.add(nn.batch_matmul(q, k), mask), axis=-1)
    return Function((q, k, v), nn.batch_matmul(weights, v, transpose_b=False))


def recognized(function: Function) -> Function:
    return RecognizeAttention()(IRModule({"main": function}))["main"]


def size(past: Dim) -> Expr:
    return op.size_tensor((past,), ())


CAUSAL_POSITIONS = {
    "distance": lambda i, j, p: op.greater_equal(op.add(op.subtract(i, j), size(p)), const(0, "int64")),
    "keys up to a query": lambda i, j, p: op.less_equal(j, op.add(i, size(p))),
    "keys below": lambda i, j, p: op.less(op.expand_dims(j, 0), op.add(op.add(i, size(p)), const(1, "int64"))),
    "a view": lambda i, j, p: op.expand_dims(op.greater(op.add(i, op.add(size(p), const(1, "int64"))), j), 0),
}
OTHER_POSITIONS = {
    "without the past": lambda i, j, p: op.greater_equal(i, j),
    "before a query": lambda i, j, p: op.less(j, op.add(i, size(p))),
    "reversed": lambda i, j, p: op.greater_equal(j, op.add(i, size(p))),
    "every other": lambda i, j, p: op.greater_equal(op.add(op.add(i, i), size(p)), j),
}


@pytest.mark.parametrize("form", CAUSAL_POSITIONS)
def test_a_mask_of_symbolic_positions_is_causal(form: str):
    after = recognized(of_positions(CAUSAL_POSITIONS[form]))
    assert "causal=True" in str(after) and "where" not in str(after)


@pytest.mark.parametrize("form", OTHER_POSITIONS)
def test_other_positions_stay_a_mask(form: str):
    after = recognized(of_positions(OTHER_POSITIONS[form]))
    assert "nn.attention" in str(after) and "causal=True" not in str(after)


def test_a_penalty_that_hides_nothing_is_no_causal_mask():
    after = recognized(of_positions(CAUSAL_POSITIONS["distance"], -10.0))
    assert "nn.attention" in str(after) and "causal=True" not in str(after)


@pytest.mark.parametrize(("arch", "precision", "found"), [
    ("sm_90", "", 0), ("sm_90", "float16", 1), ("sm_90", "bfloat16", 1), ("sm_75", "float16", 0),
])  # fmt: skip
def test_attention_in_16_bits_is_one_operator_on_gpus(arch, precision, found):
    """float32 would take more kernels than the operators that it is decomposed to."""
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        optimized = optimize(decomposed(PATTERNS["plain"]), Target(f"cuda -arch={arch}"))
    assert str(optimized).count("nn.attention") == found


def test_attention_on_gpus_reads_the_layout_of_projections():
    params = [var(name, (B, S, H, D), "float16") for name in "qkv"]
    made = nn.attention(*[op.transpose(x, (0, 2, 1, 3)) for x in params])
    (kernel,) = kernels(optimize(Function(tuple(params), made), Target("cuda -arch=sm_90")))
    assert all(f"Tensor[({B}, {S}, {H}, {D}), float16]" in operand for operand in kernel.split("%p")[1:])
