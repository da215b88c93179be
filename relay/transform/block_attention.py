"""BlockAttention: attention on CPUs reads its inputs in the layout of the projections, and is computed in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from relayc.backend.target import Target
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.attention import Attention
from relayc.relay.transform.builders import NARROW, transposed
from relayc.relay.transform.function_pass import RewritePass
from relayc.relay.type import dims_equal
from relayc.te.tir import Dim
from relayc.topi.cpu.tiling import attention_blocks, score_fill
from relayc.topi.groups import constant_size

__all__ = ["BlockAttention"]

_UNKNOWN_POSITIONS = 256
"""Positions assumed for a symbolic size."""

_HEADS_AFTER_POSITIONS = (0, 2, 1, 3)

_SECTION = 128
"""Minimum queries of a section of causal attention: shorter sections skip few keys, and reuse their packed keys too
little."""

_MOST_SECTIONS = 4
"""Maximum number of sections, each being a kernel to compile: four save three eighths of the work, of the masked half.
"""


@dataclass(frozen=True)
class BlockAttention(RewritePass):
    """`nn.attention` of at most float32 becomes transposes around `nn.blocked_attention`, most of which cancel others.

    Causal attention of many queries is split into sections, each with the keys that any of its queries attends to.
    """

    target: Target
    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, Attention) or call.dtype not in ("float32", *NARROW):
            return call
        query, key, value, *mask = call.args
        heads, positions, depth = query.shape[1:]
        groups, keys, width = value.shape[1:]
        if not all(isinstance(d, int) and d > 0 for d in (heads, groups, depth, width)) or call.tensor_type.size == 0:
            return call
        if keys == 0:
            return call
        operands = tuple([transposed(x, _HEADS_AFTER_POSITIONS) for x in (query, key, value)])
        sections = _sections(positions, keys) if op.causal and not mask else [(0, positions, keys)]
        parts: list[Expr] = []
        for begin, end, seen in sections:
            limits = ((begin, end, positions), (0, seen, keys), (0, seen, keys))
            part = [_section(x, *limit) for x, limit in zip(operands, limits, strict=True)]
            parts.append(self._blocked(call, op, (*part, *mask)))
        whole = parts[0] if len(parts) == 1 else make_call("concatenate", parts, call.span, axis=1)
        return transposed(whole, _HEADS_AFTER_POSITIONS, call.span)

    def _blocked(self, call: Call, op: Attention, operands: tuple[Expr, ...]) -> Call:
        query, _, value = operands[:3]
        sizes = (query.shape[1], value.shape[1], query.shape[3], value.shape[3])
        positions, *known = [d if isinstance(d, int) else _UNKNOWN_POSITIONS for d in sizes]
        heads, groups = constant_size([query.shape[2]]), constant_size([value.shape[2]])
        batch = query.shape[0] if isinstance(query.shape[0], int) else 1
        queries, panel = attention_blocks(self.target, positions * (heads // groups), *known, heads=batch * groups)
        return make_call(
            "nn.blocked_attention", operands, call.span, scale=op.scale, queries=queries, panel=panel,
            causal=op.causal, masked_value=op.masked_value, softcap=op.softcap,
            fill=panel if op.causal else score_fill(self.target, sizes[1], panel), rounded=op.rounded,
        )  # fmt: skip


def _sections(positions: Dim, keys: Dim) -> list[tuple[Dim, Dim, Dim]]:
    """(first query, last query + 1, keys attended to) of the sections of causal attention; one section for symbolic
    sizes."""
    if not isinstance(positions, int) or not isinstance(keys, int) or keys < positions:
        return [(0, positions, keys)]
    count = max(1, min(_MOST_SECTIONS, positions // _SECTION))
    bounds = [positions * i // count for i in range(count + 1)]
    return [(begin, end, end + keys - positions) for begin, end in pairwise(bounds)]


def _section(x: Expr, begin: Dim, end: Dim, size: Dim) -> Expr:
    """Positions `begin` to `end` of x (batch, positions, heads, channels)."""
    if begin == 0 and dims_equal(end, size):
        return x
    return make_call("strided_slice", (x,), x.span, begin=(begin,), end=(end,), strides=(1,), axes=(1,))
