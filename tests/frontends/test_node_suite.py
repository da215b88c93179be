"""ONNX's own backend tests through the importer and the operators' numpy references, without compiling.

The numpy references fold constants and are the oracle of other tests, so they have to pass what compiled code passes.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.conformance.suite import Suite, shard
from tests.reference_backend import ReferenceBackend

PARTS = 4


@cache
def suite() -> Suite:
    return Suite(ReferenceBackend)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_references_pass_what_compiled_code_passes(part):
    problems = [problem for name in shard(suite().families, part, PARTS) if (problem := suite().problem(name))]
    assert not problems, "\n".join(problems)
