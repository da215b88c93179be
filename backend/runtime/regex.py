"""Regular expressions as RE2 defines them (github.com/google/re2/wiki/Syntax), matched in linear time.

Python's `re` has another syntax and may take exponential time, and patterns may come from untrusted models. A pattern
is compiled to an NFA, which is simulated on sets of states with a lazily built DFA. Repetitions are expanded, so the
size of the automaton is limited, as in RE2.

A search finds the leftmost-longest match (POSIX).

    alternation = sequence {"|" sequence};  sequence = {atom [repeat]};  repeat = ("*" | "+" | "?" | "{n,m}") ["?"]

Unsupported features of RE2: `\\C` and scripts in `\\p{...}` (general categories are supported).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Pattern", "PatternError"]

MAX_REPEAT = 1000
"""RE2's limit of repetition counts."""

MAX_STATES = 20_000
"""Most states of an automaton, repetitions expanded."""

MAX_NESTING = 100
"""Greatest nesting depth of groups."""

MAX_REMEMBERED = 20_000
"""Most DFA transitions that are cached."""

_EASY_STEPS = 4
"""Average visits per character before a search switches to following all start positions simultaneously."""

Accepts = Callable[[str], bool]
"""Predicate: is a character in the class?"""

Condition = Callable[[str, int], bool]
"""Predicate: does a string satisfy an assertion at a position?"""


class PatternError(ValueError):
    """The pattern is not valid RE2 syntax, or uses an unsupported feature."""


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    many_lines: bool = False
    dot_all: bool = False


@dataclass(slots=True)
class _State:
    """An NFA state: goes to `next` on an accepted character, or without one where `condition` holds (or is None)."""

    accepts: Accepts | None = None
    condition: Condition | None = None
    next: list[_State] = field(default_factory=list)


Fragment = tuple[_State, _State]
"""Start and end state of a part of a pattern."""

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_PERL: dict[str, frozenset[str]] = {"d": frozenset(string.digits), "s": frozenset("\t\n\f\r "), "w": _WORD}
_POSIX: dict[str, frozenset[str]] = {
    "alnum": frozenset(string.ascii_letters + string.digits), "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))), "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(32), 127])), "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))), "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))), "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "), "upper": frozenset(string.ascii_uppercase),
    "word": _WORD, "xdigit": frozenset(string.hexdigits),
}  # fmt: skip
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


