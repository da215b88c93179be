"""ShareRecurrences: recurrences are told among how many threads they are shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from backend.target import Target
from relay.expr import Call, Expr
from relay.op.nn.recurrent import GRU, LSTM, RNN
from relay.transform.function_pass import RewritePass

__all__ = ["ShareRecurrences"]


@dataclass(frozen=True)
class ShareRecurrences(RewritePass):
    """`nn.lstm`, `nn.gru` and `nn.rnn` get the target's number of cores, which decides what their threads share."""

    target: Target
    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, LSTM | GRU | RNN) or op.cores == self.target.num_cores:
            return call
        return Call(replace(op, cores=self.target.num_cores), call.args, span=call.span)
