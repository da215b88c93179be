"""Modules of onnxruntime's extension that programs import exceptions and classes from."""
