"""Files of arrays: .npy and .npz."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.files import open_regular

__all__ = ["read_arrays"]

_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of .npy files, of .npz files, and of .npz files without an array."""


def read_arrays(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """The array of a .npy file, or the arrays of a .npz file by name. Pickles are never loaded.

    Raises OSError for a file that can't be opened, and ValueError for one that holds something else or is damaged.
    """
    with open_regular(path) as file:
        if not file.read(6).startswith(_MAGIC):
            raise ValueError("it does not begin like a .npy or .npz file")
        file.seek(0)
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: loaded[name] for name in loaded.files}
        except (EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(str(error)) from error
