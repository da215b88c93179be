"""The commands `generate`, and `compile` with caches."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from relayc.cli.main import app
from relayc.runtime import load_model
from tests.cli.test_cli_json import validated
from tests.generation import decoder_models as tiny

runner = CliRunner()
PROMPT = [5, 9, 30]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder, compiled by the command with its caches in place."""
    folder = tmp_path_factory.mktemp("generate")
    onnx.save(tiny.decoder(), folder / "model.onnx")
    options = ["--caches", "auto", "--last-position", "auto", "-o", str(folder / "model.relayc")]
    result = runner.invoke(app, ["compile", str(folder / "model.onnx"), *options])
    assert result.exit_code == 0, result.output
    return folder / "model.relayc"


def test_compile_keeps_caches(artifact):
    assert len(load_model(str(artifact)).graph.caches) == len(tiny.CACHES)
    for text in ("past", "=present"):
        result = runner.invoke(app, ["compile", str(artifact.with_suffix(".onnx")), "--caches", text])
        assert result.exit_code == 2 and "expected auto, or input=output" in result.output


def test_generate_prints_token_ids(artifact):
    expected = tiny.greedy(PROMPT, 4)
    result = runner.invoke(app, ["generate", str(artifact), "--ids", "5,9,30", "-n", "4"])
    assert result.exit_code == 0 and result.stdout == " ".join(map(str, expected)) + "\n", result.output
    result = runner.invoke(app, ["generate", str(artifact), "--ids", "5 9 30", "--ids", "7", "-n", "4"])
    assert result.stdout.splitlines()[0] == " ".join(map(str, expected)), result.output
    assert result.stdout.splitlines()[1] == " ".join(map(str, tiny.greedy([7], 4)))


def test_generate_prints_an_object_for_programs(artifact):
    result = runner.invoke(app, ["generate", str(artifact), "--ids", "5,9,30", "--ids", "7", "-n", "4", "--json"])
    found = validated(result.stdout, "generate")
    assert [r["ids"] for r in found["results"]] == [tiny.greedy(PROMPT, 4), tiny.greedy([7], 4)]
    assert [r["prompt_length"] for r in found["results"]] == [3, 1] and found["tokens"] == 8
    result = runner.invoke(app, ["generate", str(artifact), "--ids", "5,40", "--json"])
    assert result.exit_code == 1
    error = validated(result.stdout, "generate")["error"]
    assert error["kind"] == "GenerationError"
    assert "the token 40 at position 1, and the model a vocabulary of 40 tokens" in error["message"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 2, "expected a prompt"),
        (["--ids", "5,x"], 2, "expected token ids, as 1,15,27"),
        (["--features", "none.npy"], 2, "expected a .npy file"),
        (["--ids", "5", "--top-p", "2"], 1, "expected above 0 and at most 1"),
        (["--prompt", "a"], 2, "expected --tokenizer FILE"),
    ],
)
def test_invalid_options_are_reported(artifact, options, code, text):
    result = runner.invoke(app, ["generate", str(artifact), *options])
    assert result.exit_code == code and text in result.output.replace("\n", " ")
