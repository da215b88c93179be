"""onnxruntime's sessions and values, by the module that defines them there."""

from relayc.onnxruntime import *  # noqa: F403 - the same names
from relayc.onnxruntime import __all__ as __all__
