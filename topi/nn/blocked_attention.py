"""Attention by blocks of queries, with all intermediate results in memory of one thread.

Keys and values are packed once per head into panels of `panel` keys and of `panel` columns, which register tiles read
sequentially; queries are scaled while they are packed. The scores of a block of queries with all keys are one small
matrix, which becomes the weights in place: the matrix of all scores is never materialised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr, as_dim
from relayc.topi.nn.attention import capped
from relayc.topi.reduction import largest_number
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import accumulator_type, broadcast_index, ceil_div, same_dim

__all__ = ["AttentionForm", "blocked_attention"]


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Parameters of attention: scores are multiplied by `scale` and masked, `causal` or not.

    `masked_value` is the score of keys that a bool mask hides. A positive `softcap` limits scores smoothly. `queries`
    are the rows of a block, `panel` the keys, and the columns of values, in a panel. Rows of scores are padded to a
    multiple of `fill` keys, which divides `panel` (0: of `panel`). `rounded` scores have the element type of the query.
    """

    scale: float
    queries: int
    panel: int
    causal: bool = False
    masked_value: float = float("-inf")
    softcap: float = 0.0
    fill: int = 0
    rounded: bool = False


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: AttentionForm, bias: Tensor | None = None
) -> Tensor:
    """softmax(query key^T * scale + mask) value, with the heads of a position contiguous, as projections produce them.

    query (B, S, H, D), key (B, T, G, D), value (B, T, G, E) with H a multiple of G: (B, S, H, E). Other parameters are
    those of `topi.nn.attention`. Stages have the tags "blocked_attention_<name>"; "blocked_attention" is the anchor.
    """
    return _Blocked(query, key, value, mask, form, bias).result()


