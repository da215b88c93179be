"""Inference requests and responses of the Open Inference Protocol, version 2, with the extension of binary tensors.

The body of a request is a JSON object, and behind it the bytes of the inputs that say so by `binary_data_size`; the
header Inference-Header-Content-Length is the length of the JSON then. A header of length 0 means that the whole body
is the one input of the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relayc.server.errors import ServerError
from relayc.server.tensors import (
    Array,
    TensorSpec,
    from_bytes,
    from_json,
    json_kind,
    specs_by_name,
    to_bytes,
    to_json,
)

__all__ = ["HEADER_LENGTH", "InferRequest", "InferResponse", "parse_request", "write_response"]

HEADER_LENGTH = "inference-header-content-length"
"""The HTTP header with the bytes of JSON that precede binary tensors."""

_UNSUPPORTED = ("classification", "shared_memory_region", "sequence_id")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request whose inputs are complete and of the model's types. `outputs` says of each output if it is binary.

    `timeout` is in seconds, None without one.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, bool]
    id: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The parts of a body, and the length of its JSON where bytes of tensors follow."""

    parts: Sequence[bytes | memoryview]
    header_length: int | None

    @property
    def nbytes(self) -> int:
        """The length of the body."""
        return sum(map(len, self.parts))


def parse_request(
    body: memoryview, header_length: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> InferRequest:
    """Read a request for a model with these inputs and outputs. Raises ServerError that says what was expected."""
    length = len(body) if header_length is None else _header_length(header_length, len(body))
    if length == 0 and header_length is not None:
        return InferRequest({inputs[0].name: _only_input(inputs, body)}, {spec.name: True for spec in outputs})
    fields = _json_object(body[:length])
    parameters = _parameters(fields, "the request")
    identifier = fields.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise ServerError(f"'id' is {identifier!r:.100}; expected a string")
    return InferRequest(
        _read_inputs(fields.get("inputs"), inputs, body[length:]),
        _read_outputs(fields.get("outputs"), outputs, _flag(parameters, "binary_data_output") or False),
        identifier,
        _timeout(parameters),
    )


def write_response(
    model: str, version: str, request: InferRequest, results: Mapping[str, Array], specs: Sequence[TensorSpec]
) -> InferResponse:
    """The response with the outputs that `request` names, in its order."""
    datatypes = specs_by_name(specs)
    described: list[dict[str, Any]] = []
    binary: list[bytes | memoryview] = []
    for name, is_binary in request.outputs.items():
        values = results[name]
        output: dict[str, Any] = {"name": name, "datatype": datatypes[name].datatype, "shape": list(values.shape)}
        if is_binary:
            binary.append(to_bytes(values))
            output["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            output["data"] = to_json(values)
        described.append(output)
    identifier = {} if request.id is None else {"id": request.id}
    fields = {"model_name": model, "model_version": version, **identifier, "outputs": described}
    header = json.dumps(fields, separators=(",", ":")).encode()
    return InferResponse([header, *binary], len(header) if binary else None)


def _header_length(text: str, available: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) > available:
        raise ServerError(f"{HEADER_LENGTH} is {text!r:.40}; expected a number of at most the body's {available} bytes")
    return int(text)


def _only_input(inputs: Sequence[TensorSpec], body: memoryview) -> Array:
    """The input of a request without JSON; its one dimension of any size follows from the number of bytes."""
    if len(inputs) != 1 or inputs[0].shape.count(-1) > 1 or inputs[0].datatype == "BYTES":
        raise ServerError(
            f"{HEADER_LENGTH} is 0: the body is taken for the only input, of numbers, with at most one dimension of "
            f"any size; the model has {', '.join(f'{s.name} {s.datatype} {list(s.shape)}' for s in inputs)}"
        )
    (spec,) = inputs
    item = math.prod(d for d in spec.shape if d >= 0) * spec.dtype.itemsize
    count = len(body) // item if item else 0
    return from_bytes(spec, tuple(count if d < 0 else d for d in spec.shape), body)


def _json_object(text: memoryview) -> dict[str, Any]:
    try:
        fields = json.loads(str(text, "utf-8"))
    except RecursionError as error:
        raise ServerError("the body is nested too deeply; expected tensors of at most 64 dimensions") from error
    except ValueError as error:
        raise ServerError(f"the body is no JSON: {error}; expected an object with 'inputs'") from error
    if not isinstance(fields, dict):
        raise ServerError(f"the body is of the JSON type {json_kind(type(fields))}; expected an object with 'inputs'")
    return fields


def _parameters(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = fields.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise ServerError(f"'parameters' of {where} is {parameters!r:.100}; expected an object")
    for name in _UNSUPPORTED:
        if parameters.get(name):
            raise ServerError(f"the parameter {name!r} of {where} is not supported; leave it out")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise ServerError(f"the parameter {name!r} is {value!r:.100}; expected true or false")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Seconds, of the parameter in microseconds; Triton's 0 is none."""
    value = parameters.get("timeout")
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ServerError(f"the parameter 'timeout' is {value!r:.100}; expected microseconds")
    return min(value, 1 << 53) / 1e6


def _objects(value: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ServerError(f"{what!r} is {value!r:.100}; expected a list of objects")
    return value


def _known(item: Mapping[str, Any], specs: Mapping[str, TensorSpec], taken: Mapping[str, Any], what: str) -> TensorSpec:
    name = item.get("name")
    if not isinstance(name, str) or name not in specs:
        raise ServerError(f"the model has no {what} {name!r:.200}; its {what}s are {', '.join(specs)}")
    if name in taken:
        raise ServerError(f"{what} {name!r} occurs twice; expected it once")
    return specs[name]


def _read_inputs(value: object, inputs: Sequence[TensorSpec], binary: memoryview) -> dict[str, Array]:
    specs = specs_by_name(inputs)
    found: dict[str, Array] = {}
    at = 0
    for item in _objects(value, "inputs"):
        spec = _known(item, specs, found, "input")
        shape = spec.check(item.get("shape"), item.get("datatype"))
        size = _parameters(item, f"input {spec.name!r}").get("binary_data_size")
        if size is None:
            found[spec.name] = from_json(spec, shape, item.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - at or "data" in item:
            raise ServerError(
                f"input {spec.name!r}: binary_data_size is {size!r:.40}; expected at most the {len(binary) - at} bytes "
                "that are left behind the JSON, and no 'data'"
            )
        found[spec.name] = from_bytes(spec, shape, binary[at : at + size])
        at += size
    missing = [f"{s.name} ({s.datatype} {list(s.shape)})" for s in inputs if s.name not in found]
    if missing:
        raise ServerError(f"inputs are missing: {', '.join(missing)}")
    if at != len(binary):
        raise ServerError(f"the body has {len(binary)} bytes behind the JSON; the inputs account for {at}")
    return {spec.name: found[spec.name] for spec in inputs}


def _read_outputs(value: object, outputs: Sequence[TensorSpec], is_binary: bool) -> dict[str, bool]:
    specs = specs_by_name(outputs)
    if value is None or value == []:
        return dict.fromkeys(specs, is_binary)
    found: dict[str, bool] = {}
    for item in _objects(value, "outputs"):
        spec = _known(item, specs, found, "output")
        asked = _flag(_parameters(item, f"output {spec.name!r}"), "binary_data")
        found[spec.name] = is_binary if asked is None else asked
    return found
