"""Differentiation of a part of the model's own graph."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.frontends.onnx.fold import rewrite_free
from relayc.frontends.onnx.gradient_bodies import BODY
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import converter
from relayc.relay.errors import GradientError
from relayc.relay.expr import Expr, Var
from relayc.relay.transform.gradient import adjoints


@converter("Gradient", domain="ai.onnx.preview.training")
def gradient(node: OnnxNode) -> Sequence[Expr | None]:
    """Operators with a gradient rule: the usual ones of networks, but for control flow and fused recurrences."""
    targets = node.attr_strs("xs")
    values = node.all_inputs(len(targets))
    if len(values) != len(targets) + len(node.attr_strs("zs", ())):
        raise node.error(f"{len(values)} inputs", expected="one for each name in xs and zs")
    node.attrs.ignore("y")
    params = [Var(f"x{i}", value.ty) for i, value in enumerate(values)]
    (result,) = node.convert_graph(node.attr_graph(BODY), params)
    try:
        found = adjoints(result, params[: len(targets)])
    except GradientError as error:
        raise node.unsupported(str(error)) from error
    inputs = {id(param): value for param, value in zip(params, values, strict=True)}
    return [rewrite_free(x, inputs) if node.wants(i) else None for i, x in enumerate(found)]
