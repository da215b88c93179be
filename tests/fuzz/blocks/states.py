"""Blocks of tokens that carry a state along the length: recurrences with lengths, loops, scans, sums of decays."""

from __future__ import annotations

import math

from onnx import GraphProto, NodeProto, TensorProto, helper

from tests.fuzz.blocks.net import Net, Tokens, block
from tests.fuzz.blocks.sequences import apart, heads_of, together

__all__: list[str] = []


@block(Tokens)
def recurrent_with_lengths(net: Net, x: Tokens) -> Tokens:
    """A recurrence in which each entry of the batch has its own length; its last state is added to all."""
    kind, hidden = net.choice(("LSTM", "GRU", "RNN")), net.hidden()
    direction = net.choice(("forward", "reverse", "bidirectional"))
    ways, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = [net.weight(ways, gates * hidden, n, depth=n) for n in (x.width, hidden)]
    length = net.size(x.name, 1)
    counts = ""
    if net.chance(0.7):
        counts = net.integers(net.batch, low=1, high=net.extents.spans["length"][1])
        counts = net.op("Cast", net.op("Min", counts, length), to=TensorProto.INT32)
    shape = net.sizes(ways, net.size(x.name, 0), hidden)
    states = [net.op("Expand", net.bias(ways, 1, hidden), shape) for _ in range(2 if kind == "LSTM" else 1)]
    how = {"linear_before_reset": net.choice((0, 1))} if kind == "GRU" else {}
    every, last = net.ops(kind, 2, net.transpose(x.name, 1, 0, 2), *weights, net.bias(ways, 2 * gates * hidden), counts,
                          *states, hidden_size=hidden, direction=direction, **how)  # fmt: skip
    rows = net.op("Reshape", net.transpose(every, 2, 0, 1, 3), net.ints(0, 0, ways * hidden))
    ends = net.op("Reshape", net.transpose(last, 1, 0, 2), net.ints(0, 1, ways * hidden))
    return Tokens(net.op("Add", rows, ends), ways * hidden)


_FLOAT, _BOOL, _INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def _graph(net: Net, nodes: list[NodeProto], inputs: dict[str, int], outputs: dict[str, int]) -> GraphProto:
    """A body, of inputs and outputs by name and type. Integers and truth values are scalars."""
    infos = [
        [helper.make_tensor_value_info(n, kind, None if kind == _FLOAT else []) for n, kind in values.items()]
        for values in (inputs, outputs)
    ]
    return helper.make_graph(nodes, f"body{len(net.nodes)}", *infos)


@block(Tokens)
def looped(net: Net, x: Tokens) -> Tokens:
    """A loop of up to five steps that adds a token each time, and perhaps stops before."""
    weight = net.weight(x.width, x.width)
    grown = net.chance(0.6)
    nodes = [
        helper.make_node("ReduceMean", ["state", net.ints(1)], ["mean"], keepdims=1),
        helper.make_node("MatMul", ["mean", weight], ["product"]),
        helper.make_node("Tanh", ["product"], ["token"]),
        helper.make_node("Concat", ["state", "token"], ["next"], axis=1) if grown
        else helper.make_node("Add", ["state", "token"], ["next"]),
        helper.make_node("Less", ["step", net.whole(3)], ["on"]) if net.chance(0.5)
        else helper.make_node("Identity", ["on_before"], ["on"]),
    ]  # fmt: skip
    body = _graph(net, nodes, {"step": _INT64, "on_before": _BOOL, "state": _FLOAT},
                  {"on": _BOOL, "next": _FLOAT, "token": _FLOAT})  # fmt: skip
    steps = net.op("Squeeze", net.op("Min", net.size(x.name, 1), net.ints(5)), net.ints(0))
    last, tokens = net.ops("Loop", 2, steps, "", x.name, body=body)
    added = net.op("ReduceSum", tokens, net.ints(0), keepdims=0)
    return Tokens(net.op("Add", last, added), x.width)


