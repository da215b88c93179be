"""Neural-network operators, registered as `nn.*`."""

from relay.op.nn.activation import relu

__all__ = ["relu"]
