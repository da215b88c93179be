"""Random single operators for several processors, and quantised networks, beside onnxruntime."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from relayc.relay.op.elementwise import Tanh
from tests.fuzz.blocks.check import WrongNetwork, check_network, random_network
from tests.fuzz.blocks.quantisers import QUANTISERS, quantised
from tests.fuzz.isolated import outcomes
from tests.fuzz.kernels import KINDS, TARGETS, check_case, random_case

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.mark.parametrize(("kind", "turn"), [(kind, i) for i, kind in enumerate(KINDS)])
@pytest.mark.usefixtures("emulated_processors")
def test_single_operators_for_processors(kind: str, turn: int) -> None:
    check_case(turn, kind, TARGETS[turn % len(TARGETS)], ("", "float16", "bfloat16")[turn % 3])


def test_a_planted_fault_of_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    seed = next(s for s in range(99) if any(n.op_type == "Tanh" for n in random_case(s, "scan").model.graph.node))
    with pytest.raises(WrongNetwork, match="first behind scan"):
        check_case(seed, "scan", "haswell", "")


def test_a_case_that_ends_the_process_is_reported_and_the_next_one_goes_on() -> None:
    def attempt(seed: int) -> str:
        if seed == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return "runs"

    assert list(outcomes(range(3), attempt)) == [(0, "runs"), (1, "died of SIGUSR1"), (2, "runs")]


@pytest.mark.parametrize("way", QUANTISERS)
def test_quantised_networks_give_onnxruntime_s_results(way: str) -> None:
    seen = 0
    for seed in range(20, 40):
        network = random_network(seed)
        model = quantised(network.model, network.runs, way, seed)
        if model is None or not any("Quant" in n.op_type or "NBits" in n.op_type for n in model.graph.node):
            continue
        check_network(replace(network, model=model, rounds=True))
        seen += 1
        if seen == 2:
            return
    pytest.fail("onnxruntime's tools quantise none of these networks")
