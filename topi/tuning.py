"""Tunable schedule parameters: the cost model's value, or one that tuning found faster.

A schedule chooses each parameter by name, with the cost model's value and the other valid ones::

    rows = choose("rows", best_tile(...).rows, [4, 6, 8, 12])

Outside a `Config` the result is the cost model's. Inside one, which stands for one kernel (or one graph), it is the
config's value of that name, and the config records the choices: the knobs of a tuner. A value that is no longer among
the candidates, or was measured against another default, is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import ClassVar, TypeVar

__all__ = ["Config", "Knob", "Value", "choose"]

Value = int | bool | str
V = TypeVar("V", int, bool, str)


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter that a schedule has chosen: the cost model's value, and all valid values, including that one."""

    name: str
    default: Value
    candidates: tuple[Value, ...]


class Config:
    """The parameters of one kernel: `values` by name, beside the cost model's for all others.

    Use as a context manager around making the schedule. `defaults`, where given, are the cost model's values at the
    time `values` were found; a value whose default has changed since is left out. `knobs` records the choices.
    """

    _current: ClassVar[ContextVar[Config | None]] = ContextVar("relayc_config", default=None)

    def __init__(self, values: Mapping[str, Value] | None = None, defaults: Mapping[str, Value] | None = None) -> None:
        self.values = dict(values or {})
        self.defaults = dict(defaults or {})
        self.knobs: dict[str, Knob] = {}
        self._tokens: list[Token[Config | None]] = []

    @staticmethod
    def current() -> Config | None:
        """The innermost config that is entered."""
        return Config._current.get()

    def choose(self, name: str, default: V, candidates: Iterable[V]) -> V:
        """The module's `choose` in this config. A name chosen before with other candidates becomes `name#2`."""
        knob = Knob(name, default, tuple(dict.fromkeys((default, *candidates))))
        count = 1
        while knob.name in self.knobs and self.knobs[knob.name] != knob:
            count += 1
            knob = Knob(f"{name}#{count}", default, knob.candidates)
        self.knobs[knob.name] = knob
        return self._value(knob)  # type: ignore[return-value]

    def _value(self, knob: Knob) -> Value:
        value = self.values.get(knob.name, knob.default)
        known = value in knob.candidates and type(value) is type(knob.default)
        return value if known and self.defaults.get(knob.name, knob.default) == knob.default else knob.default

    def chosen(self) -> list[tuple[Knob, Value]]:
        """The parameters chosen so far, with their values."""
        return [(knob, self._value(knob)) for knob in self.knobs.values()]

    def __enter__(self) -> Config:
        self._tokens.append(Config._current.set(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        Config._current.reset(self._tokens.pop())


def choose(name: str, default: V, candidates: Iterable[V]) -> V:
    """The parameter `name`: `default`, the cost model's value, or the config's, one of `candidates`."""
    config = Config.current()
    return default if config is None else config.choose(name, default, candidates)
