"""Matching of loop bodies by their ONNX nodes, from a result backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from relayc.frontends.onnx.node import OnnxNode
from relayc.relay.expr import Expr

__all__ = ["BodyPattern", "attribute", "values_outside"]


def values_outside(node: OnnxNode, names: list[str]) -> list[Expr]:
    """The values of captured names."""
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    return node.convert_graph(helper.make_graph([], "outside", [], results), [])


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute, `default` without one."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


class BodyPattern:
    """The body of a Loop: the producers of its values, and what they are made of."""

    def __init__(self, node: OnnxNode, graph: GraphProto) -> None:
        self.node, self.graph = node, graph
        self.made: dict[str, NodeProto] = {name: n for n in graph.node for name in n.output}
        self.iteration, self.condition = (i.name for i in graph.input[:2])
        self._inputs = frozenset(i.name for i in graph.input)
        self._held = {tensor.name: tensor for tensor in graph.initializer}

    def goes_on(self) -> bool:
        """Is the loop condition always true?"""
        first = self.node.known_value(1) if self.node.get(1) is not None else np.array(True)
        if first is None or not first.all():
            return False
        name = self.graph.output[0].name
        while (maker := self.by("Cast", name) or self.by("Identity", name)) is not None:
            name = maker.input[0]
        if name == self.condition:
            return True
        known = self.constant(name)
        return known is not None and bool(known.all())

    def by(self, kind: str, name: str) -> NodeProto | None:
        """The producer of a value, if it is of this operator."""
        maker = self.made.get(name)
        return maker if maker is not None and maker.op_type == kind and not maker.domain else None

    def is_outside(self, name: str) -> bool:
        """Is it a captured value?"""
        return name not in self.made and name not in self._inputs and name not in self._held

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a name, if it is a constant of the body or of the graph around it."""
        maker, held = self.by("Constant", name), self._held.get(name)
        if maker is not None:
            held = attribute(maker, "value", None)
        if held is not None:
            return None if held.data_location == TensorProto.EXTERNAL else numpy_helper.to_array(held)
        return self.node.value_or_none(values_outside(self.node, [name])[0]) if self.is_outside(name) else None

    def ints(self, node: NodeProto, index: int) -> list[int] | None:
        """Constant integers from an input of a node, or (Unsqueeze before opset 13) from its attribute."""
        if len(node.input) <= index:
            axes = attribute(node, "axes", None)
            return None if axes is None else list(axes)
        known = self.constant(node.input[index])
        return None if known is None else known.reshape(-1).tolist()
