"""A compiled model, and the one file it is kept in.

The file is data and nothing else: no pickle, no code to unpack it, no compiler to load it. Integers are little-endian;
sections start at multiples of 64 bytes (weights: 4096), gaps hold zeros:

    0   8 bytes  magic
    8   u32      format version
    12  u32      size of the manifest, which starts at byte 64
    16  32 bytes SHA-256 of the manifest
    48  16 bytes zero
    64           manifest, JSON: graph, modules, sections with offset, size and SHA-256 of every 4 MiB
    ...          code of the modules, as each module kind saves itself
    ...          weights, in the safetensors format, memory-mapped when loaded

Equal models make equal bytes. What is checked on loading, and with what: the manifest against its hash and every field
of it against its meaning, code against its hash, gaps for zeros, the file's size; and with `verify="full"`, the
default, the weights' data against its hashes too, on several threads (about 1 GB/s each). `verify="code"` leaves that
last part out: for files whose storage is trusted. The hashes tell damage, not malice: load files only from who you
trust, as they hold machine code.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from backend.runtime import safetensors
from backend.runtime.device import Device, device
from backend.runtime.dtype import data_type, from_numpy, pack, packed_nbytes, unpack
from backend.runtime.errors import ArgumentError, ArtifactError, DeviceError, ModuleError
from backend.runtime.fields import Record, damaged
from backend.runtime.graph import Graph
from backend.runtime.module import Module, load_module_bytes
from backend.runtime.ndarray import NDArray, array, wrap_numpy
from backend.runtime.threads import num_threads

__all__ = ["FORMAT_VERSION", "BoundModel", "CompiledModel", "Verify", "load_model"]

Verify = Literal["full", "code"]

FORMAT_VERSION = 1
_MAGIC = b"\x89RLYC\r\n\x1a"  # like PNG's: shows damage by text-mode transfers
_HEADER = 64
_ALIGN = 64
_PAGE = 4096
_CHUNK = 4 << 20
_AGAIN = "The file is damaged; copy it again or compile the model again"


class CompiledModel:
    """A graph, its weights and the module of its kernels: what `relay.build` returns and `load_model` reads.

    `model["default"](device)` binds it to a device, for `graph_executor.GraphModule`. All executors share the weights.
    """

    def __init__(self, graph: Graph | dict[str, Any], params: Mapping[str, npt.NDArray[Any]], module: Module) -> None:
        self.graph = graph if isinstance(graph, Graph) else Graph.from_json(graph)
        self.params = dict(params)
        self.module = module
        self._on_device: dict[Device, dict[str, NDArray]] = {}
        _check_params(self.graph, self.params)

    def __getitem__(self, name: str) -> Callable[..., BoundModel]:
        """`model["default"]` is a function of a device that binds the model to it. TVM: `lib["default"](dev)`."""
        if name != "default":
            raise ArgumentError(f"a compiled model has no function {name!r}; expected 'default'")
        return self.bind

    def bind(self, where: Device | str) -> BoundModel:
        """The model on a device. Raises `DeviceError` when it was compiled for another kind."""
        chosen = device(where)
        if chosen.kind != device(self.graph.device).kind:
            raise DeviceError(
                f"model {self.graph.name!r} was compiled for {self.graph.device!r} (target {self.graph.target!r}) and "
                f"can't run on {chosen}; compile it for that device, or bind it to device({self.graph.device!r})"
            )
        return BoundModel(self, chosen)

    def params_on(self, where: Device) -> dict[str, NDArray]:
        """The weights on a device, put there once. On the CPU, weights aligned to 64 bytes are used in place."""
        found = self._on_device.get(where)
        if found is None:
            found = {name: _placed(values, where) for name, values in self.params.items()}
            found = self._on_device.setdefault(where, found)
        return found

    def get_graph_json(self) -> str:
        """The graph as JSON text."""
        return json.dumps(self.graph.to_json(), indent=1)

    def get_lib(self) -> Module:
        """The module of the kernels."""
        return self.module

    def get_params(self) -> dict[str, npt.NDArray[Any]]:
        """The weights as the kernels read them: laid out for the target, renamed and folded by the compiler."""
        return dict(self.params)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to one file: into a temporary file beside it first, then in one step into place.

        Raises `ModuleError` when a module is of a kind that can't be saved.
        """
        target = Path(path)
        scratch = target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
        layout = _layout(self)
        try:
            with open(scratch, "xb") as file:
                _write(file, layout)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def to_bytes(self) -> bytes:
        """What `save` would write."""
        file = io.BytesIO()
        _write(file, _layout(self))
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes | memoryview, verify: Verify = "full") -> CompiledModel:
        """The model in `data`. Raises `ArtifactError` as `load_model` does."""
        return _read(memoryview(data), "model in memory", verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledModel.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        size = sum(values.nbytes for values in self.params.values())
        return (
            f"<CompiledModel {self.graph.name!r} for {self.graph.target!r}: {len(self.graph.nodes)} nodes, "
            f"{size / 1e6:.1f} MB of weights, {self.graph.arena_bytes / 1e6:.1f} MB of scratch>"
        )


@dataclass(frozen=True)
class BoundModel:
    """A compiled model and the device it is to run on; what `graph_executor.GraphModule` takes."""

    model: CompiledModel
    device: Device


def load_model(path: str | os.PathLike[str], verify: Verify = "full") -> CompiledModel:
    """Loads a model that `CompiledModel.save` wrote. Weights are mapped from the file, which must stay as it is.

    `verify`: "full" checks every byte; "code" takes the weights' data on trust (see the module's text). Raises
    `ArtifactError` for a file that is damaged, foreign, of another version or for another machine.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER:
            raise ArtifactError(f"{path} has {size} bytes; a compiled model has at least {_HEADER}. {_AGAIN}")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _read(memoryview(mapped), os.fspath(path), verify)


# -- writing


@dataclass(frozen=True)
class _Piece:
    """Bytes that follow what came before, after zeros up to a multiple of `align`."""

    data: memoryview | bytes
    align: int = 1


def _layout(model: CompiledModel) -> list[_Piece]:
    """The file's contents after the header, manifest first."""
    modules = model.module._tree()
    codes = [module.save_to_bytes() for module in modules]
    stored = {name: _stored(values) for name, values in model.params.items()}
    weights = [safetensors.header_of(stored), *safetensors.pieces_of(stored.values())]
    manifest: dict[str, Any] = {
        "graph": model.graph.to_json(),
        "modules": [
            {"kind": module.type_key, "imports": [modules.index(used) for used in module.imported_modules]}
            for module in modules
        ],
        "retyped": {
            name: [from_numpy(values.dtype), list(values.shape)]
            for name, values in model.params.items()
            if from_numpy(values.dtype) not in safetensors.SAFETENSORS_DTYPES
        },
        "sections": [_section([code]) for code in codes] + [_section(weights)],
    }
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    pieces = [_Piece(text)]
    pieces += [_Piece(code, _ALIGN) for code in codes]
    pieces += [_Piece(piece, 1 if i else _PAGE) for i, piece in enumerate(weights)]
    return pieces


def _section(pieces: list[bytes | memoryview]) -> dict[str, Any]:
    hashes: list[str] = []
    chunk, filled, size = hashlib.sha256(), 0, 0
    for piece in pieces:
        view = memoryview(piece)
        size += len(view)
        while len(view):
            taken = view[: _CHUNK - filled]
            chunk.update(taken)
            filled, view = filled + len(taken), view[len(taken) :]
            if filled == _CHUNK:
                hashes.append(chunk.hexdigest())
                chunk, filled = hashlib.sha256(), 0
    if filled:
        hashes.append(chunk.hexdigest())
    return {"size": size, "sha256": hashes}


def _write(file: BinaryIO, layout: list[_Piece]) -> None:
    manifest = bytes(layout[0].data)
    header = _MAGIC + FORMAT_VERSION.to_bytes(4, "little") + len(manifest).to_bytes(4, "little")
    file.write(header + hashlib.sha256(manifest).digest() + bytes(16))
    position = _HEADER
    for piece in layout:
        gap = -position % piece.align
        file.write(bytes(gap))
        file.write(piece.data)
        position += gap + len(piece.data)


def _stored(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as the safetensors format can hold it: types it has not, as their packed bytes."""
    dtype = from_numpy(values.dtype)
    if dtype in safetensors.SAFETENSORS_DTYPES:
        return values
    if data_type(dtype).is_packed:
        return pack(values, dtype)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


# -- reading


def _read(data: memoryview, where: str, verify: Verify) -> CompiledModel:
    if verify not in ("full", "code"):
        raise ArgumentError(f"verify={verify!r}; expected 'full' or 'code'")
    manifest = _manifest(data, where)
    modules, sections = manifest.records("modules"), manifest.records("sections")
    if len(sections) != len(modules) + 1 or not modules:
        raise damaged(
            f"{manifest.where}.sections", len(sections), f"one per module and one of weights, {len(modules) + 1}"
        )
    parts = list(_sections(data, sections, where, int(manifest.value["size"])))
    for part, section in zip(parts[:-1], sections[:-1], strict=True):
        _check_hashes(part, section)
    arrays, header = safetensors.read(parts[-1], f"{where}: weights")
    _check_hashes(parts[-1], sections[-1], None if verify == "full" else header)
    graph = Graph.from_json(manifest.get("graph", dict), f"{manifest.where}.graph")
    params = _retyped(arrays, manifest.record("retyped"))
    try:
        return CompiledModel(graph, params, _modules(parts, modules, where))
    except ArgumentError as error:
        raise ArtifactError(f"{where}: {error}. {_AGAIN}") from error


def _manifest(data: memoryview, where: str) -> Record:
    if bytes(data[:8]) != _MAGIC:
        raise ArtifactError(
            f"{where} starts with {bytes(data[:8])!r}; a compiled model starts with {_MAGIC!r}. "
            "It is no model compiled by relayc, or was damaged by a transfer in text mode"
        )
    version = int.from_bytes(data[8:12], "little")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{where} has format version {version}; this runtime reads version {FORMAT_VERSION}. "
            "Compile the model again, or install the relayc that wrote it"
        )
    size = int.from_bytes(data[12:16], "little")
    text = data[_HEADER : _HEADER + size]
    if len(text) != size:
        raise ArtifactError(
            f"{where} is cut off: {len(data)} bytes, its manifest alone needs {_HEADER + size}. {_AGAIN}"
        )
    if hashlib.sha256(text).digest() != bytes(data[16:48]) or any(data[48:_HEADER]):
        raise ArtifactError(f"{where}: the manifest does not match its hash. {_AGAIN}")
    try:
        value = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: the manifest is no JSON ({error}). {_AGAIN}") from error
    record = Record(value, f"{where}: manifest")
    record.only("graph", "modules", "retyped", "sections")
    record.value["size"] = size
    return record


def _sections(data: memoryview, sections: list[Record], where: str, manifest_size: int) -> Iterator[memoryview]:
    """Each section's bytes. Checks that they lie one after another, zeros between, up to the end of the file."""
    position = _HEADER + manifest_size
    for index, section in enumerate(sections):
        section.only("size", "sha256")
        begin = position + -position % (_PAGE if index == len(sections) - 1 else _ALIGN)
        end = begin + section.number("size")
        if end > len(data):
            raise ArtifactError(f"{where} is cut off: {len(data)} bytes, but section {index} ends at {end}. {_AGAIN}")
        if any(data[position:begin]):
            raise ArtifactError(f"{where}: bytes {position} to {begin} are not zero. {_AGAIN}")
        yield data[begin:end]
        position = end
    if position != len(data):
        raise ArtifactError(f"{where} has {len(data)} bytes; expected {position}. {_AGAIN}")


def _check_hashes(part: memoryview, section: Record, upto: int | None = None) -> None:
    """Compares the hashes of the chunks that hold the first `upto` bytes (None: of all) on several threads."""
    expected = section.strings("sha256")
    if len(expected) != -(-len(part) // _CHUNK):
        raise damaged(f"{section.where}.sha256", len(expected), f"a hash for every {_CHUNK} bytes")
    count = len(expected) if upto is None else min(len(expected), -(-upto // _CHUNK))

    def check(index: int) -> None:
        if hashlib.sha256(part[index * _CHUNK : (index + 1) * _CHUNK]).hexdigest() != expected[index]:
            raise ArtifactError(f"{section.where}: bytes {index * _CHUNK} onward do not match their hash. {_AGAIN}")

    workers = min(num_threads(), count)
    if workers <= 1:
        for index in range(count):
            check(index)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(check, range(count)))


def _retyped(arrays: dict[str, npt.NDArray[Any]], record: Record) -> dict[str, npt.NDArray[Any]]:
    """The weights with those whose dtype the safetensors format lacks made of their bytes."""
    for name in record.value:
        found, pair = arrays.get(name), record.get(name, list)
        where = f"{record.where}.{name}"
        if found is None or found.dtype != np.uint8 or len(pair) != 2 or not isinstance(pair[0], str):
            raise damaged(where, pair, "[dtype, shape] of a weight stored as bytes")
        shape = Record({"shape": pair[1]}, where).numbers("shape")
        try:
            info = data_type(pair[0])
        except ArgumentError as error:
            raise damaged(where, pair[0], "a dtype") from error
        count = int(np.prod(shape, dtype=object))
        if found.nbytes != packed_nbytes(info.name, count):
            raise damaged(where, pair, f"{found.nbytes} bytes")
        flat = found.reshape(-1)
        arrays[name] = (unpack(flat, info.name, count) if info.is_packed else flat.view(info.numpy)).reshape(shape)
    return arrays


def _modules(parts: list[memoryview], records: list[Record], where: str) -> Module:
    """The first module, with all it imports."""
    loaded: list[Module] = []
    for part, record in zip(parts[:-1], records, strict=True):
        record.only("kind", "imports")
        try:
            loaded.append(load_module_bytes(record.get("kind", str), bytes(part)))
        except ModuleError as error:
            raise ArtifactError(f"{where}: {error}") from error
    for module, record in zip(loaded, records, strict=True):
        for index in record.numbers("imports", 0, len(loaded) - 1):
            try:
                module.import_module(loaded[index])
            except ModuleError as error:
                raise ArtifactError(f"{record.where}.imports: {error}. {_AGAIN}") from error
    return loaded[0]


# -- weights


def _check_params(graph: Graph, params: Mapping[str, npt.NDArray[Any]]) -> None:
    for tensor in graph.tensors:
        if tensor.storage != "param":
            continue
        values = params.get(str(tensor.place))
        if values is None:
            raise ArgumentError(
                f"model {graph.name!r} has no weight {tensor.place!r}, which tensor {tensor.name!r} names"
            )
        size = packed_nbytes(from_numpy(values.dtype), values.size)
        if size != tensor.nbytes or from_numpy(values.dtype) != tensor.dtype:
            raise ArgumentError(
                f"weight {tensor.place!r} of model {graph.name!r} has shape {values.shape}, dtype {values.dtype}; "
                f"tensor {tensor.name!r} expects shape {tensor.shape}, dtype {tensor.dtype}"
            )


def _placed(values: npt.NDArray[Any], where: Device) -> NDArray:
    usable = values.flags.c_contiguous and values.dtype.isnative and values.ctypes.data % _ALIGN == 0
    if where.kind == "cpu" and usable and not data_type(from_numpy(values.dtype)).is_packed:
        return wrap_numpy(values)
    return array(values, where)
