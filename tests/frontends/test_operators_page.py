"""All operators of the installed onnx package are converted or listed as unsupported, and the page is up to date."""

from __future__ import annotations

from pathlib import Path

from relayc.frontends.onnx.operators_page import operators, page
from relayc.frontends.onnx.unsupported_operators import UNSUPPORTED

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_every_version_of_every_operator_is_converted_or_its_operator_rejected():
    missing = [
        f"{each.domain}::{each.name} since {schema.since_version}"
        for each in operators()
        for schema in each.schemas
        if not schema.deprecated and not each.is_handled(schema) and (each.domain, each.name) not in UNSUPPORTED
    ]
    assert not missing, missing


def test_unsupported_operators_exist_and_have_no_converter():
    known = {(each.domain, each.name): each for each in operators()}
    for key, reason in UNSUPPORTED.items():
        assert reason and (key in known or key[0] == "com.microsoft"), key
        assert key not in known or not known[key].versions, key


def test_the_page_is_that_of_the_code(request):
    if request.config.getoption("--update-docs"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "run: python -m frontends.onnx.operators_page > docs/operators.md"
