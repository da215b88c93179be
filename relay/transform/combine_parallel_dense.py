"""CombineParallelDense: dense layers on the same data become one, such as the three projections of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from relayc.relay.analysis import users
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.parallel_layers import Branch, branch_of, combined, rearranges
from relayc.te.ir import PassContext

__all__ = ["CombineParallelDense"]


@dataclass(frozen=True)
class CombineParallelDense(FunctionPass):
    """dense(x, w1) + b1, dense(x, w2) + b2, ... become slices of dense(x, [w1; w2; ...]) + [b1; b2; ...].

    Only where every result is then rearranged anyway (a view, a transposition), so that the slice is read as a view.
    Elementwise operators, by contrast, are better fused into a layer of their own, and a recurrence reads memory in
    order.
    """

    min_branches: int = 2
    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        by_user = users(function)
        siblings: dict[tuple[int, Any], list[Branch]] = {}
        for used in list(by_user.values()):
            for call in used:
                branch = _branch(call, by_user)
                if branch is not None:
                    group = siblings.setdefault((id(branch.layer.args[0]), branch.layer.op), [])
                    if all(branch.layer is not known.layer for known in group):
                        group.append(branch)
        groups = [group for group in siblings.values() if len(group) >= self.min_branches]
        return combined(function, groups) if groups else function


def _branch(call: Expr, by_user: dict[int, list[Expr]]) -> Branch | None:
    if not isinstance(call, Call) or not is_call_of(call, "nn.dense") or not isinstance(call.args[1], Constant):
        return None
    if len(by_user[id(call.args[0])]) == 1:
        return None  # no other layer reads its input
    branch = branch_of(call, by_user, with_activation=False)
    following = by_user[id(branch.result)]
    rearranged = bool(following) and all(rearranges(user, by_user) for user in following)
    return branch if rearranged and isinstance(call.shape[-1], int) else None
