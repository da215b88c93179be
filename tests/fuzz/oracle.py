"""Expected results of random graphs: by onnxruntime if it is installed, supports the operator and is correct; else by
the operators' numpy references.

onnxruntime runs a graph that it supports as a whole, without graph optimisations. Others are evaluated node by node,
each by a suitable oracle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from relayc.backend.runtime.errors import RelaycError
from relayc.te.errors import CompileError
from tests.fuzz.builder import NEWEST, Sample
from tests.fuzz.names import reads
from tests.fuzz.schemas import NARROW, as_dtype, kind_of
from tests.reference_backend import ReferenceBackend

__all__ = [
    "InvalidModel", "evaluate", "expected_outputs", "onnx_outputs", "onnxruntime_outputs", "reference_outputs",
    "unit_noise",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Noise = Callable[[Array], Array]

_FOREIGN = frozenset(("bfloat16", *NARROW))
"""Types that onnxruntime's Python interface does not take as arrays."""

_WRONG_IN_ONNXRUNTIME: dict[str, Callable[[dict[str, Any]], bool]] = {
    # float64 has only float32's digits
    "Shrink": lambda attributes: True,
    "DFT": lambda attributes: True,
    # exp(x) - 1 near 0, where that has lost its digits
    "Celu": lambda attributes: True,
    "Elu": lambda attributes: True,
    "Selu": lambda attributes: True,
    # a NaN is a result or not, depending on where it stands
    "ReduceMax": lambda attributes: True,
    "ReduceMin": lambda attributes: True,
    # of no elements: no element, or an axis too many
    "ReduceProd": lambda attributes: True,
    "ReduceLogSum": lambda attributes: True,
    "ReduceLogSumExp": lambda attributes: True,
    # an empty string has no parts, where ONNX's own implementation finds one, which is empty
    "StringSplit": lambda attributes: bool(attributes.get("delimiter")),
}
"""Operators, and predicates on their attributes, for which onnxruntime is wrong."""

_WRONG_OF_NOTHING = frozenset(("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"))
"""Reductions over two empty axes, whose result is empty in onnxruntime instead of one zero; empty means are 0."""


class InvalidModel(Exception):
    """No oracle accepts the model: it is invalid at these sizes."""


def expected_outputs(sample: Sample, inputs: Arrays) -> list[Array]:
    """The outputs of a sample. Raises `InvalidModel`."""
    whole = not sample.modern and _FOREIGN.isdisjoint(sample.dtypes.values())
    if whole and not any(_distrusted(node) or node.op_type in _WRONG_OF_NOTHING for node in sample.model.graph.node):
        outputs = onnxruntime_outputs(sample.model, inputs)
        if outputs is not None:
            return outputs
    values = evaluate(sample, inputs)
    return [values[v.name] for v in sample.outputs]


def evaluate(sample: Sample, inputs: Arrays, noise: Noise = lambda array: array) -> dict[str, Any]:
    """Every tensor by name (a sequence is a list), node by node. `noise` is laid over each floating-point tensor."""
    graph = sample.model.graph
    values: dict[str, Any] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    values.update({name: noise(array) for name, array in inputs.items()})
    for node in graph.node:
        passed = {name: values[name] for name in reads(node)}
        opsets, nodes = list(sample.model.opset_import), [node]
        if node.name in sample.modern:
            opsets, nodes = [helper.make_opsetid("", NEWEST)], sample.modern[node.name]
        names = [name for name in node.output if name]
        model = _small_model(nodes, opsets, passed, names, {t.name for t in graph.initializer})
        known = {t.name for t in model.graph.initializer}
        native = _FOREIGN.isdisjoint([sample.dtypes.get(name, "") for name in (*passed, *names)])
        outputs = None
        of_nothing = node.op_type in _WRONG_OF_NOTHING and not all(np.size(x) for x in passed.values())
        if native and not of_nothing and not _distrusted(node):
            outputs = onnxruntime_outputs(model, {name: x for name, x in passed.items() if name not in known})
        if outputs is None:
            outputs = reference_outputs(model, {name: x for name, x in passed.items() if name not in known})
        values.update({name: _noisy(value, noise) for name, value in zip(names, outputs, strict=True)})
    return values


def _noisy(value: Any, noise: Noise) -> Any:
    return [noise(item) for item in value] if isinstance(value, list) else noise(np.asarray(value))


def _distrusted(node: NodeProto) -> bool:
    wrong = _WRONG_IN_ONNXRUNTIME.get(node.op_type)
    return wrong is not None and wrong({a.name: helper.get_attribute_value(a) for a in node.attribute})


def _small_model(
    nodes: Sequence[NodeProto], opsets: Sequence[OperatorSetIdProto], passed: Mapping[str, Any], names: Sequence[str],
    constants: Collection[str],
) -> ModelProto:  # fmt: skip
    """A model of the nodes; of what they are given, integers that were constants are so here, too."""
    known = [numpy_helper.from_array(x, n) for n, x in passed.items() if n in constants and x.dtype == np.int64]
    inputs = [_info(n, v) for n, v in passed.items() if n not in {t.name for t in known}]
    graph = helper.make_graph(
        list(nodes), "node", inputs, [ValueInfoProto(name=name) for name in names], known
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _info(name: str, value: Any) -> ValueInfoProto:
    if isinstance(value, list):
        kind = kind_of(value[0].dtype.name) if value else kind_of("float32")
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, kind_of(value.dtype.name), value.shape)


def onnxruntime_outputs(model: ModelProto, inputs: Arrays) -> list[Any] | None:
    """Outputs by onnxruntime; None where it is not installed or does not take the model."""
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, dict(inputs))
    except Exception:  # noqa: BLE001 - its errors have no common class; another oracle is asked then
        return None


def onnx_outputs(model: ModelProto, inputs: Arrays) -> list[Any] | None:
    """Outputs by onnx's own reference implementation; None where that does not take the model or its inputs."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return list(ReferenceEvaluator(model).run(None, dict(inputs)))
        except Exception:  # noqa: BLE001 - its errors have no common class
            return None


def reference_outputs(model: ModelProto, inputs: Arrays) -> list[Any]:
    """Outputs by the operators' numpy references. Raises `InvalidModel`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(ReferenceBackend.prepare(model).run(dict(inputs)))
        except (CompileError, RelaycError, ValueError, IndexError) as error:
            raise InvalidModel(str(error)) from error


def unit_noise(seed: int) -> Noise:
    """Rounding errors: each element is moved by up to a unit in the last place of the tensor's largest.

    A small element may be what is left of terms that cancelled, as at the ends of a window.
    """
    numbers = np.random.default_rng(seed)

    def noise(array: Array) -> Array:
        if array.dtype.kind not in "fV" or array.dtype.itemsize < 2:
            return array
        step = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[array.dtype.name]
        wide = array.astype(np.float64)
        largest = np.abs(wide, where=np.isfinite(wide), out=np.zeros_like(wide)).max(initial=0.0)
        return (wide + step * largest * numbers.uniform(-1.0, 1.0, array.shape)).astype(as_dtype(array.dtype.name))

    return noise
