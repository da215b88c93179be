"""Fourier transforms of dynamic length: one model for all lengths, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from relayc.frontends.onnx.backend import RelayBackend

LENGTHS = (1, 2, 3, 8, 31, 441, 3001)


def model_of(parts: int, kind: int, **attrs: int):
    x = helper.make_tensor_value_info("x", kind, ["rows", "length", parts])
    node = helper.make_node("DFT", ["x"], ["y"], axis=1, **attrs)
    graph = helper.make_graph([node], "dft", [x], [ValueInfoProto(name="y")])
    return RelayBackend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))


@pytest.mark.parametrize(
    ("kind", "dtype", "allowed"), [(TensorProto.FLOAT, "float32", 3e-6), (TensorProto.DOUBLE, "float64", 1e-13)]
)
def test_signals_forwards_and_back(kind: int, dtype: str, allowed: float) -> None:
    forwards, back = model_of(2, kind), model_of(2, kind, inverse=1)
    for length in LENGTHS:
        x = np.random.default_rng(length).standard_normal((2, length, 2)).astype(dtype)
        (y,) = forwards.run([x])
        assert y.shape == x.shape and y.dtype == x.dtype
        expected = np.fft.fft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
        assert np.abs(y[..., 0] + 1j * y[..., 1] - expected).max() <= allowed * np.abs(expected).max()
        np.testing.assert_allclose(back.run([y])[0], x, atol=4 * allowed * np.abs(x).max())


def test_half_spectra_of_real_signals() -> None:
    model = model_of(1, TensorProto.FLOAT, onesided=1)
    for length in LENGTHS:
        x = np.random.default_rng(length).standard_normal((3, length, 1)).astype(np.float32)
        (y,) = model.run([x])
        expected = np.fft.rfft(x[..., 0].astype(np.float64), axis=1)
        assert y.shape == (3, length // 2 + 1, 2)
        assert np.abs(y[..., 0] + 1j * y[..., 1] - expected).max() <= 3e-6 * np.abs(expected).max()
