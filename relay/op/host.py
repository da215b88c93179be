"""What the executor does itself, between the kernels of a model."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.op.base import MixedPrecision, OpDef, attributes_of_operator

__all__ = ["HostOperator"]


@attributes_of_operator
class HostOperator(OpDef):
    """Base of operators on lists and strings. `keeps` are the inputs that the result holds on to."""

    mixed_precision = MixedPrecision.NEVER
    takes_containers = True
    keeps: ClassVar[slice] = slice(0, 0)
