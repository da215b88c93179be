"""Programs in C and C++ that use the library of a model, and the folder that an export writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, save
from typer.testing import CliRunner

from relayc import relay
from relayc.backend.runtime import ArgumentError, ModuleError, load_model
from relayc.cli.main import app
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from tests.c_library.library import CError, Library
from tests.c_library.models import MODELS, TARGET, Model, floats
from tests.c_library.sanitized import build, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are made for Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler: apt install gcc"),
]
CHECKED = [title for title in MODELS if title not in ("convolutions", "int8", "recurrence", "types of two bytes")]
"""Models whose code around the kernels does something that the others' does not."""
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}: apt install {program}")


@pytest.fixture(scope="module")
def static(tmp_path_factory) -> Path:
    """The folder of a library of static shapes."""
    folder = tmp_path_factory.mktemp("static") / "net"
    MODELS["convolutions"].compiled().export_c(folder, "net")
    return folder


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory) -> Path:
    """The folder of a library of dynamic shapes, with its weights in a file."""
    folder = tmp_path_factory.mktemp("dynamic") / "block"
    MODELS["attention of any length"].compiled().export_c(folder, "block", weights="file")
    return folder


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=needs("clang"))])
def test_the_example_runs_with_either_library(compiler, static, dynamic, tmp_path):
    for folder, name, size, printed in (
        (static, "net", "1", "scores: float32[1, 10], 40 bytes"),
        (dynamic, "block", "5", "y: float32[5, 5, 32], 3200 bytes"),
    ):
        for library in (f"lib{name}.so", f"lib{name}.a"):
            program = tmp_path / f"{library}.program"
            run([compiler, "-std=c11", *STRICT, "main.c", library, "-Wl,-rpath,.", "-lm", "-pthread", "-o", program],
                folder)  # fmt: skip
            assert run([program, size], folder).strip() == printed


def write_inputs(title: str, folder: Path) -> list[str]:
    """Arguments of the example: files of the inputs where all dynamic dimensions are 3, integers too."""
    graph, rng = MODELS[title].onnx().graph, np.random.default_rng(0)
    for position, value in enumerate(graph.input):
        shape = [d.dim_value if d.HasField("dim_value") else 3 for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        is_whole = np.issubdtype(dtype, np.integer)
        values = np.full(shape, 3, dtype) if is_whole else rng.standard_normal(shape).astype(dtype)
        (folder / f"input{position}").write_bytes(values.tobytes())
    return ["3", *[f"input{position}" for position in range(len(graph.input))]]


def test_the_example_fails_for_files_that_are_no_input(tmp_path):
    title = CHECKED[0]
    MODELS[title].compiled().export_c(tmp_path / "made", "net")
    run(["gcc", "main.c", "libnet.a", "-lm", "-pthread", "-o", "program"], tmp_path / "made")
    size, *inputs = write_inputs(title, tmp_path / "made")
    assert "bytes" in run(["./program", size, *inputs], tmp_path / "made")
    (tmp_path / "made/short").write_bytes(b"1")
    for file, message in (("absent", "absent: No such file"), (".", "Is a directory"), ("short", "short: 1 bytes")):
        command = ["./program", size, file]
        done = subprocess.run(command, cwd=tmp_path / "made", capture_output=True, text=True, check=False)
        assert done.returncode == 1 and message in done.stderr, done


@needs("valgrind")
@pytest.mark.slow
@pytest.mark.parametrize("title", CHECKED)
def test_valgrind_finds_nothing(title, tmp_path):
    MODELS[title].compiled().export_c(tmp_path / "made", "net")
    run(["gcc", "-g", "main.c", "libnet.so", "-Wl,-rpath,.", "-o", "program"], tmp_path / "made")
    leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]  # workers stay
    command = ["valgrind", "-q", "--error-exitcode=9", *leaks, "./program", *write_inputs(title, tmp_path / "made")]
    assert "bytes" in run(command, tmp_path / "made")


