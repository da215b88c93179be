"""The base of operators that the executor runs itself, between kernels."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.op.base import MixedPrecision, OpDef, attributes_of_operator

__all__ = ["HostOperator"]


@attributes_of_operator
class HostOperator(OpDef):
    """Base of operators on sequences and strings. `keeps` are the inputs that the result may alias."""

    mixed_precision = MixedPrecision.NEVER
    takes_containers = True
    keeps: ClassVar[slice] = slice(0, 0)
