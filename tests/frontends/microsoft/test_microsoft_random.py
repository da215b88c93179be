"""Attention of com.microsoft with random attributes, layouts and sizes: numpy references against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.frontends.node_cases import node_model
from tests.reference_backend import ReferenceBackend

onnxruntime = pytest.importorskip("onnxruntime")

Case = tuple[list[Any], dict[str, Any]]


class Dice:
    """Seeded random choices and arrays."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one(self, *of: Any) -> Any:
        return of[self.random.integers(len(of))]

    def normal(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.random.normal(size=shape).astype(np.float32)

    def maybe(self, *shape: int) -> np.ndarray[Any, Any] | None:
        return self.one(None, None, self.normal(*shape))

    def options(self, **values: Sequence[Any]) -> dict[str, Any]:
        """Some of the attributes, each with one of its values."""
        return {name: self.one(*of) for name, of in values.items() if self.one(True, False)}

    def ints(self, low: int, high: int, *shape: int) -> np.ndarray[Any, Any]:
        return self.random.integers(low, high, shape).astype(np.int32)


def packed_attention(dice: Dice) -> Case:
    batch, length, heads, size, width = (dice.one(*of) for of in ((1, 2, 3), (1, 2, 5), (1, 2, 3), (2, 4, 8), (3, 8)))
    past = dice.one(0, 0, 3)
    total, hidden = past + length, heads * size
    mask = dice.one(
        None,
        dice.ints(0, 2, batch, total),
        dice.ints(0, 2, batch, length, total),
        dice.ints(1, total + 1, batch),
        np.concatenate([dice.ints(1, total + 1, batch), dice.ints(0, total, batch)]),
    )
    bias = None if past else dice.maybe(dice.one(1, batch), dice.one(1, heads), length, total)
    inputs = [dice.normal(batch, length, width), dice.normal(width, 3 * hidden), dice.normal(3 * hidden), mask,
              dice.normal(2, batch, heads, past, size) if past else None, bias]  # fmt: skip
    attrs = dice.options(scale=(0.3,), mask_filter_value=(-100.0,), unidirectional=(0, 1))
    return inputs, {"num_heads": heads, "outputs": 2 if past else 1, **attrs}


def attention_of_many_heads(dice: Dice) -> Case:
    batch, length, heads, size = (dice.one(*of) for of in ((1, 2), (1, 2, 5), (1, 2, 3), (2, 4, 8)))
    past = dice.one(0, 0, 2)
    keys = length if past else dice.one(length, 3, 6)
    total, width = past + keys, size if past else dice.one(size, 3)
    cache = [dice.normal(batch, heads, past, size) for _ in range(2)] if past else [None, None]
    inputs = [dice.normal(batch, length, heads * size), dice.normal(batch, keys, heads * size),
              dice.normal(batch, keys, heads * width), dice.maybe(heads * (2 * size + width)),
              dice.one(None, dice.ints(0, 2, batch, total), dice.ints(1, total + 1, batch)),
              dice.maybe(dice.one(1, batch), dice.one(1, heads), length, total), *cache]  # fmt: skip
    causal = {"unidirectional": dice.one(0, 1)} if keys == length else {}
    return inputs, {"num_heads": heads, "outputs": 3, **causal, **dice.options(scale=(0.4,))}


def grouped_attention(dice: Dice) -> Case:
    groups, size, total = dice.one(1, 2), dice.one(16, 32), dice.one(4, 7)
    heads, mode = groups * dice.one(1, 2, 3), dice.one("prompt", "step", "some")
    new = {"prompt": total, "step": 1, "some": 2}[mode]
    batch = 1 if mode == "some" else 2
    lengths = np.full(batch, total - 1, np.int32)
    if mode == "step":
        lengths[1:] = dice.ints(1, total, batch - 1)
    room = 0 if mode == "prompt" else dice.one(total - new, total + 1)
    cache = [dice.normal(batch, groups, room, size) for _ in range(2)]
    attrs = dice.options(softcap=(1.5,), scale=(0.4,), smooth_softmax=(1,), do_rotary=(1,), rotary_interleaved=(1,),
                         local_window_size=(1, 2, 3, 100))  # fmt: skip
    angle = np.arange(32)[:, None] / 10.0 ** np.linspace(0, 1, size // 2)
    tables = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    angles = tables if "do_rotary" in attrs else [None, None]
    query = dice.normal(batch, new, heads * size)
    key, value = (dice.normal(batch, new, groups * size) for _ in range(2))
    three = dice.one([query, key, value], [np.concatenate([query, key, value], -1), None, None])
    inputs = [*three, *cache, lengths, np.array(total, np.int32), *angles]
    return inputs, {"num_heads": heads, "kv_num_heads": groups, "outputs": 3, "weights": [6], **attrs}


GENERATORS: dict[str, Callable[[Dice], Case]] = {
    "Attention": packed_attention,
    "MultiHeadAttention": attention_of_many_heads,
    "GroupQueryAttention": grouped_attention,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_random_attention(name):
    for seed in range(40):
        inputs, attrs = GENERATORS[name](Dice(seed))
        model, passed = node_model(name, inputs, **attrs)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(None, passed)
        for have, want in zip(ReferenceBackend.prepare(model).run(passed), expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-3, err_msg=f"{name}, seed {seed}: {attrs}")
