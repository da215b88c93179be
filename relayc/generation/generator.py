"""Generation of text: prompts in, tokens and text out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from threading import RLock
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from relayc.generation.beams import search_beams
from relayc.generation.decoder import Decoder, doubled
from relayc.generation.encoder import Encoder
from relayc.generation.errors import GenerationError
from relayc.generation.loading import ModelFolder, make_executor
from relayc.generation.options import MOST_IDS, GenerationOptions, OptionValues, options_from
from relayc.generation.ports import find_decoder_ports
from relayc.generation.processors import Tokens, draw, processors_of
from relayc.generation.text import StopFinder, TextStream, Tokenizer

__all__ = ["Generation", "Generator", "Prefix", "Token"]

_WITHOUT_MASK = frozenset({"onnxruntime-genai", "onnxruntime.transformers"})
"""Producers whose attention (GroupQueryAttention) knows the length of a sequence only, not where it is padded."""

_EXPECTED = "expected a text, token ids, or a list of prompts"
Prompt = str | Sequence[int] | npt.NDArray[Any]


class Token(NamedTuple):
    """A generated token: the prompt's place in the batch, the token id, the text that it completes, and, if it is the
    last one, why: "stop" (an end token or a stop text) or "length"."""

    row: int
    id: int
    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class Generation:
    """What was generated for a prompt: token ids, with the one that ended it, and their text ("" without tokenizer).

    `finish_reason` is "stop" after an end token or a stop text, else "length"; `score` is that of beam search.
    """

    ids: list[int]
    text: str
    finish_reason: str
    prompt_length: int
    score: float | None = None


class _Row:
    """A sequence that grows: its new tokens, and why it ended."""

    def __init__(
        self, index: int, prompt_length: int, tokenizer: Tokenizer | None, options: GenerationOptions, count: int
    ) -> None:
        self._prompt_length = prompt_length
        self.index, self.ids, self.texts = index, list[int](), list[str]()
        self._ends, self._count = frozenset(options.eos_token_id), count
        self._stream = None if tokenizer is None else TextStream(tokenizer.decode)
        self._stops = StopFinder(options.stop) if options.stop else None
        self.reason: str | None = None

    def add(self, token: int) -> Token:
        """Append a token."""
        self.ids.append(token)
        if token in self._ends:
            self.reason = "stop"
        elif len(self.ids) == self._count:
            self.reason = "length"
        text = "" if self._stream is None else self._text(self._stream, token)
        return Token(self.index, token, text, self.reason)

    def _text(self, stream: TextStream, token: int) -> str:
        piece = stream.push(token) + (stream.rest() if self.reason else "")
        if self._stops is not None:
            piece, stopped = self._stops.push(piece)
            if stopped:
                self.reason = "stop"
            elif self.reason:
                piece += self._stops.rest()
        self.texts.append(piece)
        return piece

    def generation(self) -> Generation:
        """The result, once the sequence has ended."""
        assert self.reason is not None, "the loop ends when all sequences have"
        return Generation(self.ids, "".join(self.texts), self.reason, self._prompt_length)


@dataclass(frozen=True)
class Prefix:
    """Tokens (batch, positions), their mask, and what caches hold of them by name: what a generator goes on from."""

    tokens: Tokens
    mask: npt.NDArray[np.int64]
    caches: Mapping[str, npt.NDArray[Any]]


@dataclass
class _Batch:
    """Prompts of one run of the loop: tokens padded on the left, their mask, and their places among all prompts."""

    tokens: Tokens
    mask: npt.NDArray[np.int64]
    places: list[int]
    encoded: Any = None


class Generator:
    """A language model that generates.

    `model` is a folder (of transformers' or optimum's exports, or of onnxruntime-genai's builder), a file in one, a
    compiled model, an executor, or an ONNX model in memory. ONNX models are compiled for `target`, with `options` of
    `compile_onnx`. `encoder` is the encoder of a model that is no folder, `prefill` its first decoder.

    `tokenizer` is a tokenizer.json, its folder, or an object with `encode` and `decode`; by default the file in the
    model's folder. Without one, prompts and results are token ids. `names` gives the decoder's inputs by role, and
    "logits", where they are not recognised; `caches` outputs by the inputs that are their next values.

    One generation runs at a time: calls of `generate` from several threads wait for one another, and a stream that is
    not at its end when the next begins can't go on. `clone` makes another generator of the same weights. Raises
    `GenerationError` for what is no language model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        encoder: Any = None,
        prefill: Any = None,
        names: Mapping[str, str] | None = None,
        caches: Mapping[str, str] | None = None,
        target: str = "llvm",
        num_threads: int | None = None,
        context_length: int | None = None,
        **options: Any,
    ) -> None:
        for name, given in (("names", names), ("caches", caches)):
            if not (given is None or isinstance(given, Mapping)):
                raise GenerationError(f"{name}= is a {type(given).__name__}; expected a dictionary of names")
        if not (context_length is None or (type(context_length) is int and context_length > 0)):
            raise GenerationError(f"context_length={context_length!r:.80}; expected a number of tokens, 1 or more")
        folder = ModelFolder.open(model)
        first = folder.prefill if prefill is None else prefill
        executor = make_executor(folder.decoder, target, num_threads, True, **options)
        passed = set(executor.get_input_info()[1])
        pairs = caches or {name: output for name, output in folder.caches.items() if name in passed}
        self._ports = find_decoder_ports(executor, {**folder.names, **(names or {})}, pairs)
        self._executor, self._prefill = executor, None
        if first is not None:  # its caches go to the other one
            before = make_executor(first, target, num_threads, True, **{"caches": {}, **options})
            self._prefill = before, find_decoder_ports(before, {})
        self._takes_padding = executor.metadata.producer_name not in _WITHOUT_MASK
        self._tokenizer = Tokenizer.load(tokenizer, folder.folder)
        self.defaults = folder.defaults
        """the options of a generation that passes none"""
        self.context_length = folder.context_length if context_length is None else context_length
        """most tokens of a sequence; None: not known"""
        self._decoder_start = folder.decoder_start
        size = executor.get_output_info()[0][self._ports.logits][-1]
        self._vocabulary = max(size if isinstance(size, int) else 0, folder.vocabulary or 0) or MOST_IDS
        self._encoder = None
        if (source := folder.encoder if encoder is None else encoder) is not None:
            self._encoder = Encoder(make_executor(source, target, num_threads, False, **options))
        self._start()

    def _start(self) -> None:
        """Begin with no tokens seen."""
        self._decoder = Decoder(self._executor, self._ports, self._prefill, self._takes_padding)
        self._seen: _Batch | None = None
        self._turn = 0
        self._lock = RLock()

    def clone(self, num_threads: int | None = None) -> Generator:
        """Another generator with the same weights, which may run at the same time."""
        copy = object.__new__(Generator)
        copy.__dict__.update(self.__dict__)
        copy._executor = self._executor.clone(num_threads)
        copy._prefill = None if self._prefill is None else (self._prefill[0].clone(num_threads), self._prefill[1])
        copy._encoder = None if self._encoder is None else self._encoder.clone(num_threads)
        copy._start()
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None without one."""
        return self._tokenizer

    @property
    def cached_length(self) -> int:
        """Positions in the caches, which a prompt that begins with the same tokens does not compute again."""
        return self._decoder.length

    def reset(self) -> None:
        """Forget all tokens, and end streams in progress."""
        with self._lock:
            self._turn += 1
            self._seen = None
            self._decoder.reset()

    def save_prefix(self) -> Prefix:
        """A copy of the tokens seen and of their caches, to go on from later, or in another generator of the model.

        It can be pickled. Raises `GenerationError` where there are none, and for a model whose prompts are always
        computed from the start: one without caches, with an encoder, or with a decoder of its own for the first step.
        """
        self._check_keeps_prefixes()
        with self._lock:
            if self._seen is None or not self.cached_length:
                raise GenerationError("there are no tokens to save; expected a generate() before")
            length = self.cached_length
            mask = np.ones((len(self._seen.tokens), length), np.int64)
            given = self._seen.mask[:, :length]
            mask[:, : given.shape[1]] = given
            return Prefix(self._seen.tokens[:, :length].copy(), mask, self._decoder.cache_values())

    def load_prefix(self, prefix: Prefix) -> None:
        """Go on from a saved prefix: prompts that begin with its tokens compute the others only."""
        self._check_keeps_prefixes()
        if not isinstance(prefix, Prefix):
            raise GenerationError(f"the prefix is a {type(prefix).__name__}; expected what save_prefix() gave")
        with self._lock:
            self.reset()
            self._decoder.set_caches(prefix.caches, prefix.tokens.shape[1])
            self._seen = _Batch(prefix.tokens, prefix.mask, list(range(len(prefix.tokens))))

    def _check_keeps_prefixes(self) -> None:
        if self._encoder is not None or not self._decoder.takes_many:
            raise GenerationError(
                "the model computes each prompt from the start: expected a decoder with caches, without an encoder and "
                "without a decoder of its own for the first step"
            )

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        stream: Callable[[Token], None] | None = None,
        decoder_ids: Sequence[int] | None = None,
        **options: Unpack[OptionValues],
    ) -> Any:
        """Continue a prompt: a text, token ids, or a list of such prompts. A `Generation`, for a list a list of them.

        For a model with an encoder, the prompt is what is encoded: text, token ids, or features as an array of floats
        (channels, frames), in a batch (batch, channels, frames); the decoder begins with `decoder_ids`. `stream` is
        called with each token. `options` are those of `GenerationOptions`, by default `defaults`.
        """
        if not (stream is None or callable(stream)):
            raise GenerationError(f"stream= is a {type(stream).__name__}; expected a function of a Token")
        prompts, is_single = _listed(prompt)
        how = options_from(self.defaults, options)
        if how.num_beams > 1:
            if stream is not None:
                raise GenerationError(f"stream= with num_beams={how.num_beams}: beams have no tokens before the end")
            with self._lock:
                results = self._with_beams(prompts, how, decoder_ids)
        else:
            with self._lock:
                results = self._collected(prompts, how, decoder_ids, stream)
        return results[0] if is_single else results

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        decoder_ids: Sequence[int] | None = None,
        **options: Unpack[OptionValues],
    ) -> Iterator[Token]:
        """Like `generate`, token by token; those of a batch are in turns."""
        how = options_from(self.defaults, options)
        if how.num_beams > 1:
            raise GenerationError(f"a stream with num_beams={how.num_beams}: beams have no tokens before the end")
        return self._one_by_one(self._tokens(_listed(prompt)[0], how, decoder_ids, {}))

    def _one_by_one(self, tokens: Iterator[Token]) -> Iterator[Token]:
        """The tokens, of which each is computed while no other thread computes one."""
        while True:
            with self._lock:
                token = next(tokens, None)
            if token is None:
                return
            yield token

    # -- prompts

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise GenerationError(
                    "the prompt is a text, and there is no tokenizer: expected token ids, or Generator(tokenizer=...); "
                    "a tokenizer.json in the model's folder is read after pip install 'relayc[generation]'"
                )
            return self._tokenizer.encode(prompt)
        return _token_ids(prompt, self._vocabulary)

    def _batches(
        self, prompts: Sequence[Prompt], options: GenerationOptions, decoder_ids: Sequence[int] | None
    ) -> Iterator[_Batch]:
        """The batches of the prompts: one, or one for each prompt where the model takes no padding."""
        if self._encoder is not None:
            yield from self._encoder_batches(self._encoder, prompts, options, decoder_ids)
            return
        if decoder_ids is not None:
            raise GenerationError("decoder_ids= is for models with an encoder, and this one has none")
        rows = [self._ids(prompt) for prompt in prompts]
        if not all(rows):
            raise GenerationError(f"prompt {rows.index([])} has no tokens; expected one or more")
        alike = len({len(row) for row in rows}) == 1 and self._decoder.takes_batches
        together = [rows] if alike or self._decoder.takes_padding else [[row] for row in rows]
        place = 0
        for part in together:
            tokens, mask = _padded(part, options.pad_token_id)
            yield _Batch(tokens, mask, list(range(place, place + len(part))))
            place += len(part)

    def _encoder_batches(
        self, encoder: Encoder, prompts: Sequence[Prompt], options: GenerationOptions, decoder_ids: Sequence[int] | None
    ) -> Iterator[_Batch]:
        start = decoder_ids if decoder_ids is not None else [self._decoder_start]
        if None in start or not len(start):
            raise GenerationError(
                "it is not known which token the decoder begins with: expected decoder_ids=, or a "
                "decoder_start_token_id in generation_config.json"
            )
        inputs = [p if _is_features(p) else self._ids(p) for p in prompts]
        groups = [list(range(len(inputs)))] if encoder.takes_together(inputs) else [[i] for i in range(len(inputs))]
        for places in groups:
            encoded = encoder.encode([inputs[i] for i in places], options.pad_token_id)
            tokens = np.tile(np.array(_token_ids(start, self._vocabulary), np.int64), (len(places), 1))
            yield _Batch(tokens, np.ones_like(tokens), places, encoded)

    # -- the loop

    def _begin(self, batch: _Batch, options: GenerationOptions) -> tuple[Any, int]:
        """The logits behind the prompts of a batch, and how many tokens may follow.

        Positions that are in the caches already are not computed.
        """
        self._turn += 1
        length = batch.tokens.shape[1]
        count = options.max_new_tokens
        if self.context_length is not None:
            if length >= self.context_length:
                raise GenerationError(f"the prompt has {length} tokens, the model a context of {self.context_length}")
            count = min(count, self.context_length - length)
        kept = self._shared(batch)
        self._decoder.truncate(kept)
        self._decoder.begin(batch.mask)
        self._seen = None
        if batch.encoded is not None and self._encoder is not None:
            self._encoder.pass_on(batch.encoded, self._decoder, self._ports)
        return self._decoder.step(batch.tokens[:, kept:]), count

    def _shared(self, batch: _Batch) -> int:
        """How many positions of the caches are those of the prompts; the last one is computed in any case."""
        seen, new = self._seen, batch.tokens
        if seen is None or not self._decoder.takes_many or batch.encoded is not None or len(seen.tokens) != len(new):
            return 0
        length = min(self._decoder.length, new.shape[1] - 1)
        padded = seen.mask.shape[1]
        mask = np.ones_like(seen.tokens[:, :length])
        mask[:, :padded] = seen.mask[:, :length]
        differs = (seen.tokens[:, :length] != new[:, :length]) | (mask != batch.mask[:, :length])
        columns = np.flatnonzero(differs.any(axis=0))
        shared = int(columns[0]) if len(columns) else length
        return 0 if self._decoder.has_states and shared < self._decoder.length else shared

    def _tokens(
        self,
        prompts: Sequence[Prompt],
        options: GenerationOptions,
        decoder_ids: Sequence[int] | None,
        rows: dict[int, _Row],
    ) -> Iterator[Token]:
        """The tokens of all prompts as they come; `rows` gets the sequences by place."""
        if options.stop and self._tokenizer is None:
            raise GenerationError("stop= needs a tokenizer: expected Generator(tokenizer=...), or eos_token_id=")
        numbers = np.random.default_rng(options.seed) if options.do_sample else None
        for batch in self._batches(prompts, options, decoder_ids):
            yield from self._batch_tokens(batch, options, numbers, rows)

    def _batch_tokens(
        self,
        batch: _Batch,
        options: GenerationOptions,
        numbers: np.random.Generator | None,
        rows: dict[int, _Row],
    ) -> Iterator[Token]:
        logits, count = self._begin(batch, options)
        length, turn = batch.tokens.shape[1], self._turn
        processors = processors_of(replace(options, max_new_tokens=count), length, np.argmax(batch.mask, axis=1))
        seen = self._seen = replace(batch)
        lengths = batch.mask.sum(axis=1).tolist()
        live = [_Row(i, n, self._tokenizer, options, count) for i, n in zip(batch.places, lengths, strict=True)]
        rows.update({row.index: row for row in live})
        by_row = dict(enumerate(live))
        for at in range(length, length + count):
            if at == seen.tokens.shape[1]:  # the length that is asked for may never be reached
                seen.tokens = doubled(seen.tokens, at, options.pad_token_id)
            tokens = seen.tokens
            for process in processors:
                logits = process(tokens[:, :at], logits)
            chosen = logits.argmax(axis=1) if numbers is None else draw(logits, numbers)
            for row, sequence in [*by_row.items()]:
                token = int(chosen[row])
                tokens[row, at] = token
                yield sequence.add(token)
                if sequence.reason:
                    del by_row[row]
            if turn != self._turn:
                raise GenerationError("another generation began before this one ended; clone() the generator for both")
            if not by_row:
                return
            logits = self._decoder.step(tokens[:, at : at + 1])

    def _collected(
        self,
        prompts: Sequence[Prompt],
        options: GenerationOptions,
        decoder_ids: Sequence[int] | None,
        stream: Callable[[Token], None] | None,
    ) -> list[Generation]:
        """Generate tokens for each prompt, and call `stream` for each token."""
        rows: dict[int, _Row] = {}
        for token in self._tokens(prompts, options, decoder_ids, rows):
            if stream is not None:
                stream(token)
        return [rows[place].generation() for place in range(len(prompts))]

    def _with_beams(
        self, prompts: Sequence[Prompt], options: GenerationOptions, decoder_ids: Sequence[int] | None
    ) -> list[Generation]:
        """The best sequence of each prompt by beam search."""
        if not self._decoder.takes_batches:
            raise GenerationError(
                f"num_beams={options.num_beams}: the model's batch has a fixed size; expected one exported with a "
                "dynamic batch, or no beams"
            )
        found: dict[int, Generation] = {}
        for batch in self._batches(prompts, options, decoder_ids):
            logits, count = self._begin(batch, options)
            how = replace(options, max_new_tokens=count)
            starts = np.repeat(np.argmax(batch.mask, axis=1), options.num_beams)
            processors = processors_of(how, batch.tokens.shape[1], starts)
            results = search_beams(self._decoder, logits, batch.tokens, processors, how, count)
            for place, length, (ids, score) in zip(batch.places, batch.mask.sum(axis=1), results, strict=True):
                text = "" if self._tokenizer is None else self._tokenizer.decode(ids)
                reason = "stop" if ids[-1] in options.eos_token_id else "length"
                found[place] = Generation(ids, text, reason, int(length), score)
        return [found[place] for place in range(len(prompts))]


def _listed(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether it was a single one."""
    if isinstance(prompt, str):
        return [prompt], True
    if hasattr(prompt, "__array__"):  # tensors of other libraries, too
        prompt = np.asarray(prompt)
    is_listed = prompt.ndim > 0 if isinstance(prompt, np.ndarray) else isinstance(prompt, Sequence)
    if not is_listed:
        raise GenerationError(f"the prompt is a {type(prompt).__name__}; {_EXPECTED}")
    if not len(prompt):
        raise GenerationError("there is no prompt; " + _EXPECTED)
    if isinstance(prompt, np.ndarray):
        is_single = prompt.ndim == (2 if _is_features(prompt) else 1)
    else:
        is_single = isinstance(prompt[0], int | np.integer)
    return [prompt] if is_single else list(prompt), is_single  # type: ignore[list-item]


def _token_ids(ids: Any, vocabulary: int) -> list[int]:
    """Token ids as a list of integers below `vocabulary`. Raises GenerationError for anything else."""
    try:
        tokens = [index(token) for token in ids]
    except TypeError as error:
        raise GenerationError(f"the prompt has {ids!r:.80} in the place of token ids; {_EXPECTED}") from error
    for position, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            raise GenerationError(
                f"the prompt has the token {token} at position {position}, and the model a vocabulary of {vocabulary} "
                f"tokens; expected ids from 0 to {vocabulary - 1}, as of the model's own tokenizer"
            )
    return tokens


def _is_features(prompt: Any) -> bool:
    """Is it what an encoder takes in place of tokens?"""
    return isinstance(prompt, np.ndarray) and prompt.dtype.kind == "f"


def _padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Token ids padded on the left, and their mask."""
    length = max(map(len, rows))
    tokens, mask = np.full((len(rows), length), pad, np.int64), np.zeros((len(rows), length), np.int64)
    for row, ids in enumerate(rows):
        tokens[row, length - len(ids) :], mask[row, length - len(ids) :] = ids, 1
    return tokens, mask
