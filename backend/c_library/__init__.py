"""Compiled models as C libraries, which need neither Python nor this package."""
