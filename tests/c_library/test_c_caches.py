"""Decoders as C libraries, whose contexts keep the KV caches: the bits of the executor's results, step by step."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayc
from relayc.backend.runtime import CompiledModel, GraphModule
from tests.c_library.library import CError, Context, Library
from tests.c_library.models import Model, floats
from tests.c_library.sanitized import build, run
from tests.frontends.microsoft.test_microsoft_grouped_caches import grouped_model, told

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are made for Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt install gcc"),
]

WIDTH, HEADS, DEPTH = 16, 2, 8
DECODER = Model(
    """decoder (float[batch,new,16] x, float[batch,1,new,total] mask, float[batch,2,past,8] keys,
                float[batch,2,past,8] values)
       => (float[batch,new,16] y, float[batch,2,total,8] all_keys, float[batch,2,total,8] all_values) {
      heads = Constant <value_ints = [0,0,2,8]> ()
      q0 = MatMul (x, wq)   k0 = MatMul (x, wk)   v0 = MatMul (x, wv)
      q1 = Reshape (q0, heads)   k1 = Reshape (k0, heads)   v1 = Reshape (v0, heads)
      q = Transpose <perm = [0,2,1,3]> (q1)
      k2 = Transpose <perm = [0,2,1,3]> (k1)
      v2 = Transpose <perm = [0,2,1,3]> (v1)
      all_keys = Concat <axis = 2> (keys, k2)
      all_values = Concat <axis = 2> (values, v2)
      t = Transpose <perm = [0,1,3,2]> (all_keys)
      s0 = MatMul (q, t)
      s = Add (s0, mask)
      p = Softmax <axis = -1> (s)
      o0 = MatMul (p, all_values)
      o1 = Transpose <perm = [0,2,1,3]> (o0)
      flat = Constant <value_ints = [0,0,16]> ()
      y = Reshape (o1, flat)
    }""",
    lambda rng: [],
    lambda rng: {name: floats(rng, WIDTH, WIDTH, scale=0.2) for name in ("wq", "wk", "wv")},
    {"caches": {"keys": "all_keys", "values": "all_values"}},
)


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return DECODER.compiled()


@pytest.fixture(scope="module")
def library(model: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("caches") / "made"
    model.export_c(folder, "decoder")
    return Library(folder, "decoder")


class Decoder:
    """A context and an executor of the model, which take the same steps."""

    def __init__(self, model: CompiledModel, library: Library) -> None:
        self.executor, self.context = GraphModule.of(model), library.create()
        self._rng = np.random.default_rng(0)

    @property
    def length(self) -> int:
        return length_of(self.context)

    def inputs(self, batch: int, new: int, past: int | None = None) -> dict[str, np.ndarray]:
        total = (self.length if past is None else past) + new
        mask = np.where(self._rng.random((batch, 1, new, total)) < 0.8, 0, -1e9).astype(np.float32)
        return {"x": floats(self._rng, batch, new, WIDTH), "mask": mask}

    def step(self, batch: int, new: int) -> None:
        passed = self.inputs(batch, new)
        (result,) = self.context.run([*passed.values()])
        assert result.tobytes() == self.executor.infer(passed)[0].tobytes()
        assert self.length == self.executor.cache_length

    def truncate(self, length: int) -> None:
        truncate(self.context, length)
        self.executor.truncate_caches(length)


def length_of(context: Context) -> int:
    return context.library.function("cache_length", ctypes.c_int64)(context.handle)


def truncate(context: Context, length: int) -> None:
    context.library.check(context.library.function("truncate_caches")(context.handle, ctypes.c_int64(length)))


def test_steps_have_the_bits_of_the_executor(model: CompiledModel, library: Library) -> None:
    assert [info.name for info in library.inputs] == [b"x", b"mask"] and len(library.outputs) == 1
    decoder = Decoder(model, library)
    for new in (5, 1, 1, 1, 30, 1, 0, 1):
        decoder.step(2, new)
    decoder.truncate(7)
    for new in (1, 2):
        decoder.step(2, new)
    decoder.truncate(0)
    for new in (3, 1):  # another batch
        decoder.step(3, new)


def test_nothing_of_rows_that_were_taken_back_is_read(tmp_path: Path) -> None:
    """Behind the end of a shorter entry of a batch lies what was in memory before: NaN is not masked away."""
    model = relayc.compile_onnx(grouped_model(), "llvm -num-cores=1", caches="auto")
    model.export_c(tmp_path / "made", "grouped")
    context, executor = Library(tmp_path / "made", "grouped").create(), GraphModule.of(model)
    names = list(executor.get_input_info()[0])

    def run(x: np.ndarray, lengths: list[int]) -> np.ndarray:
        passed = {"x": x, **told(lengths, max(lengths))}
        (result,) = context.run([passed[name] for name in names])
        return result

    for new, lengths in ((5, [3, 5]), (1, [4, 6]), (1, [5, 7])):
        kept = length_of(context)
        run(np.full((2, 20, 64), np.nan, np.float32), [kept + 20] * 2)
        truncate(context, kept)
        x = floats(np.random.default_rng(new), 2, new, 64)
        wanted = executor.infer({"x": x, **told(lengths, max(lengths))})[0]
        np.testing.assert_array_equal(run(x, lengths), wanted)


def test_a_clone_begins_without_rows(model: CompiledModel, library: Library) -> None:
    decoder = Decoder(model, library)
    decoder.step(1, 4)
    clone = decoder.context.clone()
    assert (length_of(clone), decoder.length) == (0, 4)
    passed = decoder.inputs(1, 2, past=0)
    (result,) = clone.run([*passed.values()])
    assert result.tobytes() == GraphModule.of(model).infer(passed)[0].tobytes()
    decoder.step(1, 1)


def test_what_does_not_fit_the_caches_is_refused_and_changes_nothing(model: CompiledModel, library: Library) -> None:
    decoder = Decoder(model, library)
    decoder.step(1, 4)
    wrong: list[tuple[Any, str]] = [
        (decoder.inputs(1, 1, past=9), 'input "mask" has the size 10 along axis 3; expected'),
        (decoder.inputs(2, 1), r"rows in a shape \(1, 2, 6, 8\), and the inputs require \(2, 2, 6, 8\); truncate"),
    ]
    for passed, message in wrong:
        with pytest.raises(CError, match=message) as raised:
            decoder.context.run([*passed.values()])
        assert raised.value.code == "SIZE_MISMATCH" and decoder.length == 4
    for length in (-1, 5):
        with pytest.raises(CError, match=rf"caches of 4 rows can't be truncated to {length}"):
            truncate(decoder.context, length)
    decoder.step(1, 1)


def test_shapes_are_told_without_a_context(library: Library) -> None:
    x, mask = np.empty((2, 3, WIDTH), np.float32), np.empty((2, 1, 3, 50), np.float32)
    assert library.output_shapes([x, mask]) == [(2, 3, WIDTH)]


STEPS = r"""
#include <stdio.h>
#include "net.h"

