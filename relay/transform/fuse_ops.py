"""FuseOps: partitions the graph into fused functions, each of which becomes one kernel.

Fusion follows the operators' patterns and post-dominators, as in Chen et al., "TVM: An Automated End-to-End Optimizing
Compiler for Deep Learning" (OSDI 2018): a node is merged with its immediate post-dominator, together with everything on
the paths between them, if every node there is simple enough. The post-dominator condition makes each group convex with
a single result, so nothing is computed twice and nothing inside is needed outside.

- A heavy operator (`OUT_FUSABLE`) or a reduction takes the elementwise operators after it as its epilogue, as long as
  they keep its shape.
- Elementwise and broadcasting operators merge with each other, with injective operators, and forward into reductions
  and into heavy operators that read each input element a few times only (`reads_inputs_once`).
- Injective operators merge with each other.
- Concatenations (`joins_inputs`) read their inputs and do not compute them in each branch; nor is work repeated inside
  an operator that broadcasts its input.
- With `permutes_into_products`, transposes and slices (`permutes_elements`) become part of the product that reads them.
- With `looks_up_in_products`, matrices that are chosen at run time (`looks_up`) become part of the product of each with
  one row, which reads each element once: a copy of them would be written and read besides.
- Conversions of int8 and uint8 to floats become part of a depthwise or Winograd convolution that reads them, and like
  those of 16-bit floats of the epilogue of a heavy operator, so that memory between kernels holds the smaller type.
- Data movement and elementwise operators become part of the operator that copies its input anyway
  (`num_copied_inputs`).
- Views at the edge of a group stay outside: there they cost nothing, inside they would complicate every index.
- The formula of a group stays small: see `relay.transform.fused_formula`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard, cast

from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.broadcast import Where
from relayc.relay.op.elementwise import Cast
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.dense import BatchMatmul
from relayc.relay.op.nn.winograd import Conv2DNHWCWinograd
from relayc.relay.sizes import likely, product
from relayc.relay.transform.fused_formula import MAX_DEPTH, is_small_formula
from relayc.relay.type import TensorType, shapes_equal
from relayc.te.ir import IRModule, Pass, PassContext, post_order

__all__ = ["FuseOps"]

_MOST_REPETITION = 4
"""Maximum number of times that an elementwise operator may be recomputed to save writing its result."""

_CHEAP = 4
"""Maximum number of operators of a conversion from a smaller type to float32 that is fused, so that the smaller data is
read."""

Admits = Callable[[OpPattern, "_Group", bool], bool]


class _Group:
    """A set of nodes to fuse: union-find with the strongest pattern among them."""

    __slots__ = ("anchor", "computes", "is_elementwise", "last", "looks_up", "members", "moves", "parent", "pattern",
                 "reads_once", "widens")  # fmt: skip

    def __init__(self, node: int, expr: Expr) -> None:
        pattern, reads_once, moves = _pattern(expr), _reads_once(expr), _moves(expr)
        self.parent: _Group | None = None
        self.pattern = pattern
        self.anchor = node  # the position of a node of that pattern
        self.widens = _widens(expr)  # does a node convert bytes, or 16-bit floats, to floats?
        self.reads_once = reads_once
        self.moves = moves  # does every node only move elements?
        self.looks_up = _looks_up(expr)  # does a node read elements at positions that a tensor holds?
        self.computes = pattern <= OpPattern.BROADCAST  # is any node arithmetic?
        self.members = [node]
        self.last = node  # the position of its result
        self.is_elementwise = True  # does every node that reads another read one element of it for one of its own?

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.members)

    def find(self) -> _Group:
        """The representative of the set; paths are compressed."""
        root = self
        while root.parent is not None:
            root = root.parent
        node = self
        while node.parent is not None:
            node.parent, node = root, node.parent
        return root

    def merge_into(self, other: _Group) -> None:
        """Union; the stronger pattern wins."""
        child, root = self.find(), other.find()
        if child is not root:
            child.parent = root
            root.members += child.members
            root.last = max(root.last, child.last)
            root.moves = root.moves and child.moves
            root.computes = root.computes or child.computes
            root.looks_up = root.looks_up or child.looks_up
            root.widens = root.widens or child.widens
            if child.pattern > root.pattern:
                root.pattern, root.reads_once, root.anchor = child.pattern, child.reads_once, child.anchor


def _pattern(expr: Expr) -> OpPattern:
    match expr:
        case Call(op=OpDef() as op):
            return op.pattern
        case Tuple():
            return OpPattern.TUPLE
        case TupleGetItem():
            return OpPattern.INJECTIVE
        case _:
            return OpPattern.OPAQUE


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, Var | Constant)


class _Dataflow:
    """The nodes of a body, their users and immediate post-dominators, all by position in evaluation order."""

    def __init__(self, body: Expr) -> None:
        self.nodes = [e for e in cast("list[Expr]", list(post_order(body))) if not _is_leaf(e)]
        self.index = {id(e): i for i, e in enumerate(self.nodes)}
        self.users: list[list[int]] = [[] for _ in self.nodes]
        for i, e in enumerate(self.nodes):
            for child in e.node_children():
                if id(child) in self.index:
                    self.users[self.index[id(child)]].append(i)
        self.post_dominator = immediate_post_dominators(self.users)

    def between(self, source: int, sink: int, limit: int) -> list[int] | None:
        """The nodes on all paths from `source` to its post-dominator `sink`, both excluded; None if over `limit`."""
        seen: set[int] = set()
        stack = list(self.users[source])
        while stack:
            node = stack.pop()
            if node != sink and node not in seen:
                seen.add(node)
                if len(seen) > limit:
                    return None
                stack.extend(self.users[node])
        return sorted(seen)

    def edge_pattern(self, producer: int, user: int) -> OpPattern:
        """The pattern of the edge: broadcasting that does not change the shape counts as elementwise."""
        pattern = _pattern(self.nodes[user])
        if pattern == OpPattern.BROADCAST:
            before, after = self.nodes[producer].ty, self.nodes[user].ty
            if isinstance(before, TensorType) and isinstance(after, TensorType):
                return OpPattern.ELEMWISE if shapes_equal(before.shape, after.shape) else pattern
        return pattern

    def reads_one_place(self, producer: int, user: int) -> bool:
        """Does `user` always read one element of `producer` for an element of its own?"""
        e = self.nodes[user]
        chooses = isinstance(e, Call) and isinstance(e.op, Where)
        return not chooses and self.edge_pattern(producer, user) == OpPattern.ELEMWISE

    def is_elementwise(self, source: int, path: list[int]) -> bool:
        """Do all nodes on the way from `source` through `path` read their operands element by element?"""
        nodes = (source, *path)
        return all(self.edge_pattern(node, user) == OpPattern.ELEMWISE for node in nodes for user in self.users[node])

    def repeats(self, source: int, sink: int) -> bool:
        """Would each element of `source` be computed several times, by `sink` or by its readers on the way?"""
        before = self.nodes[source].ty
        if not isinstance(before, TensorType):
            return False
        moved = [user for user in self.users[source] if self.edge_pattern(source, user) != OpPattern.ELEMWISE]
        reads = max(self._elements(sink), sum(map(self._elements, moved)))
        return reads > _MOST_REPETITION * _elements(before)

    def _elements(self, node: int) -> int:
        ty = self.nodes[node].ty
        return _elements(ty) if isinstance(ty, TensorType) else 0


def _elements(ty: TensorType) -> int:
    """The number of elements, or an estimate of it."""
    return likely(product(ty.shape)) if ty.size is None else ty.size


def immediate_post_dominators(users: Sequence[Sequence[int]]) -> dict[int, int]:
    """Maps each node to the first node that all paths from it to the last node have in common.

    `users` has the users of each node, which come after it; every node but the last has some. One walk from the end up
    the tree of post-dominators found so far, as in Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
    """
    found: dict[int, int] = {}
    for node in reversed(range(len(users) - 1)):
        common, *others = users[node]
        for user in others:
            while common != user:
                if common < user:
                    common = found[common]
                else:
                    user = found[user]
        found[node] = common
    return found


class _Partition:
    """Decides the groups of one body."""

    def __init__(self, body: Expr, max_size: int, permutes_into_products: bool, looks_up_in_products: bool) -> None:
        self.flow = _Dataflow(body)
        self.max_size = max_size
        self.groups = [_Group(i, e) for i, e in enumerate(self.flow.nodes)]
        if max_size > 1:
            self._read_bytes()
        rules = [self._epilogues, self._elementwise, self._injective, self._widened_operands, self._copied_operands]
        rules += [self._moved_operands] if permutes_into_products else []
        rules += [self._looked_up_operands] if looks_up_in_products else []
        for rule in rules:
            for node in range(len(self.groups)):
                sink = self.flow.post_dominator.get(node)
                if sink is not None and self._open(node, sink):
                    path = self.flow.between(node, sink, max_size)
                    if path is not None:
                        rule(node, sink, path)

    def _open(self, node: int, sink: int) -> bool:
        group, target = self.groups[node].find(), self.groups[sink].find()
        closed = OpPattern.TUPLE in (group.pattern, target.pattern) or group.pattern == OpPattern.OPAQUE
        return group is not target and not closed and group.size < self.max_size

    def _read_bytes(self) -> None:
        """Fuse conversions of 8-bit integers that only a depthwise or Winograd convolution reads into it."""
        for sink, e in enumerate(self.flow.nodes):
            if not _reads_bytes(e):
                continue
            chain, source = [], e.args[0]
            while self._is_elementwise_step(source):
                chain.append(self.flow.index[id(source)])
                if _widens_bytes(source):
                    for node in chain:
                        self.groups[node].merge_into(self.groups[sink])
                    break
                source = source.args[0]

    def _is_elementwise_step(self, e: Expr) -> TypeGuard[Call]:
        """Is it one elementwise operator on a tensor and scalars, with a single user?"""
        if not isinstance(e, Call) or _pattern(e) > OpPattern.BROADCAST:
            return False
        if len(self.flow.users[self.flow.index[id(e)]]) > 1:
            return False
        return all(isinstance(a, Constant) and not a.shape for a in e.args[1:])

    def _widened_operands(self, node: int, sink: int, path: list[int]) -> None:
        group, target = self.groups[node].find(), self.groups[sink].find()
        cheap = group.widens and group.pattern <= OpPattern.BROADCAST and group.size <= _CHEAP
        in_epilogue = self._is_in_epilogue(sink) and not path
        if cheap and in_epilogue and self.flow.edge_pattern(node, sink) == OpPattern.ELEMWISE:
            group.merge_into(target)

    def _epilogues(self, node: int, sink: int, path: list[int]) -> None:
        if self.groups[node].find().pattern not in (OpPattern.OUT_FUSABLE, OpPattern.COMM_REDUCE):
            return
        if self.flow.is_elementwise(node, path) and not self._is_widened_elsewhere(sink):
            self._fuse(node, sink, path, lambda pattern, group, is_sink: pattern <= OpPattern.BROADCAST)

    def _is_widened_elsewhere(self, node: int) -> bool:
        """Is a smaller type converted to floats there that reach, few steps on, the epilogue of another heavy
        operator?"""
        if not _widens(self.flow.nodes[node]):
            return False
        read = node
        for _ in range(_CHEAP):
            if not self._is_elementwise_step(self.flow.nodes[node]):
                break
            read, (node,) = node, self.flow.users[node] or [node]
        return self._is_in_epilogue(node) and self.flow.edge_pattern(read, node) == OpPattern.ELEMWISE

    def _is_in_epilogue(self, node: int) -> bool:
        """Is a node in the epilogue of a heavy operator?"""
        group = self.groups[node].find()
        return group.pattern == OpPattern.OUT_FUSABLE and group.anchor < node

    def _elementwise(self, node: int, sink: int, path: list[int]) -> None:
        if self.groups[node].find().pattern > OpPattern.BROADCAST or self.flow.repeats(node, sink):
            return
        if self._reaches_concatenation((*path, sink)):
            return

        def admits(pattern: OpPattern, group: _Group, is_sink: bool) -> bool:
            reads_once = pattern == OpPattern.COMM_REDUCE or (pattern == OpPattern.OUT_FUSABLE and group.reads_once)
            return pattern <= OpPattern.INJECTIVE or (is_sink and reads_once)

        self._fuse(node, sink, path, admits)

    def _injective(self, node: int, sink: int, path: list[int]) -> None:
        if self.groups[node].find().computes and self.flow.repeats(node, sink):
            return
        if self.groups[node].find().pattern <= OpPattern.INJECTIVE and not self._reaches_concatenation((*path, sink)):
            self._fuse(node, sink, path, lambda pattern, group, is_sink: pattern <= OpPattern.INJECTIVE)

    def _moved_operands(self, node: int, sink: int, path: list[int]) -> None:
        if not path and self.groups[node].find().moves and _reads_by_index(self.flow.nodes[sink]):
            self._merge((node,), sink)

    def _copied_operands(self, node: int, sink: int, path: list[int]) -> None:
        group = self.groups[node].find()
        copied = _is_copied(self.flow.nodes[node], self.flow.nodes[sink])
        if not path and copied and group.pattern <= OpPattern.INJECTIVE:
            self._merge((node,), sink)

    def _looked_up_operands(self, node: int, sink: int, path: list[int]) -> None:
        group = self.groups[node].find()
        streamed = _is_streamed(self.flow.nodes[node], self.flow.nodes[sink])
        if not path and streamed and group.looks_up and not group.computes and group.pattern <= OpPattern.INJECTIVE:
            self._merge((node,), sink)

    def _reaches_concatenation(self, nodes: Sequence[int]) -> bool:
        return any(_joins_inputs(self.flow.nodes[i]) for i in nodes)

    def _fuse(self, node: int, sink: int, path: list[int], admits: Admits) -> None:
        groups = [self.groups[i].find() for i in path]
        target = self.groups[sink].find()
        size = sum(g.size for g in {id(g): g for g in (*groups, target, self.groups[node].find())}.values())
        if size > self.max_size or not admits(target.pattern, target, True):
            return
        if all(admits(g.pattern, g, False) for g in groups):
            self._merge((node, *path), sink)

    def _merge(self, nodes: Sequence[int], sink: int) -> None:
        """Merge the groups of `nodes` into that of `sink`, unless its formula would be large."""
        target = self.groups[sink].find()
        groups = {id(group): group for group in [*[self.groups[i].find() for i in nodes], target]}.values()
        sources = [group.last for group in groups if group is not target]
        reads_elements = all(self.flow.reads_one_place(i, user) for i in sources for user in self.flow.users[i])
        is_elementwise = reads_elements and all(group.is_elementwise for group in groups)
        members = [i for group in groups for i in group.members]
        is_short = is_elementwise and len(members) <= MAX_DEPTH
        if is_short or is_small_formula(members, self.flow.users, self.flow.reads_one_place):
            for i in nodes:
                self.groups[i].merge_into(target)
            target.is_elementwise = is_elementwise

    def members(self) -> Iterator[list[Expr]]:
        """The groups, each in evaluation order, ordered by their last node."""
        by_group: dict[int, list[int]] = {}
        for i, group in enumerate(self.groups):
            by_group.setdefault(id(group.find()), []).append(i)
        split_apart = [part for positions in by_group.values() for part in self._without_outer_views(positions)]
        for positions in sorted(split_apart, key=lambda p: p[-1]):
            yield [self.flow.nodes[i] for i in positions]

    def _without_outer_views(self, positions: list[int]) -> Iterator[list[int]]:
        """A group without the views at its inputs and at its result."""
        inside = {id(self.flow.nodes[i]) for i in positions}
        for i in positions[:-1]:
            e = self.flow.nodes[i]
            field = isinstance(e, TupleGetItem) and id(e.tuple_value) not in inside
            if field or (_is_view(e) and id(e.args[0]) not in inside):
                inside.discard(id(e))
                yield [i]
        kept = [i for i in positions if id(self.flow.nodes[i]) in inside]
        while len(kept) > 1 and _is_view(self.flow.nodes[kept[-1]]):
            yield [kept.pop()]
        yield kept


def _is_view(e: Expr) -> TypeGuard[Call]:
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.is_view and len(e.args) == 1


def _widens_bytes(e: Expr) -> bool:
    """Does it convert bytes to floats?"""
    if not isinstance(e, Call) or not isinstance(e.op, Cast):
        return False
    source = e.args[0].dtype
    return source.is_integral and source.bits == 8 and e.dtype.bits == 32


def _widens(e: Expr) -> bool:
    """Does it convert bytes, or 16-bit floats, to float32?"""
    if not isinstance(e, Call) or not isinstance(e.op, Cast):
        return False
    return _widens_bytes(e) or (e.args[0].dtype in ("float16", "bfloat16") and e.dtype == "float32")


def _reads_bytes(e: Expr) -> TypeGuard[Call]:
    """Does it read bytes as fast as floats? Depthwise and Winograd convolutions do."""
    if not isinstance(e, Call) or not isinstance(e.op, Conv1D | Conv2D | Conv3D | Conv2DNHWCWinograd):
        return False
    return isinstance(e.op, Conv2DNHWCWinograd) or e.op.groups > 1


def _joins_inputs(e: Expr) -> bool:
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.joins_inputs and len(e.args) > 1


def _reads_once(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, OpDef) and expr.op.reads_inputs_once


def _moves(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, OpDef) and (expr.op.permutes_elements or expr.op.is_view)


def _reads_by_index(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, OpDef) and expr.op.reads_by_index


def _looks_up(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, OpDef) and expr.op.looks_up


def _is_streamed(operand: Expr, reader: Expr) -> bool:
    """Is it the matrices, each of which `reader` multiplies with one row, reading it along its own rows?"""
    if not isinstance(reader, Call) or not isinstance(reader.op, BatchMatmul) or not reader.op.transpose_b:
        return False
    left, right = reader.args
    one_row = reader.shape[-2] == 1 and shapes_equal(right.shape[:-2], reader.shape[:-2])
    return right is operand and left is not operand and one_row


def _is_copied(operand: Expr, reader: Expr) -> bool:
    """Does `reader` copy each element of `operand` once, and not use it otherwise?"""
    if not isinstance(reader, Call) or not isinstance(reader.op, OpDef):
        return False
    uses = [i for i, a in enumerate(reader.args) if a is operand]
    return len(uses) == 1 and uses[0] < reader.op.num_copied_inputs


class _Rewriter:
    """Replaces groups by calls of primitive functions."""

    def __init__(self) -> None:
        self.done: dict[int, Expr] = {}

    def outer(self, expr: Expr) -> Expr:
        """The rewritten form of an expression outside the current group."""
        return self.done.get(id(expr), expr)

    def replace_group(self, members: list[Expr]) -> None:
        """Rewrite one group whose inputs are rewritten already."""
        root = members[-1]
        if not any(isinstance(e, Call) and isinstance(e.op, OpDef) for e in members):
            for e in members:
                self.done[id(e)] = e.rebuild(self.outer)
            return
        inside = {id(e) for e in members}
        params: dict[int, Var] = {}
        args: list[Expr] = []
        local: dict[int, Expr] = {}

        def parameter(expr: Expr) -> Expr:
            if isinstance(expr, Constant) and not expr.shape:
                return expr
            if id(expr) not in params:
                params[id(expr)] = Var(f"p{len(params)}", expr.ty)
                args.append(self.outer(expr))
            return params[id(expr)]

        def inner(expr: Expr) -> Expr:
            return local[id(expr)] if id(expr) in local else parameter(expr)

        for e in members:
            if isinstance(e, TupleGetItem) and id(e.tuple_value) not in inside:
                self.done[id(e)] = e.rebuild(self.outer)
                local[id(e)] = parameter(e)
            else:
                local[id(e)] = e.rebuild(inner)
        function = Function(tuple(params.values()), local[id(root)], {"primitive": True})
        self.done[id(root)] = Call(function, tuple(args), span=root.span)


def _fuse_function(function: Function, max_size: int, *options: bool) -> Function:
    if _is_leaf(function.body):
        return function
    rewriter = _Rewriter()
    for members in _Partition(function.body, max_size, *options).members():
        rewriter.replace_group(members)
    return function.with_body(rewriter.outer(function.body))


PassContext.declare_option(
    "relay.FuseOps.max_size", 256, "most operators in one fused function; 1 turns fusion off", least=1
)


@dataclass(frozen=True)
class FuseOps(Pass):
    """Puts every operator call into a function with attribute "primitive"; see the module's docstring."""

    permutes_into_products: bool = False
    looks_up_in_products: bool = False

    opt_level: ClassVar[int] = 0

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        max_size = context.option("relay.FuseOps.max_size") if context.opt_level >= 1 else 1
        options = [each and max_size > 1 for each in (self.permutes_into_products, self.looks_up_in_products)]

        def fused(function: Any) -> Any:
            return _fuse_function(function, max_size, *options) if isinstance(function, Function) else function

        return module.map_functions(fused)
