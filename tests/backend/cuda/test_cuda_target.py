"""The "cuda" target: defaults from the table, errors, occupancy."""

from __future__ import annotations

import pickle

import pytest

from relayc.backend.cuda.target import ARCHITECTURES, CudaLimits, compute_capability
from relayc.backend.target import Target, TargetError


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_every_known_architecture_resolves_and_round_trips(capability):
    target = Target(f"cuda -arch=sm_{capability}")
    assert Target(str(target)) == target == Target(target.to_json())
    assert pickle.loads(pickle.dumps(target)) == target
    assert target.keys == ("cuda", "gpu") and target.device_kind == "cuda"
    assert target.get("max-shared-memory-per-block") <= target.get("shared-memory-per-sm")
    assert compute_capability(target.get("arch")) == capability


def test_h100_and_a100():
    h100, a100 = Target("cuda -arch=sm_90"), Target("cuda -arch=sm_80")
    assert (h100.get("max-shared-memory-per-block"), a100.get("max-shared-memory-per-block")) == (232448, 166912)
    assert (h100.get("multi-processor-count"), a100.get("multi-processor-count")) == (132, 108)
    assert h100.get("thread-warp-size") == 32 and h100.get("max-threads-per-block") == 1024


def test_explicit_attributes_override_defaults():
    target = Target("cuda -arch=sm_80 -max-num-threads=256 -libs=cublas -multi-processor-count=7")
    assert (target.get("max-num-threads"), target.get("multi-processor-count"), target.libs) == (256, 7, ("cublas",))


def test_the_architecture_suffix_is_kept():
    target = Target("cuda -arch=sm_90a")
    assert target.get("arch") == "sm_90a" and CudaLimits.of(target).capability == 90


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuda -arch=hopper", ["'hopper'", "expected one such as sm_80"]),
        ("cuda -arch=sm_70", ["sm_70", "known are", "sm_75"]),
        ("cuda -arch=sm_90 -max-num-threads=0", ["max-num-threads", "at least 1"]),
        ("cuda -arc=sm_90", ["no option 'arc'", "did you mean 'arch'"]),
    ],
)
def test_invalid_attributes_are_rejected(text, words):
    with pytest.raises(TargetError) as caught:
        Target(text)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # threads decide
        (256, 128, 0, 2),  # 32768 registers a block
        (256, 255, 0, 1),
        (128, 32, 48 << 10, 4),  # 49 KiB a block of 228
        (32, 16, 0, 32),  # blocks
        (1024, 65, 0, 0),  # 72 registers in units: more than there are
    ],
)
def test_blocks_per_multiprocessor(threads, registers, shared, blocks):
    limits = CudaLimits.of(Target("cuda -arch=sm_90"))
    assert limits.blocks_per_multiprocessor(threads, registers, shared) == blocks
    assert limits.occupancy(threads, registers, shared) == blocks * (threads // 32) / 64
