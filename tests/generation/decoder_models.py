"""A tiny decoder in ONNX, in the forms that exporters write, and the same in numpy without caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, SIZE, VOCABULARY, POSITIONS = 2, 16, 2, 8, 40, 64
CACHES = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def weights(seed: int = 54) -> dict[str, np.ndarray]:
    """The weights by name: embeddings of tokens and positions, four matrices for each layer, the head."""
    rng = np.random.default_rng(seed)
    shapes = {"tokens": (VOCABULARY, WIDTH), "places": (POSITIONS, WIDTH), "head": (WIDTH, VOCABULARY)}
    shapes |= {f"{name}{layer}": (WIDTH, WIDTH) for layer in range(LAYERS) for name in ("q", "k", "v", "o")}
    return {name: (0.4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def _body(caches: bool) -> list[onnx.NodeProto]:
    """The nodes: attention over the past and the new positions that `attention_mask` [batch, total] allows."""
    node = helper.make_node
    nodes = [
        node("Gather", ["tokens", "input_ids"], ["embedded"]),
        node("Gather", ["places", "position_ids"], ["placed"]),
        node("Add", ["embedded", "placed"], ["x0"]),
        node("Shape", ["attention_mask"], ["total"], start=1),
        node("Shape", ["input_ids"], ["new"], start=1),
        node("Squeeze", ["total", "zero1"], ["total0"]),
        node("Squeeze", ["new", "zero1"], ["new0"]),
        node("Sub", ["total0", "new0"], ["past0"]),
        node("Range", ["past0", "total0", "one"], ["rows"]),
        node("Unsqueeze", ["rows", "one1"], ["column"]),
        node("Range", ["zero", "total0", "one"], ["columns"]),
        node("LessOrEqual", ["columns", "column"], ["causal"]),
        node("Cast", ["attention_mask"], ["shown"], to=TensorProto.BOOL),
        node("Unsqueeze", ["shown", "one_two"], ["shown4"]),
        node("And", ["causal", "shown4"], ["allowed"]),
        node("Where", ["allowed", "nothing", "lowest"], ["bias"]),
    ]
    for layer in range(LAYERS):
        for name in ("q", "k", "v"):
            nodes += [
                node("MatMul", [f"x{layer}", f"{name}{layer}"], [f"{name}m{layer}"]),
                node("Reshape", [f"{name}m{layer}", "split"], [f"{name}r{layer}"]),
                node("Transpose", [f"{name}r{layer}"], [f"{name}h{layer}"], perm=[0, 2, 1, 3]),
            ]
        for name, kind in (("k", "key"), ("v", "value")):
            whole = f"present.{layer}.{kind}" if caches else f"{name}w{layer}"
            inputs = [f"past_key_values.{layer}.{kind}", f"{name}h{layer}"] if caches else [f"{name}h{layer}"]
            nodes.append(node("Concat", inputs, [whole], axis=2))
        key, value = [f"present.{layer}.{kind}" if caches else f"{kind[0]}w{layer}" for kind in ("key", "value")]
        nodes += [
            node("Transpose", [key], [f"kt{layer}"], perm=[0, 1, 3, 2]),
            node("MatMul", [f"qh{layer}", f"kt{layer}"], [f"s{layer}"]),
            node("Add", [f"s{layer}", "bias"], [f"b{layer}"]),
            node("Softmax", [f"b{layer}"], [f"p{layer}"], axis=-1),
            node("MatMul", [f"p{layer}", value], [f"a{layer}"]),
            node("Transpose", [f"a{layer}"], [f"at{layer}"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"at{layer}", "merge"], [f"am{layer}"]),
            node("MatMul", [f"am{layer}", f"o{layer}"], [f"y{layer}"]),
            node("Add", [f"x{layer}", f"y{layer}"], [f"x{layer + 1}"]),
        ]
    return [*nodes, node("MatMul", [f"x{LAYERS}", "head"], ["logits"])]


def _constants() -> list[TensorProto]:
    values = {
        "zero": np.int64(0), "one": np.int64(1), "zero1": np.array([0]), "one1": np.array([1]),
        "one_two": np.array([1, 2]), "split": np.array([0, 0, HEADS, SIZE]), "merge": np.array([0, 0, WIDTH]),
        "nothing": np.float32(0), "lowest": np.float32(-1e9), **weights(),
    }  # fmt: skip
    return [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]


def _ports(caches: bool) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", INT64, ["batch", "new"]),
        info("attention_mask", INT64, ["batch", "total"]),
        info("position_ids", INT64, ["batch", "new"]),
    ]
    outputs = [info("logits", FLOAT, ["batch", "new", VOCABULARY])]
    if caches:
        inputs += [info(f"past_key_values.{c}", FLOAT, ["batch", HEADS, "past", SIZE]) for c in CACHES]
        outputs += [info(f"present.{c}", FLOAT, ["batch", HEADS, "total", SIZE]) for c in CACHES]
    return inputs, outputs


def _model(graph: GraphProto) -> ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def decoder(caches: bool = True) -> ModelProto:
    """The decoder, with caches as inputs and outputs or without any."""
    return _model(helper.make_graph(_body(caches), "decoder", *_ports(caches), _constants()))


def first_decoder() -> ModelProto:
    """The decoder of a prompt, which has no caches as inputs and gives them as outputs."""
    nodes = [node for node in _body(True) if node.op_type != "Concat"]
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            nodes.append(helper.make_node("Identity", [f"{kind[0]}h{layer}"], [f"present.{layer}.{kind}"]))
    return _model(helper.make_graph(_sorted(nodes), "first", _ports(False)[0], _ports(True)[1], _constants()))


def merged_decoder() -> ModelProto:
    """Both decoders in one, as branches of an If on `use_cache_branch` [1]."""
    inputs, outputs = _ports(True)
    branches = [
        helper.make_graph(_sorted(list(model.graph.node)), name, [], list(model.graph.output))
        for name, model in (("with_past", decoder()), ("first", first_decoder()))
    ]
    names = [output.name for output in outputs]
    choose = helper.make_node("If", ["use_cache_branch"], names, then_branch=branches[0], else_branch=branches[1])
    inputs = [*inputs, helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])]
    return _model(helper.make_graph([choose], "merged", inputs, outputs, _constants()))


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes, each behind those that it reads."""
    made = {name for node in nodes for name in node.output}
    done: set[str] = set()
    rest, order = list(nodes), []
    while rest:
        ready = [node for node in rest if all(name in done or name not in made for name in node.input)]
        order += ready
        done |= {name for node in ready for name in node.output}
        rest = [node for node in rest if node not in ready]
    return order


def logits_of(tokens: Sequence[int]) -> np.ndarray:
    """The logits behind a sequence, by numpy."""
    w = weights()
    x = w["tokens"][list(tokens)] + w["places"][: len(tokens)]
    allowed = np.tril(np.ones((len(tokens), len(tokens)), bool))
    for layer in range(LAYERS):
        query, key, value = [(x @ w[f"{n}{layer}"]).reshape(-1, HEADS, SIZE).swapaxes(0, 1) for n in ("q", "k", "v")]
        scores = np.where(allowed, query @ key.swapaxes(1, 2), -1e9)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        x = x + mixed.swapaxes(0, 1).reshape(-1, WIDTH) @ w[f"o{layer}"]
    return (x @ w["head"])[-1]


def greedy(prompt: Sequence[int], count: int, ends: Sequence[int] = ()) -> list[int]:
    """The likeliest tokens behind a prompt, by numpy."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count and (len(tokens) == len(prompt) or tokens[-1] not in ends):
        tokens.append(int(logits_of(tokens).argmax()))
    return tokens[len(prompt) :]
