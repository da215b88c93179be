"""Programs written for onnxruntime print the same with relayc.onnxruntime, unedited but for the import.

What onnxruntime printed is in a file beside each program. With onnxruntime installed, it has to print that still;
``pytest --update-docs`` writes the files.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))


def printed(name: str, package: str, folder: Path) -> str:
    """What a program prints with a package in the place of onnxruntime."""
    source = re.sub(r"^(import|from) onnxruntime\b", rf"\1 {package}", (FOLDER / f"{name}.py").read_text(), flags=re.M)
    source = source.replace(f"import {package}\n", f"import {package} as onnxruntime\n")
    out = io.StringIO()
    folder.mkdir()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        exec(compile(source, name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_with_onnxruntime(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = FOLDER / f"{name}.txt"
    if request.config.getoption("update_docs"):
        pytest.importorskip("onnxruntime")
        expected.write_text(printed(name, "onnxruntime", tmp_path / "theirs"))
    assert printed(name, "relayc.onnxruntime", tmp_path / "ours") == expected.read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_onnxruntime_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert printed(name, "onnxruntime", tmp_path / "theirs") == (FOLDER / f"{name}.txt").read_text()


def test_there_are_many_programs() -> None:
    assert len(PROGRAMS) >= 20
