"""Models as C libraries: the bits of the executor's results, for static and dynamic shapes."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from relayc.backend.runtime import CompiledModel, device, graph_executor
from tests.c_library.library import CError, Context, Library, unaligned
from tests.c_library.models import MODELS, Model, floats

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are made for Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt install gcc"),
]


@dataclass(frozen=True)
class Exported:
    """A model and its library."""

    model: CompiledModel
    folder: Path
    library: Library


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function that gives a model of `MODELS` by name, and its library, which is made once."""
    made: dict[str, Exported] = {}

    def find(title: str) -> Exported:
        if title not in made:
            folder = tmp_path_factory.mktemp("library") / "made"
            model = MODELS[title].compiled()
            model.export_c(folder, "net")
            made[title] = Exported(model, folder, Library(folder, "net"))
        return made[title]

    return find


def inputs_of(title: str) -> list[dict[str, np.ndarray]]:
    return [dict(passed) for passed in MODELS[title].inputs(np.random.default_rng(0))]


def in_order(library: Library, passed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.ascontiguousarray(passed[info.name.decode()]).reshape(np.shape(passed[info.name.decode()]))
            for info in library.inputs]  # fmt: skip


def check_same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [(a.shape, a.dtype) for a in actual] == [(e.shape, e.dtype) for e in expected]
    assert [a.tobytes() for a in actual] == [np.asarray(e).tobytes() for e in expected]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("title", MODELS)
def test_results_have_the_bits_of_the_executor(exported, title, threads):
    one = exported(title)
    executor = graph_executor.GraphModule(one.model["default"](device("cpu", 0)), num_threads=threads)
    context = one.library.create()
    context.set_num_threads(threads)
    for passed in inputs_of(title):
        expected = [np.array(value) for value in executor.infer(passed)]
        inputs = in_order(one.library, passed)
        check_same(context.run(inputs), expected)
        check_same(context.run([unaligned(value) for value in inputs]), expected)
        check_same(context.run(inputs, [unaligned(np.empty_like(e)) for e in expected]), expected)
        for shape, value in zip(one.library.output_shapes(inputs), expected, strict=True):
            assert all(n in (-1, size) for n, size in zip(shape, value.shape, strict=True))


