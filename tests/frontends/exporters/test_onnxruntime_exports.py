"""Graphs as onnxruntime's tools write them: transformers fused to operators of com.microsoft, decoders with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.exporters.graphs import Graph, check, torchscript

rng = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("mask_of_lengths", [True, False])
def test_encoder_after_the_transformer_optimizer(mask_of_lengths):
    """BERT: embeddings, attention, sums with normalisation, and the biased GELU are one operator each."""
    hidden, heads, words = 16, 4, 20
    g = Graph(torchscript)
    ids = [g.input(name, ["batch", "length"], np.int64) for name in ("input_ids", "segment_ids", "input_mask")]
    ids = [g("Cast", x, to=6) for x in ids]
    tables = [g.weight(normal(n, hidden)) for n in (words, 32, 2)]
    norm = [g.weight(normal(hidden)), g.weight(normal(hidden))]
    g("EmbedLayerNormalization", ids[0], ids[1], *tables, *norm, ids[2], domain=MICROSOFT, epsilon=1e-12,
      outputs=["embedded", "mask_index"])  # fmt: skip
    y = "embedded"
    for _ in range(2):
        weights = [g.weight(normal(hidden, 3 * hidden) / 4), g.weight(normal(3 * hidden))]
        mask = "mask_index" if mask_of_lengths else ids[2]
        mixed = g("Attention", y, *weights, mask, domain=MICROSOFT, num_heads=heads)
        dense = g("MatMul", mixed, g.weight(normal(hidden, hidden) / 4))
        y = g("SkipLayerNormalization", dense, y, *norm, g.weight(normal(hidden)), domain=MICROSOFT, epsilon=1e-12)
        inner = g("BiasGelu", g("MatMul", y, g.weight(normal(hidden, 32) / 4)), g.weight(normal(32)), domain=MICROSOFT)
        dense = g("MatMul", inner, g.weight(normal(32, hidden) / 6))
        y = g("SkipLayerNormalization", dense, y, *norm, g.weight(normal(hidden)), domain=MICROSOFT, epsilon=1e-12)
    first = g("Gather", y, g.constant(np.int64(0)), axis=1)
    pooled = g("FusedGemm", first, g.weight(normal(hidden, hidden) / 4), g.weight(normal(hidden)), domain=MICROSOFT,
               activation="Tanh")  # fmt: skip
    model = g.model([y, pooled], 17, {MICROSOFT: 1})

    def case(batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
        lengths = rng.integers(1, length + 1, (batch, 1))
        return {
            "input_ids": rng.integers(0, words, (batch, length)),
            "segment_ids": rng.integers(0, 2, (batch, length)),
            "input_mask": (np.arange(length) < lengths).astype(np.int64),
        }

    check(model, case(2, 7), case(1, 3), case(3, 1), rtol=1e-3, atol=1e-3)


HEADS, GROUPS, SIZE, HIDDEN, VOCABULARY = 4, 2, 16, 32, 24


def decoder(kind: Any) -> Any:
    """A layer of a language model: 4-bit weights, the KV cache as inputs and outputs, sizes computed from the mask."""
    g = Graph(torchscript)
    ids = g.input("input_ids", ["batch_size", "sequence_length"], np.int64)
    mask = g.input("attention_mask", ["batch_size", "total_sequence_length"], np.int64)
    cache = [g.input(f"past_key_values.0.{name}", ["batch_size", GROUPS, "past_sequence_length", SIZE], kind)
             for name in ("key", "value")]  # fmt: skip

    def weight(value: np.ndarray[Any, Any]) -> str:
        return g.weight(value.astype(kind))

    def linear(x: str, depth: int, width: int) -> str:
        codes = g.weight(rng.integers(0, 256, (width, depth // 16, 8)).astype(np.uint8))
        scales = weight(rng.uniform(0.01, 0.03, (width, depth // 16)))
        return g("MatMulNBits", x, codes, scales, domain=MICROSOFT, K=depth, N=width, bits=4, block_size=16,
                 accuracy_level=0)  # fmt: skip

    counts = g("ReduceSum", mask, g.constant([1]), keepdims=0)
    lengths = g("Cast", g("Sub", counts, g.constant([1])), to=6)
    total = g("Cast", g("Gather", g("Shape", mask), g.constant(np.int64(1)), axis=0), to=6)
    angle = np.arange(32)[:, None] / 10.0 ** np.linspace(0, 2, SIZE // 2)
    angles = [weight(np.cos(angle)), weight(np.sin(angle))]
    embedded = g("Gather", weight(normal(VOCABULARY, HIDDEN)), ids)
    y = g("SimplifiedLayerNormalization", embedded, weight(normal(HIDDEN)), axis=-1, epsilon=1e-5, stash_type=1)
    query, key, value = (linear(y, HIDDEN, count * SIZE) for count in (HEADS, GROUPS, GROUPS))
    g("GroupQueryAttention", query, key, value, *cache, lengths, total, *angles, domain=MICROSOFT, num_heads=HEADS,
      kv_num_heads=GROUPS, do_rotary=1, rotary_interleaved=0, scale=SIZE**-0.5, local_window_size=-1,
      outputs=["mixed", "present.0.key", "present.0.value"])  # fmt: skip
    g("SkipSimplifiedLayerNormalization", embedded, linear("mixed", HEADS * SIZE, HIDDEN), weight(normal(HIDDEN)),
      domain=MICROSOFT, epsilon=1e-5, outputs=["normed", "", "", "summed"])  # fmt: skip
    gate = linear("normed", HIDDEN, 48)
    inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), linear("normed", HIDDEN, 48))
    g("SkipSimplifiedLayerNormalization", "summed", linear(inner, 48, HIDDEN), weight(normal(HIDDEN)),
      domain=MICROSOFT, epsilon=1e-5, outputs=["last"])  # fmt: skip
    logits = g("MatMul", "last", weight(normal(HIDDEN, VOCABULARY) / 5))
    return g.model([logits, "present.0.key", "present.0.value"], 17, {MICROSOFT: 1})


@pytest.mark.parametrize(("kind", "tolerance"), [(np.float32, 1e-3), (np.float16, 3e-2)])
def test_decoder_with_a_cache(kind, tolerance):
    """One compiled model runs the prefill, then decodes step by step with its KV cache."""
    batch, names = 2, ("past_key_values.0.key", "past_key_values.0.value")

    def case(new: int, past: int) -> dict[str, np.ndarray[Any, Any]]:
        cached = {name: normal(batch, GROUPS, past, SIZE).astype(kind) for name in names}
        mask = np.ones((batch, past + new), np.int64)
        return {"input_ids": rng.integers(0, VOCABULARY, (batch, new)), "attention_mask": mask, **cached}

    check(decoder(kind), case(5, 0), case(1, 5), case(1, 6), rtol=tolerance, atol=tolerance)
