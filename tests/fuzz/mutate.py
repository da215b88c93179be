"""Damage to models: small changes of a valid one, of its structure or of its bytes, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, MutableSequence
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

__all__ = ["damaged_bytes", "mutated"]

Mutation = Callable[[random.Random, ModelProto], None]
_mutations: list[Mutation] = []

_EXTREME = (0, 1, -1, 2, 7, -(2**31), 2**31 - 1, 2**40, 2**63 - 1, -(2**63))
_OPERATORS = tuple(sorted({s.name for s in defs.get_all_schemas() if s.domain == ""}))


def mutated(rng: random.Random, model: ModelProto) -> ModelProto:
    """A copy of `model` with one to three mutations."""
    changed = ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_mutations)(rng, changed)
    return changed


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, taken out, doubled, or cut off."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        first = rng.randrange(len(damaged) + 1)
        last = min(first + rng.choice((1, 1, 4, 64)), len(damaged))
        how = rng.randrange(4)
        if how == 0:
            damaged[first:last] = rng.randbytes(last - first)
        elif how == 1:
            del damaged[first:last]
        elif how == 2:
            damaged[first:first] = damaged[first:last]
        elif rng.random() < 0.3:
            del damaged[first:]
    return bytes(damaged)


def _mutation(change: Mutation) -> Mutation:
    _mutations.append(change)
    return change


def _graphs(graph: GraphProto) -> list[GraphProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
    return [graph, *[g for one in inner for g in _graphs(one)]]


def _any_graph(rng: random.Random, model: ModelProto) -> GraphProto:
    return rng.choice(_graphs(model.graph))


def _any_node(rng: random.Random, model: ModelProto) -> NodeProto:
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    return rng.choice(nodes) if nodes else model.graph.node.add(op_type="Relu")


def _any_tensor(rng: random.Random, model: ModelProto) -> TensorProto:
    tensors = [t for graph in _graphs(model.graph) for t in graph.initializer]
    tensors += [a.t for graph in _graphs(model.graph) for n in graph.node for a in n.attribute if a.HasField("t")]
    return rng.choice(tensors) if tensors else model.graph.initializer.add(name="none")


def _nodes_or_tensors(rng: random.Random, model: ModelProto) -> MutableSequence[Any]:
    graph = _any_graph(rng, model)
    return rng.choice((graph.node, graph.initializer))


def _any_name(rng: random.Random, model: ModelProto) -> str:
    graph = model.graph
    names = [n for node in graph.node for n in (*node.input, *node.output)]
    names += [*[t.name for t in graph.initializer], *[v.name for v in graph.input], "", "nobody"]
    return rng.choice(names)


@_mutation
def _read_another(rng: random.Random, model: ModelProto) -> None:
    """Another tensor of the model, one that does not exist, or one computed later: a cycle."""
    node = _any_node(rng, model)
    if node.input:
        node.input[rng.randrange(len(node.input))] = _any_name(rng, model)


@_mutation
def _write_another(rng: random.Random, model: ModelProto) -> None:
    node = _any_node(rng, model)
    if node.output:
        node.output[rng.randrange(len(node.output))] = _any_name(rng, model)


@_mutation
def _more_or_fewer_operands(rng: random.Random, model: ModelProto) -> None:
    node = _any_node(rng, model)
    part = rng.choice((node.input, node.output))
    if part and rng.random() < 0.5:
        del part[rng.randrange(len(part))]
    else:
        part.append(_any_name(rng, model))


@_mutation
def _another_operator(rng: random.Random, model: ModelProto) -> None:
    _any_node(rng, model).op_type = rng.choice(_OPERATORS)


@_mutation
def _another_domain(rng: random.Random, model: ModelProto) -> None:
    _any_node(rng, model).domain = rng.choice(("ai.onnx", "ai.onnx.ml", "com.microsoft", "nowhere", ""))


@_mutation
def _drop(rng: random.Random, model: ModelProto) -> None:
    """A node or an initializer is gone."""
    part = _nodes_or_tensors(rng, model)
    if part:
        del part[rng.randrange(len(part))]


@_mutation
def _double(rng: random.Random, model: ModelProto) -> None:
    """A node or an initializer is there twice."""
    part = _nodes_or_tensors(rng, model)
    if part:
        part.append(rng.choice(part))


@_mutation
def _another_order(rng: random.Random, model: ModelProto) -> None:
    graph = _any_graph(rng, model)
    nodes = list(graph.node)
    rng.shuffle(nodes)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


@_mutation
def _attribute(rng: random.Random, model: ModelProto) -> None:
    """A value far off, of another type, or none."""
    node = _any_node(rng, model)
    if not node.attribute:
        node.attribute.append(helper.make_attribute(rng.choice(("axis", "perm", "to", "body")), rng.choice(_EXTREME)))
        return
    attribute = rng.choice(node.attribute)
    how = rng.randrange(6)
    if how == 0:
        node.attribute.remove(attribute)
    elif how == 1:
        attribute.type = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 0))
    elif how == 2:
        attribute.CopyFrom(helper.make_attribute(attribute.name, rng.choice((float("nan"), float("inf"), -1e30, "x"))))
    elif how == 3:
        attribute.name = rng.choice(("axis", "axes", "to", "mode", "no_such"))
    elif attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_EXTREME)
        if how == 5:
            attribute.ints.append(rng.choice(_EXTREME))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"\xff\xfe", b"constant", b"SAME_UPPER", b"a" * 100))
    else:
        attribute.i = rng.choice(_EXTREME)


@_mutation
def _tensor_shape(rng: random.Random, model: ModelProto) -> None:
    tensor = _any_tensor(rng, model)
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_EXTREME)
    else:
        tensor.dims.append(rng.choice(_EXTREME))


@_mutation
def _tensor_type(rng: random.Random, model: ModelProto) -> None:
    _any_tensor(rng, model).data_type = rng.choice((*range(27), 99, -1))


@_mutation
def _tensor_data(rng: random.Random, model: ModelProto) -> None:
    """Other values, too few of them, or in a file that is not there."""
    tensor = _any_tensor(rng, model)
    how = rng.randrange(3)
    if how == 0 and tensor.raw_data:
        tensor.raw_data = rng.randbytes(len(tensor.raw_data))
    elif how == 1:
        tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(("none.bin", "../none.bin", "/dev/zero", ""))), ("offset", "-1")):
            tensor.external_data.add(key=key, value=value)


@_mutation
def _declaration(rng: random.Random, model: ModelProto) -> None:
    """An input or output of another type or shape, or not declared at all."""
    graph = _any_graph(rng, model)
    part = rng.choice((graph.input, graph.output))
    if not part:
        return
    value = rng.choice(part)
    how = rng.randrange(5)
    if how == 0:
        part.remove(value)
    elif how == 1:
        value.name = _any_name(rng, model)
    elif how == 2:
        value.type.tensor_type.elem_type = rng.choice((*range(27), 99))
    elif how == 3:
        value.type.tensor_type.shape.dim.add(dim_value=rng.choice(_EXTREME))
    elif value.type.tensor_type.shape.dim:
        rng.choice(value.type.tensor_type.shape.dim).dim_value = rng.choice(_EXTREME)


@_mutation
def _versions(rng: random.Random, model: ModelProto) -> None:
    if rng.random() < 0.3 or not model.opset_import:
        model.ir_version = rng.choice((0, 1, 3, 8, 99))
    else:
        model.opset_import[0].version = rng.choice((0, 1, 5, 9, 13, 21, 28, 99, -1, 2**62))


@_mutation
def _nest(rng: random.Random, model: ModelProto) -> None:
    """The whole graph as a branch inside itself."""
    branch = GraphProto.FromString(model.graph.SerializeToString())
    del branch.input[:]
    model.graph.node.add(op_type="If", input=[_any_name(rng, model)], output=["nested"]).attribute.extend(
        [helper.make_attribute("then_branch", branch), helper.make_attribute("else_branch", branch)]
    )
