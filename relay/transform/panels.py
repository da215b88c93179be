"""Weights in panels: see `relay.transform.pack_weights`. The copying is left to jobs, which run together."""

from __future__ import annotations

from typing import Any

import numpy as np

from relay.arrays import Arena, Jobs
from topi.nn.winograd import winograd_matrices

__all__ = ["pack_groups", "pack_panels", "pack_winograd_filters"]

Array = np.ndarray[Any, Any]

_FILTERS_AT_ONCE = 4096


def pack_panels(weight: Array, width: int, arena: Arena, jobs: Jobs) -> Array:
    """(N, ..., K) to (ceil(N / width), ..., K, width), filled up with zeros."""
    full, left = divmod(len(weight), width)
    packed = arena.empty((full + bool(left), *weight.shape[1:], width), weight.dtype)
    jobs.copy(packed[:full], _split(weight[: full * width], width))
    if left:
        packed[full, ..., left:] = 0
        jobs.copy(packed[full, ..., :left], np.moveaxis(weight[full * width :], 0, -1))
    return packed


def pack_groups(weight: Array, groups: int, width: int, arena: Arena, jobs: Jobs) -> Array:
    """(N, ..., K) to (groups, ..., K, width), the N / groups outputs of each group filled up with zeros."""
    outputs = len(weight) // groups
    packed = arena.empty((groups, *weight.shape[1:], width), weight.dtype)
    packed[..., outputs:] = 0
    jobs.copy(packed[..., :outputs], _split(weight, outputs))
    return packed


def _split(weight: Array, width: int) -> Array:
    """A view of (N, ..., K) as (N / width, ..., K, width)."""
    return np.moveaxis(weight.reshape(len(weight) // width, width, *weight.shape[1:]), 1, -1)


def pack_winograd_filters(outputs_first: Array, tile: int, width: int, arena: Arena, jobs: Jobs) -> Array:
    """(O, R, R, I) to (ceil(O / width), A, A, I, width) with A = tile + R - 1: `transform_filters`, in panels."""
    outputs, side, _, inputs = outputs_first.shape
    size = tile + side - 1
    packed = arena.empty((-(-outputs // width), size, size, inputs, width), outputs_first.dtype)
    step = max(1, _FILTERS_AT_ONCE // (inputs * width))

    def pack(begin: int) -> None:
        filters = outputs_first[begin * width : (begin + step) * width]
        transformed = transform_filters(filters, tile)
        full, left = divmod(len(filters), width)
        packed[begin : begin + full] = _split(transformed[: full * width], width)
        if left:
            packed[begin + full, ..., left:] = 0
            packed[begin + full, ..., :left] = np.moveaxis(transformed[full * width :], 0, -1)

    for begin in range(0, len(packed), step):
        jobs.add(lambda begin=begin: pack(begin), packed[begin : begin + step].nbytes)
    return packed


def transform_filters(outputs_first: Array, tile: int) -> Array:
    """(O, R, R, I) to (O, A, A, I), computed in float64: ``g @ w @ g.T`` of each filter.

    As one product with the Kronecker square of g.
    """
    g = winograd_matrices(tile, outputs_first.shape[1]).g
    square, size = np.kron(g, g).T, len(g)
    outputs, _, _, inputs = outputs_first.shape
    filters = outputs_first.transpose(0, 3, 1, 2).reshape(outputs, inputs, -1)  # as most models have them: no copy
    result = (filters.astype(np.float64) @ square).astype(outputs_first.dtype)
    return result.reshape(outputs, inputs, size, size).transpose(0, 2, 3, 1)
