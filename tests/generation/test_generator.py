"""Generation with a tiny decoder in every form, compared with numpy."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import relayc
from relayc.generation import GenerationError, Generator
from relayc.runtime import CompiledModel, load_model
from tests.generation import decoder_models as tiny
from tests.test_deploy_imports import REPORT, run_python

PROMPTS = [[5, 9, 30, 2, 17], [7, 1], [3, 3, 3, 8, 21, 33, 12]]
COUNT = 12
EXPECTED = [tiny.greedy(prompt, COUNT) for prompt in PROMPTS]


class Words:
    """A tokenizer of words "t5", each behind a space."""

    def encode(self, text: str) -> list[int]:
        return [int(word.removeprefix("t")) for word in text.split()]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(f"t{i}" for i in ids if not (skip_special_tokens and i == 0))


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return relayc.compile_onnx(tiny.decoder(), caches="auto", last_position="auto")


@pytest.fixture(scope="module")
def generator(compiled: CompiledModel) -> Generator:
    return Generator(compiled, Words())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The decoder in the folders of exporters, by kind."""
    files = {
        "plain": {"model.onnx": tiny.decoder()},
        "hub": {"onnx/model.onnx": tiny.decoder()},
        "two": {"decoder_model.onnx": tiny.first_decoder(), "decoder_with_past_model.onnx": tiny.decoder()},
        "merged": {"decoder_model_merged.onnx": tiny.merged_decoder()},
        "uncached": {"model.onnx": tiny.decoder(caches=False)},
    }
    made = {kind: tmp_path_factory.mktemp(kind) for kind in files}
    for kind, models in files.items():
        for name, model in models.items():
            (made[kind] / name).parent.mkdir(exist_ok=True)
            onnx.save(model, made[kind] / name)
        (made[kind] / "generation_config.json").write_text(json.dumps({"eos_token_id": [39], "top_k": 5}))
        (made[kind] / "config.json").write_text(json.dumps({"n_positions": tiny.POSITIONS}))
    return made


def test_the_first_decoder_may_take_other_inputs():
    """The inputs have other roles, and other types, than those of the decoder with past."""
    first, extra = tiny.first_decoder(), {"token_type_ids": ["batch", "count"], "logits_to_keep": [1]}
    first.graph.input.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT32, s) for n, s in extra.items())
    generator = Generator(tiny.decoder(), prefill=first)
    assert generator.generate(PROMPTS[0], max_new_tokens=COUNT).ids == EXPECTED[0]


@pytest.mark.parametrize("kind", ["plain", "hub", "two", "merged", "uncached"])
def test_every_form_generates_what_numpy_does(folders, kind):
    generator = Generator(folders[kind])
    assert generator.defaults.eos_token_id == (39,) and generator.context_length == tiny.POSITIONS
    found = generator.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=[])
    assert [result.ids for result in found] == EXPECTED
    assert [result.prompt_length for result in found] == [5, 2, 7]
    assert generator.generate(PROMPTS[1], max_new_tokens=COUNT, eos_token_id=[]).ids == EXPECTED[1]
    (beams,) = generator.generate(PROMPTS[:1], max_new_tokens=4, eos_token_id=[], num_beams=3)
    assert beams.ids == _beam_search(PROMPTS[0], 4, 3)


def _beam_search(prompt: list[int], count: int, width: int) -> list[int]:
    """Beam search without end tokens, by numpy."""
    beams = [(0.0, prompt)]
    for _ in range(count):
        longer = []
        for score, tokens in beams:
            logits = tiny.logits_of(tokens).astype(np.float64)
            logs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            longer += [(score + log, [*tokens, i]) for i, log in enumerate(logs)]
        beams = sorted(longer, reverse=True)[:width]
    return beams[0][1][len(prompt) :]


def test_an_artifact_keeps_its_caches(compiled, tmp_path):
    assert len(compiled.graph.caches) == len(tiny.CACHES)
    compiled.save(tmp_path / "model.relayc")
    for model in (tmp_path, tmp_path / "model.relayc", load_model(str(tmp_path / "model.relayc"))):
        assert Generator(model).generate(PROMPTS[0], max_new_tokens=COUNT).ids == EXPECTED[0]


def test_attention_that_reads_no_mask_gets_no_padding(tmp_path):
    """What the builder of onnxruntime-genai makes knows the lengths of sequences only, in its folder or anywhere."""
    model = tiny.decoder()
    model.producer_name = "onnxruntime-genai"
    compiled = relayc.compile_onnx(model, caches="auto")
    compiled.save(tmp_path / "model.relayc")
    for source in (model, compiled, tmp_path / "model.relayc"):
        generator = Generator(source)
        assert not generator._decoder.takes_padding
        assert [x.ids for x in generator.generate(PROMPTS, max_new_tokens=3)] == [x[:3] for x in EXPECTED]


