"""All actions that the executor runs on the host, by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayc.backend.runtime.host_action import HostAction, Prepared, Settings
from relayc.backend.runtime.image_actions import IMAGE_ACTIONS
from relayc.backend.runtime.index_actions import INDEX_ACTIONS
from relayc.backend.runtime.string_actions import STRING_ACTIONS

__all__ = ["HOST_ACTIONS", "prepared"]

HOST_ACTIONS: Mapping[str, HostAction] = {**STRING_ACTIONS, **IMAGE_ACTIONS, **INDEX_ACTIONS}


def prepared(action: str, settings: Settings) -> Prepared:
    """Bind an action to its settings: a function from arrays to a tuple of arrays, whatever numpy's error state is.

    The function raises `ArgumentError` for values that the action can't take.
    """
    return np.errstate(all="ignore")(HOST_ACTIONS[action].prepare(settings))
