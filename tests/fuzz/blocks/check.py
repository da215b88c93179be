"""Random networks compiled once, run at several sizes, and compared with onnxruntime.

python -m tests.fuzz.blocks.check --networks 200 [--start 0]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

import tests.fuzz.blocks.images
import tests.fuzz.blocks.sequences  # noqa: F401 (both register their blocks)
from relayc import relay
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.verify import departure
from relayc.runtime import GraphModule
from tests.fuzz.blocks.images import convolved
from tests.fuzz.blocks.net import BLOCKS, Image, Net, State, Tokens
from tests.fuzz.oracle import onnxruntime_outputs

__all__ = ["Network", "WrongNetwork", "check_network", "main", "random_network"]

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-3
"""Largest error, relative to the largest magnitude, where the network does not widen rounding errors more."""

_MOST_CHANNELS = 100


class WrongNetwork(Exception):
    """A network that fails or has wrong results: at which sizes, and behind which block first."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model, the tensor behind each of its blocks, and inputs of several sizes."""

    seed: int
    model: ModelProto
    blocks: list[tuple[str, str]]
    runs: list[dict[str, Array]]
    net: Net

    def describe(self) -> str:
        return f"network {self.seed}: {', '.join(name for name, _ in self.blocks)}"


def random_network(seed: int) -> Network:
    """The network of a seed: one to seven blocks on images or tokens with dynamic sizes."""
    net = Net(random.Random(seed), np.random.default_rng(seed))
    batch: int | str = "batch" if net.chance(0.8) else net.choice((1, 2))
    fixed = net.chance(0.2)
    state: State
    if net.chance(0.55):
        channels = net.choice((3, 3, 8, 16))
        sizes: tuple[int | str, int | str] = net.choice((("height", "width"),) * 4 + (("side", "side"), (40, "width")))
        if fixed:
            batch, sizes = net.choice((1, 2)), (net.rng.randint(9, 60), net.rng.randint(9, 60))
        state = Image(net.input(batch, channels, *sizes), channels)
    else:
        width = net.choice((16, 20, 24, 32, 48))
        length: int | str = net.rng.randint(3, 40) if fixed else "length"
        state = Tokens(net.input(net.choice((1, 2)) if fixed else batch, length, width), width)
    blocks: list[tuple[str, str]] = []
    for _ in range(net.rng.randint(1, 7)):
        if isinstance(state, Image) and state.channels > _MOST_CHANNELS:
            state = convolved(net, state, 16, 1)
        if isinstance(state, Image) and state.channels < 8:
            state = convolved(net, state, 12, 3)
        known = BLOCKS[type(state)]
        name = net.choice(list(known))
        if name in ("upsampled", "doubled"):
            if net.grown:
                continue
            net.grown = True
        state = known[name](net, state)
        blocks.append((name, state.name))
    if not blocks:
        return random_network(seed + 10**9)
    return Network(seed, net.model([state.name]), blocks, _runs(net), net)


_RANGES = {"batch": (1, 3), "length": (3, 40), "context": (1, 24), "height": (9, 40), "width": (9, 40), "side": (9, 40)}
"""The least and the largest size of each named dimension."""


def _runs(net: Net) -> list[dict[str, Array]]:
    """Inputs of three random sizes, of the least ones, and the first ones once more."""
    drawn = [{name: net.rng.randint(*span) for name, span in _RANGES.items()} for _ in range(3)]
    least = {name: span[0] for name, span in _RANGES.items()}
    runs = [{name: _filled(net, shape, sizes) for name, shape in net.inputs.items()} for sizes in (*drawn, least)]
    return [*runs, runs[0]]


def _filled(net: Net, shape: Sequence[int | str], sizes: Mapping[str, int]) -> Array:
    return net.numbers.normal(size=[sizes[d] if isinstance(d, str) else d for d in shape]).astype(np.float32)


