"""Operators: importing this package registers all of them. Helper functions build calls (`relay.op.add(x, y)`)."""

from relay.op import nn
from relay.op.base import OpDef, OpPattern, get_op, list_op_names, make_call, register_op
from relay.op.tensor import add

__all__ = ["OpDef", "OpPattern", "add", "get_op", "list_op_names", "make_call", "nn", "register_op"]