def test_an_artifact_generates_without_the_compiler(compiled, tmp_path):
    compiled.save(tmp_path / "model.relayc")
    code = f"from relayc.generation import Generator\ng = Generator({str(tmp_path)!r})\n"
    printed = run_python(code + f"print(g.generate({PROMPTS[0]}, max_new_tokens={COUNT}).ids)" + REPORT)
    assert printed.strip() == str(EXPECTED[0])


def test_end_tokens_end_a_sequence(generator):
    end = EXPECTED[0][2]
    found = generator.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=end)
    assert [result.ids for result in found] == [tiny.greedy(prompt, COUNT, [end]) for prompt in PROMPTS]
    assert [result.finish_reason for result in found] == ["stop" if end in x else "length" for x in EXPECTED]
    later = generator.generate(PROMPTS[0], max_new_tokens=COUNT, eos_token_id=end, min_new_tokens=5).ids
    assert later[:2] == EXPECTED[0][:2] and end not in later[:5]


def test_a_common_prefix_is_computed_once(generator, monkeypatch):
    steps: list[int] = []
    step = type(generator._decoder).step
    monkeypatch.setattr(type(generator._decoder), "step", lambda self, x: steps.append(x.shape[1]) or step(self, x))
    generator.reset()
    generator.generate(PROMPTS[0], max_new_tokens=4)
    longer = [*PROMPTS[0], *EXPECTED[0][:2], 8, 9]
    assert generator.generate(longer, max_new_tokens=3).ids == tiny.greedy(longer, 3)
    assert steps == [5, 1, 1, 1, 2, 1, 1]
    steps.clear()
    assert generator.generate(longer[:3], max_new_tokens=1).ids == tiny.greedy(longer[:3], 1)
    generator.generate([longer, longer[:3]], max_new_tokens=1)
    pair = [[*longer, 4], [*longer[:3], 5]]
    assert [result.ids for result in generator.generate(pair, max_new_tokens=1)] == [tiny.greedy(p, 1) for p in pair]
    generator.generate([pair[0], longer[:3]], max_new_tokens=1)
    assert steps == [1, 9, 1, 4], "a row with more padding is another one from its first token on"
    generator.reset()
    assert generator.cached_length == 0


def test_tokens_and_text_come_as_a_stream(generator):
    tokens = list(generator.stream(PROMPTS, max_new_tokens=3))
    in_turns = [(row, EXPECTED[row][i]) for i in range(3) for row in range(3)]
    assert [(token.row, token.id) for token in tokens] == in_turns
    assert [token.finish_reason for token in tokens] == [None] * 6 + ["length"] * 3
    heard: list[str] = []
    result = generator.generate("t5 t9 t30", max_new_tokens=5, stream=lambda token: heard.append(token.text))
    assert "".join(heard) == result.text == Words().decode(result.ids) and len(heard) == 5


def test_a_stop_text_ends_a_sequence_and_is_not_shown(generator):
    words = Words().decode(EXPECTED[0]).split()
    stop = f"{words[3]} {words[4]}"
    shown: list[str] = []
    result = generator.generate(
        PROMPTS[0], max_new_tokens=COUNT, stop=[stop, "never"], stream=lambda token: shown.append(token.text)
    )
    assert result.text == "".join(shown) == Words().decode(EXPECTED[0]).split(stop)[0]
    assert result.finish_reason == "stop" and stop in Words().decode(result.ids)
    assert stop not in Words().decode(result.ids[:-1]) and result.ids == EXPECTED[0][: len(result.ids)]


def test_sampling_is_reproducible_and_follows_its_options(generator):
    options = {"max_new_tokens": 8, "temperature": 3.0}
    once, again = [generator.generate(PROMPTS, seed=3, **options) for _ in range(2)]
    assert once == again != generator.generate(PROMPTS, seed=4, **options)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}):
        result = generator.generate(PROMPTS[0], **{**options, **narrow})
        assert result.ids == EXPECTED[0][:8], narrow


def test_the_probabilities_are_those_of_the_logits(generator):
    logits = tiny.logits_of(PROMPTS[1]).astype(np.float64)
    shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    results = generator.generate([PROMPTS[1]] * 4000, max_new_tokens=1, temperature=1.0, seed=0)
    counts = np.bincount([result.ids[0] for result in results], minlength=tiny.VOCABULARY)
    np.testing.assert_allclose(counts / 4000, shares, atol=4 * np.sqrt(0.25 / 4000))


