"""CheckIndices: positions out of range end a run with an error, in place of being brought inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Function
from relayc.relay.op.base import OpDef
from relayc.relay.op.creation import size_tensor
from relayc.relay.op.host import OnHost
from relayc.relay.op.index_check import HostIndexCheck, IndexCheck
from relayc.relay.op.indexing import Gather, GatherND, ScatterElements, ScatterND, Take
from relayc.relay.transform.function_pass import FunctionPass, rewrite_calls
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from relayc.te.tir import Dim

__all__ = ["CheckIndices"]

PassContext.declare_option(
    "relay.check_indices", False, "positions out of range in gathers and scatters are errors when the model runs"
)


@dataclass(frozen=True)
class CheckIndices(FunctionPass):
    """With the option "relay.check_indices", the positions that gathers and scatters take are checked in each run.

    Kernels do that, as the checks that a model has in any case, on targets whose code can call the runtime, elsewhere
    the executor. Negative positions count from the end. Positions that operators limit by their definition are not
    checked. Raises CompileError for constant ones out of range.
    """

    target: Target

    def transform(self, function: Function, context: PassContext) -> Function:
        if context.option("relay.check_indices"):
            function = rewrite_calls(function, _checked)
        return rewrite_calls(function, _on_host) if "gpu" in self.target.keys else function


def _checked(call: Call) -> Call:
    """The call with a check of the positions that it takes, if they are not known to be right."""
    axes = _axes(call.op, call) if isinstance(call.op, OpDef) else ()
    if not axes:
        return call
    x, indices, *others = call.args
    sizes: list[Dim] = [x.shape[axis] for axis in axes]
    source = "" if call.span is None or not call.span.op else f"{call.span.op} {call.span.name!r}: "
    check = IndexCheck(axes=tuple(map(str, axes)), source=source)
    if isinstance(indices, Constant) and all(isinstance(size, int) for size in sizes):
        try:
            check.reference(indices.data, np.array(sizes))
        except CompileError as error:
            raise CompileError(f"{call.span}: {error}") from error
        return call
    checked = check(indices, size_tensor(sizes), span=call.span)
    return Call(call.op, (x, checked, *others), span=call.span)


def _on_host(call: Call) -> Call:
    """A check in a kernel as one by the executor."""
    if not isinstance(call.op, IndexCheck):
        return call
    check = OnHost(operator=HostIndexCheck(axes=call.op.axes), results=(call.tensor_type,))
    return Call(check, call.args, span=call.span)


def _depth(call: Call) -> int:
    """The length of the coordinate tuples, which is known."""
    depth = call.args[1].shape[0]
    assert isinstance(depth, int)
    return depth


def _axes(operator: OpDef, call: Call) -> tuple[int, ...]:
    """The dimensions of the first input that the positions in the second are for."""
    if not call.args or not isinstance(call.args[0].ty, TensorType):
        return ()
    rank = len(call.args[0].shape)
    match operator:
        case Take(mode="numpy") | Gather() | ScatterElements():
            return (operator.axis % rank,)
        case GatherND():
            return tuple(range(operator.batch_dims, operator.batch_dims + _depth(call)))
        case ScatterND():
            return tuple(range(_depth(call)))
        case _:
            return ()
