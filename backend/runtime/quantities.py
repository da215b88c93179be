"""Counts and amounts of memory as text for users."""

from __future__ import annotations

__all__ = ["bytes_text", "counted"]

_UNITS = ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"))


def counted(count: int, noun: str) -> str:
    """"1 kernel", "2 kernels"; the noun in the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bytes_text(count: float) -> str:
    """An amount of memory in the decimal unit that shows it best: "0 B", "812 B", "4.1 kB", "97.8 MB"."""
    if count < 1000:
        return f"{count:.0f} B"
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if count < 999.95 * scale), _UNITS[-1])
    return f"{count / scale:.1f} {unit}"
