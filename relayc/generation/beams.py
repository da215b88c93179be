"""Beam search, with the scores and the end conditions of transformers'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relayc.generation.decoder import Decoder
from relayc.generation.options import GenerationOptions
from relayc.generation.processors import Processor, Scores, Tokens, log_softmax

__all__ = ["search_beams"]

_WORST = np.float32(-1e9)
"""A score that no sequence has."""


@dataclass
class _Beams:
    """The sequences of each prompt (batch, beams, length), their scores, and which of them are complete."""

    tokens: Tokens
    scores: Scores
    complete: npt.NDArray[np.bool_]

    def best(self, count: int) -> tuple[_Beams, npt.NDArray[np.intp]]:
        """The `count` of the best scores, best first, and where they were."""
        at = np.argsort(-self.scores, axis=1, kind="stable")[:, :count]
        return self.at(at), at

    def at(self, at: npt.NDArray[np.intp]) -> _Beams:
        """The sequences at these places (batch, count)."""
        tokens = np.take_along_axis(self.tokens, at[:, :, None], axis=1)
        scores = np.take_along_axis(self.scores, at, axis=1)
        return _Beams(tokens, scores, np.take_along_axis(self.complete, at, axis=1))

    def joined(self, other: _Beams) -> _Beams:
        """The sequences of both; those of `other` may be longer."""
        grown = ((0, 0), (0, 0), (0, other.tokens.shape[2] - self.tokens.shape[2]))
        tokens = np.concatenate([np.pad(self.tokens, grown), other.tokens], axis=1)
        scores = np.concatenate([self.scores, other.scores], axis=1)
        return _Beams(tokens, scores, np.concatenate([self.complete, other.complete], axis=1))


def search_beams(
    decoder: Decoder,
    logits: Scores,
    prompts: Tokens,
    processors: Sequence[Processor],
    options: GenerationOptions,
    count: int,
) -> list[tuple[list[int], float]]:
    """The best continuation of each prompt, up to `count` tokens, and its score.

    `prompts` (batch, length) are what the decoder has seen, `logits` those behind them. Scores are sums of logarithms
    of probabilities, divided by the length to the power of `length_penalty`.
    """
    batch, begin = prompts.shape
    width, ends = options.num_beams, np.array(options.eos_token_id, np.int64)
    rows = np.repeat(np.arange(batch), width)
    decoder.select(rows)
    logits = logits[rows]
    scores = np.full((batch, width), _WORST)
    scores[:, 0] = 0  # all beams are the same at first: one is continued
    nothing = np.zeros((batch, width), np.bool_)
    running = _Beams(prompts[rows].reshape(batch, width, begin), scores, nothing)
    finished = _Beams(running.tokens, np.full((batch, width), _WORST), nothing)
    improvable = np.ones((batch, 1), np.bool_)
    for length in range(1, count + 1):
        candidates, parents = _candidates(running, logits, processors, max(2, 1 + len(ends)) * width)
        hits = np.isin(candidates.tokens[:, :, -1], ends) | (length == count)
        live = _Beams(candidates.tokens, candidates.scores + hits * _WORST, hits)
        running, at = live.best(width)
        final = hits & (np.arange(hits.shape[1]) < width)
        full = finished.complete.all(axis=1, keepdims=True) & (options.early_stopping is True)
        penalised = candidates.scores / np.float32(length**options.length_penalty)
        penalised = penalised + (full | ~improvable | ~final) * _WORST
        finished, _ = finished.joined(_Beams(candidates.tokens, penalised.astype(np.float32), final)).best(width)
        improvable &= _may_improve(running, finished, length, count, options)
        done = options.early_stopping is True and bool(finished.complete.all())
        if done or hits.all() or not improvable.any():
            break
        decoder.select((np.take_along_axis(parents, at, axis=1) + np.arange(batch)[:, None] * width).reshape(-1))
        logits = decoder.step(running.tokens[:, :, -1].reshape(-1, 1))
    return [_result(*row, begin, options) for row in zip(finished.tokens, finished.scores, strict=True)]


def _candidates(
    running: _Beams, logits: Scores, processors: Sequence[Processor], count: int
) -> tuple[_Beams, npt.NDArray[np.intp]]:
    """The `count` best continuations of each prompt by one token, best first, and the beams that they continue."""
    batch, width, length = running.tokens.shape
    scores = log_softmax(logits)
    for process in processors:
        scores = process(running.tokens.reshape(-1, length), scores)
    vocabulary = scores.shape[1]
    total = (scores.reshape(batch, width, vocabulary) + running.scores[:, :, None]).reshape(batch, -1)
    count = min(count, total.shape[1])
    at = np.argpartition(-total, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(total, at, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    at, found = np.take_along_axis(at, order, axis=1), np.take_along_axis(found, order, axis=1)
    parents = at // vocabulary
    before = np.take_along_axis(running.tokens, parents[:, :, None], axis=1)
    tokens = np.concatenate([before, (at % vocabulary)[:, :, None]], axis=2)
    return _Beams(tokens, found, np.zeros(at.shape, np.bool_)), parents


def _may_improve(
    running: _Beams, finished: _Beams, length: int, count: int, options: GenerationOptions
) -> npt.NDArray[np.bool_]:
    """Could the best running beam of each prompt still become better than the worst complete one? (batch, 1)"""
    longest = count if options.early_stopping == "never" and options.length_penalty > 0 else length
    possible = running.scores[:, :1] / np.float32(longest**options.length_penalty)
    worst = np.where(finished.complete, finished.scores.min(axis=1, keepdims=True), _WORST)
    return np.asarray((possible > worst).any(axis=1, keepdims=True))


def _result(tokens: Tokens, scores: Scores, begin: int, options: GenerationOptions) -> tuple[list[int], float]:
    """The best sequence of a prompt, up to the token that ends it, and its score."""
    new: list[int] = tokens[0, begin:].tolist()
    ends = [at for at, token in enumerate(new) if token in options.eos_token_id]
    return new[: ends[0] + 1] if ends else new, float(scores[0])
