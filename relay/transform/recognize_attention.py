"""RecognizeAttention: fuses two products with a softmax between them, as exporters write them, to `nn.attention`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing
from relayc.relay.op.base import OpDef, expect_op, make_call, op_of
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.dense import BatchMatmul
from relayc.relay.op.nn.norm import Softmax
from relayc.relay.op.reduce import Max
from relayc.relay.op.transform import Transpose
from relayc.relay.pattern import Found, PatternRule, is_op, rewrite, wildcard
from relayc.relay.transform.builders import (
    MOST_STEPS,
    NARROW,
    array_of,
    before_transposition,
    is_call_of,
    reshaped,
    transposed,
)
from relayc.relay.transform.causal_masks import is_causal_mask
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.zero_one_masks import as_condition, value_where_zero
from relayc.relay.type import dims_equal, shapes_equal
from relayc.te.ir import PassContext
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Dim

__all__ = ["RecognizeAttention"]

_FEWEST_QUERIES = 8
"""Minimum number of queries: with fewer, keys stored channel by channel are left to the products."""

_HIDING, _HIDING_IN_FLOAT16 = -1e30, -6e4
"""Thresholds of masks, for float32 and float16: adding a value at or below them to a score hides the key entirely."""




@dataclass(frozen=True)
class RecognizeAttention(FunctionPass):
    """softmax(q k^T * scale + mask) v, decomposed into small operators, becomes one operator and one kernel.

    Scales are applied before or after the first product, a tanh may limit the scores, masks are added, selected by
    `where` or by a factor of zeros and ones, and a mask of the keys up to a query's own position means causal
    attention. Heads that share keys and values (`broadcast_to` between views, or a product whose rows are those of all
    heads of a group) are read in place. Numbers of heads and channels must be static, positions may be dynamic.

    With lower precision, the softmax may be computed in float32. Their scores are rounded after the masks, as in the
    model (the lowest value of a mask absorbs a score); other intermediate roundings are dropped.

    Only results of one of `kinds`, element types of at most 32 bits, are rewritten.
    """

    kinds: tuple[str, ...] = ("float32", *NARROW)
    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([DecomposedAttention(self.kinds)], function)


@dataclass(frozen=True)
class DecomposedAttention(PatternRule):
    """softmax(q k^T * scale + mask) v = attention(q, k, v, mask)"""

    kinds: tuple[str, ...] = ("float32", *NARROW)
    weights, value = wildcard(), wildcard()
    product = is_op(BatchMatmul)(weights, value)
    pattern = product | is_op("cast")(product | is_op("reshape")(product))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        kind, product = str(call.dtype), found.call(self.product)
        operator = found.op(self.product)
        weights = _Weights.of(found[self.weights], kind, found.shared)
        if isinstance(weights, Refused):
            return None if weights is _NO_SOFTMAX else weights
        if kind not in self.kinds or operator.transpose_a:
            return Refused(f"the product is of {kind}, or reads the weights transposed")
        if product is not call and (kind not in NARROW or any(map(found.shared, (call.args[0], product)))):
            return Refused("the product is cast to a wider type, or is also used before the cast")
        scores = _Scores.of(weights.softmax, kind, found.shared)
        if isinstance(scores, Refused):
            return scores
        if not weights.hidden_by(scores):
            return Refused("rows without visible keys are zeros by another mask than that of the scores")
        if len(weights.softmax.shape) > 4:
            return Refused(f"the softmax has {len(weights.softmax.shape)} dimensions, more than 4")
        value = _before_widening(found[self.value], kind)
        value = value if not operator.transpose_b else _swapped(value)
        made = scores.attention(value, product)
        return made if isinstance(made, Refused) else reshaped(made, call.shape, call.span)


_NO_SOFTMAX = Refused("the left operand of the product is no softmax")


@dataclass(frozen=True, slots=True)
class _Weights:
    """The softmax along the keys, possibly with zeros in rows without visible keys: NaN, or all of `masked_by` -inf."""

    softmax: Call
    masked_by: Expr | None = None

    def hidden_by(self, scores: _Scores) -> bool:
        """Is `masked_by`, if set, the only term added to the scores?"""
        return self.masked_by is None or scores.added == (self.masked_by,)

    @staticmethod
    def of(e: Expr, kind: str, shared: Sharing) -> _Weights | Refused:
        """The weights of a product `e`, after a view that merges the heads of a group."""
        e = _without_casts(e, kind, shared)
        if is_call_of(e, "reshape") and not shared(e):
            e = _without_casts(cast(Call, e).args[0], kind, shared)
        if is_call_of(e, "where") and not shared(e):
            test, zero, weights = cast(Call, e).args
            if not _is_scalar(zero, 0.0):
                return _NO_SOFTMAX
            if is_call_of(test, "isnan") and cast(Call, test).args[0] is weights:
                return _Weights._of_softmax(weights, None)
            mask = _where_all_hidden(test)
            if mask is None or shared(weights):
                return Refused("weights are selected by another condition than that a row has no visible keys")
            return _Weights._of_softmax(weights, mask)
        found = _Weights._of_softmax(e, None)
        return Refused("the softmax is used elsewhere as well") if found and shared(e) else found

    @staticmethod
    def _of_softmax(e: Expr, masked_by: Expr | None) -> _Weights | Refused:
        softmax = _softmax(e)
        return _Weights(softmax, masked_by) if isinstance(softmax, Call) else softmax


def _without_casts(e: Expr, kind: str, shared: Sharing) -> Expr:
    """`e` before a cast from float32 to `kind`, or back."""
    while is_call_of(e, "cast") and not shared(e):
        (inner,) = cast(Call, e).args
        if {str(e.dtype), str(inner.dtype)} != {"float32", kind}:
            break
        e = inner
    return e


def _before_widening(e: Expr, kind: str) -> Expr:
    """The tensor of type `kind` of which `e` is a float32 copy, or `e`."""
    if is_call_of(e, "cast") and e.dtype == "float32" and cast(Call, e).args[0].dtype == kind:
        return cast(Call, e).args[0]
    return e


def _where_all_hidden(test: Expr) -> Expr | None:
    """The mask x of max(x, last axis, keepdims) == -inf."""
    if not is_call_of(test, "equal"):
        return None
    largest, number = cast(Call, test).args
    if not is_call_of(largest, "max") or not _is_scalar(number, float("-inf")):
        return None
    call = cast(Call, largest)
    op, rank = expect_op(call, Max), len(call.args[0].shape)
    keeps = op.axis is not None and [a % rank for a in op.axis] == [rank - 1] and op.keepdims
    return call.args[0] if keeps else None


def _softmax(e: Expr) -> Call | Refused:
    op = op_of(e, Softmax)
    if op is None:
        return _NO_SOFTMAX
    last = op.axis % len(e.shape) == len(e.shape) - 1
    return cast(Call, e) if last else Refused("the softmax is not along the last dimension")


def _swapped(e: Expr, steps: int = MOST_STEPS) -> Expr:
    """`e` with its last two dimensions exchanged, under a view of the others."""
    if is_call_of(e, "reshape") and steps:
        x = cast(Call, e).args[0]
        if len(x.shape) >= 2 and shapes_equal(x.shape[-2:], e.shape[-2:]):
            return reshaped(_swapped(x, steps - 1), (*e.shape[:-2], e.shape[-1], e.shape[-2]), e.span)
    rank = len(e.shape)
    return transposed(e, (*range(rank - 2), rank - 1, rank - 2))


def _is_strided(e: Expr) -> bool:
    """Are the elements of a row of `e` strided in memory, possibly under a view?"""
    while is_call_of(e, "reshape"):
        e = cast(Call, e).args[0]
    if not is_call_of(e, "transpose"):
        return False
    axes, rank = expect_op(e, Transpose).axes, len(e.shape)
    return axes is None or axes[-1] % rank != rank - 1


def _scalar_value(e: Expr) -> float | None:
    """The value of a constant of one element."""
    return float(e.data.item()) if isinstance(e, Constant) and e.data.size == 1 else None


def _is_scalar(e: Expr, value: float) -> bool:
    return _scalar_value(e) == value


_OTHER_FACTOR = Refused("a factor of the scores is no constant number, none for each head, and not of zeros and ones")


@dataclass(slots=True)
class _Scores:
    """The argument of `softmax`: product * scale + added, `masked_value` where `kept` is false, `bias` added to all.

    With a `softcap`, softcap * tanh(product * scale / softcap) replaces product * scale; `scale` is the factor outside
    of the tanh until it is found, and then the factor inside. `of_heads` is a factor for each head, next to the
    product, and scores of `transposed` products have keys as rows.

    The scores have the shape `scores`, with batch and heads separate, and the shape `level` at the current expression:
    views on the way merge batch and heads, or split windows from a batch entry. They are `rounded` if they have the
    type `kind`, of lower precision than float32, before the softmax.
    """

    softmax: Call
    product: Call
    kind: str
    scores: tuple[Dim, ...]
    level: tuple[Dim, ...]
    rounded: bool = False
    transposed: bool = False
    scale: float = 1.0
    of_heads: Expr | None = None
    added: tuple[Expr, ...] = ()
    kept: Expr | None = None
    masked_value: float = float("-inf")
    bias: tuple[Expr, ...] = ()
    softcap: float = 0.0

    @staticmethod
    def of(softmax: Call, kind: str, shared: Sharing) -> _Scores | Refused:
        """The parts of the argument of `softmax`, peeled off from the outside; refused for other expressions."""
        found = _Scores(softmax, softmax, kind, softmax.shape, softmax.shape)
        e = found._note_rounding(_without_casts(softmax.args[0], kind, shared))
        while not is_call_of(e, "nn.batch_matmul"):
            if not isinstance(e, Call) or not _holds_product(e):
                other = e.operator.name if isinstance(e, Call) else type(e).__name__.lower()
                return Refused(f"expected a product of queries and keys before the softmax, found {other}")
            if shared(e):
                return Refused(f"the result of {e.operator.name} before the softmax is used elsewhere as well")
            inner = found._take(e)
            if isinstance(inner, Refused):
                return Refused(f"{e.operator.name} before the softmax: {inner.reason}")
            e = found._note_rounding(_without_casts(inner, kind, shared))
        if shared(e) or e.dtype not in ("float32", kind):
            return Refused(f"the product before the softmax is of {e.dtype}, or used elsewhere as well")
        found.product = cast(Call, e)
        return found if found._has_heads() else Refused("product and softmax differ in more than views of their heads")

    def _note_rounding(self, e: Expr) -> Expr:
        """Note the type of `e`, to which the scores are rounded if it is the outermost operation; returns `e`."""
        is_all = self.scale == 1.0 and not self.added and self.kept is None and not self.softcap
        self.rounded = self.rounded or (is_all and self.kind in NARROW and e.dtype == self.kind)
        return e

    def _has_heads(self) -> bool:
        """Does the product have one matrix for each head, with batch and heads merged or not, or for each group of
        heads?"""
        rows, scores = self.product.shape, self.scores
        rows = (*rows[:-2], rows[-1], rows[-2]) if self.transposed else rows
        if shapes_equal(rows, scores):
            return True
        if len(scores) != 4 or not dims_equal(rows[-1], scores[-1]):
            return False
        if len(rows) == 3:
            return dims_equal(rows[1], scores[2])
        groups, heads = rows[1], scores[1]
        known = isinstance(groups, int) and isinstance(heads, int) and groups > 0 and dims_equal(rows[0], scores[0])
        return bool(known) and isinstance(heads, int) and isinstance(groups, int) and heads % groups == 0

    def _take(self, call: Call) -> Expr | Refused:
        """Note the effect of the outermost operator, and return its operand."""
        args = call.args
        if is_call_of(call, "reshape"):
            return self._take_view(call)
        if self.transposed:
            return Refused("inside of a transposition of the scores there may only be views")
        if is_call_of(call, "multiply", "divide"):
            return self._take_factor(call)
        if self.of_heads is not None:
            return Refused("inside of a factor for each head there may only be factors and views")
        if is_call_of(call, "transpose") and before_transposition(call) is not None:
            self.transposed = True
            return args[0]
        if is_call_of(call, "tanh") and not self.softcap and self.scale > 0.0:
            self.softcap, self.scale = self.scale, 1.0
            return args[0]
        if is_call_of(call, "add", "subtract") and not self.softcap:
            swaps = is_call_of(call, "add") and not _holds_product(args[0])
            inner, mask = args[::-1] if swaps else args
            mask = self._by_heads(mask)
            if inner.ty is not call.ty or not _holds_product(inner) or mask is None:
                return Refused("the mask has another shape than the scores, or the first operand is no score")
            factor = self.scale if is_call_of(call, "add") else -self.scale
            added = self._add(mask if factor == 1.0 else _scaled(mask, factor))
            return inner if added else Refused("masks of several types are added")
        takes = is_call_of(call, "where") and self.kept is None and not self.softcap
        return self._take_where(call) if takes else Refused("no operator of attention here, or a second one")

    def _add(self, mask: Expr) -> bool:
        """Note an added mask; False if its type differs from that of an earlier one."""
        if any(other.dtype != mask.dtype for other in (*self.added, *self.bias)):
            return False
        if not (isinstance(mask, Constant) and not mask.data.any()):
            self.added = (*self.added, mask)
        return True

    def _take_view(self, call: Call) -> Expr | Refused:
        """The scores before batch and heads were split, or the product before the heads of a group were."""
        (inner,) = call.args
        product = cast(Call, inner).args[0] if is_call_of(inner, "cast") else inner
        if is_call_of(product, "nn.batch_matmul"):
            return inner
        if not 3 <= len(inner.shape) <= 5 or not shapes_equal(inner.shape[-2:], call.shape[-2:]):
            return Refused("a view of the scores changes queries or keys, or has less than 3 or more than 5 dimensions")
        plain = not self.added and not self.bias and self.kept is None
        if plain and len(self.scores) == 3 and len(inner.shape) == 4:
            self.scores = inner.shape
        self.level = inner.shape
        return inner

    def _by_heads(self, mask: Expr) -> Expr | None:
        """A mask of the scores with a dimension of batch entries and one of heads; None if it has neither."""
        level, scores, rank = self.level, self.scores, len(mask.shape)
        if rank < 3 or shapes_equal(level, scores):
            return mask
        if len(scores) != 4 or len(level) == 4:
            return None
        if len(level) == 5:
            return _with_joined_batch(mask, level, scores)
        if mask.shape[0] == 1:
            return reshaped(mask, (1, *mask.shape))
        if not dims_equal(mask.shape[0], level[0]):
            return None
        return reshaped(mask, (*scores[:2], *mask.shape[1:]))

    def _take_factor(self, call: Call) -> Expr | Refused:
        x, y = call.args
        factor = _scalar_value(y)
        if factor is None and is_call_of(call, "multiply"):
            x, factor = y, _scalar_value(x)
        if factor is None and is_call_of(call, "multiply"):
            return self._take_factor_of_heads(call) or self._take_zeros_and_ones(call)
        if factor is None or x.ty is not call.ty or not factor:
            return Refused("the scale is no constant of one element that is not 0")
        self.scale *= factor if is_call_of(call, "multiply") else 1.0 / factor
        return x

    def _take_factor_of_heads(self, call: Call) -> Expr | Refused:
        """The operand of a multiplication by one factor for each head."""
        x, factor = call.args if _holds_product(call.args[0]) else call.args[::-1]
        plain = self.kind == "float32" and not self.softcap and self.of_heads is None and x.ty is call.ty
        if not plain or not _holds_product(x) or len(factor.shape) < 3 or factor.shape[-2:] != (1, 1):
            return _OTHER_FACTOR
        self.of_heads = self._by_heads(factor)
        return _OTHER_FACTOR if self.of_heads is None else x

    def _take_zeros_and_ones(self, call: Call) -> Expr | Refused:
        """x * m + c * (1 - m) is x where m is 1, and c where it is 0. The added term is noted already."""
        x, mask = call.args if _holds_product(call.args[0]) else call.args[::-1]
        selected = self.kept is not None or self.softcap or self.of_heads is not None
        condition = None if selected else as_condition(mask)
        kept = None if condition is None else self._by_heads(condition[0])
        if condition is None or kept is None or x.ty is not call.ty or not _holds_product(x):
            return _OTHER_FACTOR
        same = kept if isinstance(mask, Constant) else mask
        numbers = [value_where_zero(e, same, condition[1]) for e in self.added]
        hides = next((i for i, number in enumerate(numbers) if number is not None), len(numbers))
        hidden = numbers[hides] if hides < len(numbers) else 0.0
        self.added = (*self.added[:hides], *self.added[hides + 1 :])
        self._select(kept, cast(float, hidden))
        self.scale *= condition[1]
        return x

    def _select(self, kept: Expr, hidden: float) -> None:
        """Note that scores are `hidden` where they are not `kept`. Terms added before apply after the selection."""
        self.kept, self.masked_value, self.bias, self.added = kept, hidden, self.added, ()

    def _take_where(self, call: Call) -> Expr | Refused:
        test, first, second = call.args
        hidden, inner = _scalar_value(second), first
        if hidden is None:
            hidden, inner = _scalar_value(first), second
            test = _negated(test)
        test = self._by_heads(test)
        if hidden is None or inner.ty is not call.ty or test is None:
            return Refused("hidden scores are no constant, or the condition has another shape than the scores")
        self._select(test, hidden * self.scale)
        return inner

    def attention(self, value: Expr, call: Call) -> Expr | Refused:
        """The operator on `value` (..., keys, columns), of shape (batch, heads, queries, columns)."""
        op, (*lead, queries, _) = expect_op(self.product, BatchMatmul), self.scores
        (query, before), (key, after) = [
            _without_factor(_before_widening(e, self.kind)) for e in self.product.args
        ]
        if any(e.dtype != self.kind for e in (query, key, value)):
            return Refused(f"queries, keys and values are not all of {self.kind}")
        query = _swapped(query) if op.transpose_a else query
        key = key if op.transpose_b else _swapped(key)
        query, key = (key, query) if self.transposed else (query, key)
        groups = call.shape[:-2]
        same = all(shapes_equal(e.shape[:-2], groups) for e in (query, key, value))
        if not same or not dims_equal(key.shape[-2], value.shape[-2]):
            return Refused("queries, keys and values differ in batch, heads or positions")
        ones = (1,) * (2 - len(lead))
        known = ((*lead, *ones)[1], query.shape[-1], value.shape[-1])
        if not all(isinstance(d, int) for d in known):
            return Refused("the number of heads or channels is dynamic")
        few = isinstance(queries, int) and queries < _FEWEST_QUERIES
        if few and any(_is_strided(e) for e in (key, value)):
            return Refused(f"fewer than {_FEWEST_QUERIES} queries, and keys or values stored channel by channel")
        scale = self.scale * before * after * (self.softcap or 1.0)
        query = reshaped(query, (*lead, *ones, queries, query.shape[-1]))
        if self.of_heads is not None:
            factor, plain = self.of_heads, query.ty
            query = make_call("multiply", (query, factor), call.span)
            if query.ty is not plain or len(lead) != 2:
                return Refused("a factor for each head needs separate dimensions for batch and heads")
        outer = (*groups, *ones) if len(groups) == len(lead) else lead
        key, value = [reshaped(e, (*outer, *e.shape[-2:])) for e in (key, value)]
        key, value = _ungrouped(key, value)
        masks, causal, masked_value = self._masks(len(lead))
        operands = (query, key, value, *masks)
        return make_call(
            "nn.attention", operands, call.span, scale=scale, causal=causal, masked_value=masked_value,
            softcap=self.softcap, rounded=self.rounded,
        )  # fmt: skip

    def _masks(self, num_outer: int) -> tuple[list[Expr], bool, float]:
        """The masks as `nn.attention` takes them, whether it is causal instead, and the score of hidden keys."""
        masks, hidden = self._selection_and_bias()
        *_, queries, keys = self.scores
        mask = masks[0] if len(masks) == 1 else None
        if mask is not None and is_causal_mask(mask, queries, keys, hidden, _hiding_threshold(self.kind)):
            return [], True, float("-inf")
        if num_outer < 2:
            masks = [reshaped(m, (m.shape[0], 1, *m.shape[1:])) if len(m.shape) > 2 else m for m in masks]
        return masks, False, hidden

    def _selection_and_bias(self) -> tuple[list[Expr], float]:
        """The selection mask and the bias, if there are any, and the score of keys that are not selected.

        Two added masks are not summed first: the sum may be much larger than they are.
        """
        kept, hidden, nothing = self.kept, self.masked_value, float("-inf")
        if kept is None and len(self.added) == 2:
            return list(self.added), nothing
        added = _sum(self.added)
        if kept is None:
            return added, nothing
        if added and not self.bias and hidden <= _hiding_threshold(self.kind):
            return [_where(kept, added[0], hidden)], nothing
        return [kept, *_sum([*self.bias, *[_where(kept, e, 0.0) for e in added]])], hidden


def _hiding_threshold(kind: str) -> float:
    """The threshold from which down a value added to a score of type `kind` absorbs it."""
    return _HIDING_IN_FLOAT16 if kind == "float16" else _HIDING


def _sum(terms: Sequence[Expr]) -> list[Expr]:
    """The sum of `terms`, if there are any."""
    return [reduce(lambda a, b: make_call("add", (a, b), b.span), terms)] if terms else []


def _holds_product(e: Expr, steps: int = MOST_STEPS) -> bool:
    """Is `e` a matrix product, possibly scaled and masked?"""
    if not isinstance(e, Call) or steps == 0:
        return False
    if is_call_of(e, "reshape", "cast", "transpose"):
        return _holds_product(e.args[0], steps - 1)
    if is_call_of(e, "multiply", "divide", "add", "subtract", "where", "tanh"):
        return any(a.ty is e.ty and _holds_product(a, steps - 1) for a in e.args)
    return is_call_of(e, "nn.batch_matmul")


def _with_joined_batch(mask: Expr, level: Sequence[Dim], scores: Sequence[Dim]) -> Expr | None:
    """A mask of scores with windows after the batch, for `scores` in which these are one dimension."""
    if not shapes_equal(level[2:], scores[1:]):
        return None
    lead = (*(1,) * (5 - len(mask.shape)), *mask.shape)
    mask, (batch, windows, *rest) = reshaped(mask, lead), lead
    if (batch, windows) == (1, 1):
        return reshaped(mask, (1, *rest))
    if not shapes_equal((batch, windows), level[:2]):
        mask = make_call("broadcast_to", (mask,), mask.span, shape=(*level[:2], *rest))
    return reshaped(mask, (scores[0], *rest))


def _negated(test: Expr) -> Expr:
    if isinstance(test, Constant):
        return Constant(~array_of(test), span=test.span)
    return make_call("logical_not", (test,), test.span)


def _where(test: Expr, first: Expr, second: float) -> Expr:
    """`first` where `test` holds, elsewhere the scalar `second`."""
    return make_call("where", (test, first, Constant(np.asarray(second).astype(str(first.dtype)))), test.span)


def _scaled(e: Expr, factor: float) -> Expr:
    number = np.asarray(factor).astype(str(e.dtype))
    if isinstance(e, Constant):
        return Constant(e.data * number, span=e.span)
    return make_call("multiply", (e, Constant(number)), e.span)


def _without_factor(e: Expr, steps: int = MOST_STEPS) -> tuple[Expr, float]:
    """`e` without a scalar factor, and that factor."""
    if not isinstance(e, Call) or not steps:
        return e, 1.0
    if is_call_of(e, "reshape", "transpose"):
        x, factor = _without_factor(e.args[0], steps - 1)
        return (e, 1.0) if factor == 1.0 else (make_call(cast(OpDef, e.op), (x,), e.span), factor)
    if is_call_of(e, "multiply", "divide"):
        for x, y in (e.args, e.args[::-1]) if is_call_of(e, "multiply") else (e.args,):
            factor = _scalar_value(y)
            if factor and x.ty is e.ty:
                return x, factor if is_call_of(e, "multiply") else 1.0 / factor
    return e, 1.0


def _ungrouped(key: Expr, value: Expr) -> tuple[Expr, Expr]:
    """Keys and values before each of their heads was repeated for several query heads."""
    before = [_before_repetition(e) for e in (key, value)]
    if before[0] is None or before[1] is None or not shapes_equal(before[0].shape[:2], before[1].shape[:2]):
        return key, value
    return before[0], before[1]


def _before_repetition(e: Expr) -> Expr | None:
    """x (B, G, T, D) of reshape(broadcast_to(reshape(x), (B, G, R, T, D)), (B, G * R, T, D)), or of a gather of its
    heads."""
    if is_call_of(e, "take"):
        return _before_taking(cast(Call, e))
    if not is_call_of(e, "reshape") or not is_call_of(cast(Call, e).args[0], "broadcast_to"):
        return None
    repeated = cast(Call, cast(Call, e).args[0])
    one = repeated.args[0]
    if len(repeated.shape) != 5 or len(one.shape) != 5 or one.shape[2] != 1:
        return None
    batch, groups, _, keys, depth = one.shape
    expected = (batch, groups, repeated.shape[2], keys, depth)
    return reshaped(one, (batch, groups, keys, depth)) if shapes_equal(repeated.shape, expected) else None


def _before_taking(call: Call) -> Expr | None:
    """x (B, G, T, D) of a gather that repeats each of its heads equally often, one after the other."""
    (x, at), op = call.args, expect_op(call, Take)
    groups = x.shape[1] if len(x.shape) == 4 == len(call.shape) else None
    plain = op.axis % len(x.shape) == 1 and not op.batch_dims
    if not plain or not isinstance(groups, int) or not isinstance(at, Constant) or not groups:
        return None
    heads = np.arange(groups).repeat(at.data.size // groups)
    return x if np.array_equal(at.data, heads) else None
