"""Wrong arguments of generators, of their options and of the files in a model's folder: errors that name them."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest

import relayc
from relayc.generation import GenerationError, GenerationOptions, Generator
from relayc.runtime import CompiledModel
from tests.generation import decoder_models as tiny

PROMPT = [5, 9, 30, 2, 17]
COUNT = 12
EXPECTED = tiny.greedy(PROMPT, COUNT)


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return relayc.compile_onnx(tiny.decoder(), caches="auto", last_position="auto")


@pytest.fixture(scope="module")
def generator(compiled: CompiledModel) -> Generator:
    return Generator(compiled)


WRONG = [2**70, -(2**70), 0.5, float("nan"), float("inf"), "", "\udc80", b"x", [[1]], {1: 2}, np.full(3, 0.5),
         np.array(3.5), object(), 1j]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_options_of_a_wrong_type_or_size_are_refused(generator, wrong):
    takes = {0.5: ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty")}
    names = {field.name for field in fields(GenerationOptions)} - {"do_sample"}
    if isinstance(wrong, int):
        names -= {"temperature", "repetition_penalty"} if wrong > 0 else set()
    if isinstance(wrong, float):
        names -= set(takes.get(wrong, ()))
    if isinstance(wrong, str) and wrong:
        names -= {"stop"}
    for name in sorted(names | {"do_sample"}):
        with pytest.raises(GenerationError, match=rf"{name}=.*; expected"):
            generator.generate([1, 2], **{"max_new_tokens": 2, name: wrong})


def test_integers_of_numpy_and_of_json_are_options(generator):
    given = {"max_new_tokens": np.int32(COUNT), "num_beams": 1.0, "eos_token_id": np.array([41]), "do_sample": False}
    assert generator.generate(np.array(PROMPT), **given).ids == EXPECTED


@pytest.mark.parametrize("wrong", [3, 0.5, np.array(3), np.zeros((0, 2)), {1: 2}, {1, 2}, iter([1])])
def test_what_is_no_prompt_no_prefix_and_no_function_is_refused(generator, wrong):
    with pytest.raises(GenerationError, match=r"expected a text, token ids, or a list of prompts|has no tokens"):
        generator.generate(wrong)
    with pytest.raises(GenerationError, match=r"the prefix is a .*; expected what save_prefix\(\) gave"):
        generator.load_prefix(wrong)
    with pytest.raises(GenerationError, match=r"stream= is a .*; expected a function"):
        generator.generate([1], stream=wrong)


def test_wrong_arguments_of_a_generator(compiled):
    for wrong in (3, "x", [0], np.zeros(3)):
        for name in ("names", "caches"):
            with pytest.raises(GenerationError, match=f"{name}= is a .*; expected a dictionary"):
                Generator(compiled, **{name: wrong})
    for wrong in (0, -1, "8", 0.5, True, [8]):
        with pytest.raises(GenerationError, match=r"context_length=.*; expected a number of tokens"):
            Generator(compiled, context_length=wrong)
    for wrong in ("nowhere.onnx", "\0", Path("/")):
        with pytest.raises(GenerationError, match="no such file; expected an artifact or an ONNX model"):
            Generator(compiled, encoder=wrong)


def test_a_forced_token_is_one_of_the_vocabulary(generator):
    with pytest.raises(GenerationError, match="the forced token is 40; expected one of 0 to 39"):
        generator.generate([1], forced_bos_token_id=40)
    unchanged = generator.generate(PROMPT, max_new_tokens=COUNT, suppress_tokens=[-1, 40])
    assert unchanged.ids == EXPECTED


def test_the_most_tokens_cost_nothing_before_they_come(compiled):
    first = list(itertools.islice(Generator(compiled).stream(PROMPT, max_new_tokens=2**31 - 1), COUNT))
    assert [token.id for token in first] == EXPECTED


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("generation_config.json", "[" * 100_000, "is no JSON"),
        ("genai_config.json", '{"model": 3}', "'model' is 3; expected settings by name"),
        ("genai_config.json", '{"model": {"decoder": [1]}}', "'decoder' is .*; expected settings by name"),
        ("genai_config.json", '{"model": {"decoder": {"filename": "model.onnx", "inputs": {"input_ids": 3}}}}',
         "3 in the place of a name"),
        ("genai_config.json", '{"model": {"decoder": {"filename": "model.onnx", "num_hidden_layers": 2147483647,'
         '"inputs": {"past_key_names": "k%d"}, "outputs": {"present_key_names": "p%d"}}}}', "num_hidden_layers is 21"),
    ],
    ids=["deep", "model", "decoder", "name", "layers"],
)  # fmt: skip
def test_settings_of_a_wrong_form_are_refused(tmp_path, file, text, expected):
    onnx.save(tiny.decoder(), tmp_path / "model.onnx")
    (tmp_path / file).write_text(text)
    with pytest.raises(GenerationError, match=expected):
        Generator(tmp_path)
