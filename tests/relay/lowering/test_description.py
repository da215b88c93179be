"""The description of a compiled model is the one that its artifact gives back."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime.graph import Graph
from relayc.te.tir import SizeVar


def strided() -> relay.Function:
    """A model whose concatenation is written in place: its parts have strides."""
    x, y = relay.var("x", (4, 8)), relay.var("y", (4, 8))
    joined = relay.concatenate([relay.tanh(x), relay.nn.relu(y)], 1)
    return relay.Function((x, y), relay.Tuple((joined, relay.exp(x))))


def of_any_size() -> relay.Function:
    n = SizeVar("n")
    x, weight = relay.var("x", (n, 4)), relay.const(np.ones((2, 4), np.float32))
    return relay.Function((x,), relay.nn.softmax(relay.nn.dense(x, weight)))


@pytest.mark.parametrize("specialize", [None, {"n": [1, 3]}])
@pytest.mark.parametrize("model", [strided, of_any_size])
def test_descriptions_are_read_back_as_they_are(model, specialize):
    graph = relay.build(model(), specialize=specialize if model is of_any_size else None).graph
    assert Graph.from_json(graph.to_json()) == graph
