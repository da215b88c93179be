"""Random networks of blocks with dynamic sizes, beside onnxruntime."""

from __future__ import annotations

import pytest

from relayc.relay.op.elementwise import Tanh
from tests.fuzz.blocks.check import WrongNetwork, check_network, random_network

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def test_random_networks_give_onnxruntime_s_results(network_seeds: range) -> None:
    for seed in network_seeds:
        check_network(random_network(seed))


@pytest.mark.parametrize(
    ("processor", "precision", "seed"),
    [("x86-64-v2", "", 101), ("znver3", "float16", 104), ("sapphirerapids", "bfloat16", 103)],
)
@pytest.mark.usefixtures("emulated_processors")
def test_networks_for_other_processors(processor: str, precision: str, seed: int) -> None:
    check_network(random_network(seed), f"llvm -mcpu={processor}", precision)


def test_a_seed_gives_one_network() -> None:
    for seed in (3, 4):
        one, two = random_network(seed), random_network(seed)
        assert one.model.SerializeToString() == two.model.SerializeToString()


def test_a_planted_fault_is_found_behind_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    networks = (random_network(seed) for seed in range(300))
    network = next(n for n in networks if [name for name, _ in n.blocks][:1] == ["neighbours"] and len(n.blocks) < 4)
    with pytest.raises(WrongNetwork, match="first behind neighbours"):
        check_network(network)
