"""Tokenizers, and the text of tokens as they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from relayc.generation.errors import GenerationError

__all__ = ["StopFinder", "TextStream", "Tokenizer"]

_REPLACEMENT = "\ufffd"
"""What decoders give for bytes that are no whole character yet."""


class Tokenizer:
    """A tokenizer of any kind: `encode` a text to token ids, `decode` ids to text without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        if not (hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode")):
            raise GenerationError(
                f"the tokenizer is a {type(tokenizer).__name__}; expected a tokenizer.json, or an object with encode "
                "and decode"
            )
        self._inner = tokenizer

    @staticmethod
    def load(tokenizer: Any, folder: Path | None) -> Tokenizer | None:
        """The user's tokenizer: an object, the path of a tokenizer.json or of its folder; by default the model's."""
        if tokenizer is None:
            found = None if folder is None else folder / "tokenizer.json"
            if found is None or not found.is_file() or find_spec("tokenizers") is None:
                return None
            return _read(found)
        if not isinstance(tokenizer, str | os.PathLike):
            return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        path = Path(tokenizer)
        return _read(path / "tokenizer.json" if path.is_dir() else path)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer adds."""
        found = self._inner.encode(text)
        return [int(token) for token in getattr(found, "ids", found)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self._inner.decode(list(ids), skip_special_tokens=True))


def _read(path: Path) -> Tokenizer:
    if not path.is_file():
        raise GenerationError(f"{path}: no such file; expected a tokenizer.json")
    if find_spec("tokenizers") is None:
        raise GenerationError(f"{path} is read by the package tokenizers: pip install 'relayc[generation]'")
    try:
        return Tokenizer(import_module("tokenizers").Tokenizer.from_file(str(path)))
    except Exception as error:  # the package raises no other class
        raise GenerationError(f"{path} is no tokenizer that the package tokenizers reads: {error}") from error


class TextStream:
    """The text of tokens, piece by piece; a piece ends with a whole character."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = self._done = 0
        """where the tokens begin that spaces in the next piece depend on, and where those without text yet begin"""

    def push(self, token: int) -> str:
        """The text that is complete with this token, often none."""
        self._ids.append(token)
        piece = self._pending()
        if not piece or piece.endswith(_REPLACEMENT):
            return ""
        self._context, self._done = self._done, len(self._ids)
        return piece

    def rest(self) -> str:
        """The text of tokens that are left, complete or not."""
        piece = self._pending()
        self._context = self._done = len(self._ids)
        return piece

    def _pending(self) -> str:
        before = self._decode(self._ids[self._context : self._done])
        return self._decode(self._ids[self._context :])[len(before) :]


class StopFinder:
    """Withholds the end of a text as long as it may be the beginning of a stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop text ended it."""
        text = self._held + piece
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)], True
        held = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def rest(self) -> str:
        """What was withheld; it is no stop text after all."""
        held, self._held = self._held, ""
        return held