@pytest.mark.slow
@pytest.mark.parametrize("title", CHECKED)
def test_sanitizers_find_nothing(title, tmp_path):
    """The code around the kernels, with checks of its memory and of undefined behaviour."""
    build(MODELS[title].compiled(), tmp_path)
    assert "bytes" in run(["./program", *write_inputs(title, tmp_path)], tmp_path)


def test_only_the_functions_of_the_header_are_visible(static):
    names = {f"net_{name}" for name in ("clone", "create", "destroy", "input_info", "last_error", "output_info",
                                        "output_shapes", "run", "set_num_threads", "status_text")}  # fmt: skip
    shared = run(["nm", "-D", "--defined-only", "libnet.so"], static)
    archive = run(["nm", "-g", "--defined-only", "libnet.a"], static)
    assert set(re.findall(r" [A-Z] (\w+)$", shared, re.M)) == names
    assert set(re.findall(r" [A-Z] (\w+)$", archive, re.M)) == names


def test_the_library_needs_nothing_but_the_c_library(static, dynamic):
    for path in (static / "libnet.so", dynamic / "libblock.so"):
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", path], path.parent)))
        assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_two_models_fit_one_static_program(static, dynamic, tmp_path):
    (tmp_path / "two.c").write_text(
        '#include "net.h"\n#include "block.h"\nint main(void) {\n  net_context *a; block_context *b;\n'
        "  int status = net_create(0, &a) || block_create(BLOCK_WEIGHTS, &b);\n"
        "  if (!status) { net_destroy(a); block_destroy(b); }\n  return status;\n}\n"
    )
    weights = f'-DBLOCK_WEIGHTS="{dynamic}/block.weights"'
    run(["gcc", *STRICT, weights, f"-I{static}", f"-I{dynamic}", "two.c", static / "libnet.a", dynamic / "libblock.a",
         "-lm", "-pthread", "-o", "two"], tmp_path)  # fmt: skip
    run([tmp_path / "two"], tmp_path)


@needs("g++")
def test_the_header_is_one_for_cpp_too(static, tmp_path):
    (tmp_path / "use.cpp").write_text(
        '#include "net.h"\nint main() {\n  net_context* context = nullptr;\n'
        "  if (net_create(nullptr, &context) != NET_OK) return 1;\n  float y[10];\n"
        "  net_tensor out[NET_OUTPUT_COUNT] = {};\n  out[NET_OUTPUT_SCORES].data = y;\n"
        "  out[NET_OUTPUT_SCORES].nbytes = sizeof y;\n"
        "  int status = net_run(context, nullptr, out);\n  net_destroy(context);\n"
        "  return status == NET_INVALID_ARGUMENT ? 0 : 1;\n}\n"
    )
    run(["g++", "-std=c++17", *STRICT, f"-I{static}", "use.cpp", static / "libnet.so", f"-Wl,-rpath,{static}", "-o",
         "use"], tmp_path)  # fmt: skip
    run([tmp_path / "use"], tmp_path)


