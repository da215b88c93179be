"""The ONNX project's backend tests, compiled and run: a sample of the 2,000 cases, or with `--suite all` every one.

`make conformance` runs them all. `--suite REGEX` runs those that a regular expression finds.
"""

from __future__ import annotations

from functools import cache

import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.conformance.suite import Suite, not_passed, shard

PARTS = 16


@cache
def suite() -> Suite:
    return Suite(RelayBackend)


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_pass_unless_listed(part, request, tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # where the runner writes the inputs that it makes
    names = shard(suite().selected(request.config.getoption("--suite")), part, PARTS)
    problems = [problem for name in names if (problem := suite().problem(name))]
    assert not problems, "\n".join(problems)


def test_listed_cases_exist():
    assert not set(not_passed()) - set(suite().names)


def test_a_sample_has_every_kind_of_case():
    sample = suite().selected("sample")
    assert len(suite().names) > 2000 and 300 < len(sample) < 500
    for name in ("abs", "operator", "expanded", "loop", "optional", "strnormalizer", "castlike", "ai_onnx_ml"):
        assert any(name in case.split("_") or name in case for case in sample), name
