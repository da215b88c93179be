"""ShareRecurrences: recurrences are told among how many threads they are shared, and what registers hold of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from relayc.backend.target import Target
from relayc.relay.expr import Call, Expr
from relayc.relay.op.nn.recurrent import GRU, LSTM, RNN
from relayc.relay.transform.function_pass import RewritePass
from relayc.topi.cpu.tiling import threads_worthwhile, vector_lanes
from relayc.topi.groups import constant_size

__all__ = ["ShareRecurrences"]


@dataclass(frozen=True)
class ShareRecurrences(RewritePass):
    """`nn.lstm`, `nn.gru` and `nn.rnn` get the target's number of cores, which decides what their threads share.

    And how many of their sums its vector registers hold at once: three fourths of these are for sums.
    """

    target: Target
    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, LSTM | GRU | RNN):
            return call
        products, weight, *_ = [arg.tensor_type for arg in call.args]
        vectors = max(weight.static_shape[-1] * products.dtype.nbytes // self.target.vector_bytes, 1)
        sums = max(self.target.vector_registers * 3 // 4 // vectors, 1)
        step = 2.0 * constant_size((*weight.shape, products.shape[1]))
        cores = min(self.target.num_cores, threads_worthwhile(step, vector_lanes(self.target)))
        told = replace(op, cores=cores, sums=sums, vectors=vectors)
        return call if told == op else Call(told, call.args, span=call.span)
