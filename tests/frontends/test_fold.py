"""Constant evaluation for converters: each expression is visited once."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx import fold
from relayc.frontends.onnx.fold import Folder
from relayc.relay import const, op, var
from relayc.te.ir import Span


def test_a_value_is_there_exactly_where_constants_decide_it():
    folder, x = Folder(), var("x", (2,))
    known = op.add(const(np.ones(2, "float32")), const(np.ones(2, "float32")))
    np.testing.assert_array_equal(folder.value(known), [2, 2])
    assert folder.value(op.add(known, x)) is None
    np.testing.assert_array_equal(folder.value(known), [2, 2])


def test_evaluating_every_value_of_a_chain_takes_linear_time(monkeypatch):
    looked: list[object] = []
    original = fold._folded
    monkeypatch.setattr(fold, "_folded", lambda node, limit: looked.append(node) or original(node, limit))
    folder, x = Folder(), var("x", (2,))
    for _ in range(200):
        x = folder.finish(op.negative(x), Span("model", "chain", "Neg"))
        assert folder.value(x) is None
    assert len(looked) < 1000
