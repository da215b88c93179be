"""Constants of equal values, found without comparing all of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from relayc.relay.expr import Constant
from relayc.relay.stored import StoredConstant, place_of
from relayc.relay.structural import same_array

__all__ = ["EqualConstants"]

_SAMPLED = 512
"""Elements of a constant that are looked at first."""


class EqualConstants:
    """The first of the constants that have equal values: the same bits, of one type and shape.

    Constants of one place are equal; the others are compared if a few of their elements are. Values that stay in a file
    are not read.
    """

    def __init__(self) -> None:
        self._by_place: dict[Hashable, Constant] = {}
        self._by_sample: dict[Hashable, list[Constant]] = {}
        self._met: list[Constant] = []
        """keeps the memory that places name"""

    def first(self, constant: Constant) -> Constant:
        """The first constant that was passed with these values: `constant` itself if there was none."""
        if constant.dtype == "string":
            return constant
        place = constant.ty, place_of(constant)
        found = self._by_place.get(place)
        if found is None:
            found = self._by_place[place] = self._first_of_equal_values(constant)
            self._met.append(constant)
        return found

    def _first_of_equal_values(self, constant: Constant) -> Constant:
        if isinstance(constant, StoredConstant):
            return constant
        known = self._by_sample.setdefault((constant.ty, _sample(constant.data)), [])
        found = next((other for other in known if same_array(other.data, constant.data)), None)
        if found is None:
            known.append(constant)
            found = constant
        return found


def _sample(data: np.ndarray[Any, Any]) -> bytes:
    """The bytes of elements spread over an array; of all if they are few."""
    if data.size > _SAMPLED:
        positions = np.linspace(0, data.size - 1, _SAMPLED, dtype=np.intp)
        data = data[np.unravel_index(positions, data.shape)]
    return data.tobytes()
