"""Blocks of decoders, and of encoders with masks: caches, positions, lengths of entries, shared heads."""

from __future__ import annotations

import math

from onnx import TensorProto

from tests.fuzz.blocks.net import Net, Tokens, block
from tests.fuzz.blocks.sequences import apart, heads_of, together

__all__: list[str] = []


def _mixed(net: Net, q: str, k: str, v: str, size: int, mask: str | None) -> str:
    """Attention of [batch, heads, length, size]; the mask is boolean, or a float term."""
    scale = 1 / math.sqrt(size)
    if net.chance(0.4):
        root = net.number(math.sqrt(scale))
        q, k = net.op("Mul", q, root), net.op("Mul", k, root)
        scores = net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2))
    else:
        scores = net.op("Mul", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net.number(scale))
    if mask is not None:
        scores = _hidden(net, scores, mask)
    return net.op("MatMul", net.op("Softmax", scores, axis=-1), v)


def _hidden(net: Net, scores: str, seen: str) -> str:
    """Scores with those of unseen keys far below the others, in one of the ways of exporters."""
    far = net.choice((-1e4, -3.4028235e38, -1e9))
    way = net.choice(("where", "not", "term", "product"))
    if way == "where":
        return net.op("Where", seen, scores, net.number(far))
    if way == "not":
        return net.op("Where", net.op("Not", seen), net.number(far), scores)
    if way == "term":
        return net.op("Add", scores, net.op("Where", seen, net.number(0), net.number(far)))
    missing = net.op("Sub", net.number(1), net.real(seen))
    return net.op("Add", scores, net.op("Mul", missing, net.number(max(far, -1e9))))


def _filled(net: Net, length: str) -> tuple[str, str]:
    """Which tokens are there, [batch, length] booleans, of lengths that are an input; and the lengths, at least 1."""
    counts = net.integers(net.batch, low=1, high=net.extents.spans["length"][1])
    counts = net.op("Min", counts, length)
    places = net.op("Unsqueeze", net.range_of(length), net.ints(0))
    return net.op("Less", places, net.op("Unsqueeze", counts, net.ints(1))), counts


def _earlier(net: Net, queries: str, keys: str) -> str:
    """Which keys are not later than each query, [queries, keys], where the last of both are the same."""
    rows = net.op("Add", net.range_of(queries), net.op("Sub", keys, queries))
    return net.op("GreaterOrEqual", net.op("Unsqueeze", rows, net.ints(1)), net.range_of(keys))


def _shared(net: Net, x: str, heads: int, group: int, size: int) -> str:
    """[batch, heads * group, length, size] of [batch, heads, length, size]: each head several times."""
    if group == 1:
        return x
    batch, length = net.size(x, 0), net.size(x, 2)
    five = net.op("Expand", net.op("Unsqueeze", x, net.ints(2)), net.sizes(batch, heads, group, length, size))
    return net.reshape(five, batch, heads * group, length, size)


