"""Changes of logits before a token is chosen, and the choice.

Order and arithmetic are those of transformers' logits processors. All take the tokens so far (batch, length), of which
row i begins at `starts[i]` after its padding, and scores (batch, vocabulary) in float32, which they may overwrite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from relayc.generation.errors import GenerationError
from relayc.generation.options import GenerationOptions

__all__ = ["Processor", "Scores", "Tokens", "draw", "log_softmax", "processors_of"]

Scores = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]
Processor = Callable[[Tokens, Scores], Scores]

_NEVER = np.float32(-np.inf)


def processors_of(options: GenerationOptions, prompt_length: int, starts: npt.NDArray[np.int64]) -> list[Processor]:
    """The processors that `options` ask for, in order; `starts` has one element for each row of the batch."""
    found: list[Processor] = []
    if options.repetition_penalty != 1.0:
        found.append(_repetition_penalty(options.repetition_penalty, starts))
    if options.no_repeat_ngram_size:
        found.append(_no_repeat_ngrams(options.no_repeat_ngram_size))
    if options.min_new_tokens and options.eos_token_id:
        found.append(_suppress(options.eos_token_id, lambda length: length < prompt_length + options.min_new_tokens))
    if options.forced_bos_token_id is not None:
        found.append(_force(options.forced_bos_token_id, 1))
    if options.forced_eos_token_id is not None:
        found.append(_force(options.forced_eos_token_id, prompt_length + options.max_new_tokens - 1))
    if options.suppress_tokens:
        found.append(_suppress(options.suppress_tokens, lambda length: True))
    if options.begin_suppress_tokens:
        first = prompt_length + (prompt_length == 1 and options.forced_bos_token_id is not None)
        found.append(_suppress(options.begin_suppress_tokens, lambda length: length == first))
    if options.do_sample:
        found += _sampling(options)
    return found


def _sampling(options: GenerationOptions) -> list[Processor]:
    """What sampling adds."""
    found: list[Processor] = []
    if options.temperature != 1.0:
        found.append(lambda tokens, scores: scores / np.float32(options.temperature))
    if options.top_k:
        found.append(_top_k(options.top_k))
    if options.top_p < 1.0:
        found.append(_top_p(options.top_p))
    if options.min_p > 0.0:
        found.append(_min_p(options.min_p))
    return found


def _repetition_penalty(penalty: float, starts: npt.NDArray[np.int64]) -> Processor:
    """Scores of tokens that a row has are multiplied by the penalty where negative, and divided by it elsewhere."""
    factor = np.float32(penalty)

    def process(tokens: Tokens, scores: Scores) -> Scores:
        for row, (seen, start) in enumerate(zip(tokens, starts, strict=True)):
            at = seen[start:]
            values = scores[row, at]
            scores[row, at] = np.where(values < 0, values * factor, values / factor)
        return scores

    return process


def _no_repeat_ngrams(size: int) -> Processor:
    """Tokens that would complete a sequence of `size` tokens that a row has are impossible."""

    def process(tokens: Tokens, scores: Scores) -> Scores:
        if tokens.shape[1] + 1 < size:
            return scores
        for row, seen in enumerate(tokens):
            windows = np.lib.stride_tricks.sliding_window_view(seen, size) if len(seen) >= size else seen[:0]
            if size > 1 and len(windows):
                windows = windows[(windows[:, :-1] == seen[len(seen) - size + 1 :]).all(axis=1)]
            if len(windows):
                scores[row, windows[:, -1]] = _NEVER
        return scores

    return process


def _suppress(chosen: Sequence[int], when: Callable[[int], bool]) -> Processor:
    """The chosen tokens are impossible, when the length of the sequences is one for which `when` holds."""
    at = np.array(chosen, np.int64)

    def process(tokens: Tokens, scores: Scores) -> Scores:
        if when(tokens.shape[1]):
            scores[:, at[(at >= 0) & (at < scores.shape[1])]] = _NEVER
        return scores

    return process


def _force(token: int, length: int) -> Processor:
    """Behind sequences of `length` tokens, only `token` is possible."""

    def process(tokens: Tokens, scores: Scores) -> Scores:
        if tokens.shape[1] == length:
            if not 0 <= token < scores.shape[1]:
                raise GenerationError(f"the forced token is {token}; expected one of 0 to {scores.shape[1] - 1}")
            scores[:] = _NEVER
            scores[:, token] = 0
        return scores

    return process


def _top_k(count: int) -> Processor:
    """Scores below the `count`th largest are impossible."""

    def process(tokens: Tokens, scores: Scores) -> Scores:
        kept = min(count, scores.shape[1])
        threshold = np.partition(scores, -kept, axis=1)[:, -kept, None]
        scores[scores < threshold] = _NEVER
        return scores

    return process


def _top_p(share: float) -> Processor:
    """Tokens that are less likely than those whose probabilities reach `share` are impossible."""

    def process(tokens: Tokens, scores: Scores) -> Scores:
        for row in scores:
            possible = np.flatnonzero(row > _NEVER)
            order = possible[np.argsort(row[possible], kind="stable")]
            weights = np.exp(row[order] - row[order[-1]])
            is_outside = np.cumsum(weights / weights.sum()) <= np.float32(1 - share)
            is_outside[-1] = False
            row[order[is_outside]] = _NEVER
        return scores

    return process


def _min_p(share: float) -> Processor:
    """Tokens with less than `share` of the likeliest one's probability are impossible."""

    def process(tokens: Tokens, scores: Scores) -> Scores:
        best = scores.max(axis=1, keepdims=True)
        scores[np.exp(scores - best) < np.float32(share)] = _NEVER
        return scores

    return process


def log_softmax(scores: Scores) -> Scores:
    """Logarithms of the probabilities of each row."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def draw(scores: Scores, numbers: np.random.Generator) -> Tokens:
    """One token for each row, drawn by its probability."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    at = numbers.random(len(sums)) * sums[:, -1]
    return np.array([np.searchsorted(row, value, side="right") for row, value in zip(sums, at, strict=True)], np.int64)
