"""The bytes of an artifact depend on the model, the target and the options, never on the process that compiles it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser

from relayc import relay
from relayc.backend.c import codegen
from relayc.backend.cuda import nvrtc
from relayc.backend.runtime.registry import register_func
from relayc.frontends.onnx import from_onnx

SEEDS = range(8)
_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
MODELS = {
    "sizes": """sizes (float[batch, length, 8] x, float[length, width] y) => (float[a, b, c] z, int64[4] s) {
        t = Transpose<perm=[0, 2, 1]>(x)
        p = MatMul(t, y)
        q = Softmax(p)
        n = Shape(q)
        m = Shape(y)
        joined = Concat<axis=0>(n, m)
        one = Constant<value_ints=[1]>()
        five = Constant<value_ints=[5]>()
        s = Slice(joined, one, five)
        z = Relu(q)
    }""",
    "branch": """branch (bool c, float[rows, columns] x, float[rows, others] y) => (float[r, s] z) {
        z = If (c) <
            then_branch = yes () => (float[r, s] a) { a = Concat<axis=1>(x, y) },
            else_branch = no () => (float[r, s] b) { h = Concat<axis=1>(y, x) b = Exp(h) }
        >
    }""",
    "loop": """loop (int64 n, bool c, float[rows, columns] x, float[rows, others] w) => (float[r, s] z, float[t, u] v) {
        z, v = Loop (n, c, x, w) <
            body = step (int64 i, bool go, float[p, q] a, float[k, l] b) => (bool more, float[p, q2] d, float[k, m] e) {
                more = Identity(go)
                d = Concat<axis=1>(a, b)
                e = Concat<axis=1>(b, a)
            }
        >
    }""",
    "sequence": """sequence (float[rows, columns] x, float[more, columns] y) => (float[r, columns] z, int64[k] found) {
        s = SequenceConstruct(x, y)
        z = ConcatFromSequence<axis=0>(s)
        zero = Constant<value_float=0.0>()
        positive = Greater(z, zero)
        where = NonZero(positive)
        found = ReduceSum<keepdims=0>(where, rows)
        rows = Constant<value_ints=[0]>()
    }""",
    "einsum": """einsum (float[i, j, i, j] x, float[i, k] y) => (float[k, j] z) {
        z = Einsum<equation="ijij,ik->kj">(x, y)
    }""",
}  # fmt: skip


def digest(target: str) -> str:
    """The SHA-256 of all models' artifacts; the source stands for what a C compiler or NVRTC would make of it."""
    codegen.compile_shared_library = lambda source, _target: source.encode()
    nvrtc.nvrtc_version, nvrtc._architectures = lambda: (13, 0), lambda: (90,)
    register_func("cuda.callback_compile", lambda source, _arch: source.encode(), override=True)
    found = hashlib.sha256()
    for text in MODELS.values():
        module, params = from_onnx(parser.parse_model(_HEAD + text))
        found.update(relay.build(module, target, params=params).to_bytes())
    return found.hexdigest()


@pytest.mark.slow
def test_artifacts_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.relay.lowering.test_reproducible import digest\n"
        "print(*[digest(target) for target in ('llvm', 'c', 'cuda')])"
    )
    found: set[str] = set()
    for seed in SEEDS:
        variables = {**os.environ, "PYTHONHASHSEED": str(seed), "RELAYC_CACHE_DIR": "off"}
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], env=variables,
                              check=True, capture_output=True, text=True)  # fmt: skip
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().split()) == 3
