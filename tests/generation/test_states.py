"""Decoders whose layers keep states of one size: causal convolutions and recurrences, as in Qwen3.5 and LFM2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from relayc.generation import GenerationError, Generator

WIDTH, TOKENS, TAPS, COUNT = 8, 40, 3, 9
RNG = np.random.default_rng(7)
TABLE, PLACES = RNG.normal(size=(2, TOKENS, WIDTH)).astype(np.float32)
KERNEL = RNG.normal(size=(WIDTH, 1, TAPS)).astype(np.float32)
HEAD = RNG.normal(size=(WIDTH, TOKENS)).astype(np.float32)
PROMPTS = [[5, 9, 30, 2, 17], [7, 1], [3, 3, 3, 8, 21, 33, 12]]


def decoder() -> ModelProto:
    """A causal convolution and a linear attention of tokens and their positions, which are in three rows."""
    node, info, floats = helper.make_node, helper.make_tensor_value_info, TensorProto.FLOAT
    nodes = [
        node("Gather", ["position_ids", "last"], ["places"]),
        node("Gather", ["table", "input_ids"], ["tokens"]),
        node("Gather", ["places_table", "places"], ["offsets"]),
        node("Add", ["tokens", "offsets"], ["x"]),
        node("Transpose", ["x"], ["columns"], perm=[0, 2, 1]),
        node("CausalConvWithState", ["columns", "kernel", "", "past.0.conv"], ["mixed", "present.0.conv"],
             domain="com.microsoft", activation="none"),
        node("Transpose", ["mixed"], ["y"], perm=[0, 2, 1]),
        node("LinearAttention", ["x", "x", "x", "past.1.recurrent"], ["z", "present.1.recurrent"],
             domain="com.microsoft", update_rule="linear", q_num_heads=1, kv_num_heads=1, scale=0.1),
        node("Add", ["y", "z"], ["sum"]),
        node("MatMul", ["sum", "head"], ["logits"]),
    ]  # fmt: skip
    states = {"0.conv": ["batch", WIDTH, TAPS - 1], "1.recurrent": ["batch", 1, WIDTH, WIDTH]}
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "count"]),
              info("position_ids", TensorProto.INT64, [3, "batch", "count"]),
              *[info(f"past.{name}", floats, shape) for name, shape in states.items()]]  # fmt: skip
    outputs = [info("logits", floats, ["batch", "count", TOKENS]),
               *[info(f"present.{name}", floats, shape) for name, shape in states.items()]]  # fmt: skip
    constants = {"table": TABLE, "places_table": PLACES, "kernel": KERNEL, "head": HEAD, "last": np.int64(2)}
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "states", inputs, outputs, initializers)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def greedy(prompt: Sequence[int], count: int = COUNT) -> list[int]:
    """The likeliest tokens, each computed from all tokens before it."""
    tokens = list(prompt)
    for _ in range(count):
        x = TABLE[tokens] + PLACES[: len(tokens)]
        padded = np.concatenate([np.zeros((TAPS - 1, WIDTH), np.float32), x])
        y = (padded[-TAPS:] * KERNEL[:, 0].T).sum(0)
        tokens.append(int(((y + 0.1 * x[-1] @ (x.T @ x)) @ HEAD).argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(decoder())


def test_states_pass_from_step_to_step(generator: Generator) -> None:
    for prompt in PROMPTS:
        assert generator.generate(prompt, max_new_tokens=COUNT).ids == greedy(prompt)


def test_prompts_of_several_lengths_are_not_padded(generator: Generator) -> None:
    """A mask would not keep the padding out of a state."""
    results = generator.generate(PROMPTS, max_new_tokens=COUNT)
    assert [result.ids for result in results] == [greedy(prompt) for prompt in PROMPTS]


def test_a_prompt_goes_on_from_the_whole_of_the_last_one_or_begins_again(generator: Generator) -> None:
    first = generator.generate(PROMPTS[0], max_new_tokens=COUNT).ids
    longer = [*PROMPTS[0], *first, 4, 8]
    assert generator._shared(next(generator._batches([longer], generator.defaults, None))) == generator.cached_length
    assert generator.generate(longer, max_new_tokens=COUNT).ids == greedy(longer)
    for other in (longer[:6], [*longer[:6], 1, 2, 3]):  # what the states hold of the other tokens can't be taken out
        assert generator.generate(other, max_new_tokens=COUNT).ids == greedy(other)


def test_prefixes_and_beams(generator: Generator) -> None:
    generator.generate(PROMPTS[0], max_new_tokens=COUNT)
    prefix, other = generator.save_prefix(), generator.clone()
    other.load_prefix(prefix)
    longer = [*prefix.tokens[0].tolist(), 6]
    assert other.generate(longer, max_new_tokens=COUNT).ids == greedy(longer)
    (one,) = generator.generate(PROMPTS[:1], max_new_tokens=1, num_beams=4)
    assert one.ids == greedy(PROMPTS[0], 1)


def test_a_genai_folder_names_its_states(tmp_path: Path) -> None:
    model = decoder()
    for port in (*model.graph.input, *model.graph.output):
        port.name = port.name.replace("past.1.recurrent", "before_1").replace("present.1.recurrent", "after_1")
    for node in model.graph.node:
        node.input[:] = [name.replace("past.1.recurrent", "before_1") for name in node.input]
        node.output[:] = [name.replace("present.1.recurrent", "after_1") for name in node.output]
    onnx.save(model, tmp_path / "model.onnx")
    inputs = {"input_ids": "input_ids", "past_conv_names": "past.%d.conv", "past_recurrent_names": "before_%d"}
    outputs = {"logits": "logits", "present_conv_names": "present.%d.conv", "present_recurrent_names": "after_%d"}
    described = {"filename": "model.onnx", "inputs": inputs, "outputs": outputs, "num_hidden_layers": 2}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": described}}))
    assert Generator(tmp_path).generate(PROMPTS[0], max_new_tokens=COUNT).ids == greedy(PROMPTS[0])


def test_states_of_symbolic_sizes_are_refused() -> None:
    model = decoder()
    state = helper.make_tensor_value_info("past.2.ssm", TensorProto.FLOAT, ["batch", "rows", "columns"])
    model.graph.input.append(state)
    state.name = "present.2.ssm"
    model.graph.output.append(state)
    model.graph.node.append(helper.make_node("Tanh", ["past.2.ssm"], ["present.2.ssm"]))
    with pytest.raises(GenerationError, match=r"the state past\.2\.ssm.*symbolic sizes; expected fixed"):
        Generator(model)
