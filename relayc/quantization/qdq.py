"""QDQ models by onnxruntime's quantisation tools, and the error that each layer's quantisation causes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, version_converter

from relayc.frontends.onnx.verify import onnxruntime_faults, unoptimized_session
from relayc.quantization.calibration import Sample, Samples
from relayc.quantization.errors import QuantizationError
from relayc.quantization.metrics import relative_error, squared_error
from relayc.quantization.report import Scope

try:
    _tools: Any = import_module("onnxruntime.quantization")
    _FAULTS = (*onnxruntime_faults(), ValueError, KeyError, AssertionError)
    """What onnxruntime's tools raise for models that they don't quantise."""
except ImportError as missing:
    raise QuantizationError("quantising needs onnxruntime: pip install 'onnxruntime>=1.32'") from missing

__all__ = ["LAYERS", "METHODS", "QDQModels"]

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose nodes are quantised or left in float one by one; operators between them follow."""
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""How ranges are taken from the values of calibration runs: onnxruntime's `CalibrationMethod` by our name."""
_OPSET = 13
"""The first version of ONNX's operators in which weights have a scale per channel."""
_OUTPUT = "_QuantizeLinear_Input"
"""Suffix of the unquantised form of a graph output."""


class _Reader:
    """Samples as a `CalibrationDataReader`, which onnxruntime's tools read."""

    def __init__(self, samples: Samples) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Sample | None:
        """The next sample; None ends the data."""
        return next(self._samples, None)


class QDQModels:
    """The QDQ forms of one model: int8 weights per output channel, uint8 activations, ranges from samples.

    `prepared` is the float model that they come from, with batch normalisations folded and a name for every node.
    Raises QuantizationError where onnxruntime's tools fail.
    """

    def __init__(self, model: ModelProto, samples: Samples, folder: Path, method: str = "minmax") -> None:
        self._samples, self._folder, self._method = samples, folder, getattr(_tools.CalibrationMethod, METHODS[method])
        self.prepared = folder / "prepared.onnx"
        try:
            if max(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")) < _OPSET:
                model = version_converter.convert_version(model, _OPSET)
            source = folder / "source.onnx"
            onnx.save(model, source)
            _tools.quant_pre_process(source, self.prepared, skip_symbolic_shape=True)
        except _FAULTS as error:
            raise QuantizationError(f"onnxruntime can't prepare the model for quantisation: {error}") from error
        prepared = onnx.load(self.prepared)
        _name_nodes(prepared)
        onnx.save(prepared, self.prepared)
        self.layers = {node.name: node.op_type for node in prepared.graph.node if node.op_type in LAYERS}

    def write(self, scope: Scope, excluded: Iterable[str] = ()) -> Path:
        """The QDQ model in which the layers named in `excluded` stay in float. The samples are run the first time.

        `scope` "layers" quantises the inputs of layers with weights and nothing else; "everything" also the operators
        between layers, which is faster for convolutional networks, and wrong by too much for many transformers.
        """
        path = self._folder / "quantized.onnx"
        alone: dict[str, Any] = {
            "op_types_to_quantize": list(LAYERS),
            "extra_options": {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": list(LAYERS)},
        }
        types = _tools.QuantType
        try:
            with redirect_stdout(sys.stderr):  # calibration prints
                _tools.quantize_static(
                    self.prepared, path, _Reader(self._samples), quant_format=_tools.QuantFormat.QDQ, per_channel=True,
                    activation_type=types.QUInt8, weight_type=types.QInt8, nodes_to_exclude=sorted(excluded),
                    calibrate_method=self._method, calibration_cache_path=self._folder / f"{scope}.json",
                    **(alone if scope == "layers" else {}),
                )  # fmt: skip
        except _FAULTS as error:
            raise QuantizationError(f"onnxruntime can't quantise the model: {error}") from error
        return path

    def layer_errors(self, quantized: Path, samples: Samples) -> dict[str, float]:
        """The relative L2 error of each quantised layer's output when its inputs and weights alone are quantised."""
        compared, pairs = _side_by_side(onnx.load(self.prepared), onnx.load(quantized), self.layers)
        path = self._folder / "compared.onnx"
        onnx.save(compared, path)
        session = unoptimized_session(path)
        wanted = [name for pair in pairs.values() for name in pair]
        sums = np.zeros((len(pairs), 2))
        for sample in samples:
            found: Any = session.run(wanted, sample)
            sums += [squared_error(exact, value) for exact, value in zip(found[::2], found[1::2], strict=True)]
        return {name: relative_error(*total) for name, total in zip(pairs, sums, strict=True)}


def _name_nodes(model: ModelProto) -> None:
    """Name what has no name, or another's: layers are excluded by their names."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)


def _side_by_side(
    exact: ModelProto, quantized: ModelProto, layers: Mapping[str, str]
) -> tuple[ModelProto, dict[str, tuple[str, str]]]:
    """The float model with a quantised copy of each layer, which reads the float activations.

    Returns it with the names of the two outputs of each layer, which are outputs of the model.
    """
    producers = {name: node for node in quantized.graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    float_layers = {node.name: node for node in exact.graph.node if node.name in layers}
    pairs: dict[str, tuple[str, str]] = {}
    copies: dict[str, NodeProto] = {}
    weights: dict[str, onnx.TensorProto] = {}
    for layer in quantized.graph.node:
        if layer.name not in float_layers or not _is_quantized(layer, producers):
            continue
        for node in _quantizing(layer, producers):
            reads_float = node.input[0] if node.op_type == "QuantizeLinear" else ""
            copies[node.output[0]] = _renamed(node, reads_float)
            weights |= {name: stored[name] for name in node.input if name in stored and name != reads_float}
        pairs[layer.name] = (float_layers[layer.name].output[0], _ours(layer.output[0]))
        copies[layer.output[0]] = _renamed(layer, *(name for name in layer.input if name not in copies))
    for name, tensor in weights.items():
        exact.graph.initializer.add().CopyFrom(tensor)
        exact.graph.initializer[-1].name = _ours(name)
    exact.graph.node.extend(copies.values())
    present = {value.name for value in exact.graph.output}
    names = [name for pair in pairs.values() for name in pair]
    exact.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in present)
    del exact.opset_import[:]
    exact.opset_import.extend(quantized.opset_import)
    return exact, pairs


def _is_quantized(layer: NodeProto, producers: Mapping[str, NodeProto]) -> bool:
    return any(name in producers and producers[name].op_type == "DequantizeLinear" for name in layer.input)


def _quantizing(layer: NodeProto, producers: Mapping[str, NodeProto]) -> Iterator[NodeProto]:
    """The nodes before a layer that quantise its inputs: DequantizeLinear, and QuantizeLinear before it."""
    for name in layer.input:
        if name in producers and producers[name].op_type == "DequantizeLinear":
            node = producers[name]
            if node.input[0] in producers:
                yield producers[node.input[0]]
            yield node


def _ours(name: str) -> str:
    """The name of a tensor of the quantised model beside those of the float model."""
    return f"quantized/{name}" if name else name


def _renamed(node: NodeProto, *kept: str) -> NodeProto:
    """A copy of a node under names of the quantised model, but for the inputs `kept`, which the float model has."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = _ours(node.name)
    copy.input[:] = [name.removesuffix(_OUTPUT) if name in kept else _ours(name) for name in node.input]
    copy.output[:] = [_ours(name) for name in node.output]
    return copy
