"""Generators for normalisations, recurrences, attention and losses."""

from __future__ import annotations

from tests.fuzz.builder import GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic
from tests.fuzz.products import TAME, image

__all__: list[str] = []

HALF = ("float32", "float32", "float16")


@operator("BatchNormalization", weight=2)
def batch_norm(g: GraphBuilder) -> Value:
    x = image(g, g.choice([0, 1, 2, 3]) if g.opset >= 9 else g.choice([1, 2]))
    c = x.shape[1]
    parts = [*[g.weight("float32", (c,)) for _ in range(3)], g.weight("float32", (c,), 0.5, 2)]
    bound = (x.largest + 1) * 1.5 + 1
    old: dict[str, object] = {"is_test": 1} if g.opset < 7 else {}
    if g.opset < 6:
        old["consumed_inputs"] = [0, 0, 0, 1, 1]
    return g.node("BatchNormalization", [x, *parts], "float32", x.shape, False, -bound, bound,
                  **({"epsilon": 0.01} if g.chance(0.5) else {}), **old)  # fmt: skip


@operator("InstanceNormalization", "GroupNormalization")
def instance_norm(g: GraphBuilder, name: str) -> Value:
    x = image(g, g.choice([1, 2]))
    c = x.shape[1]
    groups = g.choice([d for d in range(1, c + 1) if c % d == 0])
    size = groups if name == "GroupNormalization" and g.opset < 21 else c
    parts = [g.weight("float32", (size,)), g.weight("float32", (size,))]
    attributes: dict[str, object] = {"epsilon": 0.01}
    if name == "GroupNormalization":
        attributes["num_groups"] = groups
    return g.node(name, [x, *parts], "float32", x.shape, False, -30, 30, **attributes)


@operator("LayerNormalization", "RMSNormalization", weight=2)
def layer_norm(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, HALF), 1, 5, within=TAME, smallest=1)
    axis = g.integer(0, x.rank - 1)
    parts = [g.operand(x.dtype, x.shape[axis:]) for _ in range(g.integer(1, 2) if name[0] == "L" else 1)]
    signed = axis - x.rank if g.chance(0.4) else axis
    return g.node(name, [x, *parts], x.dtype, x.shape, False, -30, 30, axis=signed, epsilon=0.01)


@operator("MeanVarianceNormalization")
def mean_variance_norm(g: GraphBuilder) -> Value:
    x = image(g, 2)
    return g.node("MeanVarianceNormalization", [x], "float32", x.shape, False, -30, 30)


@operator("LRN")
def local_response(g: GraphBuilder) -> Value:
    x = image(g, 2)
    return g.node("LRN", [x], "float32", x.shape, False, -x.largest, x.largest, size=g.choice([1, 3, 5]), bias=1.0)


@operator("LpNormalization")
def lp_norm(g: GraphBuilder) -> Value:
    x = g.input("float32", g.shape(1, 3), 0.5, 2.0)
    return g.node("LpNormalization", [x], "float32", x.shape, False, -1, 1, p=g.integer(1, 2), axis=-1)


@operator("LSTM", "GRU", "RNN", weight=2)
def recurrence(g: GraphBuilder, name: str) -> Value:
    steps, batch, features, hidden = (g.integer(1, 4) for _ in range(4))
    if g.dynamic:
        steps = Symbolic.named("length") if g.chance(0.5) else steps
        batch = Symbolic.named("batch") if g.chance(0.5) else batch
    direction = g.choice(["forward", "reverse", "bidirectional"])
    count, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    x = g.input("float32", (steps, batch, features))
    parts: list[Value | str | None] = [
        x, g.weight("float32", (count, gates * hidden, features)), g.weight("float32", (count, gates * hidden, hidden)),
        g.weight("float32", (count, 2 * gates * hidden)) if g.chance(0.6) else None,
    ]  # fmt: skip
    static = not isinstance(batch, Symbolic) and not isinstance(steps, Symbolic)
    parts.append(g.constant([g.integer(1, steps) for _ in range(batch)], "int32") if static and g.chance(0.3) else None)
    parts.append(g.operand("float32", (count, batch, hidden)) if g.chance(0.4) else None)
    attributes = {"linear_before_reset": g.integer(0, 1)} if g.has(name, "linear_before_reset") else {}
    if name == "LSTM" and g.chance(0.3):
        parts += [g.operand("float32", (count, batch, hidden)), g.weight("float32", (count, 3 * hidden))]
    while parts[-1] is None:
        parts.pop()
    shape = (steps, count, batch, hidden)
    value = g.node(name, parts, "float32", shape, False, -1, 1, outputs=3 if name == "LSTM" else 2, hidden_size=hidden,
                   direction=direction, **attributes)  # fmt: skip
    return g.also(1, value, "float32", shape[1:], False, -1, 1)


