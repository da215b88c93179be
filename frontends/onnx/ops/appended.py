"""Sequences that a Loop appends one element to in every iteration: stacked outputs, cut into a sequence afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, NodeProto, ValueInfoProto

from relayc.frontends.onnx.graph import names_read
from relayc.frontends.onnx.ops.flow import without_carried
from relayc.relay.expr import Expr, Tuple

__all__ = ["append_to", "appended_sequences", "stacking_body"]


def appended_sequences(body: GraphProto, carried: Sequence[Expr]) -> list[int]:
    """The carried values that are empty at first, and that the body does nothing with but append to."""
    return [k for k, value in enumerate(carried)
            if isinstance(value, Tuple) and not value.fields and append_to(body, k) is not None]  # fmt: skip


def stacking_body(body: GraphProto, positions: Sequence[int]) -> GraphProto:
    """The body without these carried values; their elements are stacked outputs, after those that it has."""
    names = {body.output[1 + k].name for k in positions}
    made = without_carried(body, positions, 2, 1)
    nodes = [node for node in body.node if names.isdisjoint(node.output)]
    del made.node[:]
    made.node.extend(nodes)
    for k in positions:
        append = append_to(body, k)
        assert append is not None
        made.output.append(ValueInfoProto(name=append.input[1]))
    return made


def append_to(body: GraphProto, k: int) -> NodeProto | None:
    """The node that appends an element to carried value `k`; None if that is not all that is done."""
    before, after = body.input[2 + k].name, body.output[1 + k].name
    producers = [node for node in body.node if after in node.output]
    if len(producers) != 1 or (producers[0].domain, producers[0].op_type) != ("", "SequenceInsert"):
        return None
    used, outputs = [name for node in body.node for name in names_read(node)], [value.name for value in body.output]
    operands = [name for name in producers[0].input if name]
    alone = used.count(before) == 1 and used.count(after) == 0 and outputs.count(after) == 1
    return producers[0] if alone and len(operands) == 2 and operands[0] == before and before not in outputs else None
