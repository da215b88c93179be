"""Functions of dynamic sizes that differ only in where slices begin share a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import CompiledModel, device, graph_executor
from relayc.relay import op
from relayc.relay.op import nn
from relayc.te.tir import Dim, SizeVar

RNG = np.random.default_rng(3)
HEADS, DEPTH = 2, 16
LAYERS = ((0, 2), (4, 6), (8, 10))
"""Where keys and values of each layer begin among the heads that the encoder projects for all."""


def decoder(batch: Dim, queries: Dim, keys: Dim, begins: Sequence[tuple[int, int]] = LAYERS) -> relay.Function:
    """Attention of several layers over slices of one tensor."""
    whole = relay.var("whole", (batch, keys, 6 * HEADS, DEPTH))
    params, results = [whole], list[relay.Expr]()
    for i, layer in enumerate(begins):
        query = relay.var(f"q{i}", (batch, queries, HEADS, DEPTH))
        read = [relay.strided_slice(whole, (begin,), (begin + HEADS,), (1,), axes=(2,)) for begin in layer]
        operands = [op.transpose(x, (0, 2, 1, 3)) for x in (query, *read)]
        params.append(query)
        results.append(op.transpose(nn.attention(*operands, scale=0.25), (0, 2, 1, 3)))
    return relay.Function(tuple(params), relay.Tuple(results))


def of_any_size(begins: Sequence[tuple[int, int]] = LAYERS, target: str = "llvm") -> CompiledModel:
    return relay.build(decoder(SizeVar("n"), SizeVar("q"), SizeVar("k"), begins), target)


def run(lib: CompiledModel, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    return [np.array(y) for y in executor.infer(inputs)]


def expected(inputs: dict[str, np.ndarray], begins: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    results: list[np.ndarray] = []
    for i, layer in enumerate(begins):
        key, value = (inputs["whole"][:, :, begin : begin + HEADS].astype("float64") for begin in layer)
        scores = np.einsum("bqhd,bkhd->bhqk", inputs[f"q{i}"], key) * 0.25
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        results.append(np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), value))
    return results


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("begins", [LAYERS, ((0, 5), (3, 6), (7, 1))], ids=["together", "apart"])
def test_layers_that_read_other_slices_share_a_kernel(begins: Sequence[tuple[int, int]], target: str) -> None:
    lib = of_any_size(begins, target)
    assert lib.build_report.kernels == of_any_size(begins[:1], target).build_report.kernels
    lib = CompiledModel.from_bytes(lib.to_bytes())
    for batch, queries, keys in ((1, 1, 1), (2, 5, 3), (1, 40, 7), (3, 9, 65)):
        inputs = {"whole": RNG.standard_normal((batch, keys, 6 * HEADS, DEPTH), dtype=np.float32)}
        for i in range(len(begins)):
            inputs[f"q{i}"] = RNG.standard_normal((batch, queries, HEADS, DEPTH), dtype=np.float32)
        for found, exact in zip(run(lib, inputs), expected(inputs, begins), strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_static_layers_have_kernels_of_their_own() -> None:
    """Kernels of static sizes compile quickly, and positions in the code may be of use there."""
    alone = relay.build(decoder(2, 5, 7, LAYERS[:1]))
    assert relay.build(decoder(2, 5, 7)).build_report.kernels > alone.build_report.kernels
