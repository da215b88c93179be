"""Compiled models for engines that process data in batches on many machines, such as Dask and Ray Data."""

from __future__ import annotations

from relayc.batches.mapper import BatchMapper, map_batches

__all__ = ["BatchMapper", "map_batches"]
