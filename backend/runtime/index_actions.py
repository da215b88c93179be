"""Checks of indices while a model runs, where the option "relay.check_indices" asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.host_action import HostAction, Prepared, Settings

__all__ = ["INDEX_ACTIONS"]


def _check(settings: Settings) -> Prepared:
    axes: tuple[str, ...] = tuple(settings["axes"])

    def check(
        indices: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        by_axis = indices.reshape(len(axes), -1)
        outside = (by_axis < -sizes[:, None]) | (by_axis >= sizes[:, None])
        if outside.any():
            number, place = np.argwhere(outside)[0].tolist()
            size, shape = int(sizes[number]), indices.shape if len(axes) == 1 else indices.shape[1:]
            position = tuple([int(p) for p in np.unravel_index(place, shape)])
            raise ArgumentError(
                f"index {by_axis[number, place]}, at position {position} of the indices, is outside of axis "
                f"{axes[number]}, of size {size}; expected {-size} to {size - 1}"
            )
        return (indices,)

    return check


INDEX_ACTIONS = {"check_indices": HostAction(_check, "nn", "n", {"axes": tuple})}
