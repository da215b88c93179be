"""Check for unsupported operators before the import: one error lists all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import NodeProto

from relayc.frontends.onnx.errors import UnsupportedOperatorError
from relayc.frontends.onnx.functions import has_function
from relayc.frontends.onnx.graph import describe, with_nested
from relayc.frontends.onnx.model import NEWEST_OPSET, Model, function_key, opset_table, with_implied
from relayc.frontends.onnx.registry import find_converter
from relayc.frontends.onnx.unsupported_operators import UNSUPPORTED

__all__ = ["list_unsupported"]


_REMEDY = "export the model with other operators, or add a converter (frontends.onnx.registry.converter)"

_SAVED = ("com.microsoft.nchwc::", "com.ms.internal.nhwc::")
"""Domains of operators that onnxruntime's layout optimizations put in the place of others, for one processor."""

_SAVED_REMEDY = (
    "take the original model: onnxruntime optimized this one for one processor's layouts before it saved it; with "
    "graph_optimization_level = ORT_ENABLE_EXTENDED it saves models without them"
)


def list_unsupported(model: Model) -> None:
    """Raise one error that lists all operators without a converter in the model, its functions and subgraphs."""
    missing: dict[str, list[str]] = {}
    operators: dict[str, None] = {}
    bodies: list[tuple[Iterable[NodeProto], Mapping[str, int]]] = [(model.graph.node, with_implied(model.opsets))]
    for function in model.functions.values():
        opsets = opset_table(function.opset_import, model.name) if len(function.opset_import) else model.opsets
        bodies.append((function.node, with_implied(opsets)))
    for nodes, opsets in reversed(bodies):
        for node in with_nested(nodes):
            problem = _why_unsupported(node, opsets, model)
            if problem:
                missing.setdefault(problem, []).append(describe(node))
                operators[problem.split(" ", 1)[0]] = None
    if not missing:
        return
    lines = [f"{model.name}: {len(missing)} operators of this model are not supported:"]
    for problem, places in sorted(missing.items()):
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        lines.append(f"  {problem}: {', '.join(places[:3])}{more}")
    saved = any(name.startswith(_SAVED) for name in operators)
    lines.append(f"  to do: {_SAVED_REMEDY if saved else _REMEDY}")
    raise UnsupportedOperatorError("\n".join(lines), tuple(operators))


def _why_unsupported(node: NodeProto, opsets: Mapping[str, int], model: Model) -> str:
    """Why the node is unsupported; empty if it can be converted."""
    domain, *_ = key = function_key(node)
    if key in model.functions:
        return ""
    operator = f"{domain}::{node.op_type}" if domain else node.op_type
    if domain not in opsets:
        return f"{operator} (the model imports no version of the domain {domain or 'ai.onnx'!r})"
    if find_converter(domain, node.op_type, opsets[domain]) is not None:
        return ""
    if has_function(domain, node.op_type, opsets[domain]):
        return ""
    if (domain, node.op_type) in UNSUPPORTED:
        return f"{operator} ({UNSUPPORTED[domain, node.op_type]})"
    if find_converter(domain, node.op_type, NEWEST_OPSET) is not None:
        return f"{operator} at opset {opsets[domain]} (a newer opset of it is supported)"
    return f"{operator} at opset {opsets[domain]}"
