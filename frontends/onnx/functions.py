"""Function bodies of ONNX operators, for operators without a converter.

Bodies come from the schemas of the onnx package, at the model's opset. Omitted attributes take the schema's defaults,
and omitted inputs stay absent in the body; `onnx.inliner` does neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs, helper

from relayc.frontends.onnx.errors import OnnxImportError
from relayc.frontends.onnx.tensors import element_type
from relayc.relay.expr import Expr
from relayc.relay.type import TensorType

__all__ = ["has_function", "most_inputs", "schema_defaults", "schema_function"]


def _schema(domain: str, name: str, opset: int) -> Any:  # the stubs of onnx lack most of OpSchema
    is_text = isinstance(domain, str) and isinstance(name, str)  # protobuf returns bytes for invalid UTF-8
    if not is_text or not 0 < opset < 1 << 31:
        return None
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def has_function(domain: str, name: str, opset: int) -> bool:
    """Does ONNX define this operator by a function body at `opset` of its domain?"""
    schema = _schema(domain, name, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


@lru_cache(maxsize=1024)
def most_inputs(domain: str, name: str, opset: int) -> int | None:
    """Maximum number of inputs of an operator; None for one that ONNX does not define."""
    schema = _schema(domain, name, opset)
    return None if schema is None else schema.max_input


@lru_cache(maxsize=1024)
def string_inputs(domain: str, name: str, opset: int) -> tuple[bool | None, ...]:
    """For each input that ONNX declares: True if it is a tensor of strings, False if never, None if both occur."""
    schema = _schema(domain, name, opset)
    kinds = [] if schema is None else [{kind for kind in x.types if kind.startswith("tensor(")} for x in schema.inputs]
    text = "tensor(string)"
    return tuple([None if not kind or (text in kind and len(kind) > 1) else text in kind for kind in kinds])


def schema_defaults(domain: str, name: str, opset: int) -> dict[str, AttributeProto]:
    """Default values of an operator's attributes."""
    schema = _schema(domain, name, opset)
    if schema is None:
        return {}
    defaults = {key: attribute.default_value for key, attribute in schema.attributes.items()}
    return {key: value for key, value in defaults.items() if value.type != AttributeProto.UNDEFINED}


def schema_function(
    node: NodeProto,
    domain: str,
    opsets: Mapping[str, int],
    attributes: Mapping[str, AttributeProto],
    inputs: Sequence[Expr | None],
) -> FunctionProto | None:
    """The function body of the operator of `node`; None without one.

    Bodies in other domains are versioned by the default domain's opset; the newest that the model's opsets allow is
    taken. Raises `OnnxImportError` when the onnx package has no body for these inputs.
    """
    schema = _schema(domain, node.op_type, opsets[domain])
    if schema is None:
        return None
    limit = opsets.get("", opsets[domain])
    if schema.has_function:
        text = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, limit))
    elif schema.has_context_dependent_function:
        _check_attributes(schema, attributes)
        bare = helper.make_node(node.op_type, list(node.input), list(node.output), domain=node.domain)
        bare.attribute.extend(attributes.values())
        types = [_type_proto(x).SerializeToString() for x in inputs]
        version = _newest(schema.context_dependent_function_opset_versions, limit)
        try:
            text = schema.get_context_dependent_function_with_opset_version(version, bare.SerializeToString(), types)
        except RuntimeError as error:
            raise OnnxImportError(f"ONNX gives no body of {node.op_type} for these inputs: {error}") from error
    else:
        return None
    function = FunctionProto()
    try:
        function.ParseFromString(text)
    except DecodeError as error:
        raise OnnxImportError(f"ONNX gives no body of {node.op_type} for these inputs and attributes") from error
    if not function.node:
        raise OnnxImportError(f"ONNX gives no body of {node.op_type} for these inputs and attributes")
    if not any(entry.domain in ("", "ai.onnx") for entry in function.opset_import):  # FlexAttention forgets it
        function.opset_import.append(helper.make_opsetid("", limit))
    return function


def _check_attributes(schema: Any, attributes: Mapping[str, AttributeProto]) -> None:
    """Reject undeclared attributes, which the C++ code that builds bodies does not check."""
    for name, attribute in attributes.items():
        declared = schema.attributes.get(name)
        if declared is None or declared.type.value != attribute.type:
            raise OnnxImportError(f"{schema.name} has no attribute {name!r} of this kind")


def _newest(versions: Sequence[int], limit: int) -> int:
    return max((v for v in versions if v <= limit), default=min(versions))


def _type_proto(x: Expr | None) -> TypeProto:
    """The ONNX type of an expression; the empty type for an omitted input."""
    if x is None or not isinstance(x.ty, TensorType):
        return TypeProto()
    dims = [d if isinstance(d, int) else None for d in x.ty.shape]
    return helper.make_tensor_type_proto(element_type(str(x.ty.dtype)), dims)
