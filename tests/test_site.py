"""The documentation site: docs/README.md, its navigation, lists every page; it builds, as `make docs` does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_every_page_is_listed():
    """Decisions are listed on a page of their own."""
    for folder in (DOCS, DOCS / "decisions"):
        listed = set(re.findall(r"\]\(([^)\s]+\.md)\)", (folder / "README.md").read_text()))
        pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
        assert pages <= listed, f"{folder.name}/README.md does not list {sorted(pages - listed)}"


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("material", reason="pip install 'relayc[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install 'relayc[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), plugins=["search"], strict=True)
    build(config)
    page = (tmp_path / "dynamic_shapes" / "index.html").read_text()
    assert 'href="../benchmarks/"' in page and (tmp_path / "benchmarks" / "index.html").exists()
    assert (tmp_path / "reference" / "relayc.relay" / "index.html").exists()