def _split_heads(net: Net, width: int) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and their width."""
    heads = heads_of(net, width)
    return heads, net.choice([h for h in range(1, heads + 1) if heads % h == 0]), width // heads


def _rotated(net: Net, x: str, positions: str, size: int) -> str:
    """[batch, heads, length, size] turned by positions [batch, length], from tables of cosines and sines."""
    angles = [[p * 50 ** (-2 * i / size) for i in range(size // 2)] for p in range(2048)]
    tables = (net.constant([[f(a) for a in row] for row in angles], "float32") for f in (math.cos, math.sin))
    cos, sin = (net.op("Unsqueeze", net.op("Gather", table, positions), net.ints(1)) for table in tables)
    a, b = net.ops("Split", 2, x, net.ints(size // 2, size // 2), axis=-1)
    left = net.op("Sub", net.op("Mul", a, cos), net.op("Mul", b, sin))
    right = net.op("Add", net.op("Mul", b, cos), net.op("Mul", a, sin))
    return net.op("Concat", left, right, axis=-1)


@block(Tokens)
def padded_batch(net: Net, x: Tokens) -> Tokens:
    """Attention among the tokens that each entry of the batch has, perhaps causal, and zeros for the others."""
    length, heads = net.size(x.name, 1), heads_of(net, x.width)
    there, counts = _filled(net, length)
    seen = net.op("Unsqueeze", there, net.ints(1, 2))
    if net.chance(0.4):
        seen = net.op("And", seen, _earlier(net, length, length))
    elif net.chance(0.4):
        seen = net.op("Expand", seen, net.sizes(1, 1, length, 1))
    q, k, v = (apart(net, net.linear(x.name, x.width, x.width), heads, x.width) for _ in range(3))
    rows = together(net, _mixed(net, q, k, v, x.width // heads, seen), x.width)
    weight = net.op("Unsqueeze", net.real(there), net.ints(2))
    rows = net.op("Mul", rows, weight)
    if net.chance(0.4):
        total = net.op("ReduceSum", rows, net.ints(1))
        mean = net.op("Div", total, net.real(net.op("Unsqueeze", counts, net.ints(1, 2))))
        return Tokens(net.op("Add", net.op("Mul", x.name, weight), mean), x.width)
    return Tokens(net.op("Add", x.name, rows), x.width)


@block(Tokens)
def cached(net: Net, x: Tokens) -> Tokens:
    """Attention to keys and values of earlier runs and of these tokens, which are results too."""
    heads, shared, size = _split_heads(net, x.width)
    q = apart(net, net.linear(x.name, x.width, x.width), heads, x.width)
    k, v = (apart(net, net.linear(x.name, x.width, shared * size), shared, shared * size) for _ in range(2))
    past = [net.input(net.batch, shared, "past", size) for _ in range(2)]
    before, length = net.size(past[0], 2), net.size(x.name, 1)
    if size % 2 == 0 and net.chance(0.5):
        places = net.op("Unsqueeze", net.op("Add", net.range_of(length), before), net.ints(0))
        q, k = _rotated(net, q, places, size), _rotated(net, k, places, size)
    k, v = (net.op("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    net.results += [k, v]
    keys = net.size(k, 2)
    seen = _earlier(net, length, keys) if net.chance(0.7) else None
    if seen is not None and net.chance(0.4):
        there = net.integers(net.batch, low=0, high=3)  # so many are padding on the left, but no query's own key
        left = net.op("Min", there, before)
        shown = net.op("GreaterOrEqual", net.range_of(keys), net.op("Unsqueeze", left, net.ints(1)))
        seen = net.op("And", seen, net.op("Unsqueeze", shown, net.ints(1, 2)))
    k, v = (_shared(net, t, shared, heads // shared, size) for t in (k, v))
    rows = together(net, _mixed(net, q, k, v, size, seen), x.width)
    return Tokens(net.op("Add", x.name, net.linear(rows, x.width, x.width)), x.width)


@block(Tokens)
def cached_in_room(net: Net, x: Tokens) -> Tokens:
    """Keys and values of up to eight tokens are put in their places of a larger buffer, all of which is read."""
    heads, shared, size = _split_heads(net, x.width)
    x = Tokens(net.slice(x.name, 1, 0, 8), x.width)
    start, length = net.integers(1, low=0, high=12), net.size(x.name, 1)
    places = net.op("Add", net.range_of(length), start)
    q = apart(net, net.linear(x.name, x.width, x.width), heads, x.width)
    k, v = (apart(net, net.linear(x.name, x.width, shared * size), shared, shared * size) for _ in range(2))
    if size % 2 == 0 and net.chance(0.5):
        rows = net.op("Unsqueeze", places, net.ints(0))
        q, k = _rotated(net, q, rows, size), _rotated(net, k, rows, size)
    way, kept = net.choice(("scatter", "rows", "slices")), []
    for new in (k, v):
        buffer = net.input(net.batch, shared, "room", size)
        if way == "scatter":
            index = net.op("Expand", net.op("Unsqueeze", places, net.ints(0, 1, 3)), net.op("Shape", new))
            kept.append(net.op("ScatterElements", buffer, index, new, axis=2))
        elif way == "rows":
            first, rows = (net.transpose(t, 2, 0, 1, 3) for t in (buffer, new))
            filled = net.op("ScatterND", first, net.op("Unsqueeze", places, net.ints(1)), rows)
            kept.append(net.transpose(filled, 1, 2, 0, 3))
        else:
            end = net.op("Add", start, length)
            kept.append(net.op("Concat", net.slice(buffer, 2, 0, start), new, net.slice(buffer, 2, end, 2**31), axis=2))
    net.results += kept
    seen = net.op("LessOrEqual", net.range_of(net.size(kept[0], 2)), net.op("Unsqueeze", places, net.ints(1)))
    k, v = (_shared(net, t, shared, heads // shared, size) for t in kept)
    rows = together(net, _mixed(net, q, k, v, size, seen), x.width)
    return Tokens(net.op("Add", x.name, net.linear(rows, x.width, x.width)), x.width)


@block(Tokens)
def rotated_by_positions(net: Net, x: Tokens) -> Tokens:
    """Attention with rotary positions counted from a mask that hides tokens on the left."""
    heads, shared, size = _split_heads(net, x.width)
    if size % 2:
        return x
    length = net.size(x.name, 1)
    hidden = net.op("Min", net.integers(net.batch, low=0, high=4), net.op("Sub", length, net.ints(1)))
    places = net.op("Unsqueeze", net.range_of(length), net.ints(0))
    there = net.op("GreaterOrEqual", places, net.op("Unsqueeze", hidden, net.ints(1)))
    counted = net.op("CumSum", net.op("Cast", there, to=TensorProto.INT64), net.whole(1))
    positions = net.op("Sub", counted, net.whole(1))
    if net.chance(0.5):
        positions = net.op("Where", there, positions, net.whole(1))
    else:
        positions = net.op("Max", positions, net.whole(0))
    q = _rotated(net, apart(net, net.linear(x.name, x.width, x.width), heads, x.width), positions, size)
    k, v = (apart(net, net.linear(x.name, x.width, shared * size), shared, shared * size) for _ in range(2))
    k = _rotated(net, k, positions, size)
    seen = net.op("And", net.op("Unsqueeze", there, net.ints(1, 2)), _earlier(net, length, length))
    k, v = (_shared(net, t, shared, heads // shared, size) for t in (k, v))
    rows = together(net, _mixed(net, q, k, v, size, seen), x.width)
    weight = net.op("Unsqueeze", net.real(there), net.ints(2))
    return Tokens(net.op("Add", x.name, net.op("Mul", net.linear(rows, x.width, x.width), weight)), x.width)


@block(Tokens)
def as_words(net: Net, x: Tokens) -> Tokens:
    """Each token's largest of ten features as a word: a row of a table, or a product with ones and zeros."""
    word = net.op("ArgMax", net.slice(x.name, 2, 0, min(10, x.width)), axis=2, keepdims=0)
    if net.chance(0.5):
        rows = net.op("Gather", net.bias(10, x.width), word)
    else:
        ones = net.op("OneHot", word, net.whole(10), net.constant([0, 1], "float32"), axis=-1)
        rows = net.op("MatMul", ones, net.bias(10, x.width))
    return Tokens(net.op("Add", x.name, rows), x.width)


