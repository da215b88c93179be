"""If and Loop: resolved and unrolled at compile time where possible, else run by the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from relayc.frontends.onnx.containers import joined_type, value_type
from relayc.frontends.onnx.errors import NothingInsideError, UnsupportedOperatorError, ValueNeededError
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.appended import appended_sequences, stacking_body
from relayc.frontends.onnx.ops.common import question_of_one, take_as_one
from relayc.frontends.onnx.ops.embedding_bag import embedding_bag_loop
from relayc.frontends.onnx.ops.flow import (
    Body,
    ValueType,
    contained,
    fields_of,
    loop_variables,
    may_be_ones,
    ones,
    outputs_of,
    outside_type,
    settled_body,
    unchanged,
    unsettled,
    with_outputs,
    without_carried,
)
from relayc.frontends.onnx.ops.repeat_interleave import repeated_parts_loop
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.container_type import ContainerType, ElementType, SequenceType
from relayc.relay.errors import InternalCompileError
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, const
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import dims_equal, size_variables
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.tir import Dim, Var as SizeVariable

MAX_ITERATIONS = 1024
"""Most iterations of a loop that has to be unrolled."""

UNROLLED = 16
"""Most iterations of loops that are unrolled by preference."""

MOST_TRIPS = (1 << 62) - 1


@converter("If")
def if_(node: OnnxNode) -> Sequence[Expr]:
    """A constant condition selects the branch at compile time.

    Compiled models can't have results of two ranks, as of exporters' test whether a size is 1 before a squeeze, nor a
    branch that can't be typed. The model is then compiled for one branch, which is checked, and has another version for
    the other one.
    """
    known = node.known_value(0)
    graphs = [node.attr_graph("then_branch"), node.attr_graph("else_branch")]
    if known is not None:
        return node.convert_graph(graphs[0 if bool(known.reshape(-1)[0]) else 1], [])
    if len(graphs[0].output) != len(graphs[1].output):
        counts = f"{len(graphs[0].output)} and {len(graphs[1].output)}"
        raise node.error(f"branches of {counts} outputs", expected="as many of each")
    question = _Question.of(node)
    answer = node.answer(question.key)
    if answer is not None:
        return _branch(node, graphs, question, answer, "")
    try:
        with node.attempt():
            return _if_dynamic(node, graphs)
    except (NothingInsideError, InternalCompileError):
        raise
    except CompileError as error:
        return _one_branch(node, graphs, question, error)


@dataclass(frozen=True)
class _Question:
    """What decides an If: whether `size` is 1, if that is known, else its condition.

    Nodes with equal keys have one answer in a version of the model. The condition is the answer, or with `negated` its
    opposite.
    """

    key: str
    size: Dim | None
    negated: bool

    @staticmethod
    def of(node: OnnxNode) -> _Question:
        compared = _must_be_one(node, node[0])
        if compared is None:
            return _Question(node.where, None, False)
        return _Question(question_of_one(compared[0]), compared[0], not compared[1])


def _one_branch(
    node: OnnxNode, graphs: Sequence[GraphProto], question: _Question, error: CompileError
) -> Sequence[Expr]:
    """The branch for sizes other than 1, or the first one, if it can be converted, else the other one."""
    why = f" (the branches don't fit together: {str(error).splitlines()[0]})"
    for answer in (question.size is None, question.size is not None):
        try:
            with node.attempt():
                return _branch(node, graphs, question, answer, why)
        except InternalCompileError:
            raise
        except CompileError:
            continue
    raise error


def _branch(
    node: OnnxNode, graphs: Sequence[GraphProto], question: _Question, answer: bool, why: str
) -> Sequence[Expr]:
    """The branch for one answer, which is checked at run time; the error then says `why`."""
    results = node.convert_graph(graphs[0 if answer != question.negated else 1], [])
    if question.size is not None:
        take_as_one(node, question.size, answer, why)
        return results
    node.ask(question.key, answer)
    (passed,) = node.bind(op.cast(op.reshape(node[0], (1,)), "int64"), "the condition")
    node.check_equal(passed, int(answer), f"compiled for {answer} as the condition{why},")
    return results


def _must_be_one(node: OnnxNode, condition: Expr) -> tuple[Dim, bool] | None:
    """The size that a condition compares with 1, and whether for equality; None for other conditions."""
    equality = True
    while isinstance(condition, Call) and isinstance(condition.op, OpDef):
        name = condition.op.name
        if name not in ("cast", "reshape", "squeeze", "expand_dims", "logical_not"):
            break
        equality ^= name == "logical_not"
        condition = condition.args[0]
    if not isinstance(condition, Call) or not isinstance(condition.op, OpDef) or condition.op.name != "equal":
        return None
    known = [node.with_inputs([x]).sizes_or_none(0) for x in condition.args]
    sizes = [d[0] for d in known if d is not None and len(d) == 1]
    if len(sizes) != 2 or 1 not in [d for d in sizes if isinstance(d, int)]:
        return None
    return next(((d, equality) for d in sizes if not isinstance(d, int)), None)


def _if_dynamic(node: OnnxNode, graphs: Sequence[GraphProto]) -> Sequence[Expr]:
    (then_branch, then_args), (else_branch, else_args) = _branches(node, graphs)
    outputs = [outputs_of(branch, graphs[0]) for branch in (then_branch, else_branch)]
    results = [_joined(node, k, value_type(a), value_type(b)) for k, (a, b) in enumerate(zip(*outputs, strict=True))]
    branches = [
        with_outputs(branch, contained(node, passed, results))
        for branch, passed in zip((then_branch, else_branch), outputs, strict=True)
    ]
    return fields_of(op.if_else(node[0], branches[0], branches[1], then_args, else_args, results))


def constant_branches(x: Expr) -> tuple[Expr, Expr, Expr] | None:
    """The condition and the tensors of both branches, if `x` is the result of an If of constants of one rank."""
    call = x.tuple_value if isinstance(x, TupleGetItem) else None
    if not isinstance(x, TupleGetItem) or not isinstance(call, Call) or not isinstance(call.op, op.IfElse):
        return None
    condition, *passed = call.args
    branches = call.op.bodies()
    arguments = dict(zip([id(p) for branch in branches for p in branch.params], passed, strict=True))
    then_value, else_value = [arguments.get(id(y), y) for y in (branch.results[x.index] for branch in branches)]
    constant = isinstance(then_value, Constant) and isinstance(else_value, Constant)
    return (condition, then_value, else_value) if constant else None


def _branches(node: OnnxNode, graphs: Sequence[GraphProto]) -> list[tuple[Function, list[Expr]]]:
    """Both branches as functions.

    During type inference of an enclosing loop, its containers may still appear empty. A branch that reads their
    elements is unreachable then, and is replaced by the other one until the types are refined.
    """
    closed: list[tuple[Function, list[Expr]] | NothingInsideError] = []
    for graph in graphs:
        try:
            with node.attempt():
                closed.append(node.close_graph(graph, [], may_not_run=True))
        except NothingInsideError as error:
            closed.append(error)
    reached = [branch for branch in closed if not isinstance(branch, NothingInsideError)]
    unreached = [error for error in closed if isinstance(error, NothingInsideError)]
    if unreached:
        if not reached or not node.unreached:
            raise unreached[0]
        node.unreached[-1].append(unreached[0])
        return [reached[0], reached[0]]
    return reached


def _joined(node: OnnxNode, k: int, a: ValueType, b: ValueType) -> ValueType:
    """The common type of result `k`, of type `a` in one branch and `b` in the other."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return outside_type(node, joined_type(a, b))
    if a.dtype != b.dtype or a.ndim != b.ndim:
        what = f"the condition, which makes output {k} {a} or {b}, is computed at run time"
        raise node.value_needed(what, node[0])
    differ = [i for i, (d, e) in enumerate(zip(a.shape, b.shape, strict=True)) if not _outside(d, e)]
    return node.fresh_sizes(a, differ, f"#result{k}", ones=ones(node, a, b))


