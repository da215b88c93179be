"""Optional values, whose presence is known when compiling."""

from __future__ import annotations

import numpy as np

from frontends.onnx.containers import ABSENT
from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from relay.expr import Constant, Expr


@converter("Optional", since=15)
def optional(node: OnnxNode) -> list[Expr]:
    """The value, or none."""
    node.attrs.ignore("type")
    return [ABSENT if node.get(0) is None else node[0]]


@converter("OptionalHasElement", since=15)
def optional_has_element(node: OnnxNode) -> Expr:
    x = node.get(0)
    return Constant(np.array(x is not None and x is not ABSENT))


@converter("OptionalGetElement", since=15)
def optional_get_element(node: OnnxNode) -> list[Expr]:
    if node[0] is ABSENT:
        raise node.error("an optional value without element", expected="a value")
    return [node[0]]
