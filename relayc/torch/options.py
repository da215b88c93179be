"""Options of `torch.compile(options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from relayc.runtime import ArgumentError

__all__ = ["PRECISIONS", "Options"]

PRECISIONS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Options:
    """How graphs are compiled and run.

    `threads` limits the threads of a run (None: all that the process may use), `precision` is that in which float32
    graphs are computed (sums stay in float32), `opt_level` the level of optimisation, 0 to 4.
    """

    threads: int | None = None
    precision: str = "float32"
    opt_level: int = 3

    def __post_init__(self) -> None:
        if self.threads is not None and (not _is_integer(self.threads) or self.threads < 1):
            raise ArgumentError(f"options: threads is {self.threads!r}; expected a positive integer or None")
        if self.precision not in PRECISIONS:
            raise ArgumentError(f"options: precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}")
        if not _is_integer(self.opt_level) or not 0 <= self.opt_level <= 4:
            raise ArgumentError(f"options: opt_level is {self.opt_level!r}; expected an integer from 0 to 4")

    @classmethod
    def of(cls, passed: Mapping[str, Any] | None) -> Options:
        """The options by name. Raises `ArgumentError` for unknown ones and impossible values."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in passed or {} if name not in known]
        if unknown:
            raise ArgumentError(f"options: unknown are {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
        return cls(**dict(passed or {}))

    @property
    def config(self) -> dict[str, str]:
        """Options of the `PassContext`."""
        return {} if self.precision == "float32" else {"relay.ToMixedPrecision.dtype": self.precision}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
