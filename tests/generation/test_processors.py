"""Changes of logits, compared with numpy by their definitions, and with transformers where it is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from relayc.generation.options import GenerationOptions
from relayc.generation.processors import draw, log_softmax, processors_of

VOCABULARY = 50
TOKENS = np.array([[0, 0, 7, 3, 7, 3], [5, 9, 9, 1, 5, 9]])
STARTS = np.array([2, 0])
OPTIONS = {
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 4, "eos_token_id": (2, 4),
    "suppress_tokens": (10, 11), "begin_suppress_tokens": (20,), "do_sample": True, "temperature": 0.7, "top_k": 30,
    "top_p": 0.9, "min_p": 0.02,
}  # fmt: skip


def processed(options: GenerationOptions, scores: np.ndarray, prompt_length: int = 6) -> np.ndarray:
    for process in processors_of(options, prompt_length, STARTS):
        scores = process(TOKENS, scores)
    return scores


def scores() -> np.ndarray:
    return (3 * np.random.default_rng(0).standard_normal((2, VOCABULARY))).astype(np.float32)


def test_repeated_tokens_become_less_likely():
    found, before = processed(GenerationOptions(repetition_penalty=1.5), scores()), scores()
    for row, tokens in enumerate(({3, 7}, {1, 5, 9})):  # 0 is padding in the first row
        for token in range(VOCABULARY):
            value = before[row, token]
            if token in tokens:
                value = value / np.float32(1.5) if value > 0 else value * np.float32(1.5)
            assert found[row, token] == value


def test_sequences_do_not_come_twice():
    found = np.isneginf(processed(GenerationOptions(no_repeat_ngram_size=2), scores()))
    assert [np.flatnonzero(row).tolist() for row in found] == [[7], [1, 9]]
    found = np.isneginf(processed(GenerationOptions(no_repeat_ngram_size=1), scores()))
    assert [np.flatnonzero(row).tolist() for row in found] == [[0, 3, 7], [1, 5, 9]]
    assert np.isfinite(processed(GenerationOptions(no_repeat_ngram_size=8), scores())).all()


def test_tokens_are_suppressed_at_the_beginning_and_the_end_is_delayed():
    options = GenerationOptions(min_new_tokens=2, eos_token_id=(2,), begin_suppress_tokens=(4,), suppress_tokens=(6,))
    for prompt_length, expected in ((6, [2, 4, 6]), (5, [2, 6]), (4, [6])):
        found = np.isneginf(processed(options, scores(), prompt_length))
        assert [np.flatnonzero(row).tolist() for row in found] == [expected] * 2


def test_a_token_is_forced():
    found = processed(GenerationOptions(forced_eos_token_id=9, max_new_tokens=1), scores())
    assert (found[:, 9] == 0).all() and np.isneginf(np.delete(found, 9, axis=1)).all()


@pytest.mark.parametrize(("name", "value"), [("top_k", 5), ("top_p", 0.6), ("min_p", 0.2)])
def test_unlikely_tokens_are_dropped(name, value):
    found = processed(GenerationOptions(do_sample=True, **{name: value}), scores())
    for row, before in zip(found, scores(), strict=True):
        shares = np.exp(before) / np.exp(before).sum()
        order = np.argsort(-shares)
        kept = {
            "top_k": order[:5],
            "top_p": order[: np.searchsorted(np.cumsum(shares[order]), 0.6) + 1],
            "min_p": np.flatnonzero(shares >= 0.2 * shares.max()),
        }[name]
        assert set(np.flatnonzero(np.isfinite(row))) == set(kept)
        np.testing.assert_array_equal(row[kept], before[kept])


def test_logarithms_of_probabilities():
    wide = scores().astype(np.float64)
    np.testing.assert_allclose(log_softmax(scores()), wide - np.log(np.exp(wide).sum(1, keepdims=True)), rtol=1e-5)


def test_impossible_tokens_are_never_drawn():
    row = np.full((1, VOCABULARY), -np.inf, np.float32)
    row[0, [4, 31]] = 1.0, 2.0
    drawn = [int(draw(row, np.random.default_rng(seed))[0]) for seed in range(200)]
    assert set(drawn) == {4, 31} and 120 < drawn.count(31) < 170


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="compares with transformers: pip install torch transformers",
)
@pytest.mark.parametrize("left_out", [*OPTIONS, "nothing"])
def test_the_order_and_the_values_are_those_of_transformers(left_out):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    kept = {name: value for name, value in OPTIONS.items() if name != left_out}
    options, ids = GenerationOptions(**kept), torch.tensor(TOKENS)
    theirs = process.LogitsProcessorList()
    if "repetition_penalty" in kept:
        theirs.append(process.RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=torch.tensor(STARTS)))
    if "no_repeat_ngram_size" in kept:
        theirs.append(process.NoRepeatNGramLogitsProcessor(3))
    if "min_new_tokens" in kept and "eos_token_id" in kept:
        theirs.append(process.MinNewTokensLengthLogitsProcessor(6, 4, [2, 4]))
    for name, tokens in (("suppress_tokens", [10, 11]), ("begin_suppress_tokens", [20])):
        if name in kept:
            more = () if name == "suppress_tokens" else (6,)
            kind = "SuppressTokensLogitsProcessor" if not more else "SuppressTokensAtBeginLogitsProcessor"
            theirs.append(getattr(process, kind)(tokens, *more))
    if "do_sample" in kept:
        for name, kind in (("temperature", "Temperature"), ("top_k", "TopK"), ("top_p", "TopP"), ("min_p", "MinP")):
            if name in kept:
                theirs.append(getattr(process, f"{kind}LogitsWarper")(kept[name]))
    expected = theirs(ids, torch.tensor(scores())).numpy()
    np.testing.assert_array_equal(processed(options, scores()), expected)
