"""One node as a model: compiled, run, and compared with numpy and, where it is installed, with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

__all__ = ["check", "node_model", "rejected"]

Array = np.ndarray[Any, Any]


def node_model(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: int | Sequence[bool] = 1,
    weights: Sequence[int] = (),
    domain: str = "com.microsoft",
    dims: dict[int, Sequence[str | int]] | None = None,
    version: int = 17,
    **attrs: Any,
) -> tuple[ModelProto, dict[str, Array]]:
    """A model of one node and its inputs by name. `weights` are positions of inputs that become initializers; `dims`
    gives other shapes to declare; an output that is False is left out."""
    wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" if used else "" for i, used in enumerate(wanted)]
    node = helper.make_node(op_type, names, results, name="it", domain=domain, **attrs)
    passed = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in weights}
    shapes = {f"x{i}": shape for i, shape in (dims or {}).items()}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shapes.get(name, x.shape))
        for name, x in passed.items()
    ]
    constants = [numpy_helper.from_array(x, f"x{i}") for i in weights if (x := inputs[i]) is not None]
    declared = [helper.make_empty_tensor_value_info(name) for name in results if name]
    graph = helper.make_graph([node], "test", values, declared, constants)
    imports = [helper.make_opsetid("", version)]
    if domain:
        imports.append(helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=8), passed


def check(
    op_type: str,
    inputs: Sequence[Array | None],
    expected: Sequence[Array] | Array,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    peer: bool = True,
    **kwargs: Any,
) -> list[Array]:
    """The node's outputs, compiled, must be those `expected`, and with `peer` those of onnxruntime, too."""
    model, passed = node_model(op_type, inputs, **kwargs)
    results = [np.asarray(y) for y in RelayBackend.prepare(model).run(passed)]
    _compare(results, [expected] if isinstance(expected, np.ndarray) else expected, rtol, atol, "numpy")
    if peer and onnxruntime is not None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        _compare(results, session.run(None, passed), rtol, atol, "onnxruntime")
    return results


def rejected(op_type: str, inputs: Sequence[Array | None], text: str, **kwargs: Any) -> None:
    """The import must fail, in an error that names node, operator and shapes and matches the expression `text`."""
    with pytest.raises(OnnxImportError, match=f"(?s)node 'it' .*{op_type}.*{text}") as caught:
        from_onnx(node_model(op_type, inputs, **kwargs)[0])
    assert "inputs: " in str(caught.value)


def _compare(results: Sequence[Array], expected: Sequence[Array], rtol: float, atol: float, whose: str) -> None:
    for number, (have, want) in enumerate(zip(results, expected, strict=True)):
        what = f"output {number} against {whose}"
        assert (have.dtype, have.shape) == (want.dtype, want.shape), what
        np.testing.assert_allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=what
        )
