"""Layering rules: which package may import which, checked per file.

    te  <-  backend  <-  topi  <-  relay  <-  frontends  <-  relayc          (A <- B: B may import A)

The folder relayc holds what users open: the command line and the interfaces made for other programs, each in a folder
of its own. They stand on the public interface of the layers below.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INNER = ("te", "backend", "topi", "relay", "frontends")
LAYERS = (*INNER, "relayc")

THIRD_PARTY = {
    "numpy": LAYERS,
    "ml_dtypes": LAYERS,
    "llvmlite": ("backend/llvm",),
    "cuda": ("backend/cuda",),
    "networkx": ("relay",),
    "onnx": (
        "frontends/onnx", "frontends/model_parts.py", "relayc/cli", "relayc/onnxruntime", "relayc/quantization",
        "relayc/torch",
    ),
    "torch": ("relayc/torch",),
    "google": ("frontends/onnx",),  # protobuf's errors, which parsing a model raises
    "typer": ("relayc/cli",),
    "rich": ("relayc/cli",),
    "onnxruntime": ("relayc/cli",),
    "starlette": ("relayc/server",),
    "uvicorn": ("relayc/server",),
    "prometheus_client": ("relayc/server",),
    "tokenizers": ("relayc/generation",),  # optional: reads tokenizer.json
    "PIL": ("backend/runtime",),  # optional: decodes images
    "platformdirs": ("backend", "relay", "frontends"),
    "filelock": ("backend", "relay", "frontends"),
}
"""Packages that are not of the standard library, and the folders that may import them."""


@dataclass(frozen=True)
class Import:
    """One imported module name at a place; `inside` a function, or `typing` only."""

    path: str
    line: int
    name: str
    inside: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


def folder_name(name: str) -> str:
    """The module by its folder here: relayc.te.ir is te.ir, and relayc.cli itself."""
    inner = name.removeprefix("relayc.")
    return inner if inner.split(".")[0] in INNER else name


def imports_of(path: Path) -> Iterator[Import]:
    relative = path.relative_to(ROOT).as_posix()
    stack: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text()), False, False)]
    while stack:
        node, inside, typing = stack.pop()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "relayc":
            names = [f"relayc.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            names = []
        yield from (Import(relative, node.lineno, folder_name(name), inside, typing) for name in names)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guard = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        stack += [(child, inside, typing or guard) for child in ast.iter_child_nodes(node)]


FILES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
IMPORTS = [found for path in FILES for found in imports_of(path)]


def is_own(name: str) -> bool:
    return name.split(".")[0] in LAYERS


def complain(wrong: list[Import], rule: str) -> None:
    assert not wrong, rule + ":\n" + "\n".join(map(str, wrong))


def test_there_is_something_to_check():
    assert len(FILES) > 50 and len(IMPORTS) > 500
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(LAYERS)


def test_layers_import_downwards_only():
    level = {name: i for i, name in enumerate(LAYERS)}
    wrong = [i for i in IMPORTS if level.get(i.name.split(".")[0], 0) > level[i.path.split("/")[0]]]
    complain(wrong, "a lower layer may not import a higher one")


def test_imports_are_absolute():
    complain([i for i in IMPORTS if i.name.startswith(".")], "imports name their package in full")


def test_the_runtime_imports_nothing_else_of_the_project():
    wrong = [i for i in IMPORTS if i.path.startswith("backend/runtime/") and is_own(i.name)
             and not (i.name + ".").startswith("backend.runtime.")]  # fmt: skip
    complain(wrong, "backend.runtime ships alone")


RUN_HALVES = [path for path in FILES if path.name == "runtime.py" and path.parent.parent.name == "backend"]


@pytest.mark.parametrize("path", RUN_HALVES, ids=lambda path: path.parent.name)
def test_the_run_half_of_a_backend_needs_no_compiler(path):
    half = path.relative_to(ROOT).as_posix()
    package = f"backend.{path.parent.name}."
    reached, pending = set(), [half]
    wrong: list[Import] = []
    while pending:
        current = pending.pop()
        reached.add(current)
        for found in (i for i in IMPORTS if i.path == current and is_own(i.name)):
            if (found.name + ".").startswith("backend.runtime."):
                continue
            file = found.name.replace(".", "/")
            file = f"{file}/__init__.py" if (ROOT / file).is_dir() else f"{file}.py"
            if not found.name.startswith(package):
                wrong.append(found)
            elif file not in reached and file not in pending:
                pending.append(file)
    complain(wrong, "the run half of a backend imports only backend.runtime and its own package")


def test_third_party_packages_are_imported_where_allowed():
    wrong = []
    for found in IMPORTS:
        head = found.name.split(".")[0]
        if head in sys.stdlib_module_names or is_own(head) or head.startswith(".") or head == "":
            continue
        folders = THIRD_PARTY.get(head, ())
        if not any((found.path + "/").startswith(folder + "/") for folder in folders):
            wrong.append(found)
    complain(wrong, "a third-party package is imported outside its folders (see THIRD_PARTY)")


def test_own_imports_stand_at_the_top():
    complain([i for i in IMPORTS if i.inside and is_own(i.name)], "no import inside a function to break a cycle")


def test_no_cycles_between_modules():
    """Modules import each other in one order; imports for type checkers only don't count."""
    modules = {path: path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
               for path in (file.relative_to(ROOT).as_posix() for file in FILES)}  # fmt: skip
    packages = {name for path, name in modules.items() if path.endswith("__init__.py")}
    edges: dict[str, set[str]] = {name: set() for name in modules.values()}
    for found in IMPORTS:
        if found.name in edges and not found.inside and not found.typing:
            edges[modules[found.path]].add(found.name)
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(edges[name] - packages):
                walk(target, (*trail, name))
            done.add(name)

    for name in sorted(set(edges) - packages):
        walk(name, ())


def test_tests_have_no_packages():
    """The tests are collected with import mode importlib: a package in tests/ would hide one of the project's."""
    assert not list((ROOT / "tests").rglob("__init__.py"))
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "file names of tests are unique"
