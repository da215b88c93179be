"""Every operator of com.microsoft on invalid inputs: an error that names node, operator and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.registry import registered_operators
from relayc.te.errors import CompileError
from tests.frontends.node_cases import node_model

NAMES = sorted({name for domain, name, _ in registered_operators() if domain == "com.microsoft"})
ELEMENTWISE = {
    "FastGelu", "GatedAdd", "Gelu", "IsAllFinite", "MulInteger", "QuickGelu", "Range", "ScaledSiLU",
}  # fmt: skip
"""Operators that accept scalars."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 5, 7, 1)])
def test_inputs_that_make_no_sense(name, shape):
    inputs = [np.zeros(shape, np.float32)] * 6
    try:
        from_onnx(node_model(name, inputs)[0])
    except CompileError as error:
        text = str(error)
        assert f"node 'it' (com.microsoft::{name})" in text and "inputs: " in text
        assert not any(f"{kind}:" in text for kind in ("IndexError", "TypeError", "ValueError", "KeyError"))
    else:
        assert name in ELEMENTWISE or shape != ()


@pytest.mark.parametrize("name", NAMES)
def test_no_inputs_at_all(name):
    with pytest.raises(CompileError, match=f"node 'it' .com.microsoft::{name}.*"):
        from_onnx(node_model(name, [])[0])
