"""The ONNX project's backend interface (`onnx.backend.base`) over this compiler.

import relayc.frontends.onnx.backend as backend
y, = backend.prepare(onnx.load("model.onnx"), device="CPU").run([x])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from relayc import relay
from relayc.backend.runtime import ArgumentError, RelaycError, device as open_device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.model_cache import digest_in_memory
from relayc.frontends.onnx.containers import declared_container, is_tensor, shape_of
from relayc.frontends.onnx.errors import OnnxImportError, UnsupportedOperatorError, ValueNeededError
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.inputs import graph_inputs
from relayc.frontends.onnx.model import NEWEST_OPSET
from relayc.relay.container_type import OptionalType
from relayc.relay.errors import InternalCompileError
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule

__all__ = ["RelayBackend", "RelayRep", "prepare", "run_model", "run_node", "supports_device"]

Arrays = Mapping[str, np.ndarray]
Executable = Callable[[Arrays], list[np.ndarray]]

_KINDS = {"CPU": ("cpu", "llvm"), "CUDA": ("cuda", "cuda")}
"""Device kind and target by the name that ONNX uses."""


class RelayRep(BackendRep):
    """A prepared model: compiled once, for all sizes of its symbolic dimensions.

    A model that needs a size or a value at compile time is specialised on each set of input shapes (and shape-deciding
    values) that `run` meets; so are shapes that contradict the size equalities assumed by the compiled model. The model
    must not change until then: `run` raises OnnxImportError.
    """

    def __init__(self, model: ModelProto, compile_module: Callable[[IRModule], Executable]) -> None:
        self._model = model
        self._compile_module = compile_module
        self._declared = [value.name for value in graph_inputs(model.graph)]
        self._all_declared = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        declared = graph_inputs(model.graph)
        self._deciding: tuple[str, ...] = ()
        """Inputs whose values decide shapes."""
        self._specialised: dict[Any, Executable] = {}
        self._general = self._compile_general(declared)
        may_specialise = self._general is None or _symbolic_inputs(model)
        self._digest = digest_in_memory(model) if may_specialise else ""

    def _compile_general(self, declared: Sequence[ValueInfoProto]) -> Executable | None:
        """The model for all sizes; None if it has to be specialised."""
        containers = [value for value in declared if not is_tensor(value)]
        if any(declared_container(value, value.name) is None for value in containers):
            return None
        try:
            mod, _ = from_onnx(self._model)
            return self._compile_module(mod)
        except ValueNeededError as error:
            self._deciding = error.inputs
        except CompileError as error:
            if containers:
                return None  # elements of several ranks are specialised on one by one
            shapes = tuple(value.name for value in declared if _may_be_shape(value))
            final = isinstance(error, UnsupportedOperatorError | InternalCompileError)
            if final or not (shapes or _symbolic_inputs(self._model)):
                raise
            self._deciding = shapes
        return None

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model; outputs are in the model's order. `inputs` is one array, a sequence in the order of the
        graph's inputs (those with an initializer may be omitted), or a mapping by name."""
        arrays = self._named(inputs)
        if self._general is None:
            outputs = self._specialise(arrays)(arrays)
        else:
            try:
                outputs = self._general(arrays)
            except (ArgumentError, CompileError):
                if not _symbolic_inputs(self._model):
                    raise
                outputs = self._specialise(arrays)(arrays)
        return namedtupledict("Outputs", self._outputs)(*outputs)

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, Mapping):
            return {name: _array(value) for name, value in inputs.items()}
        values = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        names = self._declared if len(values) == len(self._declared) else self._all_declared
        if len(values) != len(names):
            raise OnnxImportError(f"{len(values)} inputs given; the model takes {len(names)}: {', '.join(names)}")
        return {name: _array(value) for name, value in zip(names, values, strict=True) if name in self._declared}

    def _specialise(self, arrays: Arrays) -> Executable:
        """The specialisation for these shapes and values, compiled on first use."""
        while True:
            values = {name: arrays[name] for name in self._deciding if name in arrays}
            key = (
                tuple((name, _hashable(shape_of(value))) for name, value in arrays.items()),
                tuple((name, _contents(value)) for name, value in values.items()),
            )
            found = self._specialised.get(key)
            if found is not None:
                return found
            shapes = {name: shape_of(value) for name, value in arrays.items()}
            if digest_in_memory(self._model) != self._digest:
                raise OnnxImportError("the model was changed after it had been prepared, and has to be compiled again "
                                      f"for inputs of {shapes}; prepare it again")  # fmt: skip
            try:
                mod, _ = from_onnx(self._model, shape=shapes, constants=values)
            except ValueNeededError as error:
                more = tuple(name for name in error.inputs if name in arrays and name not in self._deciding)
                if not more:
                    raise
                self._deciding += more
                continue
            self._specialised[key] = self._compile_module(mod)
            return self._specialised[key]