def _is_word(text: str, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in _WORD


def _at_boundary(text: str, at: int) -> bool:
    return _is_word(text, at - 1) != _is_word(text, at)


def _at_start(text: str, at: int) -> bool:
    return at == 0


def _at_end(text: str, at: int) -> bool:
    return at == len(text)


def _at_line_start(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"


def _at_line_end(text: str, at: int) -> bool:
    return at == len(text) or text[at] == "\n"


class _Row:
    """A DFA state: a set of NFA states, with its transitions cached on demand. For patterns without assertions."""

    __slots__ = ("is_end", "next", "states")

    def __init__(self, states: list[_State], is_end: bool) -> None:
        self.states, self.is_end = states, is_end
        self.next: dict[str, _Row | None] = {}


class Pattern:
    """A compiled expression. Raises `PatternError` for an invalid one.

    DFA states are cached as they are met, so that a character usually costs one look-up.
    """

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._first, self._last = parser.parse()
        self._asserts = parser.asserts
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[frozenset[int], _Row] = {}
        self._steps = 0
        self._start = self._row([self._first])

    def _row(self, states: list[_State]) -> _Row:
        closed = self._closed(states, "", 0)
        key = frozenset(map(id, closed))
        if key not in self._rows:
            self._rows[key] = _Row(closed, any(state is self._last for state in closed))
        return self._rows[key]

    def _after(self, row: _Row, character: str) -> _Row | None:
        """Compute the uncached transition on a character; None for the dead state."""
        reached = [after for s in row.states if s.accepts is not None and s.accepts(character) for after in s.next]
        self._steps += 1
        if self._steps > MAX_REMEMBERED:
            self._forget()
        found = row.next[character] = self._row(reached) if reached else None
        return found

    def matches(self, text: str) -> bool:
        """Does the whole of `text` match?"""
        if self._asserts:
            return self._matches_slowly(text)
        row: _Row | None = self._start
        for character in text:
            assert row is not None
            row = row.next[character] if character in row.next else self._after(row, character)
            if row is None:
                return False
        return row is not None and row.is_end

    def _matches_slowly(self, text: str) -> bool:
        states = self._closed([self._first], text, 0)
        for at, character in enumerate(text):
            if not states:
                return False
            reached = [after for s in states if s.accepts is not None and s.accepts(character) for after in s.next]
            states = self._closed(reached, text, at + 1)
        return any(state is self._last for state in states)

    def search(self, text: str, begin: int = 0) -> tuple[int, int] | None:
        """Start and end of the leftmost-longest match from position `begin` on; None without one.

        Assertions see the text before `begin`. The time is linear in the text.
        """
        left = _EASY_STEPS * (len(text) - begin + 1)
        for start in range(begin, len(text) + 1 if not self._asserts else 0):
            row: _Row | None = self._start
            end = start if self._start.is_end else -1
            for at in range(start, len(text)):
                assert row is not None
                character = text[at]
                row = row.next[character] if character in row.next else self._after(row, character)
                if row is None:
                    break
                if row.is_end:
                    end = at + 1
            else:
                at = len(text)
            if end >= 0:
                return start, end
            left -= at - start
            if left < 0:  # many failed start positions: follow all of them simultaneously from here on
                return self._search_together(text, start + 1)
        return self._search_together(text, begin) if self._asserts else None

    def _search_together(self, text: str, begin: int) -> tuple[int, int] | None:
        found: tuple[int, int] | None = None
        threads: list[tuple[_State, int]] = []  # with where each began, in that order
        for at in range(begin, len(text) + 1):
            if found is None:
                threads.append((self._first, at))
            threads = self._closed_threads(threads, text, at)
            ended = next((start for state, start in threads if state is self._last), None)
            if ended is not None:
                found = ended, at
                threads = [thread for thread in threads if thread[1] <= ended]
            if at == len(text) or (found is not None and not threads):
                break
            character = text[at]
            threads = [(after, start) for state, start in threads
                       if state.accepts is not None and state.accepts(character) for after in state.next]  # fmt: skip
        return found

    def _closed_threads(self, threads: list[tuple[_State, int]], text: str, at: int) -> list[tuple[_State, int]]:
        """Epsilon closure of threads, each state with its earliest start position."""
        seen: set[int] = set()
        closed: list[tuple[_State, int]] = []
        for thread, start in threads:
            for state in self._closed([thread], text, at):
                if id(state) not in seen:
                    seen.add(id(state))
                    closed.append((state, start))
        return closed

    def _closed(self, states: list[_State], text: str, at: int) -> list[_State]:
        """Epsilon closure of a set of states."""
        seen: dict[int, _State] = {}
        stack = list(states)
        while stack:
            state = stack.pop()
            if id(state) in seen:
                continue
            seen[id(state)] = state
            if state.accepts is None and (state.condition is None or state.condition(text, at)):
                stack.extend(state.next)
        return list(seen.values())


class _Parser:
    """Recursive-descent parser that builds the NFA."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.states = text, 0, 0, 0
        self.flags = _Flags()
        self.asserts = False
        """does the pattern have assertions?"""

    def parse(self) -> Fragment:
        result = self._alternation()
        if self.at < len(self.text):
            raise self._error("an unexpected ')'")
        return result

    def _error(self, problem: str) -> PatternError:
        return PatternError(f"{problem} at position {self.at} of the pattern {self.text!r}")

    # reading

    def _peek(self, expected: str) -> bool:
        return self.text.startswith(expected, self.at)

    def _take(self, expected: str) -> bool:
        found = self._peek(expected)
        self.at += len(expected) if found else 0
        return found

    def _read(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        found = expected.match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        return found

    def _character(self, within: str) -> str:
        if self.at >= len(self.text):
            raise self._error(f"{within} that does not end")
        self.at += 1
        return self.text[self.at - 1]

    # building

    def _state(self, accepts: Accepts | None = None, condition: Condition | None = None) -> _State:
        self.states += 1
        if self.states > MAX_STATES:
            raise self._error(f"more than {MAX_STATES} states")
        self.asserts |= condition is not None
        return _State(accepts, condition)

    def _one(self, accepts: Accepts | None = None, condition: Condition | None = None) -> Fragment:
        first, last = self._state(accepts, condition), self._state()
        first.next.append(last)
        return first, last

    # grammar

    def _alternation(self) -> Fragment:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} groups inside of each other")
        first, last = self._state(), self._state()
        while True:
            begin, end = self._sequence()
            first.next.append(begin)
            end.next.append(last)
            if not self._take("|"):
                self.depth -= 1
                return first, last

    def _sequence(self) -> Fragment:
        first = last = self._state()
        while True:
            while self._take("\\Q"):
                self._escape_quoted()
            if self.at >= len(self.text) or self._peek("|") or self._peek(")"):
                return first, last
            for begin, end in self._repeated():
                last.next.append(begin)
                last = end

    def _escape_quoted(self) -> None:
        """Escape the characters of a quoted section in place; a following repetition applies to the last one only."""
        end = self.text.find("\\E", self.at)
        quoted = self.text[self.at : len(self.text) if end < 0 else end]
        rest = "" if end < 0 else self.text[end + 2 :]
        escaped = "".join([c if c.isalnum() or not c.isascii() else f"\\{c}" for c in quoted])
        self.at -= 2
        self.text = self.text[: self.at] + escaped + rest

    def _repeated(self) -> Iterator[Fragment]:
        """An atom with its repetition expanded."""
        start, flags = self.at, self.flags
        fragment = self._atom()
        counts = self._counts()
        if counts is None:
            yield fragment
            return
        after, after_flags = self.at, self.flags
        least, most = counts

        def again() -> Fragment:
            self.at, self.flags = start, flags
            made = self._atom()
            self.at, self.flags = after, after_flags
            return made

        for number in range(least):
            yield fragment if number == 0 else again()
        if most is None:
            begin, end = fragment if least == 0 else again()
            hub = self._state()
            hub.next.append(begin)
            end.next.append(hub)
            yield hub, hub
        for number in range(least, least if most is None else most):
            begin, end = fragment if number == 0 else again()
            begin_or_not = self._state()
            begin_or_not.next += [begin, end]
            yield begin_or_not, end

    def _counts(self) -> tuple[int, int | None] | None:
        """Parse a repetition, if there is one; laziness does not affect a whole match."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.text[self.at : self.at + 1])
        if simple is not None:
            self.at += 1
            counts: tuple[int, int | None] = simple
        else:
            found = self._read(_COUNTS)
            if found is None:
                return None
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
                raise self._error(f"a repeat {found[0]}")
            counts = least, most
        self._take("?")
        if self.text[self.at : self.at + 1] in ("*", "+", "?") or _COUNTS.match(self.text, self.at):
            raise self._error("a repeat of a repeat")
        return counts

    def _atom(self) -> Fragment:
        if self._take("("):
            return self._group()
        if self._take("["):
            return self._one(self._class())
        if self._take("\\"):
            return self._escape()
        character = self._character("a pattern")
        if character == ".":
            return self._one((lambda _: True) if self.flags.dot_all else (lambda c: c != "\n"))
        if character == "^":
            return self._one(condition=_at_line_start if self.flags.many_lines else _at_start)
        if character == "$":
            return self._one(condition=_at_line_end if self.flags.many_lines else _at_end)
        if character in "*+?":
            raise self._error("a repeat of nothing")
        return self._one(self._literal(character))

    def _group(self) -> Fragment:
        flags = self.flags
        if self._take("?") and self._read(_NAME) is None:
            found = self._read(_FLAGS)
            if found is None:
                raise self._error("a group (?...) that RE2 does not have (no look around, no references)")
            self._set_flags(found[1], True)
            self._set_flags(found[2] or "", False)
            if found[3] == ")":  # for what follows in the group around
                if self._counts() is not None:
                    raise self._error("a repeat of flags")
                return self._one()
        result = self._alternation()
        if not self._take(")"):
            raise self._error("a group that does not end")
        self.flags = flags
        return result

    def _set_flags(self, names: str, value: bool) -> None:
        passed = self.flags
        self.flags = _Flags(
            value if "i" in names else passed.ignore_case,
            value if "m" in names else passed.many_lines,
            value if "s" in names else passed.dot_all,
        )

    def _literal(self, wanted: str) -> Accepts:
        if not self.flags.ignore_case:
            return lambda c: c == wanted
        folded = _folded(wanted)
        return lambda c: _folded(c) == folded

    def _among(self, holds: Accepts, negated: bool = False) -> Accepts:
        """The class of characters for which `holds` (or, `negated`, does not hold), folding case if it is ignored."""
        if self.flags.ignore_case:
            return lambda c: any(holds(v) for v in _variants(c)) != negated
        return lambda c: holds(c) != negated

    def _escape(self) -> Fragment:
        simple: dict[str, Condition] = {
            "A": _at_start, "z": _at_end, "b": _at_boundary, "B": lambda text, at: not _at_boundary(text, at),
        }  # fmt: skip
        letter = self.text[self.at : self.at + 1]
        if letter in simple:
            self.at += 1
            return self._one(condition=simple[letter])
        return self._one(self._class_escape() or self._literal(self._escaped_character()))

    def _class_escape(self) -> Accepts | None:
        """Parse a class escape, a backslash and a letter."""
        letter = self.text[self.at : self.at + 1]
        if letter and letter.lower() in _PERL:
            self.at += 1
            return self._among(_PERL[letter.lower()].__contains__, letter.isupper())
        found = self._read(_CATEGORY)
        if found is None:
            return None
        name, negated = found[2] or found[4], (found[1] == "P") != bool(found[3])
        if name == "Any":
            return lambda _: not negated
        if name not in _CATEGORIES:
            raise self._error(f"the class {found[0]!r}, which is no general category,")
        return self._among(lambda c: unicodedata.category(c).startswith(name), negated)

    def _escaped_character(self) -> str:
        """Parse a character escape."""
        found = self._read(_NUMBER)
        if found is not None:
            code = int(found[1], 8) if found[1] else int(found[2] or found[3], 16)
            if code > 0x10FFFF:
                raise self._error(f"the character {found[0]}")
            return chr(code)
        letter = self._character("an escape")
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isalnum() and letter.isascii():
            raise self._error(f"the escape '\\{letter}'")
        return letter

    def _class(self) -> Accepts:
        """Parse a bracket class after its opening bracket."""
        negated = self._take("^")
        parts: list[Accepts] = []
        first = True
        while first or not self._peek("]"):
            first = False
            parts.append(self._class_part())
        self.at += 1
        return lambda c: any(part(c) for part in parts) != negated

    def _class_part(self) -> Accepts:
        named = self._read(_POSIX_CLASS)
        if named is not None:
            if named[2] not in _POSIX:
                raise self._error(f"the class {named[0]!r}")
            return self._among(_POSIX[named[2]].__contains__, bool(named[1]))
        low = self._class_character()
        if not isinstance(low, str):
            return low
        if not self._peek("-") or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return self._among(low.__eq__)
        self.at += 1
        high = self._class_character()
        if not isinstance(high, str) or high < low:
            raise self._error("a range of a class")
        return self._among(lambda c: low <= c <= high)

    def _class_character(self) -> str | Accepts:
        """Parse a character, or a class escape, of a bracket class."""
        if not self._take("\\"):
            return self._character("a class")
        return self._class_escape() or self._escaped_character()


def _folded(character: str) -> str:
    """Simple case folding of a character; characters that fold to several are unchanged."""
    folded = character.casefold()
    return folded if len(folded) == 1 else character


def _variants(character: str) -> set[str]:
    return {character, character.lower(), character.upper(), _folded(character)}


_COUNTS = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_NAME = re.compile(r"P?<[A-Za-z_]\w*>", re.ASCII)
_FLAGS = re.compile(r"([imsU]*)(?:-([imsU]+))?([:)])")
_CATEGORY = re.compile(r"([pP])(?:([A-Z])|\{(\^?)([A-Za-z_]+)\})")
_NUMBER = re.compile(r"(?:([0-7]{3}|0[0-7]{0,2})|x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,8})\})")
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w+):\]", re.ASCII)
_CATEGORIES = frozenset({
    "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No", "P",
    "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
})  # fmt: skip
