"""onnxruntime's exceptions and classes, by the module that re-exports them there."""

from relayc.onnxruntime import *
from relayc.onnxruntime import __all__ as __all__