def _outside(d: Dim, e: Dim) -> bool:
    """Are the two sizes equal and defined outside of the bodies?"""
    return dims_equal(d, e) and not any(n.startswith("#") for n in size_variables((d,)))


@converter("Loop")
def loop(node: OnnxNode) -> Sequence[Expr]:
    """Short loops of static trip count are unrolled; embedding bags and repeated parts become operators.

    Body inputs: iteration, condition, carried values; outputs: condition, carried values, scan outputs. Loops whose
    values change their rank are unrolled too; the executor runs all others.
    """
    bags = embedding_bag_loop(node)
    if bags is not None:
        return [bags]
    repeated = repeated_parts_loop(node)
    if repeated is not None:
        return [repeated]
    trips, condition = node.known_value(0), node.known_value(1)
    count = None if trips is None else int(trips.reshape(-1)[0])
    if count is not None and count <= UNROLLED and (node.get(1) is None or condition is not None):
        try:
            with node.attempt():
                return _unrolled_loop(node)
        except UnsupportedOperatorError:
            return _loop_dynamic(node)
    try:
        with node.attempt():
            return _loop_dynamic(node)
    except (UnsupportedOperatorError, ValueNeededError):
        if count is None or count > MAX_ITERATIONS:
            raise
        return _unrolled_loop(node)


