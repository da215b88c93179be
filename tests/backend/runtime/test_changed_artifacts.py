"""Artifacts that somebody changed, with right hashes: what the code was not compiled for is refused, and nothing ends
the process while it is loaded."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser

from relayc import relay
from relayc.backend.runtime import ArtifactError, RelaycError, load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx import from_onnx
from tests.backend.runtime.changed_artifacts import CHANGES, Artifact, outcomes

ROOT = Path(__file__).parents[3]
MODELS = {
    "static": """g (float[2, 3, 8, 8] x) => (float[2, 3, 8, 8] y, float[2, 1, 8, 8] z)
        <float[1] w = {1.5}, int64[2] axes = {1, 2}> {
        scaled = Mul(x, w)
        y = Softmax<axis=1>(scaled)
        picked = Gather<axis=1>(y, axes)
        z = ReduceSum<keepdims=1>(picked, axes)
    }""",
    "dynamic": """g (float[n, 6] x, int64[k] i) => (float[n, 6] y, float[k, 6] p, int64[q, 2] at) {
        y = Softmax(x)
        p = Gather(y, i)
        found = NonZero(p)
        at = Transpose(found)
    }""",
    "flow": """g (float[n, 4] x, bool c, int64 trips) => (float[n, 4] y, float[n, 4] s, float[m, n, 4] all) {
        y = If (c) <then_branch = t () => (float[n, 4] o) { o = Exp(x) }, else_branch = e () => (float[n, 4] p) {
            p = Neg(x)
        }>
        s, all = Loop (trips, c, x) <body = b (int64 i, bool d, float[n, 4] v)
            => (bool e, float[n, 4] w, float[n, 4] u) {
            w = Tanh(v)
            u = Sin(w)
            e = Identity(d)
        }>
    }""",
    "sequences": """g (float[n, 4] x, string[k] names) => (float[r, 4] y, int64[k] counts) {
        both = SequenceConstruct(x, x)
        y = ConcatFromSequence<axis=0>(both)
        parts, counts = StringSplit<delimiter=",">(names)
    }""",
}
_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("artifacts")
    paths = {name: folder / name for name in MODELS}
    for name, path in paths.items():
        module, params = from_onnx(parser.parse_model(_HEAD + MODELS[name]))
        relay.build(module, "llvm", params=params).save(path)
    return paths


@pytest.mark.parametrize("name", MODELS)
def test_a_changed_manifest_is_refused(name: str, artifacts: dict[str, Path]) -> None:
    assert set(outcomes(artifacts[name].read_bytes(), "manifest", False, 60)) == {"refused"}


def test_nothing_ends_the_process_while_a_file_is_loaded(
    artifacts: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    """Even if the seals were made anew."""
    count = 2000 if request.config.getoption("all_combinations") else 50
    module = "tests.backend.runtime.changed_artifacts"
    command = [sys.executable, "-m", module, str(count), *map(str, artifacts.values())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}:\n{done.stderr}"
    found = json.loads(done.stdout)
    assert len(found) == len(MODELS) * len(CHANGES)
    for kind in CHANGES:
        for outcome in ("refused", "loaded"):
            assert sum(counts.get(outcome, 0) for case, counts in found.items() if case.endswith(kind)) > 1, found


# -- parts of several artifacts


def test_code_of_another_artifact_is_refused(artifacts: dict[str, Path]) -> None:
    one, other = (Artifact(artifacts[name].read_bytes()) for name in ("static", "dynamic"))
    assert CompiledModel.from_bytes(one.to_bytes(False))
    one.parts[0] = other.parts[0]
    with pytest.raises(ArtifactError, match="code in section 0 was not compiled for this graph and these weights"):
        CompiledModel.from_bytes(one.to_bytes(False))


def test_weights_of_another_artifact_are_refused(artifacts: dict[str, Path]) -> None:
    artifact = Artifact(artifacts["static"].read_bytes())
    weights = bytearray(artifact.parts[1])
    weights[-64] ^= 1
    artifact.parts[1] = bytes(weights)
    with pytest.raises(ArtifactError, match="not compiled for this graph and these weights"):
        CompiledModel.from_bytes(artifact.to_bytes(False))
    assert CompiledModel.from_bytes(artifact.to_bytes(True))


def test_files_of_format_version_1_have_no_seals(artifacts: dict[str, Path]) -> None:
    artifact = Artifact(artifacts["static"].read_bytes())
    artifact.head = artifact.head[:8] + (1).to_bytes(4, "little")
    artifact.parts[0] = artifact.parts[0][32:]
    assert CompiledModel.from_bytes(artifact.to_bytes(False)).graph.name


# -- the hash of the file


def test_a_file_of_another_hash_is_refused_before_it_is_read(artifacts: dict[str, Path], tmp_path: Path) -> None:
    data = artifacts["static"].read_bytes()
    expected = hashlib.sha256(data).hexdigest()
    assert load_model(artifacts["static"], expect_sha256=expected.upper()).graph.name
    (tmp_path / "other").write_bytes(b"?" + data[1:])
    with pytest.raises(ArtifactError, match=f"other has the SHA-256 [0-9a-f]+, expected {expected}: it is not"):
        load_model(tmp_path / "other", expect_sha256=expected)
    with pytest.raises(RelaycError, match="expected 64 hexadecimal digits"):
        load_model(artifacts["static"], expect_sha256=expected[1:])
