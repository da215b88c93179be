"""The wheel in environments of its own: one importable name, beside packages of our folders' names, runtime only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from relayc import relay
from relayc.te.ir import IRModule

ROOT = Path(__file__).parents[2]
PACKAGES = ("te", "backend", "topi", "relay", "frontends")
RUNTIME = ("numpy", "ml_dtypes")
"""What a compiled model needs to run."""
MOST_MEGABYTES = 100
"""The size limit of the runtime-only environment: relayc, numpy and ml_dtypes, without pip."""
MOST_WHEEL_MEGABYTES = 3
"""The size limit of the wheel."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def run(*command: str | Path, cwd: Path, fails: bool = False) -> str:
    """The output of a command in a folder, with nothing of this environment on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True,
                          check=False, timeout=600)  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def make_environment(folder: Path, *arguments: str | Path) -> Path:
    """A virtual environment with what `pip install` makes of the arguments; returns its Python."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments, cwd=folder)
    return python


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("installed") / "venv", wheel)


@pytest.fixture(scope="module")
def runtime_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = make_environment(tmp_path_factory.mktemp("runtime") / "venv", *RUNTIME)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel, cwd=ROOT)
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project that has packages with the names of our folders."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"OWNER = {package!r}\n")
    return tmp_path


def test_it_has_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"relayc"}


def test_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_WHEEL_MEGABYTES * 1e6


def test_every_file_of_the_folders_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.*")]
    missing = [str(f) for f in files if f.suffix in (".py", ".cuh") and f"relayc/{f.as_posix()}" not in names]
    assert len(files) > 300 and not missing
    assert {"relayc/__init__.py", "relayc/__main__.py", "relayc/runtime.py", "relayc/py.typed"} <= names


def test_the_readme_runs_in_a_project_with_packages_of_our_names(installed: Path, project: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    own = "".join(f"import {package}\nassert {package}.OWNER == {package!r}\n" for package in PACKAGES)
    later = "import sys\n" + "".join(f"assert sys.modules[{package!r}].OWNER == {package!r}\n" for package in PACKAGES)
    assert len(blocks) >= 2
    (project / "program.py").write_text(own + "\n".join(blocks) + later)
    assert "(1, 1000" in run(installed, "program.py", cwd=project)


def test_the_command_runs_in_such_a_project(installed: Path, project: Path) -> None:
    for command in ((installed, "-m", "relayc"), (installed.with_name("relayc"),)):
        assert "relayc" in run(*command, "--version", cwd=project)
        assert "compile" in run(*command, "--help", cwd=project)


def test_artifacts_run_where_only_the_runtime_is_installed(runtime_only: Path, project: Path) -> None:
    x = relay.var("x", (2, 8))
    path = project / "model.relayc"
    relay.build(IRModule({"main": relay.Function((x,), relay.nn.softmax(x))}), target="llvm").save(path)
    values = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.save(project / "x.npy", values)
    code = (
        "import numpy as np\nfrom relayc.runtime import device, graph_executor, load_model\n"
        "m = graph_executor.GraphModule(load_model('model.relayc')['default'](device('cpu', 0)))\n"
        "m.set_input('x', np.load('x.npy')); m.run()\nprint(m.get_output(0).numpy().sum())"
    )
    assert float(run(runtime_only, "-c", code, cwd=project)) == pytest.approx(2)
    output = run(runtime_only, "-m", "relayc", "run", path, "-i", "x=x.npy", "-o", "out.npz", cwd=project)
    assert "float32[2, 8]" in output
    (result,) = np.load(project / "out.npz").values()
    expected = np.exp(values - values.max(1, keepdims=True))
    np.testing.assert_allclose(result, expected / expected.sum(1, keepdims=True), rtol=1e-5)
    assert "p50" in run(runtime_only, "-m", "relayc", "bench", path, "-n", "3", cwd=project)


def test_the_runtime_alone_says_what_compiling_needs(runtime_only: Path, project: Path) -> None:
    assert "pip install relayc" in run(runtime_only, "-m", "relayc", "run", "model.onnx", cwd=project, fails=True)
    assert "pip install relayc" in run(runtime_only, "-m", "relayc", "inspect", "m.relayc", cwd=project, fails=True)
    assert "pip install relayc" in run(runtime_only, "-m", "relayc", "--help", cwd=project)
    assert run(runtime_only, "-m", "relayc", "--version", cwd=project).startswith("relayc 0")
    for name, remedy in (("compile_onnx", "'relayc'"), ("compile_torch", "'relayc[torch]'")):
        said = run(runtime_only, "-c", f"import relayc; relayc.{name}", cwd=project, fails=True)
        assert f"pip install {remedy}" in said


def test_the_runtime_alone_is_small(runtime_only: Path) -> None:
    (packages,) = runtime_only.parents[1].glob("lib/python*/site-packages")
    names = ("relayc", "numpy", "ml_dtypes")
    sizes = {entry.name: sum(f.stat().st_size for f in entry.rglob("*") if f.is_file()) / 1e6
             for entry in packages.iterdir() if entry.name.startswith(names)}  # fmt: skip
    print("runtime-only environment:", ", ".join(f"{name} {size:.1f} MB" for name, size in sorted(sizes.items())))
    assert sum(sizes.values()) < MOST_MEGABYTES, sizes
