"""Blocks of docs/from_onnxruntime.md print the same with onnxruntime; `tests/test_docs.py` runs them with ours."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import BLOCK

pytest.importorskip("onnxruntime")

PAGE = Path(__file__).parents[2] / "docs" / "from_onnxruntime.md"
OURS_ALONE = "## More than onnxruntime has"


def test_onnxruntime_prints_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared, _, _ = PAGE.read_text().partition(OURS_ALONE)
    names: dict[str, Any] = {}
    blocks = list(BLOCK.finditer(shared))
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block["code"].replace("relayc.onnxruntime", "onnxruntime"), names)
        assert block["text"] is None or printed.getvalue() == block["text"], block["code"]
    assert len(blocks) >= 20
