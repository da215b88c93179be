"""ONNX's own operator tests through the importer and the operators' references, without compiling.

Cases that do not agree are listed in `onnx_gaps.txt`, each with its reason: by operator where there is no converter, by
case otherwise. A gap that has been closed must be taken out of the list.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from frontends.onnx import UnsupportedOperatorError
from frontends.onnx.ops import load_converters
from frontends.onnx.registry import registered_operators
from te.errors import CompileError
from tests.reference_backend import ReferenceBackend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

GAPS = Path(__file__).with_name("onnx_gaps.txt")
Case = tuple[str, ModelProto, list[tuple[list[Any], list[Any]]], float, float]


def known_gaps() -> dict[str, str]:
    """Reason by operator or case."""
    lines = [line.strip() for line in GAPS.read_text().splitlines()]
    pairs = [line.rsplit(": ", 1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def node_cases() -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        yield case.name, case.model, case.data_sets, case.rtol, case.atol


def stored_cases(kind: str) -> Iterator[Case]:
    """Cases kept as files: a model and numbered inputs and outputs."""
    for case in load_model_tests(kind=kind):
        folder = Path(case.model_dir)
        model = ModelProto()
        model.ParseFromString((folder / "model.onnx").read_bytes())
        data_sets = [
            (_tensors(part, "input"), _tensors(part, "output")) for part in sorted(folder.glob("test_data_set_*"))
        ]
        yield case.name, model, data_sets, case.rtol, case.atol


def _tensors(folder: Path, stem: str) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    for path in sorted(folder.glob(f"{stem}_*.pb"), key=lambda p: int(p.stem.rsplit("_", 1)[1])):
        tensor = TensorProto()
        tensor.ParseFromString(path.read_bytes())
        arrays.append(numpy_helper.to_array(tensor))
    return arrays


def disagreement(case: Case) -> tuple[str, tuple[str, ...]]:
    """What goes wrong with a case, and the operators that miss a converter; ("", ()) when it agrees."""
    _, model, data_sets, rtol, atol = case
    try:
        prepared = ReferenceBackend.prepare(model)
        for inputs, outputs in data_sets:
            got = prepared.run([_plain(value) for value in inputs])
            for have, want in zip(got, outputs, strict=True):
                _compare(have, _plain(want), rtol, atol)
    except UnsupportedOperatorError as error:
        return str(error), error.operators
    except (CompileError, AssertionError) as error:
        return f"{type(error).__name__}: {error}", ()
    return "", ()


def _plain(value: Any) -> Any:
    """A value of the suite as an array, a list of them, or None."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None:
        return None
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _compare(have: Any, want: Any, rtol: float, atol: float) -> None:
    if want is None or isinstance(want, list):
        assert (have is None) == (want is None) and (want is None or len(have) == len(want)), (have, want)
        for one, other in zip(have or (), want or (), strict=True):
            _compare(one, other, rtol, atol)
        return
    if want.dtype.kind in "OSU":
        assert have.shape == want.shape and have.tolist() == want.astype(str).tolist(), (have, want)
        return
    assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, have.shape, want.dtype, want.shape)
    if have.dtype.kind in "biu":
        np.testing.assert_array_equal(have, want)
    else:
        wide = np.float64 if have.dtype != np.float64 else have.dtype
        slack = 2.0**-6 if have.dtype.name == "bfloat16" else rtol  # the suite's own tolerance for bfloat16
        np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol=slack, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "simple", "pytorch-operator", "pytorch-converted"])
def test_every_case_agrees_or_is_a_known_gap(kind: str) -> None:
    gaps = known_gaps()
    unknown: list[str] = []
    for case in node_cases() if kind == "node" else stored_cases(kind):
        problem, operators = disagreement(case)
        closed = not problem and case[0] in gaps
        known = case[0] in gaps or (bool(operators) and all(operator in gaps for operator in operators))
        if closed:
            unknown.append(f"{case[0]} agrees: take it out of {GAPS.name}")
        elif problem and not known:
            unknown.append(f"{case[0]}: {problem}")
    assert not unknown, "\n".join(unknown)


def test_gaps_name_operators_without_a_converter_only() -> None:
    load_converters()
    converted = {f"{domain}::{name}" if domain else name for domain, name, _ in registered_operators()}
    listed = [name for name in known_gaps() if not name.startswith("test_")]
    assert not [name for name in listed if name in converted]
