"""String operations, computed by Python on arrays of str.

An action is prepared once from its settings (JSON values), and is then a function of arrays. These actions define the
semantics of the operators of `relay.op.strings`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.host_action import HostAction, Prepared, Settings
from relayc.backend.runtime.strings import Strings

if TYPE_CHECKING:
    from relayc.backend.runtime.regex import Pattern

__all__ = ["STRING_ACTIONS"]

Array = np.ndarray[Any, Any]

_START, _END = "\x02", "\x03"
"""Start and end markers of the tokenizer."""


def _pattern(expression: str) -> Pattern:
    # imported here: it takes 3 ms, which models without such expressions do without
    return import_module("relayc.backend.runtime.regex").Pattern(expression)


def _each(x: Array, function: Callable[[Any], Any]) -> Strings:
    result = np.empty(x.size, object)
    result[:] = [function(item) for item in x.reshape(-1).tolist()]
    return result.reshape(x.shape)


def _table(rows: Sequence[Sequence[str]], shape: tuple[int, ...], fill: str) -> Strings:
    """Rows of strings as the last axis of an array, padded with `fill`."""
    width = max(map(len, rows), default=0)
    table = np.full((len(rows), width), fill, object)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table.reshape((*shape, width))


def _concat(settings: Settings) -> Prepared:
    return lambda a, b: (np.asarray(a + b, dtype=object),)


def _full_match(settings: Settings) -> Prepared:
    pattern = _pattern(settings["expression"])
    return lambda x: (_each(x, pattern.matches).astype(bool),)


def _split(settings: Settings) -> Prepared:
    delimiter, most = settings["delimiter"] or None, settings["most"]

    def split(x: Strings) -> tuple[Array, ...]:
        parts = [text.split(delimiter, most) for text in x.reshape(-1).tolist()]
        counts = np.array([len(part) for part in parts], np.int64)
        return _table(parts, x.shape, ""), counts.reshape(x.shape)

    return split


def _normalize(settings: Settings) -> Prepared:
    change: Callable[[str], str] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[settings["case"]]
    compared: Callable[[str], str] = str if settings["is_case_sensitive"] else str.lower
    stop = {compared(word) for word in settings["stop_words"]}

    def normalize(x: Strings) -> tuple[Array, ...]:
        kept = [change(word) for word in x.reshape(-1).tolist() if not stop or compared(word) not in stop]
        return (_table([kept or [""]], (), "").reshape((*x.shape[:-1], -1)),)

    return normalize


def _tokenize(settings: Settings) -> Prepared:
    split, mark, least = _splitter(settings), settings["mark"], settings["least"]

    def tokenize(x: Strings) -> tuple[Array, ...]:
        rows = [split(text, least) for text in x.reshape(-1).tolist()]
        if mark and any(rows):
            rows = [[_START, *row, _END] for row in rows]
        return (_table(rows, x.shape, settings["fill"]),)

    return tokenize


def _splitter(settings: Settings) -> Callable[[str, int], list[str]]:
    """A function from a string, and the minimum length of a token, to the tokens."""
    separators, token = settings["separators"], settings["token"]
    if token == "." or list(separators) == [""]:
        return lambda text, _: list(text)
    if token:
        wanted = _pattern(token)
        return lambda text, least: _tokens(wanted, text, least)
    cuts = [_pattern(separator) for separator in separators]

    def split(text: str, least: int) -> list[str]:
        parts = [text]
        for cut in cuts:
            parts = [piece for part in parts for piece in _between(cut, part) if len(piece) >= least]
        return parts

    return split


def _matches(pattern: Pattern, text: str, least: int) -> Iterator[tuple[int, int]]:
    """Spans of matches; the search continues after a match of at least `least` characters, else one character on."""
    at = 0
    while at <= len(text) and (match := pattern.search(text, at)) is not None:
        yield match
        begin, end = match
        at = end if end - begin >= least else begin + 1


def _tokens(pattern: Pattern, text: str, least: int) -> list[str]:
    """The consecutive matches of the pattern that are long enough."""
    return [text[begin:end] for begin, end in _matches(pattern, text, least) if end - begin >= least]


def _between(pattern: Pattern, text: str) -> list[str]:
    """The substrings between matches of the pattern."""
    found: list[str] = []
    at = 0
    for begin, end in _matches(pattern, text, 1):
        found.append(text[at:begin])
        at = max(end, begin + 1)
    return [*found, text[at:]]


_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)


def _parse(settings: Settings) -> Prepared:
    dtype: str = settings["dtype"]
    pattern, number = (_INTEGER, int) if dtype == "int64" else (_REAL, float)

    def parsed(text: str) -> float:
        stripped = text.strip()
        if pattern.fullmatch(stripped) is None:
            what = "an integer" if dtype == "int64" else "a number"
            raise ArgumentError(f"the string {text[:80]!r} is no number; expected {what}, plain or scientific")
        return number(stripped)

    def parse(x: Strings) -> tuple[Array, ...]:
        values = [parsed(text) for text in x.reshape(-1).tolist()]
        try:
            return (np.array(values, dtype).reshape(x.shape),)
        except OverflowError as error:
            raise ArgumentError(f"a string holds a number that int64 can't: {error}") from error

    return parse


def _format(settings: Settings) -> Prepared:
    digits: int = settings["digits"]
    real = f".{digits}g"

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "1" if value else "0"
        if isinstance(value, int):
            return str(value)
        if value != value:
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "INF" if value > 0 else "-INF"
        return format(value, real)

    return lambda x: (_each(x if x.dtype.kind in "biu" else x.astype(np.float64), text),)


def _index(settings: Settings) -> Prepared:
    table: Sequence[str] = settings["table"]
    positions: dict[str, int] = {}
    for position, text in enumerate(table):
        positions.setdefault(text, position)
    missing = len(table)
    return lambda x: (_each(x, lambda text: positions.get(text, missing)).astype(np.int64),)


def _rank(settings: Settings) -> Prepared:
    def rank(x: Strings) -> tuple[Array, ...]:
        flat = x.reshape(-1).tolist()
        order = {text: number for number, text in enumerate(sorted(set(flat), key=str.encode))}
        return (np.array([order[text] for text in flat], np.int64).reshape(x.shape),)

    return rank


_TOKENIZE = {"separators": tuple, "token": str, "mark": bool, "least": int, "fill": str}

STRING_ACTIONS: dict[str, HostAction] = {
    "concat": HostAction(_concat, "tt", "t"),
    "format": HostAction(_format, "n", "t", {"digits": int}),
    "full_match": HostAction(_full_match, "t", "n", {"expression": str}),
    "index": HostAction(_index, "t", "n", {"table": tuple}),
    "normalize": HostAction(_normalize, "t", "t", {"case": str, "is_case_sensitive": bool, "stop_words": tuple}),
    "parse": HostAction(_parse, "t", "n", {"dtype": str}),
    "rank": HostAction(_rank, "t", "n"),
    "split": HostAction(_split, "t", "tn", {"delimiter": str, "most": int}),
    "tokenize": HostAction(_tokenize, "t", "t", _TOKENIZE),
}
"""Actions by name."""
