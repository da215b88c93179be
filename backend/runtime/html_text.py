"""Small pieces of HTML, for notebooks and pages: text is escaped, nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["facts_html", "table_html"]


def _escape(text: str) -> str:
    from html import escape  # 2 ms, which loading and running a model does without

    return escape(text)


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """A table of texts; the columns in `numbers` are aligned to the right."""
    right = [column in numbers for column in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        styled = [
            f'<{tag} style="text-align:{"right" if is_right else "left"}">{_escape(cell)}</{tag}>'
            for cell, is_right in zip(cells, right, strict=True)
        ]
        return f"<tr>{''.join(styled)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def facts_html(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """A title over a table of names and values."""
    rows = "".join(
        f'<tr><th style="text-align:left">{_escape(name)}</th><td style="text-align:left">{_escape(value)}</td></tr>'
        for name, value in facts
    )
    return f"<div><b>{_escape(title)}</b><table>{rows}</table></div>"
