"""Many extreme models, each in a process of its own, under limits of time and memory.

    python -m tests.fuzz.isolated --models 2000 [--start 0] [--seconds 600] [--jobs 2]

A model may compile and run, or be refused with one of the package's errors. Anything else is printed with its seed:
another exception, a process that died of a signal, one that took more than `PATIENCE` seconds. Exits with 1 then.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tests.fuzz.extremes import extreme_model
from tests.fuzz.test_mutated_models import attempt

__all__ = ["main", "outcome_of"]

PATIENCE = 10
"""Seconds of CPU that a model may take."""

_STUCK = 120
"""Seconds after which a process that does not compute either counts as stuck, on a busy machine."""

_MEMORY = 12 << 30
"""Bytes of address space."""

_PROGRESS = 500
"""Models between two lines of progress."""


def outcome_of(seed: int) -> str:
    """What becomes of the model of a seed: "runs", "rejected", or what is wrong."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _try(seed, sender)
    os.close(sender)
    heard = _read(receiver, _STUCK)
    os.close(receiver)
    if heard is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "stuck"
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        late = f"took more than {PATIENCE} s"
        return late if number == signal.SIGPROF else f"died of {signal.Signals(number).name}"
    return heard


def _try(seed: int, sender: int) -> None:
    """Try a model in this process, which ends here."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    warnings.simplefilter("ignore")
    try:
        model, feeds = extreme_model(seed)
        if seed % 3 == 0:  # users' settings
            np.seterr(all="raise")
            warnings.simplefilter("error")
        found = attempt(model, feeds)
    except MemoryError:
        found = "rejected"
    except BaseException as error:  # noqa: BLE001 - it is reported
        place = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {str(error)[:200]} at {place.filename}:{place.lineno}"
    os.write(sender, found.encode("utf-8", "replace")[:4000])
    os._exit(0)


def _read(receiver: int, seconds: float) -> str | None:
    """All that the other process writes until it ends; None if it takes too long."""
    found, end = b"", time.monotonic() + seconds
    while True:
        if not select.select([receiver], [], [], max(end - time.monotonic(), 0))[0]:
            return None
        part = os.read(receiver, 4096)
        if not part:
            return found.decode("utf-8", "replace")
        found += part


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def _share(seeds: range, until: float) -> Iterator[tuple[int, str]]:
    for seed in seeds:
        if time.monotonic() > until:
            return
        yield seed, outcome_of(seed)


def main(arguments: list[str] | None = None) -> int:
    """Try the models of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--step", type=int, default=1, help="try every so manieth seed")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"
    counts = Counter[str]()
    seeds = range(options.start, options.start + options.models * options.step, options.step)
    for seed, outcome in _share(seeds, time.monotonic() + options.seconds):
        fine = outcome in ("runs", "rejected")
        counts[outcome if fine else "wrong"] += 1
        if not fine:
            print(f"seed {seed}: {outcome}", flush=True)
        if counts.total() % _PROGRESS == 0:
            print(_text(counts), flush=True)
    print(_text(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
