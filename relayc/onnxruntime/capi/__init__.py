"""Modules of onnxruntime's extension that programs import exceptions and classes from."""

from relayc.onnxruntime.capi import (
    _pybind_state as _pybind_state,
    onnxruntime_inference_collection as onnxruntime_inference_collection,
    onnxruntime_pybind11_state as onnxruntime_pybind11_state,
)
