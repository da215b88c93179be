"""Random networks compiled once, run at several sizes, and compared with onnxruntime.

python -m tests.fuzz.blocks.check --networks 200 [--start 0] [--targets "llvm -mcpu=znver3,..."] [--precisions float16,]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

import tests.fuzz.blocks.decoders
import tests.fuzz.blocks.images
import tests.fuzz.blocks.newest
import tests.fuzz.blocks.sequences
import tests.fuzz.blocks.states
import tests.fuzz.blocks.vision  # noqa: F401 (all of them register their blocks)
from relayc import relay
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.verify import departure, verify
from relayc.runtime import GraphModule
from relayc.te.ir import PassContext
from tests.fuzz.blocks.images import convolved
from tests.fuzz.blocks.net import BLOCKS, EXTENTS, Image, Input, Net, State, Tokens
from tests.fuzz.blocks.quantisers import quantised
from tests.fuzz.oracle import onnx_outputs, onnxruntime_outputs
from tests.processor_emulation.emulation import emulating

__all__ = [
    "TOLERANCES", "Network", "WrongNetwork", "check_network", "compiled_model", "filled", "main", "random_network",
]  # fmt: skip

Array = np.ndarray[Any, Any]

TOLERANCES = {"": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Largest error, relative to the largest magnitude, where the network does not widen rounding errors more."""