@operator("Attention", weight=3)
def attention(g: GraphBuilder) -> Value:
    batch, heads, queries, keys, width = (g.integer(1, 3) for _ in range(5))
    if g.chance(0.2):
        queries, keys, width = g.integer(8, 20), g.integer(8, 40), 4 * width
    if g.dynamic:
        batch = Symbolic.named("batch")
        queries = keys = Symbolic.named("length") if g.chance(0.6) else queries
    heads, width = heads * 2, width * 4
    kv_heads = g.choice([heads, heads // 2])
    dtype = g.choice(HALF)
    flat = g.chance(0.3)  # heads beside each other in the last dimension
    shapes = [(batch, h, n, width) for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]
    attributes: dict[str, object] = {"scale": 0.3} if g.chance(0.3) else {}
    if flat:
        shapes = [(b, n, h * w) for b, h, n, w in shapes]
        attributes.update(q_num_heads=heads, kv_num_heads=kv_heads)
    inputs: list[Value | str | None] = [g.input(dtype, shape) for shape in shapes]
    causal = g.integer(0, 1) if queries == keys else 0
    if not causal and g.chance(0.4):
        mask = g.choice([(queries, keys), (batch, 1, queries, keys)])
        inputs.append(g.input(dtype, mask, -3, 3))
    if g.chance(0.2):
        attributes["softcap"] = 5.0
    value = inputs[0]
    assert isinstance(value, Value)
    return g.node("Attention", inputs, dtype, value.shape, False, -2, 2, is_causal=causal, **attributes)


@operator("RotaryEmbedding")
def rotary(g: GraphBuilder) -> Value:
    batch, heads, length, width = g.integer(1, 2), g.integer(1, 3), g.integer(1, 5), 2 * g.integer(1, 4)
    x = g.input("float32", (batch, heads, length, width))
    caches = [g.operand("float32", (8, width // 2)) for _ in range(2)]
    positions = g.input("int64", (batch, length), 0, 7)
    return g.node("RotaryEmbedding", [x, *caches, positions], "float32", x.shape, False, -6, 6,
                  interleaved=g.integer(0, 1))  # fmt: skip


@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(g: GraphBuilder, name: str) -> Value:
    n, c, rest = g.integer(1, 4), g.integer(2, 5), g.choice([(), (3,), (2, 3)])
    x = g.input("float32", (n, c, *rest))
    labels = g.input("int64", (n, *rest), 0, c - 1)
    weights = [g.weight("float32", (c,), 0.5, 2)] if g.chance(0.4) else []
    how = g.choice(["none", "sum", "mean"])
    shape = (n, *rest) if how == "none" else ()
    return g.node(name, [x, labels, *weights], "float32", shape, False, -500, 500, reduction=how)


@operator("LinearAttention")
def linear_attention(g: GraphBuilder) -> Value:
    batch, steps, heads, keys, values = (g.integer(1, 3) for _ in range(5))
    group = g.integer(1, 2)
    rule = g.choice(["linear", "gated", "delta", "gated_delta"])
    q = g.input("float32", (batch, steps, heads * group * keys))
    k = g.input("float32", (batch, steps, heads * keys), -0.5, 0.5)
    v = g.input("float32", (batch, steps, heads * values))
    past = g.operand("float32", (batch, heads, keys, values)) if g.chance(0.5) else None
    decay = g.input("float32", (batch, steps, heads * g.choice([1, keys])), -1, 0) if "gated" in rule else None
    beta = g.input("float32", (batch, steps, heads), 0, 1) if "delta" in rule else None
    inputs: list[Value | str | None] = [q, k, v, past, decay, beta]
    while inputs[-1] is None:
        inputs.pop()
    shape = (batch, steps, heads * group * values)
    value = g.node("LinearAttention", inputs, "float32", shape, False, -40, 40, outputs=2, update_rule=rule,
                   q_num_heads=heads * group, kv_num_heads=heads)  # fmt: skip
    return g.also(1, value, "float32", (batch, heads, keys, values), False, -20, 20)


@operator("CausalConvWithState")
def causal_convolution(g: GraphBuilder) -> Value:
    batch, channels, length, kernel = g.integer(1, 3), g.integer(1, 6), g.integer(1, 9), g.integer(1, 4)
    x = g.input("float32", (batch, channels, length))
    weight = g.operand("float32", (channels, 1, kernel))
    bias = g.operand("float32", (channels,)) if g.chance(0.5) else None
    past = g.input("float32", (batch, channels, kernel - 1)) if g.chance(0.5) else None
    inputs: list[Value | str | None] = [x, weight, bias, past]
    while inputs[-1] is None:
        inputs.pop()
    how = {"activation": g.choice(["none", "silu"])} if g.chance(0.6) else {}
    value = g.node("CausalConvWithState", inputs, "float32", x.shape, False, -10, 10, outputs=2, **how)
    return g.also(1, value, "float32", (batch, channels, kernel - 1), True, -2, 2)


@operator("SwiGLU")
def gated_swish(g: GraphBuilder) -> Value:
    x = g.pick(g.types("SwiGLU", HALF), 1, 4, within=TAME)
    y = g.input(x.dtype, x.shape)
    how = {"alpha": 1.7} if g.chance(0.4) else {}
    return g.node("SwiGLU", [x, y], x.dtype, x.shape, False, -2 * x.largest, 2 * x.largest, **how)
