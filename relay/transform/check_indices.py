"""CheckIndices: positions out of range end a run with an error, in place of being brought inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayc import te
from relayc.backend.runtime.errors import IndexRangeError
from relayc.backend.runtime.host_actions import prepared
from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.op.creation import size_tensor
from relayc.relay.op.host import ActionOperator, OnHost
from relayc.relay.op.indexing import Gather, GatherND, ScatterElements, ScatterND, Take
from relayc.relay.transform.function_pass import RewritePass
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import Dim
from relayc.topi.index_check import checked_indices

__all__ = ["CheckIndices"]

PassContext.declare_option(
    "relay.check_indices", False, "positions out of range in gathers and scatters are errors when the model runs"
)


@register_op("indices.check", pattern=OpPattern.OPAQUE)
class IndexCheck(OpDef):
    """The positions in input 0, unless one is outside of its axis: that ends the run with an error naming `source`.

    Input 1 has the sizes of the `axes`. Positions for several axes are along dimension 0. (C1) the sizes are an int64
    vector of as many elements as there are axes.
    """

    mixed_precision = MixedPrecision.NEVER
    num_inputs = (2, 2)
    can_fail = True

    axes: tuple[str, ...]
    source: str = ""

    def infer(self, indices: TensorType, sizes: TensorType) -> TensorType:
        wanted = TensorType((len(self.axes),), "int64")
        require(sizes == wanted, f"(C1) the sizes must be {wanted}; got {sizes}")
        return indices

    def compute(self, indices: te.Tensor, sizes: te.Tensor) -> te.Tensor:
        return checked_indices(indices, sizes, self.axes, self.source)

    def reference(self, indices: Array, sizes: Array) -> Array:
        try:
            return prepared("check_indices", {"axes": self.axes})(indices, sizes)[0]
        except IndexRangeError as error:
            raise CompileError(f"{self.source}{error}") from error


@register_op("indices.check_on_host", pattern=OpPattern.OPAQUE)
class HostIndexCheck(ActionOperator):
    """`indices.check` by the executor, for devices whose kernels can't report errors."""

    action = "check_indices"

    axes: tuple[str, ...]

    def infer(self, indices: TensorType, sizes: TensorType) -> TensorType:
        self.check(indices, sizes)
        return indices


@dataclass(frozen=True)
class CheckIndices(RewritePass):
    """With the option "relay.check_indices", the positions that gathers and scatters take are checked in each run.

    Kernels do that on targets whose code can call the runtime, elsewhere the executor. Negative positions count from
    the end. Positions that operators limit by their definition are not checked. Raises CompileError for constant ones
    out of range.
    """

    target: Target

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return super().run(module, context) if context.option("relay.check_indices") else module

    def rewrite(self, call: Call) -> Expr:
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
        if "gpu" in self.target.keys:
            check = OnHost(operator=HostIndexCheck(axes=check.axes), results=(indices.tensor_type,))
        checked = check(indices, size_tensor(sizes), span=call.span)
        return Call(call.op, (x, checked, *others), span=call.span)


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