def _loop_dynamic(node: OnnxNode) -> Sequence[Expr]:
    body, carried = _body_and_carried(node)
    appended = appended_sequences(body, carried)
    if appended:
        try:
            with node.attempt():
                return _loop_of_stacks(node, body, carried, appended)
        except CompileError:  # elements that can't be stacked
            pass
    return _loop_of(node, body, carried)


def _loop_of_stacks(
    node: OnnxNode, body: GraphProto, carried: Sequence[Expr], appended: Sequence[int]
) -> Sequence[Expr]:
    """A loop whose sequences `appended` are stacked, and cut into sequences after it."""
    kept = [value for k, value in enumerate(carried) if k not in appended]
    results = list(_loop_of(node, stacking_body(body, appended), kept))
    stacks = results[len(results) - len(appended) :]
    del results[len(results) - len(appended) :]
    for k, stack in zip(appended, stacks, strict=True):
        ty = stack.tensor_type
        if unsettled(ty) != [0]:
            raise node.unsupported(f"the elements of carried value {k}, whose sizes differ, as a stack")
        sequence = SequenceType(ElementType(ty.shape[1:], ty.dtype))
        results.insert(k, op.sequence.cut(stack, None, 0, False, sequence))
    return results


def _loop_of(node: OnnxNode, body: GraphProto, carried: Sequence[Expr]) -> Sequence[Expr]:
    """A loop of the carried values that change. The body reads the others, as TensorFlow's loops have, from outside."""
    kept = unchanged(body, len(carried), 2, 1)
    known = {name: carried[k] for k, name in kept.items()}
    moving = [value for k, value in enumerate(carried) if k not in kept]
    settled = settled_body(node, without_carried(body, kept, 2, 1), moving, loop_variables(), first=1, known=known)
    _check_containers(node, settled, len(moving))
    inputs = contained(node, moving, settled.types)
    results = loop_results(node, settled, len(moving))
    trips = const(np.array(MOST_TRIPS, np.int64)) if node.get(0) is None else op.cast(node[0], "int64")
    condition = const(np.array(True)) if node.get(1) is None else node[1]
    found = fields_of(op.while_loop(trips, condition, inputs, settled.outside, settled.function, results))
    for k in kept:
        found.insert(k, carried[k])
    return found


def _body_and_carried(node: OnnxNode) -> tuple[GraphProto, list[Expr]]:
    """A loop's body and the initial carried values."""
    body = node.attr_graph("body")
    carried = [node[i] for i in range(2, len(node))]
    if len(body.output) < 1 + len(carried) or len(body.input) != 2 + len(carried):
        raise node.error(
            f"a body of {len(body.input)} inputs and {len(body.output)} outputs",
            expected=f"{2 + len(carried)} inputs and at least {1 + len(carried)} outputs",
        )
    return body, carried


