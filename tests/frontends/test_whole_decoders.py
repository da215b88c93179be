"""A small decoder in the formats of language models, compiled with its caches, beside onnxruntime's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.llm_models import DecoderConfig, write_onnx
from relayc import compile_onnx
from relayc.runtime import device, graph_executor

SMALL = DecoderConfig(hidden=128, inner=256, layers=2, heads=4, groups=2, tokens=512, positions=128)
PROMPT = np.random.default_rng(0).integers(3, SMALL.tokens, (1, 16))
STEPS = 64


def of_onnxruntime(path: Path) -> Iterator[np.ndarray[Any, Any]]:
    """Logits behind the prompt, and behind each greedy token after it; caches go from outputs to inputs."""
    reason = "expected tokens are onnxruntime's: pip install 'relayc[quantize]'"
    session = pytest.importorskip("onnxruntime", reason=reason).InferenceSession(path)
    names = [x.name for x in session.get_inputs() if x.name.startswith("past")]
    outputs = ["logits", *[name.replace("past_key_values", "present") for name in names]]
    caches = [np.zeros((1, SMALL.groups, 0, SMALL.head_size), np.float32) for _ in names]
    tokens = PROMPT
    while True:
        mask = np.ones((1, caches[0].shape[2] + tokens.shape[1]), np.int64)
        feed = {"input_ids": tokens, "attention_mask": mask, **dict(zip(names, caches, strict=True))}
        logits, *caches = session.run(outputs, feed)
        yield logits[:, 0]
        tokens = logits[:, 0].argmax(-1)[:, None]


def of_relayc(path: Path) -> Iterator[np.ndarray[Any, Any]]:
    executor = graph_executor.GraphModule(compile_onnx(path, caches="auto")["default"](device("cpu", 0)))
    assert executor.has_caches
    tokens = PROMPT
    while True:
        begin = executor.cache_length
        positions = np.arange(begin, begin + tokens.shape[1])[None]
        (logits,) = executor.infer({"input_ids": tokens, "position_ids": positions}, ("logits",))
        yield logits[:, 0]
        tokens = logits[:, 0].argmax(-1)[:, None]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("float32", 1e-5),
        pytest.param("int8", 1e-3, marks=pytest.mark.slow),
        ("int4", 1e-3),
        pytest.param("int4_asymmetric", 1e-3, marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_onnxruntime(tmp_path: Path, kind: str, error: float):
    """GroupQueryAttention there, Attention of opset 23 with caches in place here; int4 data are int8 in both."""
    expected = of_onnxruntime(write_onnx(tmp_path / "grouped", SMALL, kind))
    found = of_relayc(write_onnx(tmp_path / "standard", SMALL, kind, grouped=False))
    first, ours = next(expected), next(found)
    np.testing.assert_allclose(ours, first, rtol=0, atol=error * np.abs(first).max())
    for _ in range(STEPS):
        assert next(found).argmax() == next(expected).argmax()
