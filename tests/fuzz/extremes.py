"""Models with extreme values: attributes, constants and shapes at the limits of their types, and empty ones.

Half of them are random graphs with some values replaced, the others single nodes made by ONNX's schemas alone, most of
which are invalid. The same seed gives the same model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

import tests.fuzz.generators  # noqa: F401 (the generators register themselves)
from tests.fuzz.builder import random_graph
from tests.fuzz.schemas import as_dtype, types_of_schema

__all__ = ["extreme_model"]

Feeds = dict[str, Any]

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 65, 257, 65537, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-38, 3e38, -3e38, 1e9, float("nan"), float("inf"), float("-inf"))
STRINGS = (
    b"", b"\xff\xfe", b"a" * 100, b"NOTSET", b"SAME_UPPER", b"VALID", b"linear", b"cubic", b"nearest", b"reflect",
    b"edge", b"wrap", b"constant", b"align_corners", b"tf_crop_and_resize", b"bidirectional", b"reverse", b"mul",
    b"max", b"none", b"ij,jk->ik", b"...", b"i" * 60 + b"->", b"Tanh", b"DCR", b"LOGISTIC", b"SOFTMAX", b"BRANCH_LEQ",
    b"TFIDF", b"(a+)+$",
)  # fmt: skip
DIMS = (1, 2, 3, 4, 2, 3, 0, 5, 8)
HUGE = (0, 1, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
_NODES = 4
"""Nodes of a graph, at most: an extreme value meets the nodes beside its own, and time goes to compiling."""


def extreme_model(seed: int) -> tuple[ModelProto, Feeds]:
    """A model, and values of its inputs."""
    rng = random.Random(seed)
    if seed % 2:
        return _one_node(rng)
    sample = random_graph(seed, most=_NODES)
    model, feeds = ModelProto(), dict(sample.runs[0])
    model.CopyFrom(sample.model)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((_change_attribute, _change_attribute, _change_constant, _change_input))(rng, model, feeds)
    return model, feeds


# changes of a valid model ---------------------------------------------------------------------------------------------


def _change_attribute(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """An attribute of the operator, given or not, gets an extreme value."""
    node = rng.choice(model.graph.node)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    try:
        schema = defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return
    known = {name: int(attribute.type.value) for name, attribute in schema.attributes.items()}
    known.update({attribute.name: attribute.type for attribute in node.attribute})
    if not known:
        return
    name = rng.choice(sorted(known))
    given = [attribute for attribute in node.attribute if attribute.name == name]
    if given and given[0].ints and rng.random() < 0.6:  # of the right length
        given[0].ints[rng.randrange(len(given[0].ints))] = rng.choice(INTEGERS)
        return
    for attribute in given:
        node.attribute.remove(attribute)
    node.attribute.append(_attribute(rng, name, known[name]))


def _change_constant(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """An element of a constant, such as the axes or sizes of a node, or all of it; not the number of turns of a loop,
    which is how long the model is to run."""
    tensors = [*model.graph.initializer, *[a.t for n in model.graph.node for a in n.attribute if a.HasField("t")]]
    kinds = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)
    turns = {node.input[0] for node in model.graph.node if node.op_type == "Loop"}
    tensors = [t for t in tensors if t.data_type in kinds and max(t.dims, default=1) < 2**16 and t.name not in turns]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    values = numpy_helper.to_array(tensor).copy()
    if values.size == 0 or rng.random() < 0.1:
        values = np.zeros(rng.choice(((0,), (0, 3), (), (1,))), values.dtype)
    else:
        value = rng.choice(FLOATS if values.dtype.kind == "f" else INTEGERS)
        with np.errstate(all="ignore"):
            values.reshape(-1)[rng.randrange(values.size)] = np.array(value).astype(values.dtype)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _change_input(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """A size of an input, or of the declaration alone, which is too large to be passed."""
    values = [value for value in model.graph.input if value.type.tensor_type.shape.dim]
    if not values:
        return
    value = rng.choice(values)
    dims = value.type.tensor_type.shape.dim
    axis = rng.randrange(len(dims))
    if value.name in feeds and rng.random() < 0.6:
        array = np.asarray(feeds[value.name])
        if array.ndim == len(dims):
            size = rng.choice((0, 1, 2, 5))
            feeds[value.name] = np.resize(array, (*array.shape[:axis], size, *array.shape[axis + 1 :]))
            if dims[axis].HasField("dim_value"):
                dims[axis].dim_value = size
            return
    dims[axis].dim_value = rng.choice((*HUGE, -1))


# single nodes ---------------------------------------------------------------------------------------------------------


@cache
def _schemas() -> list[Any]:
    """All versions of all operators."""
    found = [s for s in defs.get_all_schemas_with_history() if s.domain in ("", "ai.onnx.ml") and not s.deprecated]
    return sorted(found, key=lambda s: (s.domain, s.name, s.since_version))


def _one_node(rng: random.Random) -> tuple[ModelProto, Feeds]:
    """A model of one node, whose inputs have types that the schema allows and any shapes."""
    schema = rng.choice(_schemas())
    rank, feeds, constants = rng.randint(0, 5), Feeds(), list[TensorProto]()
    shape = [rng.choice(DIMS) for _ in range(rank)]
    names, inputs = list[str](), list[Any]()
    for formal, kinds in zip(schema.inputs, types_of_schema(schema), strict=True):
        repeated = rng.randint(0, 3) if formal.option == defs.OpSchema.FormalParameterOption.Variadic else 1
        for _ in range(repeated):
            if not kinds or (formal.option == defs.OpSchema.FormalParameterOption.Optional and rng.random() < 0.4):
                names.append("")
                continue
            name = f"x{len(names)}"
            other = [rng.choice(DIMS) for _ in range(rank)]
            array = _array(rng, rng.choice(kinds), shape if rng.random() < 0.6 else other)
            names.append(name)
            if rng.random() < 0.5 and array.dtype.kind != "O":
                constants.append(numpy_helper.from_array(array, name))
                continue
            feeds[name] = array
            dims: list[Any] = [f"n{d}" if rng.random() < 0.15 else d for d in array.shape]
            if dims and rng.random() < 0.1:
                dims[rng.randrange(len(dims))] = rng.choice(HUGE)
            kind = TensorProto.STRING if array.dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, dims))
    node = NodeProto(op_type=schema.name, domain=schema.domain, name="node", input=names)
    node.output.extend([f"y{i}" for i in range(rng.randint(1, max(1, min(schema.max_output, 4))))])
    for name, attribute in schema.attributes.items():
        if rng.random() < (0.9 if attribute.required else 0.4):
            node.attribute.append(_attribute(rng, name, int(attribute.type.value)))
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "extreme", inputs, outputs, constants)
    opsets = [helper.make_opsetid(schema.domain, schema.since_version)]
    if schema.domain:
        opsets.append(helper.make_opsetid("", 20))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def _array(rng: random.Random, dtype: str, shape: Sequence[int]) -> Any:
    """Small values, or a short vector of extreme integers, such as axes or sizes."""
    generator = np.random.default_rng(rng.randrange(2**32))
    if dtype in ("int64", "int32") and rng.random() < 0.7:
        small = (0, 1, -1, 2, 3)
        count = rng.choice((0, 1, 1, 2, 3, 4, 6))
        values = [rng.choice(small if rng.random() < 0.7 else INTEGERS) for _ in range(count)]
        array = np.array(values, np.int64).astype(dtype)
        return array.reshape(()) if array.size == 1 and rng.random() < 0.3 else array
    if dtype == "object":
        return generator.choice(np.array(["", "a", "b c", "1", "ä"], object), tuple(shape))
    with np.errstate(all="ignore"):
        return (generator.standard_normal(tuple(shape)) * rng.choice((1, 3, 100))).astype(as_dtype(dtype))


def _tensor(rng: random.Random, name: str) -> TensorProto:
    """A small tensor, or a large shape with no data."""
    if rng.random() < 0.2:
        return helper.make_tensor(name, TensorProto.FLOAT, [rng.choice(HUGE), 0], b"", raw=True)
    dtype = rng.choice((np.float32, np.int64, np.int32, np.uint8))
    values = [rng.choice(FLOATS if dtype == np.float32 else (0, 1, 2, 255)) for _ in range(rng.choice((0, 1, 1, 3)))]
    with np.errstate(all="ignore"):
        return numpy_helper.from_array(np.array(values, dtype), name)


def _graph(rng: random.Random) -> GraphProto:
    """The body of a loop or a branch: the identity, or one of another number of inputs."""
    names = [f"i{k}" for k in range(rng.randint(0, 3))]
    nodes = [helper.make_node("Identity", [name], [f"{name}_"]) for name in names]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    return helper.make_graph(nodes, "body", inputs, [helper.make_empty_tensor_value_info(f"{n}_") for n in names])


_Type = AttributeProto
_VALUES: dict[int, Callable[[random.Random], Any]] = {
    _Type.INT: lambda rng: rng.choice(INTEGERS),
    _Type.FLOAT: lambda rng: rng.choice(FLOATS),
    _Type.STRING: lambda rng: rng.choice(STRINGS),
    _Type.INTS: lambda rng: [rng.choice(INTEGERS) for _ in range(rng.choice((0, 1, 2, 3, 4, 9)))],
    _Type.FLOATS: lambda rng: [rng.choice(FLOATS) for _ in range(rng.choice((0, 1, 2, 3, 4, 9)))],
    _Type.STRINGS: lambda rng: [rng.choice(STRINGS) for _ in range(rng.choice((0, 1, 2, 3)))],
    _Type.TENSOR: lambda rng: _tensor(rng, "t"),
    _Type.GRAPH: _graph,
}
"""A value for each type of an attribute."""


def _attribute(rng: random.Random, name: str, kind: int) -> AttributeProto:
    """An attribute of its declared type or, seldom, of another; the value may be small, too."""
    kind = rng.choice(sorted(_VALUES)) if rng.random() < 0.1 or kind not in _VALUES else kind
    if kind == _Type.INT and rng.random() < 0.5:
        value: Any = rng.choice((0, 1, -1, 2, 3))
    elif kind == _Type.INTS and rng.random() < 0.5:
        value = [rng.choice((1, 2, 3, 0, 1)) for _ in range(rng.choice((1, 2, 4)))]
    else:
        value = _VALUES[kind](rng)
    return helper.make_attribute(name, value, attr_type=kind)
