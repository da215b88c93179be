"""The error of this door."""

from relayc.runtime import RelaycError

__all__ = ["GenerationError"]


class GenerationError(RelaycError):
    """A model that is no language model as expected, a folder without one, or an invalid option of a generation."""
