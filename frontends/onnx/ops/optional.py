"""Optional values: the value or `ABSENT` if known at compile time, else a sequence of at most one element."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.containers import ABSENT
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.flow import tensor_type
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.container_type import ElementType, OptionalType, SequenceType
from relayc.relay.expr import Constant, Expr


@converter("Optional", since=15)
def optional(node: OnnxNode) -> list[Expr]:
    """Wraps a value, or makes an empty optional."""
    node.attrs.ignore("type")
    return [ABSENT if node.get(0) is None else node[0]]


@converter("OptionalHasElement", since=15)
def optional_has_element(node: OnnxNode) -> Expr:
    x = node.get(0)
    if x is not None and isinstance(x.ty, OptionalType):
        return op.cast(op.sequence.length(x), "bool")
    return Constant(np.array(x is not None and x is not ABSENT))


@converter("OptionalGetElement", since=15)
def optional_get_element(node: OnnxNode) -> list[Expr]:
    """The value; an error if it is empty."""
    x = node[0]
    if x is ABSENT:
        raise node.error("an optional value without element", expected="a value")
    if not isinstance(x.ty, OptionalType):
        return [x]
    held = x.ty.element
    assert isinstance(held, ElementType | SequenceType)
    return [op.sequence.get(x, held if isinstance(held, SequenceType) else tensor_type(node, held, "element"))]