@block(Tokens)
def accumulated(net: Net, x: Tokens) -> Tokens:
    """A scan over the length: each token's state is a mean of the one before and of itself."""
    share = net.op("Sigmoid", net.bias(x.width))
    nodes = [
        helper.make_node("Sub", ["token", "state"], ["difference"]),
        helper.make_node("Mul", ["difference", share], ["part"]),
        helper.make_node("Add", ["state", "part"], ["next"]),
        helper.make_node("Identity", ["next"], ["seen"]),
    ]
    body = _graph(net, nodes, {"state": _FLOAT, "token": _FLOAT}, {"next": _FLOAT, "seen": _FLOAT})
    first = net.op("Expand", net.bias(1, x.width), net.sizes(net.size(x.name, 0), x.width))
    back = net.choice((0, 1))
    last, every = net.ops("Scan", 2, first, x.name, body=body, num_scan_inputs=1, scan_input_axes=[1],
                          scan_output_axes=[1], scan_input_directions=[back],
                          scan_output_directions=[back])  # fmt: skip
    return Tokens(net.op("Add", every, net.op("Unsqueeze", last, net.ints(1))), x.width)


@block(Tokens)
def decayed(net: Net, x: Tokens) -> Tokens:
    """Products of all pairs weighted by decays between them, from sums along the length, as of state-space models."""
    heads = heads_of(net, x.width)
    q, k, v = (apart(net, net.linear(x.name, x.width, x.width), heads, x.width) for _ in range(3))
    rate = net.op("Softplus", net.linear(x.name, x.width, heads))
    summed = net.op("CumSum", net.op("Neg", net.transpose(rate, 0, 2, 1)), net.whole(2))
    between = net.op("Sub", net.op("Unsqueeze", summed, net.ints(3)), net.op("Unsqueeze", summed, net.ints(2)))
    if net.chance(0.5):
        length = net.size(x.name, 1)
        rows = net.range_of(length)
        later = net.op("Less", net.op("Unsqueeze", rows, net.ints(1)), rows)
        decay = net.op("Exp", net.op("Where", later, net.number(-math.inf), between))
    else:
        decay = net.op("Trilu", net.op("Exp", net.op("Min", between, net.number(0))), upper=0)
    scores = net.op("Mul", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), decay)
    rows = together(net, net.op("MatMul", scores, v), x.width)
    return Tokens(net.op("Add", x.name, net.op("Tanh", net.linear(rows, x.width, x.width))), x.width)


@block(Tokens)
def summed_outer_products(net: Net, x: Tokens) -> Tokens:
    """Linear attention whose keys' products are summed along the length."""
    size = net.choice((4, 6))
    q, k = (net.op("Elu", net.linear(x.name, x.width, size)) for _ in range(2))
    q, k = (net.op("Add", t, net.number(1.01)) for t in (q, k))
    v = net.linear(x.name, x.width, 8)
    outer = net.op("Mul", net.op("Unsqueeze", k, net.ints(3)), net.op("Unsqueeze", v, net.ints(2)))
    summed = net.op("CumSum", outer, net.whole(1))
    mixed = net.op("ReduceSum", net.op("Mul", summed, net.op("Unsqueeze", q, net.ints(3))), net.ints(2), keepdims=0)
    weight = net.op("ReduceSum", net.op("Mul", q, net.op("CumSum", k, net.whole(1))), net.ints(2))
    mixed = net.op("Div", mixed, net.op("Add", weight, net.number(1e-3)))
    return Tokens(net.op("Add", x.name, net.linear(mixed, 8, x.width)), x.width)


@block(Tokens)
def longer_and_cropped(net: Net, x: Tokens) -> Tokens:
    """A transposed convolution over the length, layers of wider and wider steps, cut back to the length."""
    factor, kernel = net.choice(((2, 4), (3, 5), (2, 2), (4, 8)))
    across = net.transpose(x.name, 0, 2, 1)
    width = min(x.width, 64)
    weight = net.weight(x.width, width, kernel, depth=x.width * kernel // factor)
    y = net.op("ConvTranspose", across, weight, net.bias(width), strides=[factor], kernel_shape=[kernel])
    for dilation in (1, 3):
        inner = net.op("LeakyRelu", y, alpha=0.1)
        inner = net.op("Conv", inner, net.weight(width, width, 3), net.bias(width), dilations=[dilation],
                       pads=[dilation] * 2)  # fmt: skip
        y = net.op("Add", y, inner)
    if net.chance(0.5):
        y = net.slice(y, 2, 0, net.size(x.name, 1))
    else:
        y = net.op("Conv", y, net.weight(width, width, kernel), net.bias(width), strides=[factor])
    return Tokens(net.transpose(y, 0, 2, 1), width)
