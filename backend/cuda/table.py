"""The function table of a CUDA module: the parameters of each function, and its kernel launches.

It is JSON, made by the code generator:

    {"f": {"params": [{"name": "A", "kind": "buffer", "dtype": "float32", "shape": ["n", 4], "align": 16},
                      {"name": "n", "kind": "scalar", "dtype": "int32"}],
           "workspaces": [["*", "n", 16]],                                          bytes of each
           "kernels": [{"name": "f_kernel0",
                        "grid": [["//", ["+", "n", 63], 64], 1, 1], "block": [64, 1, 1],    along x, y, z
                        "dynamic_shared": 0,                                        bytes
                        "arguments": [["param", 0], ["workspace", 0], ["size", "n", "int32"]],
                        "step": ["t", "n"]}]}}                                      only where it is launched repeatedly

Sizes are those of `backend.runtime.sizes`. A size variable is bound by the first buffer parameter that has it as an
extent, or by the scalar parameter of its name. `align` is the required alignment of the buffer's address in bytes,
where it exceeds that of its elements. A kernel with a `step`, a variable and a size, is launched for every value of the
variable from 0 up to, not including, the size; adjacent kernels with the same variable are interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.sizes import Size, SizeReader

__all__ = ["Argument", "DeviceFunction", "Kernel", "Param", "read_functions"]

_SCALARS = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "handle",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a function: a buffer with a shape and an alignment of `align` bytes, or a scalar (`shape`
    None)."""

    name: str
    dtype: str
    shape: tuple[Size, ...] | None
    align: int = 1


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: parameter or workspace number `index`, or the value of `size` as a `dtype`."""

    kind: str
    index: int = 0
    size: Size = 0
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and its launch: blocks along x, y, z, threads of a block along x, y, z, bytes of dynamic shared memory,
    arguments; and the variable and exclusive bound of repeated launches."""

    name: str
    grid: tuple[Size, ...]
    block: tuple[Size, ...]
    dynamic_shared: Size
    arguments: tuple[Argument, ...]
    step: tuple[str, Size] | None = None


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function of the module: its kernels in launch order. `workspaces` are sizes in bytes."""

    name: str
    params: tuple[Param, ...]
    workspaces: tuple[Size, ...]
    kernels: tuple[Kernel, ...]


def read_functions(table: Mapping[str, Any], where: str = "function table") -> dict[str, DeviceFunction]:
    """Parse a function table. Raises `ArtifactError` naming the first invalid field."""
    return {name: _read_function(name, Record(entry, f"{where}.{name}")) for name, entry in table.items()}


def _read_function(name: str, record: Record) -> DeviceFunction:
    record.only("params", "workspaces", "kernels")
    described = record.records("params")
    shapes = [item.get("shape", list) for item in described if "shape" in item.value]
    known = [extent for shape in shapes for extent in shape if isinstance(extent, str)]
    known += [item.get("name", str) for item in described if "shape" not in item.value]
    sizes = SizeReader(known)
    params = tuple(_read_param(item, sizes) for item in described)
    workspaces = sizes.shape(record.get("workspaces", list), f"{record.where}.workspaces")
    reader = _KernelReader(len(params), len(workspaces), sizes)
    return DeviceFunction(name, params, workspaces, tuple(reader.read(item) for item in record.records("kernels")))


def _read_param(record: Record, sizes: SizeReader) -> Param:
    record.only("name", "kind", "dtype", "shape", "align")
    name, kind, dtype = (record.get(key, str) for key in ("name", "kind", "dtype"))
    if kind == "buffer":
        align = record.number("align", 1, 256) if "align" in record.value else 1
        return Param(name, dtype, sizes.shape(record.get("shape", list), f"{record.where}.shape"), align)
    if kind != "scalar" or dtype not in _SCALARS or record.value.keys() & {"shape", "align"}:
        raise damaged(f"{record.where}.kind", [kind, dtype], f"'buffer', or 'scalar' of {', '.join(sorted(_SCALARS))}")
    return Param(name, dtype, None)


@dataclass(frozen=True, slots=True)
class _KernelReader:
    """Parses the kernels of a function, given its counts of parameters and workspaces and its size variables."""

    params: int
    workspaces: int
    sizes: SizeReader

    def read(self, record: Record) -> Kernel:
        record.only("name", "grid", "block", "dynamic_shared", "arguments", "step")
        step = self._step(record)
        reader = self if step is None else replace(self, sizes=SizeReader((*self.sizes.names, step[0])))
        return reader._read(record, step)

    def _step(self, record: Record) -> tuple[str, Size] | None:
        if "step" not in record.value:
            return None
        match record.get("step", list):
            case [str(name), size] if name not in self.sizes.names:
                return name, self.sizes.size(size, f"{record.where}.step")
            case other:
                raise damaged(f"{record.where}.step", other, "the name of a new variable and a size")

    def _read(self, record: Record, step: tuple[str, Size] | None) -> Kernel:
        grid, block = (self.sizes.shape(record.get(k, list), f"{record.where}.{k}") for k in ("grid", "block"))
        if len(grid) != 3 or len(block) != 3:
            raise damaged(f"{record.where}.grid", [grid, block], "three sizes of the grid and three of the block")
        shared = self.sizes.size(record.value.get("dynamic_shared"), f"{record.where}.dynamic_shared")
        items: list[Any] = record.get("arguments", list)
        arguments = tuple(self._argument(item, f"{record.where}.arguments[{i}]") for i, item in enumerate(items))
        return Kernel(record.get("name", str), grid, block, shared, arguments, step)

    def _argument(self, value: Any, where: str) -> Argument:
        match value:
            case ["param", int(index)] if 0 <= index < self.params:
                return Argument("param", index)
            case ["workspace", int(index)] if 0 <= index < self.workspaces:
                return Argument("workspace", index)
            case ["size", size, str(dtype)] if dtype in _SCALARS:
                return Argument("size", size=self.sizes.size(size, where), dtype=dtype)
            case _:
                counts = f"{self.params} parameters, {self.workspaces} workspaces"
                raise damaged(where, value, f'["param", i], ["workspace", i] of {counts}, or ["size", size, dtype]')
