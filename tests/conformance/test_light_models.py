"""The ONNX project's light models: compiled and run through its own backend interface, against its recorded outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper

from frontends.onnx.backend import RelayBackend

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODELS = sorted(LIGHT.glob("light_*.onnx"))
RTOL, ATOL = 1e-3, 1e-7
"""The tolerances that the ONNX project's own runner uses for these models."""


def ramp_inputs(model: onnx.ModelProto) -> list[np.ndarray]:
    """What the runner feeds: 0, 1/n, 2/n, ... in the shape of each input that has no weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    arrays = []
    for value in model.graph.input:
        if value.name not in weights:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            count = int(np.prod(shape))
            arrays.append((np.arange(count).reshape(shape) / count).astype(dtype))
    return arrays


def test_all_light_models_are_here():
    assert len(MODELS) == 9


@pytest.mark.slow
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_recorded_output(path):
    model = onnx.load(path)
    expected = numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))
    outputs = RelayBackend.prepare(model).run(ramp_inputs(model))
    assert len(outputs) == 1 and outputs[0].dtype == expected.dtype
    np.testing.assert_allclose(outputs[0], expected, rtol=RTOL, atol=ATOL)
