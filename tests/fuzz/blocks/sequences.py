"""Blocks of networks of tokens."""

from __future__ import annotations

import math

from onnx import TensorProto, helper

from tests.fuzz.blocks.net import Image, Net, Tokens, block

__all__ = ["apart", "attend", "heads_of", "together"]


def heads_of(net: Net, width: int) -> int:
    """A number of heads of even size."""
    return net.choice([h for h in (1, 2, 3, 4, 8) if width % (2 * h) == 0 and width <= 256 * h] or [1])


def apart(net: Net, x: str, heads: int, width: int) -> str:
    """[batch, heads, length, width of a head] of tokens."""
    if net.chance(0.5):
        four = net.op("Reshape", x, net.ints(0, net.choice((0, -1)), heads, width // heads))
    else:
        four = net.reshape(x, net.size(x, 0), net.size(x, 1), heads, width // heads)
    return net.transpose(four, 0, 2, 1, 3)


def together(net: Net, x: str, width: int) -> str:
    """Tokens of [batch, heads, length, width of a head]."""
    back = net.transpose(x, 0, 2, 1, 3)
    if net.chance(0.5):
        return net.op("Reshape", back, net.ints(0, -1, width))
    return net.reshape(back, net.size(back, 0), net.size(back, 1), width)


def _turned(net: Net, x: str, length: str, size: int, halves: bool) -> str:
    """Rotary positions, in halves or in pairs, of [batch, heads, length, size]."""
    steps = net.real(net.range_of(length))
    frequencies = net.constant([[100 ** (-2 * i / size) for i in range(size // 2)]], "float32")
    angles = net.op("Mul", net.op("Unsqueeze", steps, net.ints(1)), frequencies)
    if halves:
        both = net.op("Concat", angles, angles, axis=-1)
        a, b = net.slice(x, 3, 0, size // 2), net.slice(x, 3, size // 2, 2**31)
        other = net.op("Concat", net.op("Neg", b), a, axis=-1)
        return net.op("Add", net.op("Mul", x, net.op("Cos", both)), net.op("Mul", other, net.op("Sin", both)))
    a, b = net.slice(x, 3, 0, 2**31, 2), net.slice(x, 3, 1, 2**31, 2)
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    even = net.op("Sub", net.op("Mul", a, cos), net.op("Mul", b, sin))
    odd = net.op("Add", net.op("Mul", a, sin), net.op("Mul", b, cos))
    pairs = net.op("Concat", net.op("Unsqueeze", even, net.ints(-1)), net.op("Unsqueeze", odd, net.ints(-1)), axis=-1)
    return net.op("Reshape", pairs, net.op("Shape", x))


def _causal(net: Net, scores: str, queries: str, keys: str) -> str:
    """Scores [batch, heads, queries, keys] of which no query sees later keys."""
    far = net.number(net.choice((-1e4, -3.4028235e38, -math.inf)))
    if net.chance(0.4):
        ones = net.op("ConstantOfShape", net.op("Concat", queries, keys, axis=0), value=_ONE)
        seen = net.op(
            "Cast", net.op("Trilu", ones, net.op("Squeeze", net.op("Sub", keys, queries)), upper=0), to=TensorProto.BOOL
        )
    else:
        rows, columns = net.range_of(queries), net.range_of(keys)
        rows = net.op("Add", net.op("Unsqueeze", rows, net.ints(1)), net.op("Sub", keys, queries))
        seen = net.op("LessOrEqual", columns, rows)
        if net.chance(0.3):
            seen = net.op("And", seen, net.op("Less", net.op("Sub", rows, net.whole(net.choice((4, 9)))), columns))
    if net.chance(0.5):
        return net.op("Where", seen, scores, far)
    return net.op("Add", scores, net.op("Where", seen, net.number(0), far))


_ONE = helper.make_tensor("value", TensorProto.INT64, [1], [1])


def _buckets(net: Net, apart: str) -> str:
    """16 buckets of distances: exact near 0, by the logarithm farther away, as in T5."""
    near, distance = 4, net.op("Abs", apart)
    share = net.op("Div", net.real(net.op("Max", distance, net.whole(1))), net.number(near - 0.4))
    share = net.op("Mul", net.op("Log", share), net.number(3.97 / math.log(32 / near)))
    far = net.op("Add", net.op("Cast", share, to=TensorProto.INT64), net.whole(near))
    bucket = net.op("Where", net.op("Less", distance, net.whole(near)), distance, net.op("Min", far, net.whole(7)))
    right = net.op("Cast", net.op("Greater", apart, net.whole(0)), to=TensorProto.INT64)
    return net.op("Add", bucket, net.op("Mul", right, net.whole(8)))


def _distances(net: Net, scores: str, queries: str, keys: str, heads: int) -> str:
    """Scores plus a term of the distance of query and key: linear, of clipped distances, or of buckets of them."""
    apart = net.op("Sub", net.range_of(keys), net.op("Unsqueeze", net.range_of(queries), net.ints(1)))
    kind = net.choice(("linear", "clipped", "buckets"))
    if kind == "linear":
        slopes = net.constant([2.0 ** -(i + 1) for i in range(heads)], "float32")
        term = net.op("Mul", net.real(net.op("Abs", apart)), net.op("Reshape", slopes, net.ints(heads, 1, 1)))
        return net.op("Sub", scores, term)
    if kind == "clipped":
        far = 6
        index = net.op("Clip", apart, net.whole(-far), net.whole(far))
        index, table = net.op("Add", index, net.whole(far)), net.bias(2 * far + 1, heads)
    else:
        index, table = _buckets(net, apart), net.bias(16, heads)
    term = net.transpose(net.op("Gather", table, index), 2, 0, 1)
    return net.op("Add", scores, net.op("Unsqueeze", term, net.ints(0)))


def attend(net: Net, x: Tokens, bias: str | None = None, of: Tokens | None = None, causal: bool = False) -> Tokens:
    """Attention of tokens to themselves, or to those of another sequence."""
    width, heads, other = x.width, heads_of(net, x.width), of or x
    size = width // heads
    if of is None and net.chance(0.4):
        joined = net.linear(x.name, width, 3 * width)
        if net.chance(0.5):
            parts = net.ops("Split", 3, joined, net.ints(width, width, width), axis=-1)
            q, k, v = (apart(net, part, heads, width) for part in parts)
        else:
            five = net.reshape(joined, net.size(joined, 0), net.size(joined, 1), 3, heads, size)
            five = net.transpose(five, 2, 0, 3, 1, 4)
            q, k, v = (net.op("Gather", five, net.whole(i), axis=0) for i in range(3))
    else:
        sources = ((x.name, width), (other.name, other.width), (other.name, other.width))
        q, k, v = (apart(net, net.linear(n, w, width, net.chance(0.5)), heads, width) for n, w in sources)
    queries, keys = net.size(q, 2), net.size(k, 2)
    if of is None and size % 2 == 0 and net.chance(0.3):
        halves = net.chance(0.5)
        q, k = _turned(net, q, queries, size, halves), _turned(net, k, keys, size, halves)
    scale = 1 / math.sqrt(size)
    if net.chance(0.5):
        q = net.op("Mul", q, net.number(scale))
        scores = net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2))
    else:
        scores = net.op("Mul", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net.number(scale))
    if bias is not None:
        scores = net.op("Add", scores, bias)
    elif net.chance(0.3):
        scores = _distances(net, scores, queries, keys, heads)
    if causal:
        scores = _causal(net, scores, queries, keys)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return Tokens(net.linear(together(net, mixed, width), width, width), width)


@block(Tokens)
def self_attention(net: Net, x: Tokens) -> Tokens:
    """A layer of a transformer, normed before or behind."""
    before = net.chance(0.6)
    inner = Tokens(net.layer_norm(x.name, x.width), x.width) if before else x
    y = net.op("Add", x.name, attend(net, inner, causal=net.chance(0.4)).name)
    return Tokens(y if before else net.layer_norm(y, x.width), x.width)


@block(Tokens)
def with_context(net: Net, x: Tokens) -> Tokens:
    """Attention to another input of its own length."""
    name = net.input(net.batch, "context", x.width)
    return Tokens(net.op("Add", x.name, attend(net, x, of=Tokens(name, x.width)).name), x.width)


@block(Tokens)
def masked_attention(net: Net, x: Tokens) -> Tokens:
    """Attention to tokens that a mask lets through, as many in each entry of the batch."""
    length = net.size(x.name, 1)
    shown = net.op("Mod", net.range_of(length), net.whole(5))
    seen = net.op("Unsqueeze", net.op("Less", shown, net.whole(3)), net.ints(0))
    bias = net.op("Where", seen, net.number(0), net.number(net.choice((-1e4, -math.inf))))
    bias = net.op("Unsqueeze", bias, net.ints(1, 2)) if net.chance(0.5) else net.reshape(bias, 1, 1, 1, -1)
    return Tokens(net.op("Add", x.name, attend(net, x, bias).name), x.width)


@block(Tokens)
def feed_forward(net: Net, x: Tokens) -> Tokens:
    """Two dense layers, gated or not."""
    wide = net.hidden()
    inner = net.layer_norm(x.name, x.width)
    if net.chance(0.5):
        if net.chance(0.5):
            joined = net.linear(inner, x.width, 2 * wide)
            a, b = net.ops("Split", 2, joined, net.ints(wide, wide), axis=-1)
        else:
            a, b = net.linear(inner, x.width, wide), net.linear(inner, x.width, wide)
        hidden = net.op("Mul", net.activation(a), b)
    else:
        hidden = net.activation(net.linear(inner, x.width, wide))
    return Tokens(net.op("Add", x.name, net.linear(hidden, wide, x.width)), x.width)


@block(Tokens)
def resized(net: Net, x: Tokens) -> Tokens:
    """A dense layer to another width, perhaps of rows without a batch."""
    width = net.width()
    if net.chance(0.4):
        flat = net.reshape(x.name, -1, x.width)
        flat = net.op("Gemm", flat, net.weight(width, x.width), net.bias(width), transB=1)
        return Tokens(net.reshape(net.activation(flat), net.size(x.name, 0), net.size(x.name, 1), width), width)
    return Tokens(net.activation(net.linear(x.name, x.width, width)), width)


@block(Tokens)
def convolved_in_time(net: Net, x: Tokens) -> Tokens:
    """A convolution over the length: of all, of each channel, causal, dilated or strided."""
    kernel, dilation = net.choice((3, 5, 7)), net.choice((1, 1, 2))
    by_channel, causal = net.chance(0.5), net.chance(0.3)
    width = x.width if by_channel else net.width()
    spread = dilation * (kernel - 1)
    weight = net.weight(width, 1 if by_channel else x.width, kernel)
    across = net.transpose(x.name, 0, 2, 1)
    pads = [spread, 0] if causal else [spread // 2, spread // 2]
    if net.chance(0.3):
        across, pads = net.op("Pad", across, net.ints(0, 0, pads[0], 0, 0, pads[1])), [0, 0]
    y = net.op("Conv", across, weight, net.bias(width), pads=pads, dilations=[dilation],
               group=x.width if by_channel else 1, strides=[net.choice((1, 1, 1, 2))])  # fmt: skip
    if net.chance(0.3):
        y = net.op("InstanceNormalization", y, net.bias(width), net.bias(width))
    return Tokens(net.transpose(net.activation(y), 0, 2, 1), width)


@block(Tokens)
def in_chunks(net: Net, x: Tokens) -> Tokens:
    """Attention of chunks to themselves and to the one before, of a length padded to a multiple of chunks."""
    size = net.choice((4, 6, 8))
    length, batch = net.size(x.name, 1), net.size(x.name, 0)
    padded = net.pad_end(x.name, 3, {1: net.padded_size(length, size)})
    chunks = net.reshape(padded, batch, -1, size, x.width)
    if net.chance(0.6):
        before = net.slice(net.op("Pad", chunks, net.ints(0, 1, 0, 0, 0, 0, 0, 0)), 1, 0, -1)
        seen = net.op("Concat", before, chunks, axis=2)
        several = Tokens(net.reshape(seen, -1, 2 * size, x.width), x.width)
        rows = attend(net, Tokens(net.reshape(chunks, -1, size, x.width), x.width), of=several)
    else:
        rows = attend(net, Tokens(net.reshape(chunks, -1, size, x.width), x.width))
    back = net.slice(net.reshape(rows.name, batch, -1, x.width), 1, 0, length)
    return Tokens(net.op("Add", x.name, back), x.width)


@block(Tokens)
def relative_shift(net: Net, x: Tokens) -> Tokens:
    """Attention whose scores of distances are shifted by a padded view of them."""
    width, heads = x.width, heads_of(net, x.width)
    q, k, v = (apart(net, net.linear(x.name, width, width), heads, width) for _ in range(3))
    length, batch = net.size(q, 2), net.size(q, 0)
    twice = net.op("Sub", net.op("Mul", length, net.ints(2)), net.ints(1))
    angles = net.op("Mul", net.op("Unsqueeze", net.real(net.range_of(twice)), net.ints(1)),
                    net.constant([[0.7 ** i for i in range(width // heads)]], "float32"))  # fmt: skip
    far = net.op("MatMul", q, net.transpose(net.op("Sin", angles), 1, 0))
    far = net.op("Pad", far, net.ints(0, 0, 0, 1, 0, 0, 0, 0))
    far = net.reshape(far, batch, heads, -1, length)
    far = net.reshape(net.slice(far, 2, 1, 2**31), batch, heads, length, twice)
    far = net.slice(far, 3, 0, length)
    scores = net.op("Add", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), far)
    scores = net.op("Div", scores, net.number(math.sqrt(width // heads)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return Tokens(net.op("Add", x.name, net.linear(together(net, mixed, width), width, width)), width)


@block(Tokens)
def halved(net: Net, x: Tokens) -> Tokens:
    """Neighbours merged: by a view, by slices of two steps, or by a mean."""
    length = net.size(x.name, 1)
    even = net.pad_end(x.name, 3, {1: net.padded_size(length, 2)})
    kind = net.choice(("view", "slices", "mean"))
    if kind == "view":
        joined = net.reshape(even, net.size(x.name, 0), -1, 2 * x.width)
        return Tokens(net.linear(joined, 2 * x.width, x.width), x.width)
    a, b = net.slice(even, 1, 0, 2**31, 2), net.slice(even, 1, 1, 2**31, 2)
    if kind == "slices":
        return Tokens(net.linear(net.op("Concat", a, b, axis=-1), 2 * x.width, x.width), x.width)
    return Tokens(net.op("Mean", a, b), x.width)


@block(Tokens)
def doubled(net: Net, x: Tokens) -> Tokens:
    """Each token twice, by one way or another."""
    kind = net.choice(("tile", "expand", "gather", "resize"))
    batch, length = net.size(x.name, 0), net.size(x.name, 1)
    if kind == "tile":
        return Tokens(net.op("Tile", x.name, net.ints(1, 2, 1)), x.width)
    if kind == "expand":
        four = net.op("Expand", net.op("Unsqueeze", x.name, net.ints(2)), net.sizes(batch, length, 2, x.width))
        return Tokens(net.reshape(four, batch, -1, x.width), x.width)
    if kind == "gather":
        twice = net.range_of(net.op("Mul", length, net.ints(2)))
        return Tokens(net.op("Gather", x.name, net.op("Div", twice, net.whole(2)), axis=1), x.width)
    across = net.transpose(x.name, 0, 2, 1)
    up = net.op("Resize", across, "", net.constant([1, 1, 2], "float32"), mode="linear")
    return Tokens(net.transpose(up, 0, 2, 1), x.width)


@block(Tokens)
def with_first_token(net: Net, x: Tokens) -> Tokens:
    """A learnt token put before the others, and perhaps taken away again behind an attention."""
    batch = net.size(x.name, 0)
    first = net.op("Expand", net.bias(1, 1, x.width), net.sizes(batch, 1, x.width))
    longer = net.op("Concat", first, x.name, axis=1)
    if net.chance(0.4):
        return Tokens(longer, x.width)
    mixed = attend(net, Tokens(longer, x.width)).name
    rest = net.slice(mixed, 1, 1, 2**31)
    if net.chance(0.5):
        own = net.slice(mixed, 1, 0, 1)
        return Tokens(net.op("Add", rest, own), x.width)
    return Tokens(rest, x.width)


@block(Tokens)
def shifted(net: Net, x: Tokens) -> Tokens:
    """Mixed with the token before."""
    before = net.slice(net.op("Pad", x.name, net.ints(0, 1, 0, 0, 0, 0)), 1, 0, -1)
    share = net.op("Sigmoid", net.bias(x.width))
    rest = net.op("Sub", net.number(1), share)
    return Tokens(net.op("Add", net.op("Mul", x.name, share), net.op("Mul", before, rest)), x.width)


@block(Tokens)
def positions(net: Net, x: Tokens) -> Tokens:
    """Positions added: from a table, of sines, or by a cumulated count."""
    length, kind = net.size(x.name, 1), net.choice(("table", "sines", "count"))
    if kind == "table":
        table = net.bias(8192, x.width)
        if net.chance(0.5):
            return Tokens(net.op("Add", x.name, net.slice(table, 0, 0, length)), x.width)
        return Tokens(net.op("Add", x.name, net.op("Gather", table, net.range_of(length))), x.width)
    if kind == "sines":
        steps = net.op("Unsqueeze", net.real(net.range_of(length)), net.ints(1))
        half = x.width // 2
        angles = net.op("Mul", steps, net.constant([[100 ** (-i / half) for i in range(half)]], "float32"))
        table = net.op("Concat", net.op("Sin", angles), net.op("Cos", angles), axis=-1)
        if x.width % 2:
            table = net.op("Pad", table, net.ints(0, 0, 0, 1))
        return Tokens(net.op("Add", x.name, net.op("Unsqueeze", table, net.ints(0))), x.width)
    ones = net.op("ConstantOfShape", net.op("Concat", net.size(x.name, 0), length, axis=0), value=_ONE)
    count = net.op("Sub", net.op("CumSum", ones, net.whole(1)), net.whole(1))
    return Tokens(net.op("Add", x.name, net.op("Gather", net.bias(8192, x.width), count)), x.width)


@block(Tokens)
def pooled_by_scores(net: Net, x: Tokens) -> Tokens:
    """A mean weighted by a softmax over the length, or statistics of it, added to all."""
    if net.chance(0.5):
        score = net.op("Softmax", net.linear(x.name, x.width, 1), axis=1)
        context = net.op("ReduceSum", net.op("Mul", x.name, score), net.ints(1))
        return Tokens(net.op("Add", x.name, context), x.width)
    mean = net.op("ReduceMean", x.name, net.ints(1))
    centred = net.op("Sub", x.name, mean)
    spread = net.op(
        "Sqrt", net.op("Add", net.op("ReduceMean", net.op("Mul", centred, centred), net.ints(1)), net.number(1e-4))
    )
    both = net.op("Concat", mean, spread, axis=-1)
    gate = net.op("Sigmoid", net.linear(both, 2 * x.width, x.width))
    return Tokens(net.op("Mul", x.name, gate), x.width)


@block(Tokens)
def chosen(net: Net, x: Tokens) -> Tokens:
    """Some tokens, by places that the length gives, worked on and put back."""
    length = net.size(x.name, 1)
    places = net.range_of(net.op("Div", net.op("Add", length, net.ints(1)), net.ints(2)))
    places = net.op("Mul", places, net.whole(2))
    some = net.op("Gather", x.name, places, axis=1)
    worked = net.activation(net.linear(some, x.width, x.width))
    index = net.op("Expand", net.op("Unsqueeze", places, net.ints(0, 2)), net.op("Shape", worked))
    if net.chance(0.5):
        return Tokens(net.op("ScatterElements", x.name, index, worked, axis=1), x.width)
    zeros = net.op("Mul", x.name, net.number(0))
    added = net.op("ScatterElements", zeros, index, worked, axis=1, reduction="add")
    return Tokens(net.op("Add", x.name, added), x.width)


@block(Tokens)
def recurrent(net: Net, x: Tokens) -> Tokens:
    """A recurrence over the length, in one direction or two."""
    kind, hidden = net.choice(("LSTM", "GRU")), net.hidden()
    direction = net.choice(("forward", "reverse", "bidirectional"))
    ways, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3}[kind]
    weights = [net.weight(ways, gates * hidden, n, depth=n) for n in (x.width, hidden)]
    first = net.transpose(x.name, 1, 0, 2)
    how = {"linear_before_reset": 1} if kind == "GRU" else {}
    y = net.op(
        kind, first, *weights, net.bias(ways, 2 * gates * hidden), hidden_size=hidden, direction=direction, **how
    )
    last = net.transpose(y, 2, 0, 1, 3)
    return Tokens(net.op("Reshape", last, net.ints(0, 0, ways * hidden)), ways * hidden)


@block(Tokens)
def mixed_over_channels(net: Net, x: Tokens) -> Tokens:
    """Attention between channels, whose scores sum over the length."""
    heads = heads_of(net, x.width)
    q, k, v = (apart(net, net.linear(x.name, x.width, x.width), heads, x.width) for _ in range(3))
    if net.chance(0.5):
        q, k = (net.op("Div", s, net.op("Add", net.op("ReduceL2", s, net.ints(2)), net.number(1e-3))) for s in (q, k))
        scores = net.op("Softmax", net.op("MatMul", net.transpose(q, 0, 1, 3, 2), k), axis=-1)
        mixed = net.op("MatMul", v, net.transpose(scores, 0, 1, 3, 2))
    else:
        q, k = net.op("Softmax", q, axis=-1), net.op("Softmax", k, axis=2)
        mixed = net.op("MatMul", q, net.op("MatMul", net.transpose(k, 0, 1, 3, 2), v))
    return Tokens(net.op("Add", x.name, together(net, mixed, x.width)), x.width)


@block(Tokens)
def experts(net: Net, x: Tokens) -> Tokens:
    """All experts of all tokens, weighted by a softmax."""
    count, wide = net.choice((2, 3, 4)), net.hidden()
    share = net.op("Softmax", net.linear(x.name, x.width, count), axis=-1)
    rows = net.op("Unsqueeze", x.name, net.ints(1))
    hidden = net.activation(net.op("MatMul", rows, net.weight(1, count, x.width, wide, depth=x.width)))
    results = net.op("MatMul", hidden, net.weight(1, count, wide, x.width, depth=wide))
    weights = net.op("Unsqueeze", net.transpose(share, 0, 2, 1), net.ints(3))
    mixed = net.op("ReduceSum", net.op("Mul", results, weights), net.ints(1), keepdims=0)
    return Tokens(net.op("Add", x.name, mixed), x.width)


@block(Tokens)
def pairs(net: Net, x: Tokens) -> Tokens:
    """A tensor of all pairs of tokens, reduced to one of tokens again."""
    a, b = net.linear(x.name, x.width, 8), net.linear(x.name, x.width, 8)
    every = net.op("Add", net.op("Unsqueeze", a, net.ints(2)), net.op("Unsqueeze", b, net.ints(1)))
    every = net.op("Tanh", every)
    if net.chance(0.5):
        summed = net.op("ReduceMax", every, net.ints(2), keepdims=0)
    else:
        weights = net.op("Softmax", net.linear(every, 8, 1), axis=2)
        summed = net.op("ReduceSum", net.op("Mul", every, weights), net.ints(2), keepdims=0)
    return Tokens(net.op("Add", x.name, net.linear(summed, 8, x.width)), x.width)


@block(Tokens)
def as_image(net: Net, x: Tokens) -> Image:
    """Tokens as rows of an image of fixed width, padded to it."""
    wide = net.choice((4, 8))
    length = net.size(x.name, 1)
    padded = net.pad_end(x.name, 3, {1: net.padded_size(length, wide)})
    rows = net.reshape(padded, net.size(x.name, 0), -1, wide, x.width)
    return Image(net.transpose(rows, 0, 3, 1, 2), x.width)


@block(Tokens)
def as_images_of_channels(net: Net, x: Tokens) -> Image:
    """Length and width as an image with one channel, as of a spectrogram."""
    one = net.op("Unsqueeze", x.name, net.ints(1))
    y = net.op("Conv", one, net.weight(8, 1, 3, 3), net.bias(8), pads=[1] * 4, strides=[net.choice((1, 2))] * 2)
    return Image(net.activation(y), 8)


@block(Tokens)
def best(net: Net, x: Tokens) -> Tokens:
    """The tokens with the largest scores, as many as the length allows, alone or put back where they were."""
    length = net.size(x.name, 1)
    if net.chance(0.5):
        count = net.op("Min", length, net.ints(net.choice((3, 8))))
    else:
        count = net.op("Div", net.op("Add", length, net.ints(1)), net.ints(2))
    score = net.op("Gather", x.name, net.whole(net.rng.randrange(x.width)), axis=2)
    _, places = net.ops("TopK", 2, score, count, axis=1)
    if net.chance(0.5):
        index = net.op("Expand", net.op("Unsqueeze", places, net.ints(2)), net.sizes(1, 1, x.width))
        some = net.op("GatherElements", x.name, index, axis=1)
    else:
        index = net.op("Unsqueeze", places, net.ints(2))
        some = net.op("GatherND", x.name, index, batch_dims=1)
    worked = net.activation(net.linear(some, x.width, x.width))
    if net.chance(0.4):
        return Tokens(worked, x.width)
    index = net.op("Expand", net.op("Unsqueeze", places, net.ints(2)), net.op("Shape", worked))
    return Tokens(net.op("ScatterElements", x.name, index, worked, axis=1), x.width)


@block(Tokens)
def selected(net: Net, x: Tokens) -> Tokens:
    """As many tokens as pass a test, worked on as rows of one matrix and put back."""
    score = net.op("Gather", x.name, net.whole(net.rng.randrange(x.width)), axis=2)
    found = net.op("NonZero", net.op("Greater", score, net.number(0.1)))
    places = net.transpose(found, 1, 0)
    rows = net.op("GatherND", x.name, places)
    worked = net.linear(net.activation(net.linear(rows, x.width, 24)), 24, x.width)
    if net.chance(0.5):
        worked = net.layer_norm(worked, x.width)
    return Tokens(net.op("ScatterND", x.name, places, worked), x.width)


@block(Tokens)
def frames(net: Net, x: Tokens) -> Tokens:
    """Overlapping frames of the length, weighted and reduced, as of a spectrogram."""
    size, hop = net.choice(((4, 2), (5, 3), (8, 4), (6, 1)))
    length = net.size(x.name, 1)
    longer = net.op("Pad", x.name, net.ints(0, size // 2, 0, 0, size, 0), mode=net.choice(("constant", "edge")))
    count = net.op("Add", net.op("Div", length, net.ints(hop)), net.ints(1))
    starts = net.op("Unsqueeze", net.op("Mul", net.range_of(count), net.whole(hop)), net.ints(1))
    places = net.op("Add", starts, net.ints(*range(size)))
    parts = net.op("Gather", longer, places, axis=1)
    weighted = net.op("Mul", parts, net.weight(size, 1, depth=size))
    if net.chance(0.5):
        return Tokens(net.op("ReduceSum", weighted, net.ints(2), keepdims=0), x.width)
    flat = net.reshape(weighted, net.size(x.name, 0), -1, size * x.width)
    return Tokens(net.linear(flat, size * x.width, x.width), x.width)


@block(Tokens)
def summed_by_index(net: Net, x: Tokens) -> Tokens:
    """Tokens added up into as many groups as the length has thirds, and given back to each."""
    length, batch = net.size(x.name, 1), net.size(x.name, 0)
    groups = net.op("Add", net.op("Div", length, net.ints(3)), net.ints(1))
    owner = net.op("Mod", net.op("Mul", net.range_of(length), net.whole(7)), net.op("Squeeze", groups))
    zeros = net.op("ConstantOfShape", net.sizes(batch, groups, x.width))
    index = net.op("Expand", net.op("Unsqueeze", owner, net.ints(0, 2)), net.op("Shape", x.name))
    sums = net.op("ScatterElements", zeros, index, x.name, axis=1, reduction="add")
    sums = net.activation(net.linear(sums, x.width, x.width))
    return Tokens(net.op("Add", x.name, net.op("Gather", sums, owner, axis=1)), x.width)


@block(Tokens)
def one_by_one(net: Net, x: Tokens) -> Tokens:
    """The entries of a batch as a sequence of tensors, each worked on, joined again."""
    parts = net.op("SplitToSequence", x.name, axis=0, keepdims=1)
    joined = net.op("ConcatFromSequence", parts, axis=0)
    means = net.op("ReduceMean", joined, net.ints(1))
    return Tokens(net.op("Sub", x.name, net.op("Tanh", means)), x.width)


@block(Tokens)
def by_sums_of_products(net: Net, x: Tokens) -> Tokens:
    """Products of three tensors written as Einsum."""
    heads, size = net.choice((2, 3)), net.choice((4, 8))
    q, k = (net.op("Einsum", x.name, net.weight(x.width, heads, size, depth=x.width), equation="bld,dhe->bhle")
            for _ in range(2))  # fmt: skip
    scores = net.op("Einsum", q, k, equation="bhle,bhme->bhlm")
    shares = net.op("Softmax", net.op("Div", scores, net.number(math.sqrt(size))), axis=-1)
    mixed = net.op("Einsum", shares, x.name, equation="bhlm,bmd->blhd")
    weight = net.weight(heads, x.width, x.width, depth=heads * x.width)
    return Tokens(net.op("Add", x.name, net.op("Einsum", mixed, weight, equation="blhd,hdf->blf")), x.width)


@block(Tokens)
def nearest_code(net: Net, x: Tokens) -> Tokens:
    """Each token's nearest of a few learnt ones, as in vector quantisation."""
    codes = net.constant(net.numbers.normal(size=(12, x.width)), "float32")
    products = net.op("MatMul", x.name, net.transpose(codes, 1, 0))
    own = net.op("ReduceSum", net.op("Mul", codes, codes), net.ints(1), keepdims=0)
    nearest = net.op("ArgMin", net.op("Sub", own, net.op("Mul", products, net.number(2))), axis=-1, keepdims=0)
    return Tokens(net.op("Add", x.name, net.op("Gather", codes, nearest)), x.width)
