"""Random ONNX graphs: compiled, run, and compared with an oracle."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper
from onnx.backend.base import BackendRep

from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.op.elementwise import Tanh
from tests.fuzz.builder import STRING, Sample, Value, generators, random_graph
from tests.fuzz.compare import TOLERANCES, Finding, check, check_seed, compare_outputs
from tests.fuzz.dims import RUNS
from tests.fuzz.names import subgraphs
from tests.fuzz.oracle import onnxruntime_outputs, reference_outputs, unit_noise
from tests.fuzz.schemas import exists
from tests.resident_memory import allocated_bytes


def test_random_graphs_give_the_oracle_s_results(graph_seeds: range) -> None:
    for seed in graph_seeds:
        check_seed(seed)


def test_a_seed_gives_one_graph() -> None:
    for seed in (12345, 54321, 777):
        one, two = random_graph(seed), random_graph(seed)
        assert one.model.SerializeToString() == two.model.SerializeToString()
        for a, b in zip(one.runs, two.runs, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)


def test_making_graphs_keeps_no_memory() -> None:
    if allocated_bytes() is None:
        pytest.skip("this system does not tell how much memory is allocated")
    told: list[int] = []
    for begin in (900_000, 900_060):
        for seed in range(begin, begin + 60):
            random_graph(seed)
        told.append(allocated_bytes() or 0)
    assert told[1] - told[0] < 60 * 3000  # an operator's schema takes 10,000


def test_a_planted_fault_is_found_and_shrunk_to_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    found = 0
    for seed in range(30):
        try:
            check_seed(seed, only=["Tanh", "Mul", "Transpose", "Concat"], dynamic=False, opset=21)
        except Finding as finding:
            found += 1
            assert "Tanh" in str(finding)
            assert str(finding).count(" = ") <= 3, f"shrunk badly: {finding}"
    assert found >= 8


class _WrongAtOneSize:
    """A compiled model whose results are wrong for inputs of `size` elements."""

    def __init__(self, model: BackendRep, size: int) -> None:
        self.model, self.size = model, size

    def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        wrong = _size_of(inputs) == self.size
        return [np.asarray(x) + np.asarray(x).dtype.type(wrong) for x in self.model.run(inputs)]


def test_a_fault_at_one_size_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(s for s in map(_open_tanh, range(100)) if _sizes(s).count(_sizes(s)[2]) == 1)
    check(sample)
    faulty = SimpleNamespace(
        prepare=lambda model, device: _WrongAtOneSize(RelayBackend.prepare(model, device), _size_of(sample.runs[2]))
    )
    monkeypatch.setattr("tests.fuzz.compare.LoadedBackend", faulty)
    with pytest.raises(Finding, match="inputs 2"):
        check(sample)


def _open_tanh(seed: int) -> Sample:
    return random_graph(seed, only=["Tanh"], dynamic=True, opset=21)


def _sizes(sample: Sample) -> list[int]:
    return [_size_of(run) for run in sample.runs] if len(sample.runs) == len(RUNS) else [0, 0, 0]


def _size_of(inputs: dict[str, np.ndarray]) -> int:
    return sum(array.size for array in inputs.values())


def test_the_oracles_agree() -> None:
    """Each operator's reference against onnxruntime, where it is installed."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    compared = 0
    for seed in range(60):
        sample = random_graph(seed, opset=21)
        inputs = sample.runs[0]
        theirs = onnxruntime_outputs(sample.model, inputs)
        if theirs is None or any(node.op_type == "Shrink" for node in sample.model.graph.node):
            continue
        compared += 1
        for value, a, b in zip(sample.outputs, reference_outputs(sample.model, inputs), theirs, strict=True):
            if value.dtype == STRING:
                assert a.tolist() == b.tolist()
                continue
            tolerance = 0 if value.exact else TOLERANCES.get(value.dtype, 0)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * min(max(value.largest, 1), 1e3))
    assert compared >= 30