@needs("cmake")
def test_cmake_builds_the_example_and_a_program_that_has_the_folder(static, tmp_path):
    run(["cmake", "-S", static, "-B", tmp_path / "example"], tmp_path)
    run(["cmake", "--build", tmp_path / "example"], tmp_path)
    assert "scores" in run([tmp_path / "example/net_example"], tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.13)\nproject(program C)\nadd_subdirectory({static} net)\n"
        f"add_executable(program {static}/main.c)\ntarget_link_libraries(program PRIVATE net_static)\n"
    )
    run(["cmake", "-S", ".", "-B", "build"], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert "scores" in run([tmp_path / "build/program"], tmp_path)


# -- weights in a file


def test_the_file_of_weights_is_checked(dynamic, tmp_path):
    library, weights = Library(dynamic, "block"), dynamic / "block.weights"
    assert library.create(weights).run([np.zeros((1, 2, 32), "float32"), np.ones((1, 1, 1, 2), bool)])
    content = weights.read_bytes()
    (tmp_path / "short").write_bytes(content[:-1])
    (tmp_path / "other").write_bytes(content[:16] + b"?" + content[17:])
    for path, text in (
        (tmp_path / "none", "none can't be opened: No such file"),
        (tmp_path / "short", f"short has {len(content) - 1} bytes; expected the {len(content)}"),
        (tmp_path / "other", "the weights of another model"),
    ):
        with pytest.raises(CError, match=text) as caught:
            library.create(path)
        assert caught.value.code == "WEIGHTS_ERROR"
    with pytest.raises(CError, match="NULL"):
        library.create(None)


def test_weights_in_the_library_take_no_path(static):
    with pytest.raises(CError, match="expected NULL"):
        Library(static, "net").create(Path("net.weights"))


# -- the export


def test_a_loaded_artifact_is_exported_without_llvm(tmp_path):
    MODELS["int8"].compiled().save(tmp_path / "model.relayc")
    code = (
        "import sys\nfrom relayc.runtime import load_model\n"
        "load_model('model.relayc').export_c('made', 'net')\nassert 'llvmlite' not in sys.modules\n"
    )
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=120)
    model = load_model(tmp_path / "model.relayc")
    model.export_c(tmp_path / "again", "net")
    assert (tmp_path / "made/net.c").read_text() == (tmp_path / "again/net.c").read_text()