@block(Tokens)
def packed_batch(net: Net, x: Tokens) -> Tokens:
    """The tokens that each entry of the batch has, in one matrix, worked on and put back among zeros."""
    there, _ = _filled(net, net.size(x.name, 1))
    if net.chance(0.5):
        flat = net.op("Reshape", x.name, net.ints(-1, x.width))
        places = net.op("Squeeze", net.op("NonZero", net.op("Reshape", there, net.ints(-1))), net.ints(0))
        rows = net.op("Gather", flat, places)
    else:
        places = net.transpose(net.op("NonZero", there), 1, 0)
        rows = net.op("GatherND", x.name, places)
    wide = net.hidden()
    rows = net.linear(net.activation(net.linear(rows, x.width, wide)), wide, x.width)
    zeros = net.op("ConstantOfShape", net.op("Shape", x.name))
    if net.chance(0.5):
        places = net.transpose(net.op("NonZero", there), 1, 0)
    else:
        places = net.op("Where", there, net.whole(1), net.whole(0))
        places = net.transpose(net.op("NonZero", places), 1, 0)
    return Tokens(net.op("Add", x.name, net.op("ScatterND", zeros, places, rows)), x.width)


@block(Tokens)
def latents(net: Net, x: Tokens) -> Tokens:
    """A few learnt queries read the tokens; the tokens read them, or they are what is left."""
    heads, count = heads_of(net, x.width), net.choice((1, 4, 7))
    size = x.width // heads
    learnt = net.op("Expand", net.bias(1, count, x.width), net.sizes(net.size(x.name, 0), count, x.width))

    def read(a: str, b: str) -> str:
        q, k, v = (apart(net, net.linear(t, x.width, x.width), heads, x.width) for t in (a, b, b))
        return together(net, _mixed(net, q, k, v, size, None), x.width)

    few = net.op("Add", learnt, read(learnt, net.layer_norm(x.name, x.width)))
    if net.chance(0.3):
        return Tokens(few, x.width)
    return Tokens(net.op("Add", x.name, read(x.name, few)), x.width)


