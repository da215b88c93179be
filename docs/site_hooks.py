"""Hooks of the documentation site (mkdocs.yml): the navigation, pages from outside this folder, the API reference.

The navigation is docs/README.md: its headings are the sections, the links below them the pages. A link to a page of
the project outside of docs leads to a copy of that page on the site, so links work here and in a checkout alike.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
COPIES = {
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/low_precision.md": "low_precision_benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside of docs, from the root of the project, and their names on the site."""
PICTURES = "benchmarks/pictures"
NAMESPACES = (
    "relayc", "relayc.runtime", "relayc.relay", "relayc.relay.op", "relayc.relay.op.nn", "relayc.relay.transform",
    "relayc.relay.analysis", "relayc.te", "relayc.te.tir", "relayc.topi", "relayc.topi.nn", "relayc.backend",
    "relayc.frontends.onnx",
)  # fmt: skip
"""Modules of the compiler whose public names the reference lists; interfaces for other programs add themselves."""
HEADING = re.compile(r"^## (?P<title>.+)$|\[(?P<name>[^\]]+)\]\((?P<link>[^)\s]+\.md)\)", re.M)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    sections: list[tuple[str, list[dict[str, str]]]] = []
    for found in HEADING.finditer((ROOT / "docs" / "README.md").read_text()):
        if found["title"]:
            sections.append((found["title"], []))
        elif sections:
            page = _on_site(os.path.normpath(f"docs/{found['link']}"))
            sections[-1][1].append({found["name"][:1].upper() + found["name"][1:]: page})
    reference = [{name: _reference_page(name)} for name in _namespaces()]
    config.nav = [{"Home": "README.md"}, *({title: pages} for title, pages in sections), {"Reference": reference}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, their pictures, and the reference."""
    for source, page in COPIES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for picture in sorted((ROOT / PICTURES).iterdir()):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for name in _namespaces():
        files.append(File.generated(config, _reference_page(name), content=_reference(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files, which are relative to the page in the project, relative to the page on the site."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    sources = {name: source for source, name in COPIES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        target = _on_site(os.path.normpath(os.path.join(os.path.dirname(source), link["path"])))
        return os.path.relpath(target, os.path.dirname(page.file.src_uri) or ".") + (link["anchor"] or "")

    return LINK.sub(moved, markdown)


def _on_site(path: str) -> str:
    """Where a file of the project, by its path from the root, is on the site."""
    if path.startswith(PICTURES):
        return "pictures" + path.removeprefix(PICTURES)
    return COPIES.get(path, path.removeprefix("docs/"))


def _namespaces() -> list[str]:
    """The modules of the reference: those of the compiler, and each interface in the folder relayc."""
    doors = sorted(path.parent.name for path in (ROOT / "relayc").glob("*/__init__.py"))
    return [*NAMESPACES, *(f"relayc.{door}" for door in doors if door != "cli")]


def _reference_page(namespace: str) -> str:
    return f"reference/{namespace}.md"


def _reference(name: str) -> str:
    """The page of a module: its docstring, and its public classes and functions.

    Of a module that needs packages which are not installed, it is what mkdocstrings reads from the source.
    """
    try:
        module = import_module(name)
    except ImportError:
        return f"# {name}\n\n::: {name}\n    options:\n      show_root_heading: false\n"
    head = f"# {module.__name__}\n\n{inspect.getdoc(module) or ''}\n"
    return "\n".join([head, *(_entry(name, thing) for name, thing in _public(module))])


def _entry(name: str, thing: Any) -> str:
    """A definition that can be read from the source is left to mkdocstrings; one made by a function is written here."""
    if re.search(rf"^(?:def|class) {name}\b", inspect.getsource(import_module(thing.__module__)), re.M):
        return f"::: {thing.__module__}.{name}\n"
    return f"### {name}\n\n```python\n{name}{inspect.signature(thing)}\n```\n\n{inspect.getdoc(thing) or ''}\n"


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions of the project that a module offers, each once, by the names they were defined with.

    What a module inside of it offers, too, is on that module's page.
    """
    inner = [import_module(name) for name in NAMESPACES if name.startswith(f"{module.__name__}.")]
    elsewhere = {id(thing) for each in inner for _, thing in _public(each)}
    found: dict[str, Any] = {}
    for name in sorted(getattr(module, "__all__", None) or dir(module)):
        try:
            thing: Any = getattr(module, name)
        except ImportError:  # a name that is imported when it is used, and needs a package that is not installed
            continue
        is_definition = inspect.isclass(thing) or inspect.isfunction(thing)
        is_shown = is_definition and not name.startswith("_") and id(thing) not in elsewhere
        if is_shown and thing.__module__.startswith("relayc"):
            found.setdefault(thing.__name__, thing)
    yield from found.items()