def _array(value: Any) -> Any:
    """Convert an input to an array, a sequence to a list of arrays; None stays None."""
    if value is None or isinstance(value, np.ndarray):
        return value
    return [_array(item) for item in value] if isinstance(value, list | tuple) else np.asarray(value)


def _flattened(arrays: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays by name, elements of sequences by name and number."""
    for name, value in arrays.items():
        if isinstance(value, list):
            yield from _flattened({f"{name}[{i}]": item for i, item in enumerate(value)})
        elif value is not None:
            yield name, value


def _hashable(shape: Any) -> Any:
    return tuple([_hashable(item) for item in shape]) if isinstance(shape, list | tuple) else shape


def _contents(value: Any) -> Any:
    """A hashable key of an input's value."""
    if value is None or isinstance(value, list):
        return value if value is None else tuple([_contents(item) for item in value])
    return tuple(value.reshape(-1).tolist()) if value.dtype.kind in "OSU" else value.tobytes()


def _may_be_shape(value: ValueInfoProto) -> bool:
    """Can the input be a shape: an integer vector or scalar?"""
    tensor = value.type.tensor_type
    return tensor.elem_type in (TensorProto.INT32, TensorProto.INT64) and len(tensor.shape.dim) <= 1


def _symbolic_inputs(model: ModelProto) -> bool:
    """Does any input have a symbolic dimension, or elements of any rank?"""
    inputs = graph_inputs(model.graph)
    dims = [d for value in inputs for d in value.type.tensor_type.shape.dim]
    types = [declared_container(value, value.name) for value in inputs if not is_tensor(value)]
    of_any_rank = any(ty is not None and ty.tensors.shape is None for ty in types)
    return of_any_rank or not all(d.HasField("dim_value") for d in dims)


class RelayBackend(Backend):
    """`onnx.backend.base.Backend` on this compiler. Devices: "CPU" and, where there is one, "CUDA"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Always True: `prepare` reports unsupported operators, with reasons."""
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> RelayRep:
        """Compile `model`. Raises `OnnxImportError` or its subclass `UnsupportedOperatorError`."""
        return RelayRep(model, lambda mod: cls.compile_model(mod, device))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile `model` and run it once; `inputs` as in `RelayRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays, in the order of its inputs. `opset_version` selects the operator's version."""
        arrays = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        if len(arrays) != len(names):
            raise OnnxImportError(f"{len(arrays)} arrays for the {len(names)} inputs of {node.op_type}")
        types = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in dict(zip(names, arrays, strict=True)).items()
        ]
        outputs = [helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
        opset = helper.make_opsetid(node.domain, kwargs.get("opset_version", NEWEST_OPSET))
        model = helper.make_model(helper.make_graph([node], "run_node", types, outputs), opset_imports=[opset])
        return cls.prepare(model, device).run(dict(zip(names, arrays, strict=True)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        kind = _KINDS.get(device.partition(":")[0].upper())
        if kind is None:
            return False
        try:
            return bool(open_device(kind[0], 0).exist)
        except RelaycError:
            return False

    @classmethod
    def compile_module(cls, mod: IRModule, device: str) -> Executable:
        """A function from arrays by input name to the outputs in order."""
        name, _, number = device.partition(":")
        kind, target = _KINDS[name.upper()]
        place = open_device(kind, int(number) if number else 0)
        module = graph_executor.GraphModule(cls.build(mod, target)["default"](place))

        optional = {var.name for var in mod["main"].params if isinstance(var.ty, OptionalType)}

        def execute(arrays: Arrays) -> list[np.ndarray]:
            inputs: dict[str, Any] = {name: arrays[name] for name in mod.attrs["input_names"]}
            for name in optional & inputs.keys():  # a sequence of at most one element for the executor
                inputs[name] = [] if inputs[name] is None else [inputs[name]]
            return module.infer(inputs)

        return execute

    @classmethod
    def build(cls, mod: IRModule, target: str) -> CompiledModel:
        """The compiled model that runs."""
        return relay.build(mod, target=target)

    @classmethod
    def compile_model(cls, mod: IRModule, device: str) -> Executable:
        """Like `compile_module`, for inputs and outputs that may be sequences, optional values and strings."""
        compiled, optional = cls.compile_module(mod, device), mod.attrs["optional_outputs"]

        def execute(arrays: Arrays) -> list[Any]:
            results = compiled({**arrays, **dict(_flattened(arrays))})
            return [next(iter(x), None) if i in optional else x for i, x in enumerate(results)]

        return execute


prepare = RelayBackend.prepare
run_model = RelayBackend.run_model
run_node = RelayBackend.run_node
supports_device = RelayBackend.supports_device
