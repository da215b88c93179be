"""Many extreme models, in processes of their own, under limits of time and memory.

    python -m tests.fuzz.isolated --models 2000 [--start 0] [--seconds 600]

A model may compile and run, or be refused with one of the package's errors. Anything else is printed with its seed:
another exception, a process that died of a signal, a model that took more than `PATIENCE` seconds. Exits with 1 then.

A process tries one model after another; where it dies, the next one goes on. Single nodes are compiled, and one random
graph of `_COMPILED`; the others are only imported and optimised, which takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relayc import relay
from relayc.frontends.onnx.backend import RelayBackend
from relayc.te.ir import IRModule
from tests.fuzz.extremes import extreme_model
from tests.fuzz.test_mutated_models import attempt

__all__ = ["main", "outcomes"]

PATIENCE = 10
"""Seconds of CPU that a model may take."""

_STUCK = 120
"""Seconds after which a process that does not compute either counts as stuck, on a busy machine."""

_MEMORY = 6 << 30
"""Bytes of address space."""

_TOGETHER = 200
"""Models that a process tries."""

_COMPILED = 4
"""One in so many random graphs is compiled."""

_PROGRESS = 500
"""Models between two lines of progress."""


class _Optimiser(RelayBackend):
    """A backend that optimises graphs and lowers nothing: results are None."""

    @classmethod
    def compile_model(cls, mod: IRModule, device: str) -> Callable[[Mapping[str, Any]], list[Any]]:
        relay.optimize(mod)
        return lambda arrays: [None] * len(mod.attrs["output_names"])


def outcomes(
    seeds: Sequence[int], attempted: Callable[[int], str] | None = None, patience: int = PATIENCE
) -> Iterator[tuple[int, str]]:
    """Each seed with what becomes of its model: what `attempted` says, or why the process died.

    By default of extreme models: "runs", "rejected", or what is wrong. A model may take `patience` seconds of CPU.
    """
    attempted = attempted or _outcome
    while seeds:
        receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            _try_all(seeds[:_TOGETHER], sender, attempted, patience)
        sender.close()
        receiver.settimeout(_STUCK)
        for seed in seeds[:_TOGETHER]:
            seeds = seeds[1:]
            outcome = _received(receiver, child)
            yield seed, outcome or _cause_of_death(child, patience)
            if not outcome:
                break
        else:
            os.waitpid(child, 0)
        receiver.close()


def _received(receiver: socket.socket, child: int) -> str:
    """The next outcome; empty if the process dies, which one that is stuck is made to."""
    try:
        return receiver.recv(4096).decode("utf-8", "replace")
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        return ""


def _cause_of_death(child: int, patience: int) -> str:
    number = os.WTERMSIG(os.waitpid(child, 0)[1])
    causes = {signal.SIGPROF: f"took more than {patience} s", signal.SIGKILL: "stuck, or killed for its memory"}
    return causes.get(signal.Signals(number)) or f"died of {signal.Signals(number).name}"


def _try_all(
    seeds: Sequence[int], sender: socket.socket, attempted: Callable[[int], str], patience: int
) -> None:
    """Try models in this process, which ends here."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, patience)
        sender.send(attempted(seed).encode("utf-8", "replace")[:4000])
    os._exit(0)


def _outcome(seed: int) -> str:
    model, feeds = extreme_model(seed)
    strict = seed % 3 == 0  # users' settings
    with np.errstate(**({"all": "raise"} if strict else {})), warnings.catch_warnings():
        warnings.simplefilter("error" if strict else "ignore")
        try:
            backend = RelayBackend if seed % 2 or seed % (2 * _COMPILED) == 0 else _Optimiser
            return attempt(model, feeds, backend)
        except MemoryError:
            return "rejected"
        except BaseException as error:  # noqa: BLE001 - it is reported
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:200]} at {place.filename}:{place.lineno}"


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def main(arguments: list[str] | None = None) -> int:
    """Try the models of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"
    counts, end = Counter[str](), time.monotonic() + options.seconds
    for seed, outcome in outcomes(range(options.start, options.start + options.models)):
        fine = outcome in ("runs", "rejected")
        counts[outcome if fine else "wrong"] += 1
        if not fine:
            print(f"seed {seed}: {outcome}", flush=True)
        if counts.total() % _PROGRESS == 0:
            print(_text(counts), flush=True)
        if time.monotonic() > end:
            break
    print(_text(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
