"""ShareRecurrences: sets the work partition and the number of register accumulators of recurrences."""

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
    """`nn.lstm`, `nn.gru` and `nn.rnn` get the target's number of cores, which determines the work partition.

    They also get the number of accumulators that its vector registers hold: three fourths of the registers.
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
        configured = replace(op, cores=cores, sums=sums, vectors=vectors)
        return call if configured == op else Call(configured, call.args, span=call.span)
