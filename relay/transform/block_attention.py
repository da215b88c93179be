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
        if not all(a.tensor_type.is_static for a in call.args) or call.tensor_type.size == 0:
            return call
        query, key, value, *mask = call.args
        *_, positions, depth = query.tensor_type.static_shape
        keys, width = value.tensor_type.static_shape[2:]
        if positions < FEWEST_QUERIES or keys == 0 or depth == 0:
            return call
        queries, panel = attention_blocks(self.target, positions, keys, depth, width)
        operands = [transposed(x, _HEADS_BEHIND_POSITIONS) for x in (query, key, value)]
        blocked = make_call(
            "nn.blocked_attention", (*operands, *mask), call.span, scale=op.scale, queries=queries, panel=panel,
            causal=op.causal, masked_value=op.masked_value,
        )  # fmt: skip
        return transposed(blocked, _HEADS_BEHIND_POSITIONS, call.span)
