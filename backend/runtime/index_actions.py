"""Checks of indices while a model runs, where the option "relay.check_indices" asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.backend.runtime.errors import IndexRangeError
from relayc.backend.runtime.host_action import HostAction, Prepared, Settings

__all__ = ["INDEX_ACTIONS", "report_index"]


def report_index(source: str, axes: str, position: int, index: int, size: int, *shape: int) -> None:
    """Raise the error for an index outside of its axis; `position` counts the indices, of this shape, in row-major
    order. `axes`, "0" or "0,2", are those that they are for, which dimension 0 counts if they are several."""
    names = axes.split(",")
    place = tuple([int(p) for p in np.unravel_index(position, shape)])
    number, place = (place[0], place[1:]) if len(names) > 1 else (0, place)
    raise IndexRangeError(
        f"{source}index {index}, at position {place} of the indices, is outside of axis {names[number]}, of size "
        f"{size}; expected {-size} to {size - 1}"
    )


def _check(settings: Settings) -> Prepared:
    axes: tuple[str, ...] = tuple(settings["axes"])

    def check(
        indices: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        by_axis = indices.reshape(len(axes), -1)
        outside = (by_axis < -sizes[:, None]) | (by_axis >= sizes[:, None])
        if outside.any():
            number, place = np.argwhere(outside)[0].tolist()
            position = number * by_axis.shape[1] + place
            report_index("", ",".join(axes), position, int(by_axis[number, place]), int(sizes[number]), *indices.shape)
        return (indices,)

    return check


INDEX_ACTIONS = {"check_indices": HostAction(_check, "nn", "n", {"axes": tuple})}