def test_generators_share_weights_and_run_in_turns(generator):
    copy = generator.clone()
    streams = [generator.stream(PROMPTS[0], max_new_tokens=4), copy.stream(PROMPTS[1], max_new_tokens=4)]
    pairs = list(zip(*streams, strict=True))
    assert [[token.id for token in part] for part in zip(*pairs, strict=True)] == [EXPECTED[0][:4], EXPECTED[1][:4]]
    stream = generator.stream(PROMPTS[0], max_new_tokens=4)
    next(stream)
    generator.generate(PROMPTS[1], max_new_tokens=1)
    with pytest.raises(GenerationError, match="another generation began"):
        list(stream)


def test_threads_wait_for_one_another(generator):
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda i: generator.generate(PROMPTS[i % 2], max_new_tokens=4).ids, range(16))]
    assert found == [EXPECTED[i % 2][:4] for i in range(16)]


def test_the_context_limits_a_sequence(compiled):
    generator = Generator(compiled, context_length=8)
    result = generator.generate(PROMPTS[0])
    assert result.ids == EXPECTED[0][:3] and result.finish_reason == "length"
    with pytest.raises(GenerationError, match="the prompt has 8 tokens, the model a context of 8"):
        generator.generate([1] * 8)


def renamed(**names: str) -> CompiledModel:
    """The decoder without caches, with other names of inputs and outputs."""
    model = tiny.decoder(caches=False)
    for node in model.graph.node:
        for ports in (node.input, node.output):
            ports[:] = [names.get(name, name) for name in ports]
    for port in (*model.graph.input, *model.graph.output):
        port.name = names.get(port.name, port.name)
    return relayc.compile_onnx(model)


def test_ports_are_found_or_named():
    found = Generator(renamed(input_ids="text", logits="y"))  # the only integers left, the only output
    assert found.generate(PROMPTS[0], max_new_tokens=3).ids == EXPECTED[0][:3]
    model = renamed(input_ids="text", position_ids="where", logits="y")
    with pytest.raises(GenerationError, match=r"no input_ids: of text: int64.*2 may be.*names=\{'input_ids'"):
        Generator(model)
    named = Generator(model, names={"input_ids": "text", "position_ids": "where"})
    assert named.generate(PROMPTS[0], max_new_tokens=3).ids == EXPECTED[0][:3]
    for names, text in (({"ids": "text"}, "no such role; the roles are input_ids"), ({"logits": "z"}, "has y: float")):
        with pytest.raises(GenerationError, match=text):
            Generator(model, names=names)


def test_inputs_that_nothing_fills_are_listed():
    model = tiny.decoder(caches=False)
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, ["batch"]))
    model.graph.node.append(helper.make_node("Identity", ["extra"], ["copy"]))
    model.graph.output.append(helper.make_tensor_value_info("copy", TensorProto.FLOAT, ["batch"]))
    with pytest.raises(GenerationError, match=r"nothing is known to fill the input extra: float32\[batch\]"):
        Generator(model)


def test_folders_without_a_model_say_what_they_hold(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(GenerationError, match=r"holds readme.txt; expected genai_config.json, or one of"):
        Generator(tmp_path)
    with pytest.raises(GenerationError, match="no such file or folder"):
        Generator(tmp_path / "absent")
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "m.onnx"}}}')
    with pytest.raises(GenerationError, match=r"names m.onnx, which is not there"):
        Generator(tmp_path)
    (tmp_path / "genai_config.json").write_text("{")
    with pytest.raises(GenerationError, match="is no JSON"):
        Generator(tmp_path)


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        ([], {}, "there is no prompt"),
        ([[1], []], {}, "prompt 1 has no tokens"),
        (None, {}, "the prompt is a NoneType; expected a text, token ids"),
        ({"ids": [1]}, {}, "the prompt is a dict; expected"),
        ([-1], {}, "the prompt has the token -1"),
        ([10**20], {}, "the prompt has the token 1000.* at position 0.*expected ids from 0 to 39"),
        ([1, 40], {}, "the prompt has the token 40 at position 1, and the model a vocabulary of 40 tokens"),
        ([1.5], {}, r"the prompt has 1\.5 in the place of token ids"),
        ([[1, 1.5]], {}, r"the prompt has \[1, 1\.5\] in the place of token ids"),
        ([1], {"top_p": 0}, "top_p=0; expected above 0 and at most 1"),
        ([1], {"top_k": 1.5}, "top_k=1.5; expected"),
        ([1], {"max_tokens": 3}, "no option max_tokens; the options are max_new_tokens"),
        ([1], {"stop": [3]}, r"stop=\[3\]; expected texts"),
        ([1], {"num_beams": 2, "temperature": 1.0}, "num_beams=2 with sampling"),
        ([1], {"num_beams": 2, "stream": print}, "beams have no tokens before the end"),
        ([1], {"decoder_ids": [3]}, "decoder_ids= is for models with an encoder"),
    ],
)
def test_invalid_prompts_and_options_are_rejected(generator, prompt, options, text):
    with pytest.raises(GenerationError, match=text):
        generator.generate(prompt, **options)


