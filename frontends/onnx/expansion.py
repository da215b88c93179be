"""How many nodes a model has when each call of one of its functions is replaced by the function's body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from onnx import NodeProto

from relayc.frontends.onnx.errors import OnnxImportError, fault
from relayc.frontends.onnx.graph import with_nested
from relayc.frontends.onnx.model import FunctionKey, Model, function_key

__all__ = ["MAX_EXPANDED", "check_expansion", "expansion_fault"]

MAX_EXPANDED = 100_000
"""Most nodes of functions and subgraphs converted in one import, each counted at each use: functions that call others
twice are exponentially larger than their file."""


def check_expansion(model: Model) -> None:
    """Raise `OnnxImportError` for a model that becomes too large, before a node of it is converted.

    Functions that call each other in a circle have no size; converting them is an error of its own.
    """
    if not model.functions:  # subgraphs are as large as the file
        return
    bodies = {key: list(with_nested(function.node)) for key, function in model.functions.items()}
    calls = {key: _calls(body, model) for key, body in bodies.items()}
    sizes: dict[FunctionKey, int] = {}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError:
        return
    for key in order:
        size = len(bodies[key]) + _expanded(calls[key], sizes)
        sizes[key] = min(size, MAX_EXPANDED + 1)  # more digits than a model has functions are not needed
    nodes = list(with_nested(model.graph.node))
    called = _calls(nodes, model)
    if len(nodes) - len(model.graph.node) + _expanded(called, sizes) <= MAX_EXPANDED:
        return
    large = [model.functions[key].name for key in called if sizes[key] > MAX_EXPANDED]
    raise expansion_fault(f"{model.name}: function {large[0]!r}" if large else model.name)


def expansion_fault(where: str) -> OnnxImportError:
    """The error for what has more than `MAX_EXPANDED` nodes."""
    problem = "the functions and subgraphs of the model, each counted at each use, have too many nodes"
    return fault(where, problem, expected=f"at most {MAX_EXPANDED}", remedy="split the model")


def _expanded(calls: Counter[FunctionKey], sizes: dict[FunctionKey, int]) -> int:
    return sum([times * sizes[key] for key, times in calls.items()])


def _calls(nodes: Iterable[NodeProto], model: Model) -> Counter[FunctionKey]:
    """How often nodes call each function of the model."""
    return Counter([key for key in map(function_key, nodes) if key in model.functions])