def loop_results(node: OnnxNode, body: Body, carried: int) -> list[ValueType]:
    """The types of the final carried values and of the stacked outputs."""
    results: list[ValueType] = []
    iterations = _known_iterations(node, body.function)
    for k, ty in enumerate(body.types):
        if isinstance(ty, ContainerType):
            results.append(ty)
        elif k < carried:
            results.append(node.fresh_sizes(ty, unsettled(ty), f"#result{k}", ones=may_be_ones(node, ty)))
        else:
            stack = ty.with_shape((1 if iterations is None else iterations, *ty.shape))
            late = [0] if iterations is None else []
            results.append(node.fresh_sizes(stack, [*late, *unsettled(stack)], f"#result{k}"))
    return results


def _known_iterations(node: OnnxNode, body: Function) -> Dim | None:
    """The number of iterations of a loop that no condition ends, and whose trip count is a number or a dimension."""
    trips = None if node.get(0) is None else node.sizes_or_none(0)
    assert isinstance(body.body, Tuple)
    conditions = [body.body.fields[0], *([] if node.get(1) is None else [node[1]])]
    if trips is None or len(trips) != 1 or not all(x is body.params[1] or _is_true(x) for x in conditions):
        return None
    return max(trips[0], 0) if isinstance(trips[0], int) else trips[0] if isinstance(trips[0], SizeVariable) else None


def _is_true(x: Expr) -> bool:
    return isinstance(x, Constant) and bool(x.data.all())


def _check_containers(node: OnnxNode, body: Body, carried: int) -> None:
    """Check that stacked outputs are tensors, and that containers hold tensors of one rank."""
    trips = node.known_value(0)
    can_unroll = trips is not None and int(trips.reshape(-1)[0]) <= MAX_ITERATIONS
    for k, ty in enumerate(body.types):
        if not isinstance(ty, ContainerType):
            continue
        if k >= carried:
            raise node.error(f"output {1 + k} of the body, which is stacked, is {ty}", expected="a tensor")
        if can_unroll and ty.tensors.dtype is not None and ty.tensors.shape is None:
            raise node.unsupported(f"the carried value {k} holds tensors of several ranks")


def _unrolled_loop(node: OnnxNode) -> Sequence[Expr]:
    body, carried = _body_and_carried(node)
    trips = node.constant_or_none(0, "the trip count")
    condition = node.constant_or_none(1, "the condition")
    limit = MAX_ITERATIONS + 1 if trips is None else int(trips.reshape(-1)[0])
    alive = True if condition is None else bool(condition.reshape(-1)[0])
    collected: list[list[Expr]] = [[] for _ in body.output[1 + len(carried) :]]
    iteration = 0
    while alive and iteration < limit:
        if iteration >= MAX_ITERATIONS:
            raise node.unsupported(f"a loop of more than {MAX_ITERATIONS} iterations")
        args = [Constant(np.array(iteration, np.int64)), Constant(np.array(True)), *carried]
        results = node.convert_graph(body, args)
        alive = _known_condition(node, results[0])
        carried = results[1 : 1 + len(carried)]
        for values, value in zip(collected, results[1 + len(carried) :], strict=True):
            values.append(value)
        iteration += 1
    return [*carried, *(stacked(node, values, 0) for values in collected)]


def _known_condition(node: OnnxNode, condition: Expr) -> bool:
    value = node.value_or_none(condition)
    if value is None:
        raise node.unsupported(
            "the number of iterations depends on values computed at run time",
            expected="a loop whose end is known when compiling",
        )
    return bool(value.reshape(-1)[0])


def stacked(node: OnnxNode, values: Sequence[Expr], axis: int) -> Expr:
    """Stack the values of all iterations along a new axis."""
    if not values:
        raise node.unsupported("a scanned output of no iterations")
    return op.concatenate([op.expand_dims(value, axis) for value in values], axis=axis)
