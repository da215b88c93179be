"""docs/troubleshooting.md: the messages in its headings are texts of the code, with "..." for what is filled in."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("te", "backend", "topi", "relay", "frontends", "relayc")
HEADING = re.compile(r"^### `(.+)`$", re.M)


def filled_in(text: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in text.values)


def texts_of(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return plain + [filled_in(node) for node in nodes if isinstance(node, ast.JoinedStr)]


def unified(text: str) -> str:
    """One gap for several values in a row."""
    return re.sub(r"\.{3,}", "...", text)


def test_the_messages_are_those_of_the_code():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    code = unified("\n\n".join(text for path in files for text in texts_of(path)))
    messages = HEADING.findall((ROOT / "docs" / "troubleshooting.md").read_text())
    missing = [message for message in messages if unified(message) not in code]
    assert len(messages) >= 15 and not missing, missing
