"""A saved model is loaded and run without importing the compiler, its IRs and the frontends."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relayc import backend, relay, te
from relayc.te.ir import IRModule

ROOT = Path(__file__).parent.parent
NATIVE = (sys.platform, platform.machine()) == ("linux", "x86_64")
"""Here compiled code is loaded without LLVM."""

COMPILER = ("relayc.te", "relayc.topi", "relayc.relay", "relayc.frontends", "onnx", "networkx",
            "relayc.backend.target", "relayc.backend.driver",
            "relayc.backend.llvm.codegen", "relayc.backend.c.codegen")  # fmt: skip

REPORT = f"""
import sys
heavy = [m for m in {COMPILER!r} if m in sys.modules]
assert not heavy, f"running imported {{heavy}}"
"""
NO_LLVM = "assert 'llvmlite' not in sys.modules" if NATIVE else ""


def run_python(code: str, *args: str) -> str:
    """The output of a fresh interpreter; fails with its errors."""
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_runtime_alone():
    code = "from relayc.backend import nd, device, num_threads\nfrom relayc.backend.runtime import Module"
    run_python(code + REPORT)


def test_nothing_heavy_happens_at_import():
    code = "import sys\nfrom relayc import backend, runtime, te\n"
    run_python(code + "assert not {'llvmlite', 'onnx', 'networkx'} & set(sys.modules)")


def test_the_package_itself_imports_nothing_of_ours():
    code = "import sys\nimport relayc\nours = [m for m in sys.modules if m.startswith('relayc.')]\n"
    run_python(code + "assert not ours, ours\nassert 'numpy' not in sys.modules")


def test_loading_imports_no_module_that_only_profiles_or_many_bytes_need():
    code = "import numpy, sys\nbefore = set(sys.modules)\nimport relayc.backend.runtime\n"
    left_out = {"concurrent.futures", "csv", "html", "ml_dtypes", "shutil", "statistics"}
    left_out |= {f"relayc.backend.runtime.{name}" for name in ("dynamic", "profiler", "regex")}
    run_python(code + f"found = {left_out!r} & (set(sys.modules) - before)\nassert not found, found")


@pytest.mark.parametrize("use", [
    "assert from_numpy('bfloat16') == 'bfloat16'", "assert dtype_of('int4') == to_numpy('int4')",
    "assert relayc.onnxruntime.OrtValue.ortvalue_from_shape_and_type([2], 'bfloat16').numpy().itemsize == 2",
    "assert relayc.cli.options._filled((2,), 'float8_e5m2', 'random', np.random.default_rng()).itemsize == 1",
])  # fmt: skip
def test_names_of_types_that_numpy_lacks_are_known_before_any_is_used(use):
    code = "import numpy as np\nimport relayc.cli.options, relayc.onnxruntime\n"
    run_python(code + f"from relayc.backend.runtime.dtype import dtype_of, from_numpy, to_numpy\n{use}")


def test_a_saved_model_runs_on_threads_without_the_compiler(tmp_path):
    x = relay.var("x", (256, 1024))
    module = IRModule({"main": relay.Function((x,), relay.exp(x))})
    path = tmp_path / "model.relayc"
    relay.build(module, target="llvm -num-cores=2").save(path)
    code = """
import sys
import numpy as np
from relayc.backend.runtime import device, graph_executor, load_model
from relayc.backend.llvm.pool import worker_count
executor = graph_executor.GraphModule(load_model(sys.argv[1])["default"](device("cpu", 0)))
executor._context._ctx.num_threads = 2
executor._context.refresh = lambda: None
executor.set_input("x", np.zeros((256, 1024), dtype="float32"))
executor.run()
print(worker_count(), executor.get_output(0).numpy().sum())
"""
    assert run_python(code + REPORT + NO_LLVM, str(path)).split() == ["1", str(256.0 * 1024)]


def test_a_saved_model_runs_without_the_compiler(tmp_path):
    x = relay.var("x", (2, 8))
    weight = relay.const(np.eye(4, 8, dtype="float32"))
    module = IRModule({"main": relay.Function((x,), relay.nn.relu(relay.nn.dense(x, weight)))})
    path = tmp_path / "model.relayc"
    relay.build(module, target="llvm").save(path)
    code = """
import sys
import numpy as np
from relayc.backend.runtime import device, graph_executor, load_model
executor = graph_executor.GraphModule(load_model(sys.argv[1])["default"](device("cpu", 0)))
executor.set_input("x", np.arange(-8, 8, dtype="float32").reshape(2, 8))
executor.run()
print(executor.get_output(0).numpy().tolist())
"""
    assert run_python(code + REPORT + NO_LLVM, str(path)).strip() == "[[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]"


def test_the_command_runs_a_saved_model_without_the_compiler(tmp_path):
    x = relay.var("x", (2, 8))
    path = tmp_path / "model.relayc"
    relay.build(IRModule({"main": relay.Function((x,), relay.exp(x))}), target="llvm").save(path)
    code = """
import sys
from relayc.cli.main import app
app(["run", sys.argv[1]], standalone_mode=False)
heavy = [m for m in ("relayc.te", "relayc.topi", "relayc.relay", "onnx", "networkx") if m in sys.modules]
assert not heavy, f"running imported {heavy}"
"""
    run_python(code + NO_LLVM, str(path))


def test_the_server_and_functions_of_batches_need_no_compiler():
    pytest.importorskip("uvicorn", reason="pip install 'relayc[serve]'")
    run_python("import relayc.server, relayc.batches, relayc.cli.main" + REPORT + NO_LLVM)


def test_importing_relay_imports_nothing_that_tunes():
    code = "import sys\nfrom relayc import relay\nassert not {'relayc.relay.tuning', 'statistics'} & set(sys.modules)\n"
    run_python(code + "assert relay.tune")


@pytest.mark.parametrize(
    "kind", ["llvm", pytest.param("c", marks=pytest.mark.skipif(not shutil.which("cc"), reason="needs cc"))]
)
def test_a_saved_module_runs_without_the_compiler(kind, tmp_path):
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    module = backend.build(te.create_schedule(b.op), [a, b], kind, name="twice")
    path = tmp_path / "module.bin"
    path.write_bytes(module.save_to_bytes())
    code = """
import sys, pathlib
import numpy as np
from relayc.backend.runtime import load_module_bytes, nd
module = load_module_bytes(sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes())
a, b = nd.array(np.arange(8, dtype="float32")), nd.empty((8,))
module["twice"](a, b)
print(b.numpy().tolist())
"""
    assert run_python(code + REPORT, kind, str(path)).strip() == str((np.arange(8.0) * 2).tolist())


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_process_ends_while_its_threads_run_a_model(num_threads, tmp_path):
    x = relay.var("x", (256, 256))
    path = tmp_path / "model.relayc"
    relay.build(IRModule({"main": relay.Function((x,), relay.exp(x))}), target="llvm -num-cores=2").save(path)
    code = f"""
import sys
import threading
import time
import numpy as np
from relayc.backend.runtime import device, graph_executor, load_model
model = load_model(sys.argv[1])["default"](device("cpu", 0))
def work():
    executor = graph_executor.GraphModule(model, num_threads={num_threads})
    while True:
        executor(np.zeros((256, 256), dtype="float32"))
        running.set()
running = threading.Event()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
running.wait()
time.sleep(0.05)
print("end")
"""
    assert run_python(code, str(path)) == "end\n"
