"""Generate tokens with a decoder that keeps its keys and values: one compiled model for the prompt and for every step.

    python examples/generate.py [--tokens N] [--temperature T] [--threads N]

The decoder is a small one with random weights, written in ONNX as exporters write them: the keys and values of earlier
tokens are inputs ("past"), those of all tokens are outputs ("present"), and their lengths are dynamic.
`caches` has the executor keep them: a step writes what is new behind what is there, and nothing is copied. In the end
the tokens are generated again without, each from the whole text before it, which must choose the same ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

LAYERS, WIDTH, HEADS, GROUPS, SIZE, VOCABULARY = 2, 128, 4, 2, 32, 256


class Writer:
    """Collects the nodes and weights of a graph."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.numbers = np.random.default_rng(seed)

    def node(self, op: str, *inputs: str, outputs: tuple[str, ...] = (), **attrs: Any) -> str:
        """Append a node; the name of its first output."""
        names = outputs or (f"{op}_{len(self.nodes)}",)
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names[0]

    def weight(self, *shape: int, around: float = 0.0) -> str:
        values = around + self.numbers.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0])
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.node("MatMul", x, self.weight(rows, columns))

    def norm(self, x: str) -> str:
        return self.node("RMSNormalization", x, self.weight(WIDTH, around=1.0))


def cache_names() -> list[str]:
    """What the inputs and outputs of the cache are called, behind "past" and "present"."""
    return [f"{kind}.{layer}" for layer in range(LAYERS) for kind in ("key", "value")]


def decoder() -> ModelProto:
    """tokens [1, new] and the cache of `past` tokens to logits [1, new, VOCABULARY] and the cache of all tokens."""
    w = Writer(seed=0)
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "new"])
    inputs, outputs = [tokens], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "new", VOCABULARY])]
    x = w.node("Gather", w.weight(VOCABULARY, WIDTH), "tokens")
    for name in cache_names():
        past, present = [1, GROUPS, "past", SIZE], [1, GROUPS, "all", SIZE]
        inputs.append(helper.make_tensor_value_info(f"past.{name}", TensorProto.FLOAT, past))
        outputs.append(helper.make_tensor_value_info(f"present.{name}", TensorProto.FLOAT, present))
    for layer in range(LAYERS):
        h = w.norm(x)
        query = w.linear(h, WIDTH, HEADS * SIZE)
        key, value = w.linear(h, WIDTH, GROUPS * SIZE), w.linear(h, WIDTH, GROUPS * SIZE)
        mixed = w.node(
            "Attention", query, key, value, "", f"past.key.{layer}", f"past.value.{layer}",
            outputs=(f"mixed.{layer}", f"present.key.{layer}", f"present.value.{layer}"),
            is_causal=1, q_num_heads=HEADS, kv_num_heads=GROUPS,
        )  # fmt: skip
        x = w.node("Add", x, w.linear(mixed, HEADS * SIZE, WIDTH))
        wide = w.linear(w.norm(x), WIDTH, 4 * WIDTH)
        x = w.node("Add", x, w.linear(w.node("Gelu", wide), 4 * WIDTH, WIDTH))
    w.node("MatMul", w.norm(x), w.weight(WIDTH, VOCABULARY), outputs=("logits",))
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


class Generator:
    """A compiled decoder, with the keys and values of the tokens it has seen."""

    def __init__(self, model: ModelProto, threads: int | None) -> None:
        module, params = from_onnx(model)
        caches = {f"past.{name}": f"present.{name}" for name in cache_names()}
        compiled = relay.build(module, target="llvm", params=params, caches=caches)
        self.executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), threads)

    def forget(self) -> None:
        """Begin anew, with no tokens seen."""
        self.executor.truncate_caches()

    def step(self, tokens: list[int]) -> np.ndarray:
        """The logits behind the last of these tokens, which come after all that were seen."""
        self.executor.run(tokens=np.array([tokens], np.int64))
        return self.executor.get_output("logits").numpy()[0, -1]


def sample(logits: np.ndarray, temperature: float, numbers: np.random.Generator) -> int:
    """The likeliest token at temperature 0, else one by its probability."""
    if temperature == 0.0:
        return int(logits.argmax())
    weights = np.exp((logits - logits.max()) / temperature, dtype=np.float64)
    return int(numbers.choice(len(logits), p=weights / weights.sum()))


def main() -> int:
    """Generate; the exit code is 0 when the cache changes nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate (default: 32)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 for the likeliest token (default: 0.8)")
    parser.add_argument("--threads", type=int, default=None, help="threads to run on (default: all)")
    args = parser.parse_args()
    prompt = [1, 2, 3, 5, 8, 13, 21]
    generator = Generator(decoder(), args.threads)

    numbers = np.random.default_rng(1)
    tokens = [*prompt, sample(generator.step(prompt), args.temperature, numbers)]
    start = time.perf_counter()
    while len(tokens) < len(prompt) + args.tokens:
        tokens.append(sample(generator.step(tokens[-1:]), args.temperature, numbers))
    seconds = time.perf_counter() - start
    print("tokens:", *tokens[len(prompt) :])
    print(f"{(args.tokens - 1) / seconds:.0f} tokens/s with the cache")

    numbers = np.random.default_rng(1)
    start = time.perf_counter()
    again = list(prompt)
    while len(again) < len(tokens):
        generator.forget()
        again.append(sample(generator.step(again), args.temperature, numbers))
    seconds = time.perf_counter() - start
    print(f"{args.tokens / seconds:.0f} tokens/s without; {'the same' if again == tokens else 'OTHER'} tokens")
    return 0 if again == tokens else 1


if __name__ == "__main__":
    sys.exit(main())
