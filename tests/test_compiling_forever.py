"""A process that compiles, runs and drops models for as long as it lives does not grow."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx.parser
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.resident_memory import allocated_bytes

_PLAIN = """<ir_version: 10, opset_import: ["": 21]>
plain (float[4, 6] x) => (float[4, 3] y) <float[6, 3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}> {
    p = MatMul (x, w)  s = Softmax (p)  y = Tanh (s)
}"""
_OPEN = """<ir_version: 10, opset_import: ["": 21]>
open (float[batch, length] x) => (y, n) <int64 axis = {0}> {
    r = Relu (x)  j = Concat <axis = 1> (r, x)  t = Transpose (j)  s = Softmax <axis = 0> (t)  c = CumSum (s, axis)
    y = Concat <axis = 0> (c, t)  n = Shape (y)
}"""
_BRANCH = """<ir_version: 10, opset_import: ["": 21]>
branch (bool[] c, float[batch, 4] x) => (y) {
    h = Exp (x)
    z = If (c) <
        then_branch = yes () => (a) { a = Neg (h) },
        else_branch = no () => (b) { b = Sin (h) }
    >
    y = NonZero (z)
}"""
_WINDOWS, _ROUNDS = 3, 2
_PER_MODEL = 3000
"""Bytes. Some stay in caches of Python's that come to an end: names of methods called from C, for one."""


def _rounds(count: int) -> None:
    for size in range(2, 2 + count):
        x = np.ones((4, 6), np.float32)
        RelayBackend.prepare(onnx.parser.parse_model(_PLAIN)).run([x])
        RelayBackend.prepare(onnx.parser.parse_model(_OPEN)).run([x[:size]])
        RelayBackend.prepare(onnx.parser.parse_model(_BRANCH)).run([np.array(size % 2 == 0), x[:, :4]])


def _main() -> None:
    """Print the least growth of some windows: a leak is in every one of them.

    What is made once and kept is in one: the first time that two threads compile at the same moment, say, there is a
    second pipeline of LLVM's (0.8 MB), and when that is, the scheduler of the system decides.
    """
    _rounds(2)
    told = [allocated_bytes() or 0]
    for _ in range(_WINDOWS):
        _rounds(_ROUNDS)
        told.append(allocated_bytes() or 0)
    print(min(after - before for before, after in pairwise(told)) // (3 * _ROUNDS))


def test_memory_of_models_compiled_and_dropped() -> None:
    if allocated_bytes() is None:
        pytest.skip("this system does not tell how much memory is allocated")
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "RELAYC_CACHE_DIR": "off"}
    command = [sys.executable, "-m", "tests.test_compiling_forever"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert int(told) < _PER_MODEL


if __name__ == "__main__":
    _main()