static int step(net_context *context, int64_t batch, int64_t rows) {
  static float x[64 * 16], mask[64 * 64];
  int64_t total = net_cache_length(context) + rows;
  net_tensor inputs[] = {
      {.data = x, .nbytes = sizeof(float) * batch * rows * 16, .shape = {batch, rows, 16}},
      {.data = mask, .nbytes = sizeof(float) * batch * rows * total, .shape = {batch, 1, rows, total}}};
  net_tensor outputs[NET_OUTPUT_COUNT] = {{0}};
  return net_run(context, inputs, outputs);
}

int main(void) {
  net_context *context, *clone;
  int status = net_create(NULL, &context);
  for (int k = 0; status == NET_OK && k < 20; ++k) status = step(context, 1, 1 + k % 3);
  if (status == NET_OK) status = net_clone(context, &clone);
  if (status == NET_OK) status = step(clone, 2, 3);
  if (step(context, 2, 1) != NET_SIZE_MISMATCH || net_truncate_caches(context, 99) != NET_INVALID_ARGUMENT) return 99;
  if (status == NET_OK) status = net_truncate_caches(context, 0);
  if (status == NET_OK) status = step(context, 3, 2);
  printf("%lld rows, %lld in the clone\n", (long long)net_cache_length(context), (long long)net_cache_length(clone));
  net_destroy(context);
  net_destroy(clone);
  return status;
}
"""


@pytest.mark.slow
def test_sanitizers_find_nothing_in_steps(model: CompiledModel, tmp_path: Path) -> None:
    build(model, tmp_path, STEPS)
    assert run(["./program"], tmp_path) == "2 rows, 3 in the clone\n"
