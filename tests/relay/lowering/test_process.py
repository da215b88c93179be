"""The settings of the process during a build, and after it."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from relayc import relay
from relayc.relay.lowering.process import compiling
from relayc.te.errors import CompileError


def _settings() -> tuple[tuple[int, int, int], float]:
    return gc.get_threshold(), sys.getswitchinterval()


def test_a_build_collects_less_often_and_switches_more_often() -> None:
    before = _settings()
    seen: list[tuple[tuple[int, int, int], float]] = []
    x = relay.var("x", (4,))
    relay.build(relay.Function((x,), relay.op.sigmoid(x)), "interp", progress=lambda *_: seen.append(_settings()))
    assert seen
    assert seen[0][0][0] > before[0][0]
    assert seen[0][1] < before[1]
    assert _settings() == before


def test_the_last_of_several_builds_restores_the_settings() -> None:
    before = _settings()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with compiling():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with compiling():
        inside = _settings()
        thread.start()
        assert entered.wait(10)
    assert _settings() == inside
    leave.set()
    thread.join(10)
    assert _settings() == before


def test_a_failed_build_restores_the_settings() -> None:
    before = _settings()
    with pytest.raises(CompileError, match="boom"), compiling():
        raise CompileError("boom")
    assert _settings() == before


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with compiling():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
