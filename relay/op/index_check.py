"""Checks of positions: operators that end a run with an error where one is out of range."""

from __future__ import annotations

from relayc import te
from relayc.backend.runtime.errors import IndexRangeError
from relayc.backend.runtime.host_actions import prepared
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.op.host import ActionOperator
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.topi.index_check import checked_indices

__all__ = ["HostIndexCheck", "IndexCheck"]


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
