"""The ONNX project's light models with random weights, compiled and run, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.conformance.light import LIGHT_MODELS, light_model, random_input, recorded_outputs, with_random_weights

RTOL, ATOL = 1e-3, 1e-7
"""The tolerances of the ONNX project's own runner, for probabilities."""
LOGITS = 1e-4
"""Tolerance of logits, relative to the largest of them."""


def test_all_light_models_are_here():
    assert len(LIGHT_MODELS) == 9


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_random_weights(name):
    model = with_random_weights(light_model(name))
    outputs = RelayBackend.prepare(model).run([random_input(model)])
    expected = recorded_outputs(name)
    assert len(outputs) == len(expected) > 0
    for number, (have, want) in enumerate(zip(outputs, expected, strict=True)):
        are_logits = number == len(expected) - 1
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=RTOL, atol=LOGITS * np.abs(want).max() if are_logits else ATOL)
        assert np.ptp(want) > 1e-3 * np.abs(want).max()
