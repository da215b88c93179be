"""Whole models and random graphs for other processors: their results are those of this machine's code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.verify import departure
from relayc.relay.transform import PassContext
from tests.fuzz.oracle import InvalidModel
from tests.processor_emulation.models import WORDS, convolutions, transformer
from tests.processor_emulation.random_graphs import PRECISIONS, TARGETS, check_graph

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("emulated_processors")

SIZES = [(1, 1), (1, 7), (2, 16), (8, 5), (3, 33)]
"""Batches and lengths: one row, few, whole tiles of 16 rows, and what is left over of them."""
BATCHES = (1, 2, 8)


def results(model: ModelProto, feeds: list[dict[str, Array]], target: str, precision: str) -> list[Array]:
    mod, params = from_onnx(model)
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        executor = GraphModule(relay.build(mod, target, params)["default"](device("cpu", 0)), 2)
    return [np.array(executor.infer(feed)[0]) for feed in feeds]


@cache
def feeds_and_results(make: Callable[[str], ModelProto], form: str) -> tuple[list[dict[str, Array]], list[Array]]:
    """Inputs of several sizes, and the results of this machine's code in float32."""
    random = np.random.default_rng(0)
    if make is transformer:
        feeds = [{"ids": random.integers(0, WORDS, size)} for size in SIZES]
    else:
        feeds = [{"x": random.standard_normal((n, 3, 29, 37)).astype(np.float32)} for n in BATCHES]
    return feeds, results(make(form), feeds, "llvm", "")


@pytest.mark.parametrize(("make", "form", "precision", "cpu"), [
    (transformer, "floats", "bfloat16", "sapphirerapids"), (transformer, "floats", "bfloat16", "znver4"),
    (transformer, "floats", "float16", "graniterapids"), (transformer, "qdq", "", "sapphirerapids"),
    (transformer, "run time", "", "graniterapids"), (transformer, "4 bits", "bfloat16", "sapphirerapids"),
    (convolutions, "floats", "bfloat16", "sapphirerapids"), (convolutions, "floats", "bfloat16", "znver5"),
    (convolutions, "qdq", "bfloat16", "graniterapids"), (convolutions, "qoperator", "", "sapphirerapids"),
])  # fmt: skip
def test_models_of_open_sizes(make: Callable[[str], ModelProto], form: str, precision: str, cpu: str):
    """Rounded operands move results by parts of a thousandth; other wrong ones by more."""
    feeds, exact = feeds_and_results(make, form)
    there = results(make(form), feeds, f"llvm -mcpu={cpu} -num-cores=2", precision)
    for one, other in zip(there, exact, strict=True):
        assert departure(one, other) < (2e-2 if precision else 1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int):
    cpu, precision = TARGETS[seed % len(TARGETS)], PRECISIONS[seed // len(TARGETS) % len(PRECISIONS)]
    try:
        check_graph(seed, f"llvm -mcpu={cpu} -num-cores=2", precision)
    except InvalidModel:
        pytest.skip("no valid graph")