def _operators(nodes: list[NodeProto]) -> set[str]:
    inner = [node for outer in nodes for graph in subgraphs(outer) for node in graph.node]
    names = {".".join(filter(None, (node.domain, node.op_type))) for node in nodes}
    return names | (_operators(inner) if inner else set())


@pytest.mark.parametrize("name", sorted(generators))
def test_every_generator_makes_its_operator(name: str) -> None:
    opset = next((version for version in (21, 28, 9, 6) if exists(name, version)), 21)
    used: set[str] = set()
    for seed in range(20):
        with contextlib.suppress(ValueError):  # the seed's version of another domain has no such operator
            used |= _operators(list(random_graph(seed, only=[name], opset=opset).model.graph.node))
    assert name in used


def test_graphs_are_of_all_kinds() -> None:
    samples = [random_graph(seed) for seed in range(600)]
    assert len(set().union(*[_operators(list(s.model.graph.node)) for s in samples])) > 200
    assert sum(len(s.runs) > 1 for s in samples) > 100
    assert len({s.model.opset_import[0].version for s in samples}) > 20
    kinds = set().union(*[s.dtypes.values() for s in samples])
    assert {"float16", "bfloat16", "float64", "int8", "uint16", "bool", "int4", "float8_e5m2", STRING} <= kinds
    assert any(not np.isfinite(a).all() for s in samples for a in s.runs[0].values() if a.dtype.kind == "f")
    assert any(a.size == 0 for s in samples for a in s.runs[0].values())
    assert {a.ndim for s in samples for a in s.runs[0].values()} >= set(range(6))


def test_rounding_errors_reach_what_terms_that_cancel_leave() -> None:
    """Seed 458: the smallest number of a Blackman window, which is 0 or what rounding makes of it."""
    moved = unit_noise(0)(np.array([0.0, 1.0], np.float32))
    assert 0.0 < abs(moved[0]) <= 2.0**-23 and abs(moved[1] - 1.0) <= 2.0**-23


def test_what_cancels_to_nothing_may_be_what_rounding_left() -> None:
    """-y + y, where y is a product: with a fused multiply-add it is the product's own rounding error."""
    value = Value("y", "float32", (2,), False, -1.0, 1.0)
    x = np.array([1 / 3, 0.7], np.float32)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Neg", ["s"], ["n"]),
             helper.make_node("Add", ["n", "s"], ["y"])]  # fmt: skip
    graph = helper.make_graph(nodes, "nothing", [info], [ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    sample = Sample(0, model, [value], [{"x": x}], {}, {})
    zero = np.zeros(2, np.float32)
    compare_outputs(sample, 0, [np.array([2e-8, 0], np.float32)], [zero])
    for wrong in (np.array([1e-3, 0]), np.array([np.nan, 0]), np.zeros(3)):
        with pytest.raises(Finding):
            compare_outputs(sample, 0, [wrong.astype(np.float32)], [zero])


def test_what_is_left_of_operands_computed_twice_is_rounding() -> None:
    """Seed 1927 of old: the logarithm of a softmax along an axis of 1, of a product: x * y - x * y."""
    inputs = {name: np.full((2, 1), value, np.float32) for name, value in (("x", 1.1), ("y", 1.7))}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 1)) for name in inputs]
    nodes = [helper.make_node("Mul", ["x", "y"], ["m"]), helper.make_node("LogSoftmax", ["m"], ["z"], axis=-1)]
    graph = helper.make_graph(nodes, "nothing", infos, [ValueInfoProto(name="z")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    sample = Sample(0, model, [Value("z", "float32", (2, 1), False, -1.0, 1.0)], [inputs], {}, {})
    zero = np.zeros((2, 1), np.float32)
    compare_outputs(sample, 0, [zero + np.float32(1e-7)], [zero])
    with pytest.raises(Finding):
        compare_outputs(sample, 0, [zero + np.float32(1e-5)], [zero])