class _Blocked:
    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, form: AttentionForm, bias: Tensor | None
    ) -> None:
        self.query, self.key, self.value, self.mask, self.form, self.bias = query, key, value, mask, form, bias
        self.batch, self.length, self.heads, self.depth = query.shape
        _, self.keys, self.groups, self.width = value.shape
        self.per_group = self._heads_of_a_group()
        self.panel_keys, self.padded_keys = [
            as_dim(ceil_div(self.keys, unit) * unit) for unit in (form.panel, form.fill or form.panel)
        ]
        self.rows = (self.batch, self.groups, as_dim(self.length * self.per_group))
        self.wide = accumulator_type(query.dtype)
        self.lowest, self.zero = te.const(float("-inf"), self.wide), te.const(0, self.wide)

    def _stage(
        self, shape: tuple[Dim, ...], body: Callable[..., PrimExpr], name: str, attrs: Mapping[str, Any] | None = None
    ) -> Tensor:
        return te.compute(shape, body, name=name, tag=f"blocked_attention_{name}", attrs=attrs)

    def _heads_of_a_group(self) -> int:
        """The number of query heads that share a head of keys and values."""
        assert isinstance(self.heads, int) and isinstance(self.groups, int)
        return self.heads // self.groups

    def _query(self, g: Any, row: Any) -> tuple[Any, Any]:
        """The head and position of a row: the rows of a group are the queries of all its heads, ordered by position."""
        if self.per_group == 1:
            return g, row
        return g * self.per_group + row % self.per_group, row // self.per_group

    def _within(self, at: Any, size: Dim, padded: Dim, entry: PrimExpr, beyond: PrimExpr) -> PrimExpr:
        """`entry`, or `beyond` where `at` is in the padding from `size` up to `padded`."""
        return entry if same_dim(size, padded) else te.if_then_else(at < size, entry, beyond)

    def _queries(self) -> Tensor:
        scale = te.const(self.form.scale, self.wide)

        def body(b: Any, g: Any, row: Any, d: Any) -> PrimExpr:
            h, s = self._query(g, row)
            return te.cast(self.wide, self.query(b, s, h, d)) * scale

        return self._stage((*self.rows, self.depth), body, "queries")

    def _key_panels(self) -> Tensor:
        """(B, G, panels, D, panel) from the keys as rows, (B, G, T padded to whole panels, D)."""
        panel = self.form.panel

        def row(b: Any, g: Any, t: Any, d: Any) -> PrimExpr:
            entry = te.cast(self.wide, self.key(b, t, g, d))
            return self._within(t, self.keys, self.panel_keys, entry, self.zero)

        rows = self._stage((self.batch, self.groups, self.panel_keys, self.depth), row, "key_rows")

        def body(b: Any, g: Any, p: Any, d: Any, lane: Any) -> PrimExpr:
            return rows(b, g, p * panel + lane, d)

        shape = (self.batch, self.groups, ceil_div(self.keys, panel), self.depth, panel)
        return self._stage(shape, body, "key_panels")

    def _value_panels(self) -> Tensor:
        panel = self.form.panel
        count = ceil_div(self.width, panel)

        def body(b: Any, g: Any, p: Any, t: Any, lane: Any) -> PrimExpr:
            e = p * panel + lane
            entry = te.cast(self.wide, self.value(b, t, g, e))
            return self._within(e, self.width, as_dim(count * panel), entry, self.zero)

        return self._stage((self.batch, self.groups, count, self.keys, panel), body, "value_panels")

    def _scores(self) -> Tensor:
        """(B, G, rows, T padded): -inf where a key is hidden or padding."""
        queries, panels, panel = self._queries(), self._key_panels(), self.form.panel
        d = te.reduce_axis((0, self.depth), name="d")

        def dot(b: Any, g: Any, row: Any, t: Any) -> PrimExpr:
            return te.sum(queries(b, g, row, d) * panels(b, g, t // panel, d, t % panel), axis=d)

        product = self._stage((*self.rows, self.padded_keys), dot, "product")

        def masked(b: Any, g: Any, row: Any, t: Any) -> PrimExpr:
            h, s = self._query(g, row)
            score = capped(product(b, g, row, t), self.form.softcap)
            if self.mask is not None:
                entry = self.mask(*broadcast_index((b, h, s, t), self.mask.shape))
                hidden = te.const(self.form.masked_value, self.wide)
                score = te.select(entry, score, hidden) if entry.dtype.is_bool else score + te.cast(self.wide, entry)
            if self.bias is not None:
                entry = self.bias(*broadcast_index((b, h, s, t), self.bias.shape))
                score = score + te.cast(self.wide, entry)
            if self.form.rounded:
                score = te.cast(self.wide, te.cast(self.query.dtype, score))
            if self.form.causal:
                score = te.select(t <= s + (self.keys - self.length), score, self.lowest)
            return self._within(t, self.keys, self.padded_keys, score, self.lowest)

        return self._stage(product.shape, masked, "score", {"keys": self.keys})

    def result(self) -> Tensor:
        """The attention of `_Blocked`'s inputs."""
        score, values, panel = self._scores(), self._value_panels(), self.form.panel
        k_max, k_sum = [te.reduce_axis((0, self.padded_keys), name="t") for _ in range(2)]
        k_out = te.reduce_axis((0, self.keys), name="t")
        largest = self._stage(self.rows, lambda *i: largest_number(score(*i, k_max), axis=k_max), "largest")

        def relative(b: Any, g: Any, row: Any, t: Any) -> PrimExpr:
            top = largest(b, g, row)
            return te.exp_nonpositive(score(b, g, row, t) - te.select(top == self.lowest, self.zero, top))

        weight = self._stage(score.shape, relative, "weight")
        total = self._stage(self.rows, lambda *i: te.sum(weight(*i, k_sum), axis=k_sum), "total")
        one = te.const(1, self.wide)
        share = self._stage(self.rows, lambda *i: one / te.select(total(*i) == self.zero, one, total(*i)), "share")

        def mix(b: Any, g: Any, row: Any, e: Any) -> PrimExpr:
            column = values(b, g, e // panel, k_out, e % panel)
            return te.sum(weight(b, g, row, k_out) * column, axis=k_out)

        shape = (*self.rows, self.width)
        mixed = te.compute(shape, mix, name="mixed", tag="blocked_attention", attrs={"form": self.form})

        def normalized(b: Any, s: Any, h: Any, e: Any) -> PrimExpr:
            many = self.per_group
            row = (b, h, s) if many == 1 else (b, h // many, s * many + h % many)
            return te.cast(self.query.dtype, mixed(*row, e) * share(*row))

        shape = (self.batch, self.length, self.heads, self.width)
        return te.compute(shape, normalized, name="attention", tag=INJECTIVE)
