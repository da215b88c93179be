"""The ONNX project's node cases with every input dimension symbolic, each with its own name.

`needs_sizes.txt` lists the cases that can't be compiled so, and has to be exact: their sizes determine the rank of a
result, or the shape of a kernel.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import pytest
from onnx import ModelProto, TypeProto

from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.errors import OnnxImportError
from tests.conformance.suite import shard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests

PARTS = 12


@cache
def models() -> dict[str, ModelProto]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return {case.name: case.model for case in cases if not case.name.endswith("_expanded") and case.model is not None}


@cache
def needs_sizes() -> set[str]:
    lines = Path(__file__).with_name("needs_sizes.txt").read_text().splitlines()
    return {name for line in lines if not line.startswith("#") for name in line.split(": ")[1].split()}


def with_symbolic_dims(model: ModelProto) -> ModelProto:
    """The model with names for all dimensions of its inputs, and nothing declared of other tensors."""
    result = ModelProto()
    result.CopyFrom(model)
    for value in result.graph.input:
        for axis, dim in enumerate(_tensor(value.type).tensor_type.shape.dim):
            dim.ClearField("dim_value")
            dim.dim_param = f"{value.name}_{axis}"
    for value in result.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del result.graph.value_info[:]
    return result


def _tensor(ty: TypeProto) -> TypeProto:
    """The tensors that a sequence or an optional value consists of."""
    while not ty.HasField("tensor_type"):
        inner = ty.WhichOneof("value")
        if inner not in ("sequence_type", "optional_type"):
            return TypeProto()
        ty = getattr(ty, inner).elem_type
    return ty


def _imports(model: ModelProto) -> bool:
    try:
        from_onnx(model)
    except OnnxImportError:
        return False
    return True


@pytest.mark.parametrize("part", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in range(1, PARTS)]])
def test_node_cases_compile_with_symbolic_dimensions_unless_listed(part: int) -> None:
    known = {name: models()[name] for name in shard(models(), part, PARTS) if _imports(models()[name])}
    found = {name: _imports(with_symbolic_dims(model)) for name, model in known.items()}
    wrong = {name for name, imported in found.items() if imported == (name in needs_sizes())}
    assert len(found) > 50 and not wrong


def test_listed_cases_exist() -> None:
    assert not needs_sizes() - set(models())