@pytest.mark.parametrize("title", ["convolutions", "attention of any length"])
def test_contexts_run_at_the_same_time(exported, title):
    one = exported(title)
    passed = in_order(one.library, inputs_of(title)[0])
    first = one.library.create()
    expected, results = first.run(passed), dict[int, list[list[np.ndarray]]]()
    contexts = [first, first.clone(), first.clone()]

    def work(number: int, context: Context) -> None:
        results[number] = [context.run(passed) for _ in range(20)]

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(contexts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in [r for found in results.values() for r in found]:
        check_same(result, expected)
    assert len(results) == 3


def test_a_forked_process_runs_the_model(exported):
    """The threads of the pool do not survive a fork: the child starts its own."""
    one = exported("convolutions")
    passed = in_order(one.library, inputs_of("convolutions")[0])
    context = one.library.create()
    context.set_num_threads(2)
    expected = context.run(passed)
    child = os.fork()
    if child == 0:
        os._exit(0 if context.run(passed)[0].tobytes() == expected[0].tobytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- errors of calls


def failing(code: str, text: str):
    return pytest.raises(CError, match=f"^{code}: .*{text}")


def test_null_pointers_are_errors(exported):
    library = exported("convolutions").library
    context = library.create()
    run, create = library.function("run"), library.function("create")
    x = np.zeros((1, 3, 32, 32), np.float32)
    inputs, outputs = library.tensors([x]), (library.Tensor * 1)()
    for call in (
        lambda: run(None, inputs, outputs),
        lambda: run(context.handle, None, outputs),
        lambda: run(context.handle, inputs, None),
        lambda: create(None, None),
        lambda: library.function("clone")(None, None),
        lambda: library.function("set_num_threads")(None, 1),
        lambda: library.function("output_shapes")(None, outputs),
    ):
        with failing("INVALID_ARGUMENT", "NULL"):
            library.check(call())
    inputs[0].data = None
    with failing("INVALID_ARGUMENT", 'input "image" has no data'):
        library.check(run(context.handle, inputs, outputs))
    library.function("destroy")(None)
    assert not library.function("input_info", ctypes.c_void_p)(1)
    assert not library.function("output_info", ctypes.c_void_p)(-1)


def test_wrong_sizes_are_errors(exported):
    one = exported("attention of any length")
    context = one.library.create()
    x, mask = floats(np.random.default_rng(0), 2, 5, 32), np.ones((2, 1, 1, 5), np.bool_)
    context.run([x, mask])
    with failing("SIZE_MISMATCH", r"axis 0; expected batch, which is 2"):
        context.run([x, mask[:1]])
    with failing("SIZE_MISMATCH", r'input "x" has the shape \(2, 5, 31\); expected \(-1, -1, 32\)'):
        context.run([np.ascontiguousarray(x[:, :, 1:]), mask])
    inputs = one.library.tensors([x, mask])
    inputs[0].shape[0] = -1
    with failing("SIZE_MISMATCH", r"\(-1, 5, 32\)"):
        one.library.check(one.library.function("run")(context.handle, inputs, (one.library.Tensor * 1)()))
    inputs[0].shape[:2] = 2**40, 2**40
    with failing("SIZE_MISMATCH", ""):
        one.library.check(one.library.function("run")(context.handle, inputs, (one.library.Tensor * 1)()))
    inputs = one.library.tensors([x, mask])
    inputs[0].nbytes -= 4
    with failing("INVALID_ARGUMENT", 'input "x" has 1276 bytes; expected 1280 for float32'):
        one.library.check(one.library.function("run")(context.handle, inputs, (one.library.Tensor * 1)()))
    with failing("INVALID_ARGUMENT", "-1 threads"):
        context.set_num_threads(-1)
    check_same(context.run([x, mask]), context.clone().run([x, mask]))  # nothing is broken


def test_results_of_several_sizes_are_not_stacked(tmp_path):
    text = (
        "g (int64 n, bool[4] keep, float[4] x) => (float[k,m] y) { yes = Constant <value = bool {1}> () "
        "last, y = Loop (n, yes, keep) <body = b (int64 i, bool go, bool[4] p) => (bool e, bool[4] q, float[l] v) { "
        "e = Identity (go) q = Not (p) v = Compress <axis = 0> (x, p) }> }"
    )
    model = Model(text, lambda rng: [])
    model.compiled().export_c(tmp_path / "made", "net")
    context, x = Library(tmp_path / "made", "net").create(), np.arange(4, dtype=np.float32)
    keep = np.array([True, False, False, False])
    with failing("SIZE_MISMATCH", "iterations give values of sizes 1 and 3 along axis 0 to be stacked"):
        context.run([np.array(2), keep, x])
    check_same(context.run([np.array(1), keep, x]), [x[:1].reshape(1, 1)])


def test_memory_of_outputs_is_checked(exported):
    one = exported("attention of any length")
    context = one.library.create()
    x, mask = floats(np.random.default_rng(0), 1, 4, 32), np.ones((1, 1, 1, 4), np.bool_)
    outputs = one.library.tensors([np.empty((1, 3, 32), np.float32)])
    with failing("BUFFER_TOO_SMALL", 'output "y" has memory for 384 bytes; expected 512'):
        one.library.check(one.library.function("run")(context.handle, one.library.tensors([x, mask]), outputs))
    assert tuple(outputs[0].shape[:3]) == (1, 4, 32)
    with failing("INVALID_ARGUMENT", 'output "y" overlaps that of input "x"'):
        context.run([x, mask], [x])


def test_outputs_in_memory_of_the_context_may_be_passed_again(exported):
    one = exported("attention of any length")
    context, run = one.library.create(), one.library.function("run")
    outputs = (one.library.Tensor * 1)()
    for passed in inputs_of("attention of any length"):
        inputs = in_order(one.library, passed)
        one.library.check(run(context.handle, one.library.tensors(inputs), outputs))
        assert outputs[0].nbytes == inputs[0].nbytes


def test_one_context_is_not_for_two_threads_at_once(exported):
    one = exported("loop")
    context = one.library.create()
    passed = [np.int64(300_000), floats(np.random.default_rng(0), 4, 4)]
    passed = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in passed]
    seen: list[str] = []

    def work() -> None:
        try:
            context.run(passed)
        except CError as error:
            seen.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["BUSY"]


def test_a_run_without_memory_is_an_error_and_the_next_one_works(exported):
    one = exported("attention of any length")
    context = one.library.create()
    rng = np.random.default_rng(0)
    small = [floats(rng, 1, 4, 32), np.ones((1, 1, 1, 4), np.bool_)]
    large = [floats(rng, 64, 4096, 32), np.ones((64, 1, 1, 4096), np.bool_)]
    expected = context.run(small)
    child = os.fork()
    if child == 0:  # with a limit of its own
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), -1))
        status = 1
        try:
            context.run(large)
        except CError as error:
            again = context.run(small)[0].tobytes() == expected[0].tobytes()
            status = 0 if error.code == "OUT_OF_MEMORY" and "bytes" in str(error) and again else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
