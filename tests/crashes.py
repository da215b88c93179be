"""Says of test workers that crash what ended them, where, and after which tests.

pytest-xdist reports only that a worker is gone. Its Python traces, which go to standard error in the midst of all dots,
are kept here, and shown at the end.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "RELAYC_TEST_CRASHES"
"""environment variable with the folder of the workers' traces"""
_LAST_TESTS = 12

_said: list[str] = []
_tests: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_LAST_TESTS))


@pytest.hookimpl(trylast=True)  # after pytest's own plugin, which lets traces go to standard error
def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.add_cleanup((trace := open(_trace_of(worker["workerid"]), "w", encoding="utf-8")).close)  # noqa: SIM115
        faulthandler.enable(trace)
    elif config.getoption("numprocesses", None):
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ[_FOLDER] = folder.name


def _trace_of(worker: str) -> Path:
    return Path(os.environ[_FOLDER], worker)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "teardown" and hasattr(report, "node"):
        _tests[report.node.gateway.id].append(report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Called by pytest-xdist when a worker ends; `error` is None when it has done its work."""
    if error is None:
        return
    worker = node.gateway.id
    code = node.gateway._io.popen.wait(timeout=60)
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    _said.append(f"{worker} {ended}; the largest of the processes that have ended so far took {peak} MiB")
    _said.extend(["its last tests:", *[f"  {test}" for test in _tests[worker]]])
    _said.append(_trace_of(worker).read_text(encoding="utf-8") or "it left no trace")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _said:
        terminalreporter.section("crashed workers")
        for line in _said:
            terminalreporter.line(line)
