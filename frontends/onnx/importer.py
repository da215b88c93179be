"""Conversion of an ONNX model to the graph IR: `from_onnx`.

One pass over the nodes in topological order; every expression is typed when it is created, and shape arithmetic is
folded on the way, so that static inputs give static shapes throughout. ONNX's shape inference, checker and version
converter are not used. Model-local functions are inlined at each call.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto

from relayc.frontends.onnx.attributes import Attributes, Bindings, bind
from relayc.frontends.onnx.containers import ZipMap, constant_of, is_tensor, other_inputs, runtime_value, why_on_host
from relayc.frontends.onnx.errors import OnnxImportError, fault, unsupported
from relayc.frontends.onnx.expansion import MAX_EXPANDED, check_expansion, expansion_fault
from relayc.frontends.onnx.fold import free_expressions, rewrite_free
from relayc.frontends.onnx.functions import most_inputs, schema_defaults, schema_function, string_inputs
from relayc.frontends.onnx.gradient_bodies import with_gradient_bodies
from relayc.frontends.onnx.graph import describe, names_read, ordered_nodes, span_name, without_inputs
from relayc.frontends.onnx.inputs import DtypeOverride, ShapeOverride, graph_inputs, input_types, shapes_passed
from relayc.frontends.onnx.model import Model, ModelSource, function_key, load, opset_table, with_implied
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import Result, find_converter
from relayc.frontends.onnx.session import Session
from relayc.frontends.onnx.sizes import MOST_ROUNDINGS, SizeTable
from relayc.frontends.onnx.tensors import dtype_name
from relayc.frontends.onnx.unsupported import list_unsupported
from relayc.frontends.onnx.versions import Params, in_versions
from relayc.frontends.onnx.weights import RawData
from relayc.relay import op
from relayc.relay.container_type import OptionalType
from relayc.relay.errors import InternalCompileError, raise_if_internal, reports_internal_errors
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.sizes import count_roundings, smaller
from relayc.relay.type import TensorType, TupleType
from relayc.relay.user_arguments import check_names, named_values
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, Span

__all__ = ["from_onnx"]

MAX_NODES = 2_000_000
"""Most nodes converted in one import; functions and subgraphs count at each use."""

MAX_NESTING = 48
"""Greatest nesting depth of function calls and subgraphs."""

CONVERSION_FAULTS = (CompileError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, MemoryError)
"""Exceptions that a converter may raise on invalid attributes or constants; the node is added to the message."""


@reports_internal_errors("importing the model")
@np.errstate(all="ignore")
def from_onnx(
    model: ModelSource,
    shape: ShapeOverride | None = None,
    dtype: DtypeOverride | None = None,
    freeze_params: bool = True,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] | None = None,
    whole_caches: bool = False,
) -> tuple[IRModule, Params]:
    """Convert an ONNX model to a module with the function "main" (TVM: `relay.frontend.from_onnx`).

    `model` is a path (external data is read from the model's folder), the bytes of a model file, a ModelProto, what
    `torch.onnx.export` returns (its weights are not copied before the build), or a message and weights (`ModelParts`).
    `shape` gives shapes by input name, ``{"x": (1, 3, 224, 224)}``, and sizes by name of a symbolic dimension,
    ``{"batch": 1}``; a name in a shape makes it symbolic. Named dimensions of the model stay symbolic, one variable for
    a name, and so do unknown ones: the compiled model runs at any size of them. With a list of shapes, a sequence input
    becomes separate tensors; so does an optional input with a shape or None. Otherwise it is a sequence, of at most one
    tensor if it is optional. `dtype` overrides element types of inputs: one for all, or by input name. With
    `freeze_params` the weights are constants of the function and the returned dictionary is empty; without, they are
    parameters of it, and the dictionary holds their values. `constants` binds inputs, such as those that determine
    shapes, to values. An input that has an initializer has its value, unless `shape` or `constants` names it. `outputs`
    names tensors of the main graph to return instead of the model's outputs; nodes that they don't need are dropped.
    With `whole_caches`, a KV cache that holds a window of positions (`sliding_window_cache`) is imported as one that
    holds all of them, as executors keep caches.

    Sizes of different names are independent: where an operator broadcasts them, either may be 1 when the model runs.
    The module's function "equal_sizes", if there is one, is the model with such sizes taken to be equal, which is
    faster; the executor runs it where they are. Others take other branches than "main" (see `relay.versions`).

    The module's attributes "input_names" and "output_names" hold the model's names, in order; "output_maps" has the
    keys of outputs whose rows are maps, by number; "host_nodes", if any, the nodes evaluated during import: operator,
    name, reason; "metadata" is the model's `ModelMetadata`. Outputs that are sequences are lists; those that may be
    absent, whose numbers "optional_outputs" holds, are lists of at most one value.

    Raises `OnnxImportError` for a model that is damaged or breaks a rule, `UnsupportedOperatorError` listing every
    operator without a converter, and `ValueNeededError` naming the inputs whose shape or value is needed.
    """
    passed = named_values(constants, "constants", '{"shape": array}')
    wanted = None if outputs is None else check_names(outputs, "outputs")
    how = _Conversion(load(model), shape, dtype, passed, wanted, freeze_params, whole_caches)
    return in_versions(how.convert)


@dataclass(frozen=True)
class _Conversion:
    """A model, and how it is converted: the arguments of `from_onnx`."""

    model: Model
    shape: ShapeOverride | None
    dtype: DtypeOverride | None
    constants: Mapping[str, np.ndarray]
    outputs: Sequence[str] | None
    freeze_params: bool
    whole_caches: bool

    def convert(self, table: SizeTable) -> tuple[IRModule, Params]:
        """Convert the model again and again, until nothing new is learned of its sizes."""
        while True:
            table.asked.clear()
            session = Session(self.model, table, self.whole_caches)
            importer = _Importer(session, self.freeze_params)
            try:
                with session.assuming(self.model.name):
                    result = importer.run(self.shape, self.dtype, self.constants, self.outputs)
            except CompileError:  # size equalities learned so far may provide the value
                if session.learn():
                    continue
                raise
            if not session.learn():
                return importer.with_sizes(result)


class _Values(ChainMap[str, Expr]):
    """The expressions of a scope by name, and those of the scopes around it; `ids` has the id of each that is computed
    or an input, `absent` the places of nodes that don't give an output that they name, which may not be read."""

    def __init__(self, outer: _Values | None = None) -> None:
        super().__init__({}, *([] if outer is None else [outer]))
        self.ids: ChainMap[int, None] = ChainMap({}, *([] if outer is None else [outer.ids]))
        self.absent: ChainMap[str, str] = ChainMap({}, *([] if outer is None else [outer.absent]))

    def __setitem__(self, name: str, value: Expr) -> None:
        super().__setitem__(name, value)
        if not isinstance(value, Constant | Tuple):
            self.ids[id(value)] = None

    def __missing__(self, name: str) -> Expr:
        raise fault(self.absent[name], f"the output {name!r} is not given by this form of the operator")


@dataclass(slots=True)
class _Scope:
    """The names visible to a node, and the attribute bindings and opsets of a function body."""

    values: _Values
    opsets: Mapping[str, int]
    bindings: Bindings
    where: str
    depth: int = 0

    def inner(self, where: str) -> _Scope:
        """The scope of a subgraph, which sees these names and may shadow them."""
        return _Scope(_Values(self.values), self.opsets, self.bindings, where, self.depth + 1)


class _Importer:
    """The state of one import."""

    def __init__(self, session: Session, freeze_params: bool) -> None:
        self.session = session
        self.model = session.model
        self.freeze_params = freeze_params
        self.params: Params = {}
        self.param_vars: list[Var] = []
        self.converted = self.expanded = 0
        self.on_host: dict[tuple[str, str], str] = {}
        """why a node is evaluated on the host, by operator and name"""

    def run(
        self,
        shape: ShapeOverride | None,
        dtype: DtypeOverride | None,
        constants: Mapping[str, np.ndarray],
        wanted: Sequence[str] | None,
    ) -> tuple[IRModule, Params]:
        graph, where = self.model.graph, self.model.name
        self._check_unique(graph)
        forms = shapes_passed(shape, where)
        declared = graph_inputs(graph, {*forms, *constants})
        tensors = [value for value in declared if is_tensor(value)]
        others = [value for value in declared if not is_tensor(value)]
        other_values, other_params = other_inputs(others, forms, constants, where, self.session.table.rank)
        of_tensors = {k: v for k, v in forms.items() if k not in other_values}
        types = input_types(tensors, of_tensors, dtype, where, self.session.table)
        if not graph.output:
            raise fault(where, "the graph has no outputs", remedy="the file is cut short or damaged")
        list_unsupported(self.model)
        check_expansion(self.model)
        scope = _Scope(_Values(), with_implied(self.model.opsets), {}, where)
        params = {n: [Var(name=n, ty=ty, span=Span(where, n))] for n, ty in types.items() if n not in constants}
        scope.values.update({name: var for name, (var,) in params.items()})
        scope.values.update(other_values)
        scope.values.update(self._bound({k: v for k, v in constants.items() if k not in other_values}, types))
        params.update(other_params)
        inputs = [var for value in declared for var in params.get(value.name, [])]
        for var in inputs:
            self._check_at_most_one(var, where)
        output_names = [o.name for o in graph.output] if wanted is None else list(wanted)
        outputs = self._graph(graph, scope, output_names)
        declared_types = {value.name: value.type for value in graph.output}
        for name, expr in zip(output_names, outputs, strict=True):
            self._check_output(name, declared_types.get(name), expr)
        names: dict[str, Any] = {"input_names": [v.name for v in inputs], "output_names": output_names,
                                 "metadata": self.model.metadata}  # fmt: skip
        maps = {i: x.op.keys for i, x in enumerate(outputs) if isinstance(x, Call) and isinstance(x.op, ZipMap)}
        if maps:
            names["output_maps"] = maps
        if self.on_host:
            names["host_nodes"] = tuple([(*node, why) for node, why in self.on_host.items()])
        results = [runtime_value(x) for x in outputs]
        names["optional_outputs"] = tuple([i for i, x in enumerate(results) if isinstance(x.ty, OptionalType)])
        body = results[0] if len(results) == 1 else Tuple(tuple(results))
        return IRModule({"main": Function((*inputs, *self.param_vars), body)}, names), self.params

    def _check_at_most_one(self, var: Var, where: str) -> None:
        """Check at run time that an optional input, passed as a sequence, has at most one element."""
        if isinstance(var.ty, OptionalType):
            source = f"{where}: input {var.name!r}, a list of at most one value,"
            counts = self.session.bind_sizes(op.expand_dims(op.sequence.length(var), 0), source)
            assert counts is not None, "it is one number"
            self.session.check_equal(counts[0], smaller(counts[0], 1), source)

    # graphs -----------------------------------------------------------------------------------------------------------

    def _graph(self, graph: GraphProto, scope: _Scope, outputs: Sequence[str]) -> list[Expr]:
        """Convert `graph`, whose inputs are in `scope` already, and return the tensors `outputs`."""
        if scope.depth > MAX_NESTING:
            raise fault(scope.where, f"graphs nested more than {MAX_NESTING} deep")
        initializers = _Initializers(self, graph, scope)
        nodes = with_gradient_bodies(graph.node, scope.where)
        for node in ordered_nodes(nodes, initializers, outputs, scope.where):
            for name in names_read(node):
                initializers.materialise(name)
            self._convert(node, scope)
        for name in outputs:
            initializers.materialise(name)
        return [scope.values[name] for name in outputs]

    def _convert(self, node: NodeProto, scope: _Scope) -> None:
        """Convert one node and put its outputs into `scope`."""
        self._count(scope)
        key = function_key(node)
        domain = key[0]
        place = f"{scope.where}: {describe(node)}"
        self.session.at(place)
        inputs = [None if name == "" else scope.values[name] for name in node.input]
        function = self.model.functions.get(key)
        span = Span(self.model.name, span_name(node), node.op_type)
        try:
            attributes = bind(node.attribute, scope.bindings)
            if function is not None:
                results: Sequence[Expr | None] = self._call(function, inputs, attributes, scope)
            elif find_converter(domain, node.op_type, self._opset(domain, scope, place)) is not None:
                results = self._call_converter(node, domain, inputs, Attributes(attributes), scope, place)
            else:
                results = self._expand(node, domain, inputs, attributes, scope, place)
            finished = [None if r is None else self._finished(r, place, span) for r in results]
        except InternalCompileError:
            raise
        except CONVERSION_FAULTS as error:
            raise _located(error, place, inputs) from error
        except Exception as error:
            raise_if_internal(error, place)
            raise
        self.session.size_producers.note(finished)
        why = why_on_host(inputs, finished) if inputs else ""
        if why:
            self.on_host[node.op_type, span_name(node)] = why
        self._store(node, finished, scope, place)

    def _finished(self, result: Expr, place: str, span: Span) -> Expr:
        """A node's result, folded; large size expressions in its shape become variables."""
        result = self.session.folder.finish(result, span)
        if not isinstance(result.ty, TensorType):
            return result
        large = [a for a, d in enumerate(result.shape) if count_roundings(d) > MOST_ROUNDINGS]
        for axis in large:
            result = self.session.with_named_size(result, axis, f"{place}, size {axis} of its result")
        return self.session.folder.finish(result, span) if large else result

    def _count(self, scope: _Scope) -> None:
        """Count a node that is converted. Raises for too many of them."""
        self.converted += 1
        self.expanded += scope.depth > 0
        if self.converted > MAX_NODES:
            raise fault(scope.where, f"more than {MAX_NODES} nodes", remedy="split the model")
        if self.expanded > MAX_EXPANDED:  # operators that the ONNX standard defines by functions are known only here
            raise expansion_fault(scope.where)

    def _call_converter(
        self,
        node: NodeProto,
        domain: str,
        inputs: Sequence[Expr | None],
        attrs: Attributes,
        scope: _Scope,
        place: str,
    ) -> Sequence[Expr | None]:
        opset = scope.opsets[domain]
        convert = find_converter(domain, node.op_type, opset)
        assert convert is not None
        where = f"{place}, opset {opset}"
        view = OnnxNode(
            name=node.name,
            op_type=node.op_type,
            domain=domain,
            opset=opset,
            inputs=inputs,
            outputs=tuple(node.output),
            attrs=attrs,
            where=where,
            span=Span(self.model.name, span_name(node), node.op_type),
            session=self.session,
            subgraph=lambda graph, args: self._subgraph(graph, args, scope, place),
            close=lambda graph, params, known, may_not_run: self._closed(
                graph, params, known, scope, place, where, may_not_run
            ),
        )
        most = most_inputs(domain, node.op_type, opset)
        if most is not None and len(inputs) > most and any(x is not None for x in inputs[most:]):
            raise view.error(f"{len(inputs)} inputs of an operator that has {most} at opset {opset}")
        _check_strings(view)
        results = _as_sequence(convert(view))
        unread = attrs.unread()
        if unread:
            listed = ", ".join(map(repr, unread))
            raise view.error(f"attributes that this operator does not have at opset {opset}: {listed}")
        return results

    def _opset(self, domain: str, scope: _Scope, place: str) -> int:
        if domain not in scope.opsets:
            raise fault(place, f"the body imports no version of the domain {domain or 'ai.onnx'!r}")
        return scope.opsets[domain]

    def _expand(
        self,
        node: NodeProto,
        domain: str,
        inputs: Sequence[Expr | None],
        attributes: Bindings,
        scope: _Scope,
        place: str,
    ) -> Sequence[Expr | None]:
        """The outputs of an operator without a converter, which ONNX defines by a function body."""
        opset = scope.opsets[domain]
        complete = {**schema_defaults(domain, node.op_type, opset), **attributes}
        body = schema_function(node, domain, scope.opsets, complete, inputs)
        if body is None:  # nested in another body; the model's own nodes were checked before
            operator = f"{domain}::{node.op_type}" if domain else node.op_type
            raise unsupported(place, f"{operator} at opset {opset} is not supported", missing=operator)
        return self._call(body, inputs, complete, scope)

    def _subgraph(
        self,
        graph: GraphProto,
        args: Sequence[Expr],
        scope: _Scope,
        place: str,
        known: Mapping[str, Expr] | None = None,
    ) -> list[Expr]:
        inner = scope.inner(place)
        inner.values.update(known or {})
        if len(args) != len(graph.input):
            raise OnnxImportError(f"its subgraph takes {len(graph.input)} inputs, got {len(args)}")
        for value, arg in zip(graph.input, args, strict=True):
            inner.values[value.name] = arg
        return self._graph(graph, inner, [output.name for output in graph.output])

    def _closed(
        self,
        graph: GraphProto,
        params: Sequence[Var],
        known: Mapping[str, Expr],
        scope: _Scope,
        place: str,
        owner: str,
        may_not_run: bool,
    ) -> tuple[Function, list[Expr]]:
        """A subgraph as a function of `params` and of the values it captures, some `known` by other names inside.

        `owner` names the node that the sizes of the body belong to.
        """
        with self.session.body_of(owner, may_not_run):
            with self.session.assuming(place):
                outputs = self._subgraph(graph, params, scope, place, known)
            roots, attrs = self.session.finish(outputs)
        taken = free_expressions(Tuple(tuple(roots)), scope.values.ids)
        inner = {id(x): Var(f"outside{i}", x.ty, span=x.span) for i, x in enumerate(taken)}
        return Function((*params, *inner.values()), rewrite_free(Tuple(tuple(roots)), inner), attrs), taken

    def _call(
        self,
        function: FunctionProto,
        inputs: Sequence[Expr | None],
        attributes: Bindings,
        scope: _Scope,
    ) -> list[Expr | None]:
        """Inline a model-local function or an operator's body, applied to `inputs`."""
        where = f"{self.model.name}: function {function.name!r}"
        if scope.depth >= MAX_NESTING:
            raise fault(where, "functions that call each other in a circle, or too deeply")
        if len(inputs) > len(function.input):
            raise OnnxImportError(
                f"the function {function.name!r} takes {len(function.input)} inputs, got {len(inputs)}"
            )
        defaults = {a.name: a for a in function.attribute_proto}
        imports = function.opset_import
        opsets = with_implied(opset_table(imports, where)) if len(imports) else scope.opsets
        values = _Values()
        values.update({n: x for n, x in zip(function.input, inputs, strict=False) if x is not None})
        body = _Scope(values, opsets, {**defaults, **attributes}, where, scope.depth + 1)
        absent = set(function.input) - set(values)
        nodes = with_gradient_bodies(function.node, where)
        for node in ordered_nodes(nodes, {*values, *absent}, function.output, where):
            self._convert(without_inputs(node, absent), body)
        return [body.values.get(name) for name in function.output]

    def _store(self, node: NodeProto, results: Sequence[Expr | None], scope: _Scope, place: str) -> None:
        if len(node.output) > len(results):
            problem = f"{len(node.output)} outputs of an operator that has {len(results)}"
            raise fault(place, problem)
        for name, result in zip(node.output, results, strict=False):
            if result is not None and name:
                scope.values[name] = result
            elif name:
                scope.values.absent[name] = place

    # checks -----------------------------------------------------------------------------------------------------------

    def _check_unique(self, graph: GraphProto) -> None:
        seen: set[str] = set()
        for value in graph.input:
            if value.name == "" or value.name in seen:
                raise fault(self.model.name, f"two inputs are named {value.name!r}, or one has no name")
            seen.add(value.name)

    def _bound(self, constants: Mapping[str, np.ndarray], types: Mapping[str, TensorType]) -> dict[str, Expr]:
        bound: dict[str, Expr] = {}
        for name, value in constants.items():
            if name not in types:
                known = ", ".join(map(repr, types))
                raise fault(
                    self.model.name, f"constants= names {name!r}, which is no input", expected=f"one of {known}"
                )
            constant = constant_of(value, Span(self.model.name, name), f"{self.model.name}: input {name!r}")
            ty = types[name]
            fits = constant.ty.ndim == ty.ndim and all(
                not isinstance(want, int) or want == got for want, got in zip(ty.shape, constant.ty.shape, strict=True)
            )
            if constant.ty.dtype != ty.dtype or not fits:
                raise fault(f"{self.model.name}: input {name!r}", f"constants= gives {constant.ty}", expected=str(ty))
            bound[name] = constant
        return bound

    def _check_output(self, name: str, declared: Any, expr: Expr) -> None:
        """Check that the declared element type of an output is the computed one."""
        where = f"{self.model.name}: output {name!r}"
        if not isinstance(expr.ty, TensorType):
            if declared is not None and declared.HasField("tensor_type") and declared.tensor_type.elem_type:
                raise fault(where, "it is computed as a sequence", expected="a tensor, as declared")
            return
        if declared is None or not declared.HasField("tensor_type") or declared.tensor_type.elem_type == 0:
            return
        expected = dtype_name(declared.tensor_type.elem_type, where)
        if expr.ty.dtype != expected:
            raise fault(where, f"it is computed as {expr.ty}", expected=f"{expected}, as declared")

    def with_sizes(self, result: tuple[IRModule, Params]) -> tuple[IRModule, Params]:
        """The module with the tensors that bind size variables as further outputs, and the size checks."""
        module, params = result
        main: Function = module["main"]
        outputs = main.results
        roots, attrs = self.session.finish(outputs)
        if not attrs:
            return result
        body = Tuple(tuple(roots)) if len(roots) > len(outputs) else main.body
        function = Function(main.params, body, {**main.attrs, **attrs})
        return module.with_function("main", function), params


class _Initializers:
    """Initializers of one graph by name, converted on first use; `in` also finds the scope's names."""

    def __init__(self, importer: _Importer, graph: GraphProto, scope: _Scope) -> None:
        self.importer, self.scope = importer, scope
        self.protos: dict[str, Any] = {}
        for name, proto in [(t.name, t) for t in graph.initializer] + [
            (s.values.name, s) for s in graph.sparse_initializer
        ]:
            if name in self.protos:
                raise fault(scope.where, f"two initializers are named {name!r}")
            self.protos[name] = proto
        if graph is importer.model.graph:  # an input that `shape` or `constants` names is the user's
            self.protos = {name: proto for name, proto in self.protos.items() if name not in scope.values}
        self.declared = {value.name: value.type for value in graph.input if value.name in self.protos}
        self.raw_data: RawData = importer.model.raw_data if graph is importer.model.graph else {}

    def __contains__(self, name: object) -> bool:
        return name in self.protos or name in self.scope.values

    def materialise(self, name: str) -> None:
        """Convert the initializer `name`, if there is one, into the scope."""
        proto = self.protos.pop(name, None)
        if proto is None:
            return
        importer, scope = self.importer, self.scope
        where = f"{scope.where}: initializer {name!r}"
        span, raw_data = Span(importer.model.name, name), self.raw_data.get(name)
        frozen = importer.freeze_params or scope.depth > 0
        stored = importer.session.stored(proto, where, raw_data, span) if frozen else None
        if stored is not None:
            self._check_declared(name, stored.ty.static_shape, str(stored.dtype), where)
            scope.values[name] = stored
            return
        data = importer.session.tensor(proto, where, raw_data)
        self._check_declared(name, data.shape, data.dtype.name, where)
        if frozen:
            scope.values[name] = Constant(data, span=span)
            return
        param = Var(name=name, ty=TensorType(data.shape, data.dtype.name), span=span)
        importer.params[name] = data
        importer.param_vars.append(param)
        scope.values[name] = param

    def _check_declared(self, name: str, shape: tuple[int, ...], dtype: str, where: str) -> None:
        """Check that an initializer that is also listed as an input has the declared type."""
        declared = self.declared.get(name)
        if declared is None or not declared.HasField("tensor_type"):
            return
        tensor = declared.tensor_type
        if tensor.elem_type and dtype_name(tensor.elem_type, where) != dtype:
            expected = dtype_name(tensor.elem_type, where)
            raise fault(where, f"it holds {dtype}", expected=f"{expected}, as the input says")
        if not tensor.HasField("shape"):
            return
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        if len(dims) != len(shape) or any(d is not None and d != n for d, n in zip(dims, shape, strict=True)):
            raise fault(where, f"its shape is {list(shape)}", expected=f"{dims}, as the input says")


def _check_strings(node: OnnxNode) -> None:
    """Check which inputs are strings before a converter computes with known ones."""
    wanted = string_inputs(node.domain, node.op_type, node.opset)
    for i, (x, is_text) in enumerate(zip(node.inputs, wanted, strict=False)):
        if x is None or is_text is None or not isinstance(x.ty, TensorType):
            continue
        if (x.ty.dtype == "string") != is_text:
            raise node.error(f"input {i} is {x.ty}", expected="strings" if is_text else "no strings")


def _located(error: Exception, place: str, inputs: Sequence[Expr | None]) -> CompileError:
    """Add the node to the message of `error`, unless it names its place already."""
    text = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
    if isinstance(error, OnnxImportError) and ": " in text.split("\n", 1)[0] and place.split(": ", 1)[0] in text:
        return error
    found = ", ".join("(none)" if x is None else str(x.ty) for x in inputs)
    return fault(place, text, found=found)


def _as_sequence(result: Result) -> Sequence[Expr | None]:
    """The outputs as a sequence; a tuple-valued call gives its fields."""
    if not isinstance(result, Expr):
        return result
    if isinstance(result, Tuple):
        return result.fields
    if isinstance(result.ty, TupleType):
        return [TupleGetItem(result, index) for index in range(len(result.ty.fields))]
    return [result]
