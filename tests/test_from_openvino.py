"""docs/from_openvino.md: each block of OpenVINO and the relayc block after it have the same result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "from_openvino.md"
BLOCK = re.compile(r"^```(?P<language>openvino|python)\n(?P<code>.*?)^```$", re.M | re.S)


def test_results_are_openvinos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="pip install 'relayc[bench]'")
    monkeypatch.chdir(tmp_path)
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    expected, pairs = None, 0
    for block in BLOCK.finditer(PAGE.read_text()):
        code = compile(block["code"], str(PAGE), "exec")
        if block["language"] == "openvino":
            exec(code, theirs)
            expected = theirs["result"]
            continue
        exec(code, ours)
        if expected is None:  # the model that all blocks use
            theirs |= {name: ours[name] for name in ("np", "x")}
            continue
        assert np.shape(ours["result"]) == np.shape(expected), block["code"]
        same = np.allclose if isinstance(expected, np.ndarray) else np.array_equal
        assert same(ours["result"], expected, **({"atol": 1e-5} if same is np.allclose else {})), block["code"]
        expected, pairs = None, pairs + 1
    assert pairs == 9
