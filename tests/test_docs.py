"""The documentation runs: code blocks are executed, and what a block prints is what the page says.

A ```python block is run; a ```text block that follows one at once must be what it printed. The blocks of a page share
their variables. A page with a comment `<!-- needs PACKAGE: COMMAND -->`, or an example with `# needs PACKAGE: COMMAND`,
is skipped where the package is not installed.
`pytest tests/test_docs.py --update-docs` writes the printed text into the pages.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import types
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from relayc.te.ir import PassContext

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<text>.*?)^```\n)?", re.M | re.S)
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
NEEDS = re.compile(r"^(?:<!--|#) needs (\w+): (.+?)(?: -->)?$", re.M)
PATH = re.compile(r"`((?:te|backend|topi|relay|frontends|tests|docs|examples|benchmarks)/[\w./]+)`")
INLINE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"""(?<![\w./"'-])((?:relayc|te|backend|topi|relay|frontends)(?:\.[A-Za-z_]\w*)+)(?![\w/])""")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def skip_without_packages(path: Path) -> None:
    """Skip what needs a package that is not installed."""
    for package, command in NEEDS.findall(path.read_text()):
        pytest.importorskip(package, reason=f"needs {package}: {command}")


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the blocks of a page; its text, with what they printed in place of the text blocks."""
    module = types.ModuleType("page_" + page.stem)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(match: re.Match[str]) -> str:
        line = page.read_text()[: match.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + match["code"], str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, vars(module))
        if match["text"] is None:
            return match[0]
        lines = [text.rstrip() for text in printed.getvalue().rstrip("\n").split("\n")]
        before, _, after = match[0].rpartition(match["text"] + "```\n")
        return before + "\n".join(lines) + "\n```\n" + after

    return BLOCK.sub(run, page.read_text())


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=relative)
def test_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch, request):
    skip_without_packages(page)
    monkeypatch.chdir(tmp_path)
    actual = run_page(page, monkeypatch)
    if request.config.getoption("update_docs"):
        page.write_text(actual)
    assert actual == page.read_text(), f"{relative(page)} is out of date: pytest tests/test_docs.py --update-docs"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=relative)
def test_example_runs(example):
    skip_without_packages(example)
    done = subprocess.run([sys.executable, example], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_what_a_page_points_to_exists(page):
    text = FENCE.sub("", page.read_text())
    links = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    paths = [target for target in PATH.findall(text) if not (ROOT / target.rstrip("/.")).exists()]
    assert not links and not paths, f"{relative(page)} points to {links + paths}, which are not there"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_names_of_ours_on_a_page_exist(page):
    """Or are options of the `PassContext`, declared by the passes that read them."""
    import_module("relayc.relay.tuning")
    inline = INLINE.findall(FENCE.sub("", page.read_text()))
    words = {name.removeprefix("relayc.") for code in inline for name in NAME.findall(code)}
    missing = sorted(name for name in words - set(PassContext.list_options()) if not is_there(name.split(".")))
    assert not missing, f"{relative(page)} speaks of {', '.join(missing)}"


def is_there(parts: list[str]) -> bool:
    """Does the dotted name lead to a module, or to something inside of one?

    What needs an optional package that is not installed is taken to be there.
    """
    for at in range(len(parts), -1, -1):
        try:
            reduce(getattr, parts[at:], import_module(".".join(("relayc", *parts[:at]))))
            return True
        except AttributeError:
            continue
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("relayc"):
                return True
    return False
