"""The option "relay.explain": what a build decided, and why, in its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relayc
from relayc import relay
from relayc.backend.runtime.artifact import CompiledModel
from relayc.relay import nn
from relayc.te.ir import PassContext
from relayc.topi.tuning import Config

ROOT = Path(relayc.te.__file__).parents[1]
TARGET = "llvm -mcpu=haswell -num-cores=2"
EXPLAIN = {"relay.explain": True}


def build(body: relay.Expr, *parameters: relay.Var, target: str = TARGET, explain: bool = True) -> CompiledModel:
    with PassContext(config=EXPLAIN if explain else {}):
        return relay.build(relay.Function(parameters, body), target)


def x(*shape: int) -> relay.Var:
    return relay.var("x", shape=shape)


def rows(length: int) -> CompiledModel:
    parameter = x(64, length)
    return build(nn.softmax(parameter), parameter)


def test_kernels_have_their_decisions_only_when_asked_for() -> None:
    parameter = x(64, 512)
    with_reasons, without = (build(nn.softmax(parameter), parameter, explain=e) for e in (True, False))
    (decisions,) = with_reasons.build_report.decisions.values()
    assert decisions and with_reasons.build_report.passes
    assert not without.build_report.decisions and not without.build_report.passes


def test_code_is_the_same_when_decisions_are_recorded() -> None:
    parameter = x(3, 40, 56)
    body = nn.softmax(relay.transpose(nn.relu(parameter), axes=(0, 2, 1)))
    sources = [build(body, parameter, explain=e).module.get_source("asm") for e in (True, False)]
    assert sources[0] == sources[1]


def test_a_softmax_says_why_it_is_row_by_row() -> None:
    (decisions,) = rows(512).build_report.decisions.values()
    chosen = next(d for d in decisions if d.subject == "schedule of softmax")
    refused = dict(chosen.refused)
    assert chosen.choice == "row by row"
    assert "512" in refused["flattened rows"] and "last-level cache" in refused["two passes"]


def test_other_sizes_have_other_decisions() -> None:
    chosen = [d.choice for r in (10, 512) for d in next(iter(rows(r).build_report.decisions.values()))
              if d.subject == "schedule of softmax"]  # fmt: skip
    assert chosen[0] != chosen[1]


def test_places_are_lines_of_the_compiler_where_functions_begin_or_choices_are_noted() -> None:
    places = {d.where for found in rows(512).build_report.decisions.values() for d in found if d.where}
    assert places
    for place in places:
        path, line = place.split(":")
        text = (ROOT / path).read_text().splitlines()[int(line) - 1]
        assert any(word in text for word in ("def ", "lambda", "note(", "@")), (place, text)


def test_a_product_has_its_plan_and_predicted_cycles() -> None:
    parameter = x(64, 256)
    weight = relay.const(np.ones((512, 256), "float32"))
    (decisions,) = build(nn.dense(parameter, weight), parameter).build_report.decisions.values()
    tiles = next(d for d in decisions if d.subject == "tiles")
    assert tiles.facts["rows"] == 64 and tiles.facts["columns"] == 512 and tiles.facts["height"] >= 1
    least = 64 * 512 * 256 / 16 / 2  # two FMA of eight lanes per cycle, on two cores
    assert tiles.cycles is not None and least <= tiles.cycles < 4 * least


def test_parameters_that_tuning_may_choose_are_decisions() -> None:
    decisions = next(iter(rows(512).build_report.decisions.values()))
    parallel = next(d for d in decisions if d.subject == "parameter parallel")
    assert parallel.choice in ("True", "False") and {"cost_model", "others"} == set(parallel.facts)


def test_a_schedule_is_a_decision_for_every_kernel() -> None:
    parameter = relay.var("x", shape=(1, 8, 12, 12))
    weight = relay.const(np.ones((8, 8, 3, 3), "float32"))
    pooled = nn.max_pool2d(nn.conv2d(parameter, weight), pool_size=(2, 2))
    body = relay.argmax(relay.reshape(pooled, (1, -1)), axis=1)
    report = build(body, parameter).build_report
    assert len(report.decisions) == report.kernels >= 3
    for decisions in report.decisions.values():
        first = decisions[0]
        assert first.subject == "schedule" and first.choice and first.where.startswith("topi/")


def test_cuda_schedules_have_decisions() -> None:
    parameter = x(64, 512)
    with PassContext(config=EXPLAIN):
        report = relay.build(relay.Function([parameter], nn.softmax(parameter)), "cuda -arch=sm_90").build_report
    (decisions,) = report.decisions.values()
    plan = next(d for d in decisions if d.subject == "rows")
    assert plan.facts["rows"] >= 1 and plan.facts["threads"] >= 32 and plan.facts["registers"]


def attention(shared: bool = False, squashed: bool = False) -> relay.Function:
    q, k, v = (relay.var(name, shape=(1, 4, 32, 16)) for name in "qkv")
    scores = relay.multiply(nn.batch_matmul(q, k, transpose_b=True), relay.const(np.float32(0.25)))
    if squashed:
        scores = relay.sigmoid(scores)
    result = nn.batch_matmul(nn.softmax(scores), v, transpose_b=False)
    return relay.Function([q, k, v], relay.Tuple((result, scores)) if shared else result)


def attention_pass(function: relay.Function) -> list[str]:
    with PassContext(config=EXPLAIN):
        report = relay.build(function, TARGET).build_report
    return list(next(record for record in report.passes if record.name == "RecognizeAttention").lines())


def test_a_pass_says_which_rule_fired_at_which_node() -> None:
    head, fired = attention_pass(attention())
    assert head.startswith("RecognizeAttention: changed") and "+1 nn.attention" in head and "-1 nn.softmax" in head
    assert "DecomposedAttention fired at 1 node" in fired


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (attention(shared=True), "multiply before the softmax is used elsewhere"),
        (attention(squashed=True), "before the softmax, found sigmoid"),
    ],
)
def test_a_near_miss_of_attention_says_why(function: relay.Function, reason: str) -> None:
    head, missed = attention_pass(function)
    assert "nothing to do" in head and "DecomposedAttention not at" in missed and reason in missed


def test_passes_over_kernels_have_one_record_for_all() -> None:
    parameter = x(64, 300)
    report = build(relay.sum(nn.softmax(parameter), axis=0), parameter).build_report
    names = [record.name for record in report.passes]
    assert report.kernels == 2 and names.count("Vectorize") == 1
    assert all(record.seconds >= 0.0 for record in report.passes)


def test_a_kernel_from_the_cache_still_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    first, second = rows(384), rows(384)
    assert any(tmp_path.iterdir())
    assert first.build_report.decisions == second.build_report.decisions != {}


def test_a_config_lists_chosen_values() -> None:
    config = Config({"a": 2})
    with config:
        relayc.topi.tuning.choose("a", 1, (1, 2))
        relayc.topi.tuning.choose("b", 3, (3, 4))
    assert [(knob.name, knob.default, value) for knob, value in config.chosen()] == [("a", 1, 2), ("b", 3, 3)]


@pytest.mark.parametrize(
    ("function", "shape", "subject", "choice", "refused", "reason"),
    [
        (lambda x: nn.standardize(x, 1), (2, 64, 256), "standardize", "strided axis", "image by image", "L2 holds"),
        (lambda x: nn.standardize(x, (0, 2)), (2, 6, 256), "standardize", "moments of parts", "strided axis", "span"),
        (lambda x: nn.softmax(x, axis=0), (8, 4096), "columns", None, "unshifted blocks", "8 rows"),
        (lambda x: relay.log_sum_exp(x, axis=0), (8, 256), "log-sum-exp", "two passes", "flattened rows", "last"),
        (
            lambda x: relay.sum(x, axis=-1), (64, 512), "reduction along memory", "row by row",
            "rows split between cores", "enough",
        ),
    ],
)  # fmt: skip
def test_families_of_kernels_give_reasons(
    function: Callable[[relay.Expr], relay.Expr], shape: tuple[int, ...], subject: str, choice: str | None,
    refused: str, reason: str,
) -> None:  # fmt: skip
    parameter = x(*shape)
    report = build(function(parameter), parameter).build_report
    found = next(d for decisions in report.decisions.values() for d in decisions if d.subject.endswith(subject))
    assert choice in (None, found.choice) and reason in dict(found.refused)[refused]
