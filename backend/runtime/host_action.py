"""What an action is: a function that the executor runs on the host, between kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["HostAction", "Prepared", "Settings"]

Settings = Mapping[str, Any]
"""JSON values by name."""

Prepared = Callable[..., tuple[np.ndarray[Any, Any], ...]]
"""An action with its settings: arrays to arrays. Raises ArgumentError for values it can't take."""


@dataclass(frozen=True, slots=True)
class HostAction:
    """Signature of an action, "t" for strings and "n" for numbers, and the types of its settings.

    A setting of type tuple holds strings.
    """

    prepare: Callable[[Settings], Prepared]
    takes: str
    returns: str
    settings: Mapping[str, type] = field(default_factory=dict[str, type])
