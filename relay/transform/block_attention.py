"""BlockAttention: attention on CPUs takes its inputs as projections leave them, and goes through them in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from backend.target import Target
from relay.expr import Call, Expr
from relay.op.base import make_call
from relay.op.nn.attention import Attention
from relay.transform.builders import transposed
from relay.transform.function_pass import RewritePass
from relay.transform.recognize_attention import FEWEST_QUERIES
from topi.cpu.tiling import attention_blocks

__all__ = ["BlockAttention"]

_UNKNOWN_POSITIONS = 256
"""Positions assumed for a symbolic size."""

_HEADS_BEHIND_POSITIONS = (0, 2, 1, 3)


@dataclass(frozen=True)
class BlockAttention(RewritePass):
    """`nn.attention` of float32 becomes transposes around `nn.blocked_attention`, most of which cancel others."""

    target: Target
    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, Attention) or call.dtype != "float32":
            return call
        query, key, value, *mask = call.args
        heads, positions, depth = query.shape[1:]
        groups, keys, width = value.shape[1:]
        if not all(isinstance(d, int) and d > 0 for d in (heads, groups, depth, width)) or call.tensor_type.size == 0:
            return call
        known = [d if isinstance(d, int) else _UNKNOWN_POSITIONS for d in (positions, keys)]
        if known[0] < FEWEST_QUERIES or known[1] == 0:
            return call
        queries, panel = attention_blocks(self.target, *known, *[d for d in (depth, width) if isinstance(d, int)])
        operands = [transposed(x, _HEADS_BEHIND_POSITIONS) for x in (query, key, value)]
        blocked = make_call(
            "nn.blocked_attention", (*operands, *mask), call.span, scale=op.scale, queries=queries, panel=panel,
            causal=op.causal, masked_value=op.masked_value,
        )  # fmt: skip
        return transposed(blocked, _HEADS_BEHIND_POSITIONS, call.span)
