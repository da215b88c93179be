"""Helper functions that are compositions of operators, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.errors import TypeInferenceError

Array = np.ndarray


def evaluate(build: object, *arrays: Array) -> Array:
    params = [relay.var(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(arrays)]
    assert callable(build)
    function = relay.Function(tuple(params), build(*params))
    module = relay.IRModule({"main": function})
    return np.asarray(relay.create_executor("debug", module).evaluate()(*arrays))


def ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    x = ramp(2, 8, 2, 3)
    y = evaluate(lambda v: relay.nn.depth_to_space(v, 2, mode), x)
    for n, c, h, w in np.ndindex(*y.shape):
        place = (h % 2) * 2 + w % 2
        channel = place * 2 + c if mode == "DCR" else c * 4 + place
        assert y[n, c, h, w] == x[n, channel, h // 2, w // 2]


def test_space_to_depth_is_its_inverse() -> None:
    x = ramp(2, 3, 4, 6)
    y = evaluate(lambda v: relay.nn.depth_to_space(relay.nn.space_to_depth(v, 2), 2), x)
    np.testing.assert_array_equal(y, x)


def test_channels_that_do_not_divide() -> None:
    with pytest.raises(TypeInferenceError, match="6 channels, block_size 2, mode 'DCR'; expected channels that"):
        relay.nn.depth_to_space(relay.var("x", (1, 6, 2, 2)), 2)
    with pytest.raises(TypeInferenceError, match="an image of 3 x 4 does not divide into blocks of 2"):
        relay.nn.space_to_depth(relay.var("x", (1, 1, 3, 4)), 2)


def test_variance() -> None:
    x = ramp(3, 4) ** 2
    np.testing.assert_allclose(evaluate(lambda v: relay.op.variance(v, 1), x), x.var(1), rtol=1e-5)


def test_python_numbers_take_the_other_side_s_type() -> None:
    x = ramp(2, 2)
    np.testing.assert_allclose(evaluate(lambda v: 1 - v * 2 / (v + 1.0), x), 1 - x * 2 / (x + 1), rtol=1e-6)
    assert (relay.var("x", (2,), "int64") + 1).dtype == "int64"


def test_pack_recurrence() -> None:
    weight = ramp(2, 2 * 5, 5)
    packed = evaluate(lambda v: relay.nn.pack_recurrence(v, 2), weight)
    assert packed.shape == (2, 1, 2, 5, 8)
    for d, gate, k, unit in np.ndindex(2, 2, 5, 8):
        assert packed[d, 0, gate, k, unit] == (weight[d, gate * 5 + unit, k] if unit < 5 else 0)


def test_strided_slices_and_splits_take_python_s_arguments() -> None:
    x = ramp(4, 6)
    sliced = evaluate(lambda v: relay.strided_slice(v, (1, 4), (4, 0), (2, -2)), x)
    np.testing.assert_array_equal(sliced, x[1:4:2, 4:0:-2])
    np.testing.assert_array_equal(evaluate(lambda v: relay.split(v, (2, 5), 1)[1], x), x[:, 2:5])
    np.testing.assert_array_equal(evaluate(lambda v: relay.reshape(v, (0, -1, 2)), x), x.reshape(4, 3, 2))