def test_names_of_inputs_may_be_anything(tmp_path):
    names = ['model_x*/"\\?', "model_x */ \"\\?", "größe\n", ""]
    inputs = [relay.var(name, (2,)) for name in names]
    module = IRModule({"main": relay.Function(tuple(inputs), relay.Tuple(tuple(map(relay.exp, inputs))))})
    relay.build(module, target=TARGET, mod_name="int").export_c(tmp_path / "made")
    library = Library(tmp_path / "made", "model_int")
    assert [info.name.decode() for info in library.inputs] == names
    run(["gcc", "-std=c99", *STRICT, "-c", "-x", "c", "model_int.h", "-o", "/dev/null"], tmp_path / "made")
    values = [np.full((2,), k, "float32") for k in range(4)]
    assert np.allclose(library.create().run(values), np.exp(values))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Model("g (string[2] words) => (string[2] upper) { upper = StringNormalizer <case_change_action = \"UPPER\"> "
               "(words) }", lambda rng: []), "'words' is of strings"),
        (Model("g (int64 n, bool c, float[2] x) => (float[m] y) { s = SequenceEmpty () t = Loop (n, c, s) <body = b "
               "(int64 i, bool d, seq(float[2]) u) => (bool e, seq(float[2]) v) { e = Identity (d) k = SequenceLength "
               "(u) f = Cast <to = 1> (k) g = Add (x, f) v = SequenceInsert (u, g) }> y = ConcatFromSequence "
               "<axis = 0> (t) }", lambda rng: []), "Loop 't' is the sequence operation 'make'"),
        (Model("g (seq(float[2]) s) => (float[2] y) { k = Constant <value_int = 0> () y = SequenceAt (s, k) }",
               lambda rng: []), "'s' is a sequence"),
        (Model("g (bool c, float[1,8] x) => (float y) { y = If (c) <then_branch = t () => (float[n] a) { a = Squeeze "
               "(x, axis) }, else_branch = e () => (float[m,k] b) { b = Identity (x) }> }", lambda rng: [],
               lambda rng: {"axis": np.array([0])}), r"outputs of other ranks, \[2\] instead of \[1\]"),
    ],
    ids=["strings", "a loop over a sequence", "a sequence", "branches of other ranks"],
)  # fmt: skip
def test_what_only_the_executor_can_run_is_refused(model, text, tmp_path):
    with pytest.raises(ModuleError, match=text):
        model.compiled().export_c(tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_code_of_other_targets_is_refused(tmp_path):
    x = relay.var("x", (2,))
    module = IRModule({"main": relay.Function((x,), relay.exp(x))})
    with pytest.raises(ModuleError, match="target 'c', has code of kind c"):
        relay.build(module, target="c").export_c(tmp_path / "made")
    with pytest.raises(CompileError, match="compiled for aarch64"):
        relay.build(module, target="llvm -mtriple=aarch64-unknown-linux-gnu").export_c(tmp_path / "made")
    with pytest.raises(CompileError, match="none of no-such-cc"):
        relay.build(module, target=TARGET).export_c(tmp_path / "made", compiler="no-such-cc")


@pytest.mark.parametrize("name", ["", "2d", "a-b", "int", "class", "x" * 61, "größe", "m", "timer"])
def test_names_that_c_can_not_have_are_refused(name, tmp_path):
    x = relay.var("x", (2,))
    model = relay.build(IRModule({"main": relay.Function((x,), relay.exp(x))}), target=TARGET)
    with pytest.raises(ArgumentError, match="expected a C identifier"):
        model.export_c(tmp_path / "made", name)


def test_a_folder_is_replaced_only_if_it_is_an_earlier_export(static, tmp_path):
    model = MODELS["int8"].compiled()
    model.export_c(tmp_path / "made", "net", weights="file")
    model.export_c(tmp_path / "made", "net")
    assert sorted(os.listdir(tmp_path)) == ["made"]
    assert "net.weights" not in os.listdir(tmp_path / "made")
    (tmp_path / "made/notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"has other files, such as notes\.txt"):
        model.export_c(tmp_path / "made", "net")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="which is a file"):
        model.export_c(tmp_path / "file", "net")
    with pytest.raises(ArgumentError, match="expected 'library' or 'file'"):
        model.export_c(tmp_path / "other", "net", weights="beside")
    assert sorted(os.listdir(tmp_path)) == ["file", "made"]


def test_a_failed_export_leaves_nothing(tmp_path):
    compiler = tmp_path / "cc"
    answers = "case $1 in -dumpmachine|-print-prog-name*) exec gcc $1;; esac"
    compiler.write_text(f"#!/bin/sh\n{answers}\necho broken >&2\nexit 3\n")
    compiler.chmod(0o755)
    with pytest.raises(CompileError, match="failed with status 3:\nbroken"):
        MODELS["int8"].compiled().export_c(tmp_path / "made", compiler=str(compiler))
    assert os.listdir(tmp_path) == ["cc"]


def test_the_command_writes_a_library(tmp_path):
    save(MODELS["int8"].onnx(), tmp_path / "tiny.onnx")
    runner = CliRunner()
    result = runner.invoke(app, ["compile", str(tmp_path / "tiny.onnx"), "--emit", "c-library", "--shape", "batch=2",
                                 "--weights", "file"])  # fmt: skip
    assert result.exit_code == 0 and f"wrote {tmp_path / 'tiny'} (" in result.output.replace("\n", ""), result.output
    x = floats(np.random.default_rng(0), 2, 64)
    library = Library(tmp_path / "tiny", "tiny")
    assert [value.shape for value in library.create(tmp_path / "tiny/tiny.weights").run([x])] == [(2, 10), (2, 64)]
    assert runner.invoke(app, ["compile", str(tmp_path / "tiny.onnx"), "-s", "batch=2"]).exit_code == 0
    command = ["compile", str(tmp_path / "tiny.relayc"), "--emit", "c-library", "-o", str(tmp_path / "from_artifact")]
    assert runner.invoke(app, command).exit_code == 0
    assert (tmp_path / "from_artifact/libtiny.so").exists()
    assert runner.invoke(app, ["compile", str(tmp_path / "tiny.relayc")]).exit_code == 2
