"""Static int8 quantisation of ONNX models (QDQ, per channel), layer by layer only where it pays.

    from relayc.quantization import quantize
    report = quantize("model.onnx", "calibration.npz", "model_int8.onnx", max_error=0.05)

onnxruntime's quantisation tools make the models (`pip install 'relayc[quantize]'`); relayc compiles, compares and
times them. A layer keeps its int8 form where it is measured to be faster than in float and the outputs of the whole
model stay within the tolerance.
"""

from relayc.quantization.calibration import Samples, read_samples
from relayc.quantization.errors import QuantizationError
from relayc.quantization.report import LayerReport, QuantizationReport
from relayc.quantization.search import quantize

__all__ = ["LayerReport", "QuantizationError", "QuantizationReport", "Samples", "quantize", "read_samples"]
