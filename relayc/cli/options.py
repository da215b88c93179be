"""Values of command-line options: shapes, input files, filled inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np

from relayc.backend.runtime.arguments import array_of
from relayc.backend.runtime.array_files import read_arrays
from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.files import open_regular, replacing
from relayc.backend.runtime.strings import as_strings

__all__ = [
    "Activations", "Build", "Emit", "Form", "Precision", "UsageError", "WeightsPlace", "check_fill", "check_folder",
    "check_names", "check_writable", "fill_inputs", "input_files", "parse_caches", "parse_shapes", "read_inputs",
    "require_values", "resolved", "typed", "write_archive",
]  # fmt: skip

Shapes = dict[str, tuple[int | str, ...] | int]

LARGEST_TOKEN = 100
"""Exclusive upper bound of random integer inputs, so that they are valid token ids of any vocabulary."""


class Form(StrEnum):
    """Forms in which a model can be shown."""

    GRAPH = "graph"
    OPTIMIZED = "optimized"
    PASSES = "passes"
    KERNELS = "kernels"
    LOOPS = "loops"
    LLVM = "llvm"
    ASM = "asm"
    CUDA = "cuda"
    PTX = "ptx"
    SASS = "sass"
    ONNX = "onnx"


class Precision(StrEnum):
    """Compute precision of float32 models."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Emit(StrEnum):
    """What a model is compiled to."""

    ARTIFACT = "artifact"
    C_LIBRARY = "c-library"


class WeightsPlace(StrEnum):
    """Where the weights of a C library are."""

    LIBRARY = "library"
    FILE = "file"


class Activations(StrEnum):
    """Data of products with 4- or 8-bit weights."""

    AUTO = "auto"
    INT8 = "int8"
    FLOAT = "float"


@dataclass(frozen=True)
class Build:
    """Build options: target, shapes, optimization level, precision, tuning records, checks of indices, KV caches, the
    output of logits of which the last position is computed, activations, and whether to record why. `passed` are the
    names of those of `build_options` that the command line has."""

    target: str
    shapes: Shapes
    opt_level: int
    precision: Precision
    records: str | None = None
    check_indices: bool = False
    caches: dict[str, str] | Literal["auto"] | None = None
    last_position: str | None = None
    activations: Activations = Activations.AUTO
    explain: bool = False
    passed: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, str | bool]:
        """`PassContext` options."""
        precision = None if self.precision is Precision.FLOAT32 else self.precision.value
        options = {
            "relay.ToMixedPrecision.dtype": precision,
            "relay.tuning.records": self.records,
            "relay.check_indices": self.check_indices or None,
            "relay.explain": self.explain or None,
            "relay.activations": None if self.activations is Activations.AUTO else self.activations.value,
        }
        return {name: value for name, value in options.items() if value is not None}


class UsageError(Exception):
    """An option has an invalid value; the message says what is expected."""


def parse_shapes(texts: Sequence[str]) -> Shapes:
    """Parse ``["x:1,3,224,224", "x:batch,3,224,224", "batch=1"]``: shapes by input name, sizes by dimension name.

    A name in a shape is a symbolic dimension.
    """
    shapes: Shapes = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        if colon and name:
            shapes[name] = tuple(_dimension(part, text) for part in dims.split(",") if part.strip())
            continue
        name, equals, size = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"--shape {text!r}: expected input:1,3,224,224 or dimension=1")
        shapes[name] = _size(size, text)
    return shapes


def parse_caches(texts: Sequence[str]) -> dict[str, str] | Literal["auto"] | None:
    """Parse ``["auto"]`` or ``["past.0.key=present.0.key", ...]``: outputs by the input that they extend."""
    if list(texts) == ["auto"]:
        return "auto"
    caches: dict[str, str] = {}
    for text in texts:
        name, equals, output = text.partition("=")
        if not name or not equals or not output:
            raise UsageError(f"--caches {text!r}: expected auto, or input=output")
        caches[name] = output
    return caches or None


def _dimension(text: str, whole: str) -> int | str:
    """A size, or the name of one."""
    return text.strip() if text.strip().isidentifier() else _size(text, whole)


