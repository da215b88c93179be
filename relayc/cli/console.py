"""Console output of the command: steps with their times, error blocks, tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import Timer
from typing import Any, ParamSpec, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from relayc.backend.runtime.log import logger
from relayc.cli.json_output import error_json, result_json
from relayc.cli.options import UsageError
from relayc.cli.plain import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, failure

__all__ = ["Progress", "Steps", "err", "guarded", "out", "print_result", "print_table", "print_top", "settings",
           "show_log", "top_values"]  # fmt: skip

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
    """Print errors as one block on stderr and set the exit code: 1 failed, 2 wrong usage, 130 interrupted.

    With `--json` the error is an object on stdout as well.
    """
    name = command.__name__.rstrip("_")

    def report(as_json: bool, kind: str, text: str) -> None:
        try:
            if as_json:
                print(error_json(name, kind, text), flush=True)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk, of which the error itself may speak: it is on stderr, too
            pass
        _report(kind, text)

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except UsageError as error:
            report(kwargs.get("json") is True, "usage", str(error))
            raise typer.Exit(EXIT_USAGE) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (BrokenPipeError, typer.Exit):
            raise  # whoever read the output has enough of it; the command line's frame ends quietly
        except Exception as error:
            if settings.traceback:
                raise
            report(kwargs.get("json") is True, *failure(error))
            raise typer.Exit(EXIT_FAILED) from error

    return run


def show_log(verbose: bool) -> None:
    """Print warnings that the package logs on stderr and, if `verbose`, all it logs."""
    log = logger()
    log.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not any(isinstance(handler, _LogHandler) for handler in log.handlers):
        log.addHandler(_LogHandler())


class _LogHandler(logging.Handler):
    """Prints records like other messages of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"{record.levelname.lower()}: {record.getMessage()}", soft_wrap=True)


def print_result(as_json: bool, command: str, record: Mapping[str, Any], text: Callable[[], object]) -> None:
    """Print the result of a command: `record` as a JSON object, or what `text` prints for people."""
    if as_json:
        print(result_json(command, record), flush=True)
    else:
        text()


def print_table(table: Table) -> None:
    """Print a table of figures, all of each, where the terminal or the pipe is narrower too."""
    table.width = out.measure(table, options=out.options.update(width=_WIDEST)).maximum
    out.print(table, crop=False)


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


_WIDEST = 1000
"""Characters of a line, more than tables of figures have."""

_PATIENCE = 2.0
"""Seconds after which a terminal shows what a step is doing."""


class Steps:
    """Named steps of a command: its time when one is done and, on a terminal, a spinner when it lasts.

    `quiet` leaves out the times.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @contextmanager
    def step(self, name: str) -> Generator[Progress]:
        start = time.perf_counter()
        if not err.is_terminal:
            yield Progress(name, None)
        else:
            status = err.status(name)
            timer = Timer(_PATIENCE, status.start)
            timer.start()
            try:
                yield Progress(name, status)
            finally:
                timer.cancel()
                timer.join()  # else it might start the spinner after its end
                status.stop()
        self.report(f"{name:<12} {time.perf_counter() - start:8.3f} s")

    def report(self, text: str) -> None:
        """Print further lines about a step."""
        if not self.quiet:
            err.print(text, soft_wrap=True)


def top_values(values: np.ndarray[Any, Any], count: int) -> list[tuple[list[int], float | str]]:
    """The `count` largest of `values` in the first batch entry with their indices; of strings the first ones."""
    if not values.size:
        return []
    first = values[0] if values.ndim > 1 else values
    if first.dtype.kind == "U":
        places = range(min(count, first.size))
    else:
        places = np.argsort(-first.astype(np.float64).reshape(-1), kind="stable")[:count]
    indices = [np.unravel_index(place, first.shape) for place in places]
    return [([int(i) for i in index], first[index].item()) for index in indices]


def print_top(name: str, values: np.ndarray[Any, Any], count: int) -> None:
    """Print what `top_values` finds."""
    top = top_values(values, count)
    name = f"{name}[0]" if values.ndim > 1 and len(values) > 1 else name
    if values.dtype.kind == "U":
        out.print(f"the first of {name}: {', '.join(repr(value) for _, value in top)}", soft_wrap=True)
        return
    table = Table("index", "value")
    for index, value in top:
        table.add_row(", ".join(map(str, index)), f"{float(value):.6g}")
    out.print(f"the {len(top)} largest of {name}")
    out.print(table)
