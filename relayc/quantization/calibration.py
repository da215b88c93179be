"""Calibration data: sets of inputs, from .npz files or from memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relayc.backend.runtime.array_files import read_arrays
from relayc.quantization.errors import QuantizationError

__all__ = ["Calibration", "Sample", "Samples", "read_samples"]

Sample = dict[str, np.ndarray[Any, Any]]
"""The inputs of one run by name."""
Samples = list[Sample]
PathLike = str | os.PathLike[str]
Calibration = PathLike | Iterable[PathLike | Mapping[str, Any]]
"""An .npz file, or several, or mappings of inputs by name."""


def read_samples(calibration: Calibration, shapes: Mapping[str, Sequence[int | str]]) -> Samples:
    """The runs that calibration data holds for a model whose inputs have `shapes`; dimensions may be names.

    An array with the rank of its input is one run's, or, where the first dimension is fixed, as many runs' as it has
    blocks of that size. An array with one dimension more holds a run in each element. Raises QuantizationError for
    unreadable files, unknown or missing inputs, and arrays that fit neither.
    """
    sources = [calibration] if isinstance(calibration, str | os.PathLike) else list(calibration)
    samples = [sample for source in sources for sample in _split(_arrays(source), shapes, _name(source))]
    if not samples:
        raise QuantizationError("no calibration data: expected at least one set of inputs, better some hundred")
    return samples


def _name(source: PathLike | Mapping[str, Any]) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "calibration data"


def _arrays(source: PathLike | Mapping[str, Any]) -> Sample:
    if isinstance(source, Mapping):
        return {name: np.asarray(value) for name, value in source.items()}
    try:
        loaded = read_arrays(Path(source))
    except FileNotFoundError as error:
        raise QuantizationError(f"{source}: there is no such file; expected an .npz file") from error
    except (OSError, ValueError) as error:
        raise QuantizationError(f"{source} can't be read as .npz: {error}") from error
    if isinstance(loaded, np.ndarray):
        raise QuantizationError(f"{source} holds one array without a name; expected an .npz file, arrays by input")
    return loaded


def _check_values(arrays: Sample, source: str) -> None:
    """Raise QuantizationError for arrays without an element, and for NaN: neither has a range."""
    if not any(array.size for array in arrays.values()):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise QuantizationError(f"no calibration data in {source}: {shapes}; expected typical inputs")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise QuantizationError(f"{source}: {name} holds NaN; expected typical inputs")


def _split(arrays: Sample, shapes: Mapping[str, Sequence[int | str]], source: str) -> Iterator[Sample]:
    """The runs of one source."""
    if set(arrays) != set(shapes):
        raise QuantizationError(f"{source} holds {', '.join(sorted(arrays)) or 'nothing'}; expected an array for each "
                                f"input of the model: {', '.join(sorted(shapes))}")  # fmt: skip
    _check_values(arrays, source)
    parts = {name: _runs(name, array, shapes[name], source) for name, array in arrays.items()}
    counts = {name: len(runs) for name, runs in parts.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise QuantizationError(f"{source}: the inputs hold different numbers of runs: {found}; expected equal ones")
    for runs in zip(*parts.values(), strict=True):
        yield dict(zip(parts, runs, strict=True))


def _runs(name: str, array: np.ndarray[Any, Any], shape: Sequence[int | str], source: str) -> Sequence[Any]:
    """The runs that an array holds for an input of a shape."""
    block = shape[0] if shape else 1
    if array.ndim == len(shape) + 1:
        return list(array)
    if array.ndim != len(shape) or (isinstance(block, int) and (block == 0 or len(array) % block if shape else False)):
        declared = ", ".join(map(str, shape))
        raise QuantizationError(f"{source}: {name} has shape {array.shape}; expected [{declared}], a multiple of its "
                                f"first dimension, or one dimension more that counts the runs")  # fmt: skip
    if not shape or isinstance(block, str):
        return [array]
    return np.split(array, len(array) // block) if len(array) else []