_STEPS = {"": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Rounding errors of a precision, relative to the value."""

_QUANTISED = 0.02
"""Largest error of a quantised network, relative to the largest magnitude, where it does not widen errors more."""

_MOVED = 1e-4
"""Relative changes of a quantised network's inputs that show how far rounding the other way takes the results."""

_UNBOUNDED = frozenset((
    "as_words", "best", "decayed", "detected", "highest_pixels", "moved_by_a_matrix", "nearest_code", "regions",
    "selected", "unpooled",
))  # fmt: skip
"""Blocks that compare values, compute positions, or take differences of long sums: in lower precision, and quantised,
their errors have no bound."""


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
    quantum: float = 0.0
    """How far results may be off because a value is rounded the other way, if the network's last operators round."""
    rounds: bool = False
    """Whether it is quantised: a value that is rounded the other way may change all behind it."""

    def describe(self) -> str:
        return f"network {self.seed}: {', '.join(name for name, _ in self.blocks)}"


def random_network(seed: int, extents: str = "") -> Network:
    """The network of a seed: one to seven blocks on images or tokens with dynamic sizes.

    `extents` names those of `EXTENTS`; by default the seed decides.
    """
    rng = random.Random(seed)
    net = Net(rng, np.random.default_rng(seed), EXTENTS[extents or rng.choice(("small", "small", "wide", "long"))])
    batch: int | str = "batch" if net.chance(0.8) else net.choice((1, 2))
    fixed = net.chance(0.2)
    state: State
    if net.chance(0.55):
        channels = net.choice((3, 8, 16, net.channels()))
        sizes: tuple[int | str, int | str] = net.choice(
            (("height", "width"),) * 4 + (("side", "side"), (net.fixed("height"), "width"))
        )
        if fixed:
            batch, sizes = net.choice((1, 2)), (net.fixed("height"), net.fixed("width"))
        state = Image(net.input(batch, channels, *sizes), channels)
    else:
        width = net.width()
        length: int | str = net.fixed("length") if fixed else "length"
        state = Tokens(net.input(net.choice((1, 2)) if fixed else batch, length, width), width)
    blocks: list[tuple[str, str]] = []
    for _ in range(net.rng.randint(1, 7)):
        if isinstance(state, Image) and state.channels > net.extents.most:
            state = convolved(net, state, net.channels(), 1)
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
        return random_network(seed + 10**9, extents)
    return Network(seed, net.model([state.name, *net.results]), blocks, _runs(net), net)


def _runs(net: Net) -> list[dict[str, Array]]:
    """Inputs of three random sizes, of the least ones, and the first ones once more."""
    spans = net.extents.spans
    drawn = [{name: net.fixed(name) for name in spans} for _ in range(3)]
    least = {name: span[0] for name, span in spans.items()}
    runs = [{name: filled(net, value, sizes) for name, value in net.inputs.items()} for sizes in (*drawn, least)]
    return [*runs, runs[0]]


def filled(net: Net, value: Input, sizes: Mapping[str, int]) -> Array:
    """A random array for an input at such sizes."""
    shape = [sizes[d] if isinstance(d, str) else d for d in value.shape]
    if value.dtype == "float32":
        return net.numbers.normal(size=shape).astype(np.float32)
    return net.numbers.integers(value.low, value.high + 1, shape).astype(value.dtype)


def check_network(network: Network, target: str = "llvm", precision: str = "") -> None:
    """Compile a network for a target and a precision, and compare it at each of its sizes.

    Besides, neither memory of earlier runs nor the number of threads may matter: behind a run on NaN, and behind runs
    of other sizes, the bits are those of the first run of a new executor of one thread.

    Raises `WrongNetwork`.
    """
    if (precision or network.rounds) and not _UNBOUNDED.isdisjoint(name for name, _ in network.blocks):
        return
    expected = [_expected(network.model, inputs) for inputs in network.runs]
    if not any(want is not None for want in expected):
        return  # all sizes are too small for it
    try:
        compiled = compiled_model(network.model, target, precision)
    except Exception as error:
        raise WrongNetwork(f"{network.describe()}: not compiled: {type(error).__name__}: {error}") from error
    executor = GraphModule.of(compiled, num_threads=2)
    for i, (inputs, want) in enumerate(zip(network.runs, expected, strict=True)):
        if want is None:
            continue
        try:
            executor.infer({name: _poisoned(x) for name, x in inputs.items()})
            results = _results(executor, inputs)
            fresh = _results(GraphModule.of(compiled, num_threads=1), inputs)
        except Exception as error:
            raise WrongNetwork(f"{_at(network, i)}: {type(error).__name__}: {error}") from error
        error = _error(results, want)
        allowed = max(TOLERANCES[precision], _QUANTISED if network.rounds else 0.0)
        allowed += network.quantum / max(_largest(want), 1e-6)
        step = max(_STEPS[precision], _MOVED if network.rounds else 0.0)
        if error > allowed and error > 30 * _widening(network.model, inputs, want, step):
            first = _first_wrong(network, i, target, precision)
            if network.rounds and not first:
                continue
            raise WrongNetwork(f"{_at(network, i)}: off by {error:.1e} of the largest magnitude{first}")
        if any(x.tobytes() != y.tobytes() for x, y in zip(results, fresh, strict=True)):
            raise WrongNetwork(f"{_at(network, i)}: other bits than the first run of a new executor of one thread")


def _poisoned(x: Array) -> Array:
    return np.full_like(x, np.nan) if x.dtype.kind == "f" else x


def _results(executor: GraphModule, inputs: dict[str, Array]) -> list[Array]:
    return [np.array(x) for x in executor.infer(inputs)]


def _error(results: list[Array], expected: list[Array]) -> float:
    """The largest departure of an output, whatever its precision."""
    return max(departure(x.astype(y.dtype), y) for x, y in zip(results, expected, strict=True))


def _expected(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array] | None:
    """The outputs by onnxruntime, or by onnx's reference of operators that it lacks; None if it takes no such sizes."""
    outputs = onnxruntime_outputs(model, inputs)
    lacking = outputs is None and model.opset_import[0].version > 20
    return onnx_outputs(model, inputs) if lacking else outputs


def _largest(outputs: list[Array]) -> float:
    """The magnitude of the largest finite element."""
    return max(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in outputs)


def compiled_model(model: ModelProto, target: str, precision: str) -> CompiledModel:
    """The model compiled for a target, in a precision unless that is empty."""
    mod, params = from_onnx(model)
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        return relay.build(mod, target, params)


def _at(network: Network, run: int) -> str:
    sizes = {name: x.shape for name, x in network.runs[run].items()}
    return f"{network.describe()}: run {run} with {sizes}"


def _widening(model: ModelProto, inputs: dict[str, Array], want: list[Array], step: float) -> float:
    """How much the results change with such relative changes of the inputs, which decide what is nearly equal."""
    numbers, largest = np.random.default_rng(1), 0.0
    for _ in range(8):
        moved = {
            n: (x * (1 + step * numbers.choice([-1, 1], x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x
            for n, x in inputs.items()
        }
        changed = _expected(model, moved)
        assert changed is not None, "it ran at these sizes"
        largest = max(largest, _error(changed, want))
    return largest


def _first_wrong(network: Network, run: int, target: str, precision: str) -> str:
    """The first block whose result is wrong, if it is an output of the graph.

    Of a quantised network, the first tensor that is wrong even for what comes before it; empty if there is none.
    """
    if network.rounds:
        report = verify(network.model, network.runs[run], target=target)
        return "" if report.agrees else f"; first {report.departs}"
    for name, tensor in network.blocks:
        model = network.net.model([tensor])
        inputs = {value.name: network.runs[run][value.name] for value in model.graph.input}
        want = _expected(model, inputs)
        assert want is not None, "the whole network ran"
        try:
            results = _results(GraphModule.of(compiled_model(model, target, precision)), inputs)
        except Exception:  # noqa: BLE001
            return f"; {name} ({tensor}) fails as an output"
        error = _error(results, want)
        if error > TOLERANCES[precision]:
            return f"; first behind {name} ({tensor}: {error:.1e})"
    return "; right where blocks are outputs"


def main(arguments: list[str] | None = None) -> int:
    """Check the networks of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--targets", default="llvm", help="targets that seeds take in turns, emulated where need be")
    parser.add_argument("--precisions", default="", help="float16, bfloat16 or nothing, which seeds take in turns")
    parser.add_argument("--quantise", default="", help="static, dynamic or nbits, which seeds take in turns")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"  # what is compiled now is what is to be tested
    warnings.simplefilter("ignore")
    targets, precisions = options.targets.split(","), options.precisions.split(",")
    ways = [way for way in options.quantise.split(",") if way]
    failed, checked, began = 0, 0, time.process_time()
    with nullcontext() if targets == ["llvm"] else emulating():
        for seed in range(options.start, options.start + options.networks):
            target, precision = targets[seed % len(targets)], precisions[seed // len(targets) % len(precisions)]
            network = random_network(seed)
            if ways:
                model = quantised(network.model, network.runs, ways[seed % len(ways)], seed)
                if model is None:
                    continue
                network = replace(network, model=model, rounds=True)
            checked += 1
            try:
                check_network(network, target, precision)
            except WrongNetwork as wrong:
                failed += 1
                print(f"{target} {precision} {wrong}", flush=True)
            if (seed + 1 - options.start) % 50 == 0:
                print(f"{seed + 1 - options.start} networks, {failed} failed", flush=True)
    print(f"{failed} of {checked} networks failed, {time.process_time() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
