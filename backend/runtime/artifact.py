"""A compiled model, and the one file it is kept in.

The file is a container (`backend.runtime.container`). Its manifest holds the graph and the list of modules; its
sections hold the code of each module, as its kind saves itself, and last the weights in the safetensors format, which
loading maps and does not copy.

Loading checks the manifest's hash and the validity of its fields, the hash of the code, zero padding and the file size.
The weights are checked as `verify` says: "quick", the default, compares checksums (about 5 GB/s per thread), which any
flipped, missing or moved byte changes; "full" compares SHA-256 hashes (about 1 GB/s); "code" skips them, for trusted
storage. These checks detect damage, not malice: artifacts hold machine code, so load only trusted files. `load_model`
takes the SHA-256 of the file that is trusted.

Each section of code begins with the model's seal, the digest of everything that it was compiled for: graph, list of
modules, hashes of the weights. So a graph and the code of another can't be put together, whatever the hashes say.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime import safetensors
from relayc.backend.runtime.checks import check_path
from relayc.backend.runtime.container import AGAIN, Container, Section, digest, map_file, to_bytes, write_file
from relayc.backend.runtime.device import Device, device
from relayc.backend.runtime.dtype import data_type, from_numpy, nbytes
from relayc.backend.runtime.errors import ArgumentError, ArtifactError, DeviceError
from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.html_text import facts_html
from relayc.backend.runtime.metadata import ModelMetadata
from relayc.backend.runtime.module import Module, load_tree, tree_records, tree_sections
from relayc.backend.runtime.ndarray import NDArray, array, wrap_numpy
from relayc.backend.runtime.quantities import bytes_text, counted
from relayc.backend.runtime.registry import get_global_func

__all__ = ["BoundModel", "CompiledModel", "Verify", "load_model"]

Verify = Literal["quick", "full", "code"]

_ALIGN = 64
_PAGE = 4096


class CompiledModel:
    """A graph, its weights and the module of its kernels: what `relay.build` returns and `load_model` reads.

    `model["default"](device)` binds it to a device, for `graph_executor.GraphModule`. All executors share the weights.
    `build_report` is the compiler's report; it is not saved.
    """

    build_report: Any = None

    def __init__(self, graph: Graph | dict[str, Any], params: Mapping[str, npt.NDArray[Any]], module: Module) -> None:
        self.graph = graph if isinstance(graph, Graph) else Graph.from_json(graph)
        self.params = dict(params)
        self.module = module
        self._on_device: dict[Device, dict[str, NDArray]] = {}
        self._placing = threading.Lock()
        self._variants: dict[int, CompiledModel] = {}
        _check_params(self.graph, self.params)

    def __getitem__(self, name: str) -> Callable[..., BoundModel]:
        """`model["default"]` is a function that binds the model to a device. TVM: `lib["default"](dev)`."""
        if name != "default":
            raise ArgumentError(f"a compiled model has no function {name!r}; expected 'default'")
        return self.bind

    def bind(self, where: Device | str) -> BoundModel:
        """Bind the model to a device.

        Raises `DeviceError` when it was compiled for another kind of device or there is none, `ArtifactError` when its
        code is for others of that kind.
        """
        chosen = device(where)
        if chosen.kind != device(self.graph.device).kind:
            raise DeviceError(
                f"model {self.graph.name!r} was compiled for {self.graph.device!r} (target "
                f"{_short(self.graph.target)!r}) and can't run on {chosen}; compile it for that device, or bind it to "
                f"device({self.graph.device!r})"
            )
        for module in self.module._tree():
            module.check_device(chosen)
        return BoundModel(self, chosen)

    def variants(self, sizes: Mapping[str, int]) -> Iterator[CompiledModel]:
        """The specialisations for these values of symbolic dimensions, sharing weights and code, in order.

        One for no values in particular may reject the inputs (`SizeMismatchError`) when it is run.
        """
        for number, (wanted, graph) in enumerate(self.graph.variants):
            if all(sizes.get(name) == size for name, size in wanted.items()):
                if number not in self._variants:
                    made = self._variants[number] = CompiledModel(graph, self.params, self.module)
                    made._on_device, made._placing = self._on_device, self._placing
                yield self._variants[number]

    def params_on(self, where: Device) -> dict[str, NDArray]:
        """The weights on a device, copied there on first use.

        On the CPU, weights aligned to 64 bytes are used in place; others move to such memory, and `params` with them.
        """
        with self._placing:
            found = self._on_device.get(where)
            if found is None:
                found = {name: _placed(values, where) for name, values in self.params.items()}
                where.sync()  # executors on other streams use them too
                self._on_device[where] = found
                if where.kind == "cpu":
                    self.params = {name: np.asarray(placed, copy=False) for name, placed in found.items()}
            return found

    @property
    def metadata(self) -> ModelMetadata:
        """What the imported model says about itself, and the shapes that it declares."""
        return self.graph.metadata

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
        write_file(check_path(path, "the file of a compiled model"), *_contents(self))

    def to_bytes(self) -> bytes:
        """The bytes that `save` writes."""
        return to_bytes(*_contents(self))

    def export_c(
        self,
        folder: str | os.PathLike[str],
        name: str | None = None,
        *,
        weights: Literal["library", "file"] = "library",
        compiler: str | None = None,
    ) -> None:
        """Writes the model as a C library, which needs neither Python nor this package: `docs/c_library.md`.

        The folder gets a header, a shared and a static library, an example, and files for CMake; it is replaced if an
        earlier export made it. `name`, by default the model's, is that of the library and the prefix of its functions.
        The `weights` are in the library, or in a file beside it. `compiler` is that of the system by default.

        Raises `ModuleError`, which names the node, for what only the executor can run, `ArgumentError` for an invalid
        name and a folder with other files, and te's `CompileError` when there is no C compiler, or it fails.
        """
        get_global_func("runtime.export_c")(self, folder, name, weights=weights, compiler=compiler)

    @staticmethod
    def from_bytes(data: bytes | memoryview, verify: Verify = "quick") -> CompiledModel:
        """The model in `data`. Raises `ArtifactError` as `load_model` does."""
        return _read(memoryview(data), "model in memory", verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledModel.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        size = sum(values.nbytes for values in self.params.values())
        nodes = counted(len(self.graph.nodes), "node")
        return (
            f"<CompiledModel {self.graph.name!r} for {_short(self.graph.target)!r}: {nodes}, "
            f"{bytes_text(size)} of weights, {bytes_text(self.graph.arena_bytes)} of scratch>"
        )


    def _repr_html_(self) -> str:
        """The model in a notebook: what it is compiled for, its inputs and outputs, and its size."""
        graph, size = self.graph, sum(values.nbytes for values in self.params.values())
        facts = [
            ("target", graph.target),
            *[("input", _tensor_text(graph, index)) for index in graph.inputs],
            *[("output", _tensor_text(graph, index)) for index in graph.outputs],
            ("nodes", str(len(graph.nodes))),
            ("weights", bytes_text(size)),
            ("scratch", "depends on the sizes" if graph.is_dynamic else bytes_text(graph.arena_bytes)),
        ]
        return facts_html(f"CompiledModel {graph.name}", facts)


def _tensor_text(graph: Graph, index: int) -> str:
    tensor = graph.tensors[index]
    kind = "list of " if tensor.is_sequence else ""
    return f"{tensor.name}: {kind}{tensor.dtype}{tensor.shape_text}"


@dataclass(frozen=True)
class BoundModel:
    """A compiled model and the device it is to run on; what `graph_executor.GraphModule` takes."""

    model: CompiledModel
    device: Device


def load_model(
    path: str | os.PathLike[str] | bytes | bytearray | memoryview,
    verify: Verify = "quick",
    *,
    expect_sha256: str | None = None,
    huge_pages: bool = False,
) -> CompiledModel:
    """Loads a model that `CompiledModel.save` wrote, from its file or its bytes.

    Weights are mapped from the file, or read in place from the bytes: they must stay as they are. With `huge_pages`
    the file is copied to huge pages, where the system has them: language models with 4- and 8-bit weights, of which
    each token reads all, decode in a fifth less time, but processes do not share that memory.

    `verify`: "quick" checks the weights by sums, "full" by SHA-256, "code" takes them on trust (see the module's text).
    `expect_sha256`: the SHA-256 of the trusted file, 64 hexadecimal digits, as `sha256sum` prints it; it is checked
    before anything else, and makes `verify` superfluous. Raises `ArtifactError` for another file, and one that is
    damaged, foreign, of another version or for another machine, `MissingModelError` where there is none.
    """
    if isinstance(path, bytes | bytearray | memoryview):
        data, where = memoryview(path), "model in memory"
    else:
        where = check_path(path, "a compiled model")
        data = map_file(where, huge_pages)
    if expect_sha256 is not None:
        _expect(data, expect_sha256, where)
    return _read(data, where, verify if expect_sha256 is None else "code")


def _expect(data: memoryview, sha256: str, where: str) -> None:
    if re.fullmatch(r"[0-9a-fA-F]{64}", sha256) is None:
        raise ArgumentError(f"expect_sha256={sha256!r}; expected 64 hexadecimal digits")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256.lower():
        raise ArtifactError(
            f"{where} has the SHA-256 {found}, expected {sha256}: it is not the trusted file; copy that one again"
        )


def _short(target: str) -> str:
    """Shorten a target string to its kind and processor."""
    kind, *options = target.split()
    return " ".join([kind, *[o for o in options if o.startswith(("-arch=", "-mcpu=", "-model="))]])


def _contents(model: CompiledModel) -> tuple[dict[str, Any], list[Section]]:
    """The manifest and sections of a model's file."""
    stored = {name: _stored(values) for name, values in model.params.items()}
    weights = Section([safetensors.header_of(stored), *safetensors.pieces_of(stored.values())], _PAGE)
    manifest = {
        "graph": model.graph.to_json(),
        "modules": tree_records(model.module),
        "retyped": {
            name: [from_numpy(values.dtype), list(values.shape)]
            for name, values in model.params.items()
            if from_numpy(values.dtype) not in safetensors.SAFETENSORS_DTYPES
        },
    }
    return manifest, [*tree_sections(model.module, _seal(manifest, [weights.record])), weights]


def _seal(manifest: Mapping[str, Any], weights: list[Any]) -> bytes:
    """The digest of all that code is compiled for: the manifest, where `weights` are the sections, without the code."""
    return digest({**manifest, "sections": weights})


def _stored(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as safetensors can store it: dtypes that the format lacks as bytes."""
    dtype = from_numpy(values.dtype)
    if dtype in safetensors.SAFETENSORS_DTYPES:
        return values
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _read(data: memoryview, where: str, verify: Verify) -> CompiledModel:
    if verify not in ("quick", "full", "code"):
        raise ArgumentError(f"verify={verify!r}; expected 'quick', 'full' or 'code'")
    try:
        return _parsed(Container(data, where), verify)
    except RecursionError as error:
        raise ArtifactError(f"{where}: the manifest is nested too deeply. {AGAIN}") from error


def _parsed(container: Container, verify: Verify) -> CompiledModel:
    container.manifest.only("graph", "modules", "retyped", "sections")
    last = len(container.parts) - 1
    fields = container.manifest.value
    seal = _seal(fields, fields["sections"][last:]) if container.version > 1 else b""
    module = load_tree(container, last, seal)
    arrays, header = safetensors.read(container.parts[last], f"{container.where}: weights")
    container.check(last, "sums" if verify == "quick" else "sha256", header if verify == "code" else None)
    graph = Graph.from_json(container.manifest.get("graph", dict), f"{container.manifest.where}.graph")
    params = _retyped(arrays, container.manifest.record("retyped"))
    try:
        return CompiledModel(graph, params, module)
    except ArgumentError as error:
        raise ArtifactError(f"{container.where}: {error}. {AGAIN}") from error


def _retyped(arrays: dict[str, npt.NDArray[Any]], record: Record) -> dict[str, npt.NDArray[Any]]:
    """The weights, with dtypes that safetensors lacks restored from their bytes."""
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
        if found.nbytes != nbytes(info.name, count):
            raise damaged(where, pair, f"{found.nbytes} bytes")
        arrays[name] = found.reshape(-1).view(info.numpy).reshape(shape)
    return arrays


def _check_params(graph: Graph, params: Mapping[str, npt.NDArray[Any]]) -> None:
    for _, variant in graph.variants:
        _check_params(variant, params)
    for tensor in graph.tensors:
        if tensor.storage != "param":
            continue
        values = params.get(str(tensor.place))
        if values is None:
            raise ArgumentError(
                f"model {graph.name!r} has no weight {tensor.place!r}, which tensor {tensor.name!r} names"
            )
        size = nbytes(from_numpy(values.dtype), values.size)
        if size != tensor.nbytes or from_numpy(values.dtype) != tensor.dtype:
            raise ArgumentError(
                f"weight {tensor.place!r} of model {graph.name!r} has shape {values.shape}, dtype {values.dtype}; "
                f"tensor {tensor.name!r} expects shape {tensor.shape}, dtype {tensor.dtype}"
            )


def _placed(values: npt.NDArray[Any], where: Device) -> NDArray:
    usable = values.flags.c_contiguous and values.dtype.isnative and values.ctypes.data % _ALIGN == 0
    if where.kind == "cpu" and usable:
        return wrap_numpy(values)
    return array(values, where)
