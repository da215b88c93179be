"""The logger "relayc": silent in programs that don't configure logging, shown by the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from onnx import TensorProto, helper, save

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
{setup}
from relayc import compile_onnx
compile_onnx(sys.argv[1], mod_name="small")
compile_onnx(sys.argv[1], mod_name="small")
"""


def write_model(folder: Path) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


def stderr_of(*command: str, cache: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RELAYC_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, env=environment)
    return done.stderr


def test_the_package_logs_only_where_logging_is_configured(tmp_path: Path) -> None:
    model, cache = write_model(tmp_path), tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)  # a folder that others can write to is not used, with a warning
    assert stderr_of("-c", PROGRAM.format(setup=""), str(model), cache=cache) == ""
    setup = "import logging; logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s')"
    text = stderr_of("-c", PROGRAM.format(setup=setup), str(model), cache=cache)
    assert "relayc WARNING no cache is used" in text and "relayc INFO model 'small' was compiled for llvm" in text
    cache.chmod(0o700)
    text = stderr_of("-c", PROGRAM.format(setup=setup), str(model), cache=cache)
    assert "relayc INFO model 'small' is in the cache" in text and "WARNING" not in text


def test_the_command_shows_warnings_and_all_with_verbose(tmp_path: Path) -> None:
    model, cache = write_model(tmp_path), tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    text = stderr_of("-m", "relayc", "run", str(model), "--fill", "ones", cache=cache)
    assert "warning: no cache is used" in text and "info:" not in text
    text = stderr_of("-m", "relayc", "--verbose", "run", str(model), "--fill", "ones", cache=cache)
    assert "info: model 'm' was compiled for llvm" in text and "debug: build of 'm'" in text
