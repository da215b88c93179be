"""onnxruntime's exceptions and classes, by the module that re-exports them there."""

from relayc.onnxruntime import *  # noqa: F403 - the same names
from relayc.onnxruntime import __all__ as __all__
