"""`from_torch` and `compile_torch`: modules of PyTorch as models."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from relayc import compile_onnx
from relayc.frontends.onnx import from_onnx
from relayc.relay import Params
from relayc.runtime import CompiledModel
from relayc.te.ir import IRModule
from relayc.torch.exporting import OPSET, exported_quietly

__all__ = ["compile_torch", "export_torch", "from_torch"]
