"""Console output of the command: steps with their times, error blocks, tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from relayc.cli.options import UsageError
from relayc.cli.plain import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Latency, failure

__all__ = ["Progress", "Steps", "err", "guarded", "out", "print_latency", "print_top", "settings"]

out = Console(highlight=False, markup=False)  # names of files and tensors may hold brackets
err = Console(stderr=True, highlight=False, markup=False)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass
class Settings:
    """Global options, which precede the command's name."""

    traceback: bool = False


settings = Settings()


def guarded(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Print errors as one block on stderr and set the exit code: 1 failed, 2 wrong usage, 130 interrupted."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except UsageError as error:
            _report("usage", str(error))
            raise typer.Exit(EXIT_USAGE) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (BrokenPipeError, typer.Exit):
            raise  # whoever read the output has enough of it; the command line's frame ends quietly
        except Exception as error:
            if settings.traceback:
                raise
            _report(*failure(error))
            raise typer.Exit(EXIT_FAILED) from error

    return run


def _report(kind: str, text: str) -> None:
    if err.is_terminal:
        err.print(Panel(Text(text), title=kind, title_align="left", border_style="red"))
    else:
        err.print(Text(f"error: {kind}\n{text}"), soft_wrap=True)


class Progress:
    """A running step; `show` updates its description."""

    def __init__(self, name: str, status: Status | None) -> None:
        self._name, self._status = name, status

    def show(self, what: str, done: int | None = None, total: int | None = None) -> None:
        if self._status is not None:
            counted = "" if done is None else f" ({done} of {total})"
            self._status.update(f"{self._name}: {what}{counted}")


class Steps:
    """Named steps of a command: a spinner while one runs (on a terminal), its time when it is done."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @contextmanager
    def step(self, name: str) -> Generator[Progress]:
        start = time.perf_counter()
        if self.quiet or not err.is_terminal:
            yield Progress(name, None)
        else:
            with err.status(name) as status:
                yield Progress(name, status)
        self.report(f"{name:<12} {time.perf_counter() - start:8.3f} s")

    def report(self, text: str) -> None:
        """Print further lines about a step."""
        if not self.quiet:
            err.print(text, soft_wrap=True)


def print_top(name: str, values: np.ndarray, count: int) -> None:
    """Print the `count` largest of `values` in the first batch entry with their indices; of strings the first ones."""
    first = values[0] if values.ndim > 1 else values
    if first.dtype.kind == "U":
        out.print(f"the first of {name}: {', '.join(map(repr, first.reshape(-1)[:count].tolist()))}", soft_wrap=True)
        return
    order = np.argsort(-first.astype(np.float64).reshape(-1), kind="stable")[:count]
    table = Table("index", "value")
    for flat in order:
        index = np.unravel_index(flat, first.shape)
        table.add_row(", ".join(str(i) for i in index), f"{float(first[index]):.6g}")
    out.print(f"the {len(order)} largest of {name}")
    out.print(table)


def print_latency(seconds: Sequence[float], threads: int) -> None:
    """Print median, 10th and 90th percentile of the run time in milliseconds."""
    latency = Latency.of(seconds)
    table = Table("median (ms)", "p10 (ms)", "p90 (ms)", "runs", "threads")
    figures = [f"{value:.3f}" for value in (latency.median, latency.p10, latency.p90)]
    table.add_row(*figures, str(len(seconds)), str(threads))
    out.print(table)
