"""A model on a fixed number of threads gives identical bits in every run, every executor and every process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import GraphModule, device
from relayc.relay.op.base import make_call

_IMAGE, _SEQUENCE = (1, 16, 28, 28), (64, 128)


def _weight(seed: int, *shape: int) -> relay.Constant:
    return relay.const((np.random.default_rng(seed).standard_normal(shape) / 8).astype(np.float32))


def convolutions() -> relay.Function:
    """Direct, by Winograd's algorithm, depthwise; with a residual, a norm, a pooling and a softmax."""
    x = relay.var("x", _IMAGE)
    y = relay.nn.relu(relay.nn.conv2d(x, _weight(0, 32, 16, 1, 1)))
    z = relay.nn.conv2d(y, _weight(1, 32, 32, 3, 3), padding=(1, 1, 1, 1))
    z = relay.nn.conv2d(relay.nn.relu(z), _weight(2, 32, 1, 5, 5), padding=(2, 2, 2, 2), groups=32)
    pooled = relay.mean(relay.sigmoid(relay.op.add(y, z)), axis=(2, 3))
    return relay.Function((x,), relay.nn.softmax(relay.nn.dense(pooled, _weight(3, 1000, 32))))


def transformer() -> relay.Function:
    """A layer with attention of 4 heads."""
    x = relay.var("x", _SEQUENCE)
    length, width = _SEQUENCE
    heads = [relay.reshape(relay.nn.dense(x, _weight(i, width, width)), (1, length, 4, width // 4)) for i in range(3)]
    operands = [relay.op.transpose(head, (0, 2, 1, 3)) for head in heads]
    mixed = relay.op.transpose(make_call("nn.attention", operands, None, scale=0.2), (0, 2, 1, 3))
    y = relay.nn.dense(relay.reshape(mixed, _SEQUENCE), _weight(3, width, width))
    y = relay.nn.layer_norm(relay.op.add(x, y), _weight(4, width), _weight(5, width))
    grown = relay.nn.gelu(relay.nn.dense(y, _weight(6, 4 * width, width)))
    return relay.Function((x,), relay.op.add(y, relay.nn.dense(grown, _weight(7, width, 4 * width))))


MODELS = {"convolutions": convolutions, "transformer": transformer}


def digests(name: str, threads: int, runs: int) -> set[str]:
    """Digests of the bits of each run of a model compiled here, every other one by an executor of its own."""
    function = MODELS[name]()
    x = np.random.default_rng(9).standard_normal(function.params[0].tensor_type.static_shape).astype(np.float32)
    bound = relay.build(function)["default"](device("cpu", 0))
    found: set[str] = set()
    for _ in range(runs):
        executor = GraphModule(bound, threads)
        found |= {hashlib.sha256(executor(x)[0].numpy().tobytes()).hexdigest() for _ in range(2)}
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_runs_executors_and_processes_give_the_same_bits(name: str, threads: int) -> None:
    module = "tests.relay.lowering.test_same_bits"
    program = f"from {module} import digests; print(*digests({name!r}, {threads}, 1))"
    elsewhere = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True,
                               capture_output=True, text=True).stdout.split()  # fmt: skip
    assert [*digests(name, threads, 5)] == elsewhere