def check_network(network: Network) -> None:
    """Compile a network and compare it at each of its sizes.

    Besides, memory of earlier runs must not matter: behind a run on NaN, and behind runs of other sizes, the bits are
    those of the first run of a new executor.

    Raises `WrongNetwork`.
    """
    expected = [_expected(network.model, inputs) for inputs in network.runs]
    if not any(want is not None for want in expected):
        return
    try:
        compiled = _compiled(network.model)
    except Exception as error:
        raise WrongNetwork(f"{network.describe()}: not compiled: {type(error).__name__}: {error}") from error
    executor = GraphModule.of(compiled, num_threads=2)
    for i, (inputs, want) in enumerate(zip(network.runs, expected, strict=True)):
        if want is None:
            continue
        try:
            executor.infer({name: np.full_like(x, np.nan) for name, x in inputs.items()})
            result = np.array(executor.infer(inputs)[0])
            fresh = np.array(GraphModule.of(compiled, num_threads=2).infer(inputs)[0])
        except Exception as error:
            raise WrongNetwork(f"{_at(network, i)}: {type(error).__name__}: {error}") from error
        error = departure(result, want)
        if error > TOLERANCE and error > 30 * _widening(network.model, inputs, want):
            first = _first_wrong(network, i)
            raise WrongNetwork(f"{_at(network, i)}: off by {error:.1e} of the largest magnitude{first}")
        if result.tobytes() != fresh.tobytes():
            raise WrongNetwork(f"{_at(network, i)}: other bits than the first run of a new executor")


def _expected(model: ModelProto, inputs: dict[str, Array]) -> Array | None:
    """onnxruntime's result; None for sizes that are too small for the network."""
    outputs = onnxruntime_outputs(model, inputs)
    return None if outputs is None else outputs[0]


def _compiled(model: ModelProto) -> CompiledModel:
    mod, params = from_onnx(model)
    return relay.build(mod, "llvm", params)


def _at(network: Network, run: int) -> str:
    sizes = {name: x.shape for name, x in network.runs[run].items()}
    return f"{network.describe()}: run {run} with {sizes}"


def _widening(model: ModelProto, inputs: dict[str, Array], want: Array) -> float:
    """How much the results change with relative changes of 1e-6 of the inputs, which decide what is nearly equal."""
    numbers, largest = np.random.default_rng(1), 0.0
    for _ in range(8):
        moved = {n: (x * (1 + 1e-6 * numbers.choice([-1, 1], x.shape))).astype(x.dtype) for n, x in inputs.items()}
        changed = _expected(model, moved)
        assert changed is not None, "it ran at these sizes"
        largest = max(largest, departure(changed, want))
    return largest


def _first_wrong(network: Network, run: int) -> str:
    """The first block whose result is wrong, if it is an output of the graph."""
    for name, tensor in network.blocks:
        model = network.net.model([tensor])
        inputs = {value.name: network.runs[run][value.name] for value in model.graph.input}
        want = _expected(model, inputs)
        assert want is not None, "the whole network ran"
        try:
            result = np.array(GraphModule.of(_compiled(model)).infer(inputs)[0])
        except Exception:  # noqa: BLE001
            return f"; {name} ({tensor}) fails as an output"
        error = departure(result, want)
        if error > TOLERANCE:
            return f"; first behind {name} ({tensor}: {error:.1e})"
    return "; right where blocks are outputs"


def main(arguments: list[str] | None = None) -> int:
    """Check the networks of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"  # what is compiled now is what is to be tested
    warnings.simplefilter("ignore")
    failed, began = 0, time.process_time()
    for seed in range(options.start, options.start + options.networks):
        try:
            network = random_network(seed)
            check_network(network)
        except WrongNetwork as wrong:
            failed += 1
            print(wrong, flush=True)
        if (seed + 1 - options.start) % 50 == 0:
            print(f"{seed + 1 - options.start} networks, {failed} failed", flush=True)
    print(f"{failed} of {options.networks} networks failed, {time.process_time() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