def _without_batches() -> onnx.ModelProto:
    """A decoder without caches of one sequence, whose logits are those of all positions but the last."""
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [node("Gather", ["table", "input_ids"], ["x"]), node("Slice", ["x", "begin", "end", "axis"], ["logits"])]
    constants = {"table": np.eye(10, dtype=np.float32), "begin": [0], "end": [-1], "axis": [1]}
    stored = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    inputs = [info("input_ids", TensorProto.INT64, [1, "positions"])]
    outputs = [info("logits", TensorProto.FLOAT, [1, "kept", 10])]
    graph = helper.make_graph(nodes, "short", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_logits_of_no_position_and_beams_of_a_fixed_batch_are_rejected() -> None:
    generator = Generator(_without_batches())
    assert generator.generate([3, 7], max_new_tokens=1).ids == [3]
    with pytest.raises(GenerationError, match=r"logits 'logits' have the shape \(1, 0, 10\) for 1 tokens"):
        generator.generate([3], max_new_tokens=1)
    with pytest.raises(GenerationError, match="num_beams=3: the model's batch has a fixed size"):
        generator.generate([3, 7], num_beams=3)


def test_texts_need_a_tokenizer(compiled, tmp_path):
    generator = Generator(compiled)
    with pytest.raises(GenerationError, match="there is no tokenizer"):
        generator.generate("t5")
    with pytest.raises(GenerationError, match="stop= needs a tokenizer"):
        generator.generate([1], stop="x")
    with pytest.raises(GenerationError, match=r"expected a tokenizer\.json"):
        Generator(compiled, tmp_path)
    with pytest.raises(GenerationError, match="the tokenizer is a int"):
        Generator(compiled, 3)


@pytest.mark.parametrize(("precision", "stored"), [("bfloat16", "float32"), ("float16", "float16")])
def test_caches_are_kept_with_lower_precision(precision, stored):
    generator = Generator(tiny.decoder(), config={"relay.ToMixedPrecision.dtype": precision})
    assert generator.generate(PROMPTS[1], max_new_tokens=6).ids == tiny.greedy(PROMPTS[1], 6)
    values = generator._executor.cache_values()
    assert len(values) == len(tiny.CACHES) and {str(value.dtype) for value in values.values()} == {stored}


def test_caches_stay_on_a_gpu(cuda_device):
    """As on a CPU: padded prompts, a prefix that is computed once, and beams, whose caches are reordered."""
    generator = Generator(tiny.decoder(), target="cuda")
    found = generator.generate(PROMPTS, max_new_tokens=4, eos_token_id=[])
    assert [result.ids for result in found] == [ids[:4] for ids in EXPECTED]
    assert generator._executor.has_caches
    longer = [*PROMPTS[1], *generator.generate(PROMPTS[1], max_new_tokens=4).ids, 8]
    assert generator.generate(longer, max_new_tokens=3).ids == tiny.greedy(longer, 3)
    (beams,) = generator.generate(PROMPTS[:1], max_new_tokens=3, eos_token_id=[], num_beams=3)
    assert beams.ids == _beam_search(PROMPTS[0], 3, 3)


def test_a_prefix_is_saved_and_shared(generator):
    """A clone goes on from the caches of another generator, and computes new tokens only."""
    generator.reset()
    first = generator.generate(PROMPTS[0], max_new_tokens=4).ids
    prefix = pickle.loads(pickle.dumps(generator.save_prefix()))
    other = generator.clone()
    other.load_prefix(prefix)
    assert other.cached_length == len(PROMPTS[0]) + 3 and prefix.tokens.tolist() == [[*PROMPTS[0], *first[:3]]]
    longer = [*PROMPTS[0], *first, 8]
    assert other.generate(longer, max_new_tokens=4).ids == tiny.greedy(longer, 4)
    other.load_prefix(prefix)
    assert other.generate([7, 1], max_new_tokens=4).ids == tiny.greedy([7, 1], 4)
    with pytest.raises(GenerationError, match="there are no tokens to save"):
        generator.clone().save_prefix()
