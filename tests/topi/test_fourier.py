"""Fourier transforms of many lengths, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.topi.fourier import dft_roots

RANDOM = np.random.default_rng(5)


def transformed(x: np.ndarray, length: int, **form: bool) -> np.ndarray:
    value = relay.var("x", shape=x.shape, dtype=str(x.dtype))
    library = relay.build(relay.Function((value,), relay.op.dft(value, length, **form)), "llvm")
    module = graph_executor.GraphModule(library["default"](device("cpu")))
    module.set_input("x", x)
    module.run()
    y = module.get_output(0).numpy()
    return y[..., 0] + 1j * y[..., 1] if y.shape[-1] == 2 else y[..., 0]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 11, 16, 30, 49, 64, 101, 210, 400, 1024])
@pytest.mark.parametrize("rows", [1, 19])
def test_lengths_with_small_and_large_prime_factors(length, rows):
    x = RANDOM.normal(size=(rows, length, 2)).astype(np.float32)
    exact = np.fft.fft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
    assert np.abs(transformed(x, length) - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("length", [8, 15, 26])
def test_inverse_transform_restores_the_input(length):
    x = RANDOM.normal(size=(5, length, 1))
    spectrum = transformed(x, length, onesided=True)
    assert spectrum.shape == (5, length // 2 + 1)
    assert not spectrum[:, 0].imag.any() and (length % 2 or not spectrum[:, -1].imag.any())
    parts = np.stack([spectrum.real, spectrum.imag], axis=-1)
    np.testing.assert_allclose(transformed(parts, length, inverse=True, onesided=True), x[..., 0], atol=1e-12)


def test_a_constant_signal_has_one_bin():
    y = transformed(np.ones((1, 20, 1), np.float32), 20)
    assert y[0, 0] == 20 and not y[0, 1:].any()


def test_roots_are_exact_on_the_axes():
    roots = dft_roots(12)
    assert (roots[0, [3, 9]] == 0).all() and (roots[1, [0, 6]] == 0).all() and roots[0, 6] == -1