def resolved(shapes: Mapping[str, Sequence[Any]], sizes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes by input name with symbolic dimensions replaced by the user's sizes, those of whole shapes too.

    Raises UsageError naming all dimensions that have none, and for a whole shape that is not the input's.
    """
    known: dict[str, Any] = dict(sizes)
    for name, shape in shapes.items():
        known.update(_sizes_by_shape(name, shape, sizes))
    found = {
        name: tuple([known.get(d) if isinstance(d, str) else d for d in shape]) for name, shape in shapes.items()
    }
    open_inputs = {
        name: shape for name, shape in shapes.items() if not all(isinstance(d, int) for d in found[name])
    }
    if open_inputs:
        missing = dict.fromkeys(
            str(d) for name in open_inputs for d, size in zip(shapes[name], found[name], strict=True)
            if not isinstance(size, int)
        )  # fmt: skip
        inputs = ", ".join(f"{name}[{', '.join(map(str, shape))}]" for name, shape in open_inputs.items())
        names, settings = ", ".join(missing), " ".join(f"--shape {name}=8" for name in missing)
        others = [name for name in sizes if name not in shapes and not any(name in shape for shape in shapes.values())]
        unknown = f" (--shape names {', '.join(others)}, which is none of these)" if others else ""
        raise UsageError(
            f"symbolic dimensions without a size: {names} of {inputs}; set {settings}, or --input{unknown}"
        )
    return {name: tuple([d for d in shape if isinstance(d, int)]) for name, shape in found.items()}


def check_names(
    shapes: Mapping[str, Sequence[Any]], declared: Mapping[str, Sequence[int | str | None]], sizes: Shapes
) -> None:
    """Raise UsageError for `sizes` that an artifact with inputs of these shapes has no use for.

    `declared` are the shapes in the model that it was compiled from, whose named dimensions may be fixed now.
    """
    inputs = ", ".join(f"{name}[{', '.join(map(str, shape))}]" for name, shape in shapes.items())
    known = {d: d for shape in shapes.values() for d in shape if isinstance(d, str)}
    for name in declared.keys() & shapes.keys():
        known |= {d: size for d, size in zip(declared[name], shapes[name], strict=False) if isinstance(d, str)}
    for name, size in sizes.items():
        if name not in known and name not in shapes:
            raise UsageError(f"--shape names {name}, which is no dimension and no input of the artifact: {inputs}")
        if isinstance(known.get(name), int) and known[name] != size:
            raise UsageError(f"--shape {name}={size}: the artifact was compiled for {name}={known[name]}: {inputs}")


def _sizes_by_shape(name: str, shape: Sequence[Any], sizes: Shapes) -> dict[str, int]:
    """The sizes that a whole shape of the input `name` among `sizes` gives the symbolic dimensions of `shape`."""
    whole = sizes.get(name)
    if not isinstance(whole, tuple):
        return {}
    pairs = [*zip(shape, whole, strict=False)]
    if len(shape) != len(whole) or any(isinstance(d, int) and isinstance(size, int) and d != size for d, size in pairs):
        declared, passed = ", ".join(map(str, shape)), ",".join(map(str, whole))
        raise UsageError(f"--shape {name}:{passed}: the input has the shape [{declared}]")
    return {d: size for d, size in pairs if isinstance(d, str) and isinstance(size, int)}


def _size(text: str, whole: str) -> int:
    stripped = text.strip()
    if not stripped.isascii() or not stripped.isdigit():
        raise UsageError(f"--shape {whole!r}: {text!r} is not a size; expected input:1,3,224,224 or dimension=1")
    return int(stripped)


def read_inputs(texts: Sequence[str]) -> dict[str, Any]:
    """Values by input name: all arrays of ``file.npz``, one of ``name=file.npy``, and nested lists of ``file.json``,
    which `typed` converts to the types of the inputs."""
    inputs: dict[str, Any] = {}
    for text in texts:
        name, path = _named_file(text)
        value = _load(path)
        if name and isinstance(value, dict):
            raise UsageError(f"--input {text}: {path} holds several arrays; expected a .npy file, or {path} alone")
        if not name and not isinstance(value, dict):
            raise UsageError(f"--input {path}: one array needs its input's name; expected name={path}")
        inputs.update(value if isinstance(value, dict) else {name: value})
    return inputs


def _named_file(text: str) -> tuple[str, Path]:
    """Split ``name=file.npy``; the name is empty for a file alone. Both may contain "=": existing files decide."""
    parts = text.split("=")
    splits = [("=".join(parts[:at]), Path("=".join(parts[at:]))) for at in range(len(parts))]
    return next((split for split in splits if split[1].is_file()), splits[-1])


def typed(passed: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Convert values by input name to arrays; nested lists get the type of the input.

    Raises `UsageError` for a list that holds anything else.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in passed.items():
        dtype = dtypes.get(name, "float32")
        try:
            known = isinstance(value, np.ndarray)
            strings = not known and dtype == "string"
            arrays[name] = value if known else as_strings(value) if strings else array_of(value, dtype, "the list")
        except (TypeError, ValueError) as error:
            raise UsageError(f"the input {name!r} can't be read as {dtype}: {error}") from error
    return arrays


def _load(path: Path) -> np.ndarray | dict[str, Any]:
    """The array of a .npy file, or the values by name of a .npz or .json file."""
    if path.suffix.lower() == ".json":
        return _load_json(path)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise UsageError(f"--input {path}: expected a .npy, .npz or .json file of values, not {path.suffix or 'this'}")
    try:
        return read_arrays(path)
    except FileNotFoundError as error:
        raise UsageError(f"--input {path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read as .npy or .npz: {error}") from error


def _load_json(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            values = json.loads(file.read())
    except FileNotFoundError as error:
        raise UsageError(f"--input {path}: there is no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f'{path} holds no object; expected values by input name: {{"x": [[1.0, 2.0]]}}')
    return values


def input_files(texts: Sequence[str]) -> list[Path]:
    """The files that `read_inputs` reads."""
    return [_named_file(text)[1] for text in texts]


def check_writable(*paths: Path | None, read: Iterable[Path]) -> None:
    """Raise UsageError early if one of `paths` can't be written, or is a file among those that the command reads."""
    sources = [source for source in read if source.is_file()]
    for path in paths:
        if path is None:
            continue
        folder = path.parent
        if path.is_dir():
            raise UsageError(f"can't write {str(path)!r}, which is a folder; expected a file")
        if not folder.is_dir():
            raise UsageError(f"can't write {path}: there is no folder {folder}; make it, or write elsewhere")
        written = [path] if path.exists() else []
        if path.is_file() or not path.exists():  # replaced by another file in the folder
            written.append(Path(os.path.realpath(path)).parent)
        if not all(os.access(place, os.W_OK) for place in written):
            raise UsageError(f"can't write {path}: no permission")
        if path.exists() and any(path.samefile(source) for source in sources):
            raise UsageError(f"can't write {path}, which is read: name another file for the output")


_LIBRARIES = (".so", ".a", ".dylib", ".dll", ".lib", ".h", ".c")
"""Suffixes of a C library's files."""


def check_folder(path: Path) -> None:
    """Raise UsageError early if no folder `path` of a C library can be made, or put in the place of that one."""
    if path.suffix in _LIBRARIES and not path.is_dir():
        raise UsageError(
            f"can't write {path}: a C library is a folder, of shared and static library, header and example; "
            f"expected the name of a folder, such as {path.with_suffix('')}"
        )
    above = next(folder for folder in path.absolute().parents if folder.exists())
    for there in (path, above):
        if there.exists() and not there.is_dir():
            raise UsageError(f"can't write {path}: {there} is a file; expected a folder, or a name that is free")
    if not os.access(above, os.W_OK):
        raise UsageError(f"can't write {path}: no permission")


def write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` as an .npz file atomically; names are arbitrary strings. Raises OSError."""
    with replacing(path) as file, ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def check_fill(fill: str | None) -> None:
    """Raise UsageError for what is no way of filling inputs."""
    if fill not in (None, "zeros", "ones", "random"):
        raise UsageError(f"--fill {fill!r}: expected random, ones or zeros")


def fill_inputs(
    wanted: Mapping[str, tuple[Sequence[int], str]], passed: Mapping[str, np.ndarray], fill: str | None, seed: int
) -> dict[str, np.ndarray]:
    """An array for each of `wanted` (shape and dtype by name): the passed one, else one filled as `fill` says.

    `fill` is "random" (normal floats, small non-negative integers, words of three letters), "ones" or "zeros" (for
    strings "1" and the empty one).
    Raises `UsageError` for unknown names and for inputs without a value.
    """
    check_fill(fill)
    require_values(wanted, passed, fill)
    rng = np.random.default_rng(seed)
    return {
        name: passed[name] if name in passed else _filled(shape, dtype, str(fill), rng)
        for name, (shape, dtype) in wanted.items()
    }


def require_values(
    wanted: Mapping[str, tuple[Sequence[Any], str]], passed: Collection[str], fill: str | None
) -> None:
    """Raise `UsageError` for passed names that are not `wanted`, and for a wanted one neither passed nor filled."""
    known = ", ".join(f"{name} {dtype}[{', '.join(map(str, shape))}]" for name, (shape, dtype) in wanted.items())
    for name in passed:
        if name not in wanted:
            raise UsageError(f"the model has no input {name!r}; its inputs are: {known}")
    missing = [name for name in wanted if name not in passed]
    if missing and fill is None:
        raise UsageError(f"no value for {', '.join(missing)}; give --input or --fill random. Inputs are: {known}")


def _filled(shape: Sequence[int], dtype: str, fill: str, rng: np.random.Generator) -> np.ndarray:
    if dtype == "string":
        return _filled_strings(tuple(shape), fill, rng)
    kind = to_numpy(dtype)
    if fill in ("zeros", "ones"):
        return (np.zeros if fill == "zeros" else np.ones)(tuple(shape), kind)
    if dtype == "bool":
        return rng.random(tuple(shape)) < 0.5
    if np.issubdtype(kind, np.integer):
        return rng.integers(0, LARGEST_TOKEN, tuple(shape)).astype(kind)
    return rng.standard_normal(tuple(shape)).astype(kind)


def _filled_strings(shape: tuple[int, ...], fill: str, rng: np.random.Generator) -> np.ndarray:
    strings = np.full(shape, "1" if fill == "ones" else "", object)
    if fill == "random":
        letters = rng.integers(ord("a"), ord("z"), (strings.size, 3), endpoint=True)
        strings.reshape(-1)[:] = ["".join(map(chr, row)) for row in letters.tolist()]
    return strings