@block(Tokens)
def fused_by_optimisers(net: Net, x: Tokens) -> Tokens:
    """Operators that onnxruntime's optimisers leave in models."""
    width, heads = x.width, heads_of(net, x.width)
    ms = "com.microsoft"
    kind = net.choice(("attention", "many", "skip", "feed", "simplified"))
    if kind == "attention":
        mask = []
        if net.chance(0.5):
            there, _ = _filled(net, net.size(x.name, 1))
            mask = [net.op("Cast", there, to=TensorProto.INT32)]
        y = net.ops("Attention", 1, x.name, net.weight(width, 3 * width, depth=width), net.bias(3 * width), *mask,
                    domain=ms, num_heads=heads, unidirectional=net.choice((0, 0, 1)) if not mask else 0)[0]  # fmt: skip
        return Tokens(net.op("Add", x.name, y), width)
    if kind == "many":
        q, k, v = (net.linear(x.name, width, width, bias=False) for _ in range(3))
        y = net.ops("MultiHeadAttention", 1, q, k, v, net.bias(3 * width), domain=ms, num_heads=heads)[0]
        return Tokens(net.op("Add", x.name, y), width)
    other = net.linear(x.name, width, width, bias=False)
    if kind == "skip":
        y = net.ops("SkipLayerNormalization", 1, x.name, other, net.bias(width), net.bias(width), net.bias(width),
                    domain=ms, epsilon=1e-5)[0]  # fmt: skip
        return Tokens(y, width)
    if kind == "simplified":
        y, _, _, total = net.ops("SkipSimplifiedLayerNormalization", 4, x.name, other, net.bias(width), domain=ms,
                                 epsilon=1e-5)  # fmt: skip
        return Tokens(net.op("Add", total, net.op("Tanh", y)), width)
    wide = net.hidden()
    hidden = net.linear(x.name, width, wide, bias=False)
    hidden = net.ops(net.choice(("BiasGelu", "FastGelu")), 1, hidden, net.bias(wide), domain=ms)[0]
    return Tokens(net.op("Add", x.name, net.linear(hidden, wide, width)), width)
